"""Qronos on whole models: kinds of models and calibration, what is stored, and what is refused."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, LlamaForCausalLM, MixtralConfig

from bakeoff.compress import Qronos
from bakeoff.compress._shared.grid import GridSpec
from bakeoff.compress._shared.hidden_error import hidden_err, hidden_states, language_errors
from bakeoff.compress._shared.quant_linear import QuantLinear, fake_quantize
from bakeoff.compress._shared.quantizer import BakeoffConfig, attach, dequantized, stored_bytes
from bakeoff.compress._shared.streams import clone, walk
from bakeoff.compress.qronos.transforms import incoherent, transformed

pytestmark = pytest.mark.filterwarnings("ignore:.*calibration tokens for layers")
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}


def llama(seed: int = 0, **changes) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = {"num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**SMALL | settings | changes)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():  # gains and biases that are not 1 and 0
        if parameter.ndim == 1:
            parameter.add_(0.1 * torch.randn(parameter.shape))
        elif "proj" in name:
            parameter.mul_(8)
    return model


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=64)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def ids(count: int = 16, length: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(seed))


def same(a: nn.Module, b: nn.Module, tokens: torch.Tensor) -> bool:
    return torch.equal(a(input_ids=tokens).logits, b(input_ids=tokens).logits)


def statistics(model: nn.Module, calibration, **settings):
    """H and G by layer; the layers stay as they are, but for the first in the model, whose weight is halved."""
    found = {}

    def note(name, weight, bias, H, G):
        found[name] = (H, G)
        new = nn.Linear(*reversed(weight.shape), bias=bias is not None).requires_grad_(False)
        new.weight.copy_(weight * (0.5 if name.endswith("0.self_attn.v_proj") else 1))
        if bias is not None:
            new.bias.copy_(bias)
        return new

    walk(model, calibration, note, **settings)
    return found


def inputs_of(model: nn.Module, tokens: torch.Tensor, **settings) -> dict[str, torch.Tensor]:
    """What every layer reads in one plain forward pass, (tokens, N)."""
    seen: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0]}))
    model(input_ids=tokens, **settings)
    return seen


# The walk


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1}, {"attention_bias": True, "mlp_bias": True}])
def test_statistics_are_those_of_two_full_forward_passes(changes: dict):
    model, tokens = llama(**changes), ids()
    quantized = clone(model)
    found = statistics(quantized, [tokens[:5], tokens[5:]], chunk=4)
    exact, noisy = inputs_of(clone(model), tokens), inputs_of(quantized, tokens)
    assert len(found) == 14
    for name, (H, G) in found.items():
        x, y = (seen[name].reshape(-1, seen[name].shape[-1]) for seen in (exact, noisy))
        assert torch.allclose(H, y.T @ y / len(y), rtol=1e-3, atol=1e-5), name
        assert torch.allclose(G, y.T @ x / len(y), rtol=1e-3, atol=1e-5), name
    assert all(torch.equal(*found[f"model.layers.0.self_attn.{name}_proj"]) for name in "qkv")
    assert not torch.allclose(*found["model.layers.1.mlp.down_proj"], rtol=1e-2)


def test_streams_go_on_behind_a_half_without_layers_to_quantize():
    model, tokens = llama(), ids()
    whole = statistics(clone(model), [tokens])
    found = statistics(clone(model), [tokens], skip=("gate_proj", "up_proj", "down_proj"))
    assert len(found) == 8
    assert all(torch.equal(a, b) for name in found for a, b in zip(found[name], whole[name], strict=True))


def test_unpaired_walk_has_the_same_h_and_no_g():
    model, tokens = llama(), ids()
    both, one = statistics(clone(model), [tokens]), statistics(clone(model), [tokens], paired=False)
    assert all(torch.equal(both[name][0], one[name][0]) and one[name][1] is None for name in both)


def test_padding_is_not_counted():
    model, tokens = llama(), ids(8, 20)
    mask = torch.ones_like(tokens)
    mask[:4, :7] = 0  # left padding
    padded = statistics(clone(model), [{"input_ids": tokens, "attention_mask": mask}])
    apart = statistics(clone(model), [tokens[:4, 7:], tokens[4:]])
    for name, (H, G) in padded.items():
        assert torch.allclose(H, apart[name][0], rtol=1e-3, atol=1e-4), name
        assert torch.allclose(G, apart[name][1], rtol=1e-3, atol=1e-4), name


def test_activations_and_cache_are_quantized_in_one_stream_only():
    model, tokens = llama(), ids()
    found = statistics(clone(model), [tokens], act_bits=3)
    x = inputs_of(clone(model), tokens)["model.layers.0.self_attn.q_proj"].reshape(-1, 32)
    y = fake_quantize(x, 3)
    H, G = found["model.layers.0.self_attn.q_proj"]
    assert torch.allclose(H, y.T @ y / len(y), rtol=1e-4)
    assert torch.allclose(G, y.T @ x / len(y), rtol=1e-4, atol=1e-5)
    plain, cached = statistics(clone(model), [tokens]), statistics(clone(model), [tokens], kv_bits=2)
    name = "model.layers.0.self_attn.q_proj"
    assert torch.equal(plain[name][0], cached[name][0])
    name = "model.layers.0.self_attn.o_proj"
    assert not torch.allclose(plain[name][0], cached[name][0], rtol=1e-2)


def test_first_blocks_only():
    model, tokens = llama(), ids()
    quantized = Qronos(3).quantize(clone(model), [tokens], blocks=1)
    kinds = [type(quantized.model.layers[i].mlp.up_proj) for i in range(2)]
    assert kinds == [QuantLinear, nn.Linear]
    told = []
    Qronos(3).quantize(clone(model), [tokens], progress=lambda *words: told.append(words))
    assert [t[:2] for t in told] == [(i + 1, 8) for i in range(8)]


def test_the_given_model_is_changed_in_place_but_none_of_its_tensors():
    model, tokens = llama(), ids()
    before = {name: p.clone() for name, p in model.named_parameters()}
    held = dict(model.named_parameters())
    for transform in ("none", "hadamard", "equalize"):
        copy = clone(model)
        assert Qronos(3, transform=transform).quantize(copy, [tokens]) is copy
    assert all(torch.equal(held[name], before[name]) for name in before)


def test_a_model_that_fails_on_the_way_keeps_its_layers():
    model = llama()
    model.model.layers[1].mlp.up_proj.weight[3, 3] = torch.inf
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj: row 3: the scale inf"):
        Qronos(3).quantize(model, [ids()])
    assert not any(isinstance(m, QuantLinear) for m in model.modules())


# Kinds of models


def test_more_bits_less_error_and_less_than_round_to_nearest():
    model, tokens, test = llama(), ids(64), ids(8, seed=1)
    errors = [float(hidden_err(Qronos(b).quantize(clone(model), [tokens]), model, test, 2).mean()) for b in (2, 4, 8)]
    assert errors[0] > errors[1] > errors[2]
    nearest = clone(model)

    def rtn(name, weight, bias, H, G):
        grid = GridSpec(2).fit(weight)
        return QuantLinear.pack(grid.round(weight), grid, bias)

    walk(nearest, [tokens], rtn, paired=False)
    assert errors[0] < float(hidden_err(nearest, model, test, 2).mean())


def test_gpt2_with_transposed_weights():
    model, tokens = gpt2(), ids()
    quantized = Qronos(8).quantize(clone(model), [tokens])
    assert isinstance(quantized.transformer.h[0].attn.c_attn, QuantLinear)
    assert float(hidden_err(quantized, model, tokens, 2).max()) < 0.02
    assert float(language_errors(quantized, model, tokens)["kl"].max()) < 1e-3


def test_bfloat16_model():
    model, tokens = llama().bfloat16(), ids()
    quantized = Qronos(8).quantize(clone(model), [tokens])
    assert quantized(input_ids=tokens).logits.dtype == torch.bfloat16
    assert float(hidden_err(quantized, model, tokens, 2).max()) < 0.05


def test_biases_stay():
    model = llama(attention_bias=True, mlp_bias=True)
    quantized = Qronos(3).quantize(clone(model), [ids()])
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        first, second = (m.model.layers[0].get_submodule(name).bias for m in (model, quantized))
        assert torch.equal(first, second)


def test_plain_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).requires_grad_(False)
    x = torch.randn(600, 16)
    expected = model(x)
    quantized = Qronos(8, act_bits=8).quantize(model, [x[:300], x[300:]])
    assert float((quantized(x) - expected).norm() / expected.norm()) < 0.02


# Transforms


@pytest.mark.parametrize("transform", ["hadamard", "equalize"])
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1}, {"attention_bias": True, "mlp_bias": True}])
def test_transforms_preserve_the_function(transform: str, changes: dict):
    model, tokens = llama(**changes), ids()
    rewritten = clone(model)
    rotation = transformed(rewritten, transform, [tokens])
    expected = model(input_ids=tokens).logits
    assert float((rewritten(input_ids=tokens).logits - expected).norm() / expected.norm()) < 1e-4
    assert float(hidden_err(rewritten, model, tokens, 1, rotation).max()) < 1e-4
    assert not torch.equal(rewritten.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)


@pytest.mark.parametrize("n", [1, 3, 32, 36, 576])
def test_incoherent_matrix_is_orthogonal(n: int):
    R = incoherent(n)
    assert torch.allclose(R @ R.T, torch.eye(n, dtype=torch.float64), atol=1e-12)
    if n == 32:
        assert torch.allclose(R.abs(), torch.full_like(R, 32**-0.5))


def test_transform_needs_a_llama():
    with pytest.raises(ValueError, match="GPT2LMHeadModel is another"):
        Qronos(3, transform="hadamard").quantize(gpt2(), [ids()])


# Stored and read again

LOAD = """
import sys
import torch
if sys.argv[3] == "with":
    import bakeoff.compress
    assert "torch.nn" in sys.modules and "transformers" not in sys.modules
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
expected = torch.load(sys.argv[2], weights_only=True)
assert torch.equal(model(input_ids=expected["ids"]).logits, expected["logits"]), "other logits"
print("bakeoff" in sys.modules)
"""


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bias", "hadamard", "cache"])
def test_round_trip_in_a_fresh_process(tmp_path, kind: str):
    models = {"gpt2": gpt2, "bias": lambda: llama(attention_bias=True)}
    settings = {"hadamard": {"transform": "hadamard"}, "cache": {"kv_bits": 4, "act_bits": 8}}
    model = models.get(kind, llama)()
    quantized = Qronos(3, **settings.get(kind, {})).quantize(model, [ids()])
    quantized.save_pretrained(tmp_path / "packed")
    torch.save({"ids": ids(), "logits": quantized(input_ids=ids()).logits}, tmp_path / "expected.pt")
    assert fresh(tmp_path / "packed", tmp_path, "with") == "True"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    again.save_pretrained(tmp_path / "again")
    assert fresh(tmp_path / "again", tmp_path, "with") == "True"
    if kind != "cache":  # the plain copy does not quantize activations
        dequantized(quantized).save_pretrained(tmp_path / "plain")
        assert fresh(tmp_path / "plain", tmp_path, "without") == "False"


def fresh(folder, tmp_path, how: str) -> str:
    code = LOAD.replace('"torch.nn" in sys.modules and ', "")
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "expected.pt"), how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_stored_size():
    model = Qronos(2, symmetric=False).quantize(llama(), [ids()])
    layers = [m for m in model.modules() if isinstance(m, QuantLinear)]
    weights = sum(m.in_features * m.out_features for m in layers)
    rows = sum(m.out_features for m in layers)
    assert stored_bytes(model) == weights // 4 + 2 * rows + rows // 4  # scales in float16, zero points of 2 bits


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scheme": "os.system"}, "scheme='os.system'"),
        ({"modules": {"model.nowhere": {"in_features": 32, "out_features": 32}}}, "model.nowhere is no linear layer"),
        ({"modules": {"lm_head": {"in_features": 10**9, "out_features": 1}}}, "lm_head has another shape"),
    ],
)
def test_hostile_config_is_refused(tmp_path, config: dict, message: str):
    model = llama()
    attach(model)
    model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    import json

    raw = json.loads(text)
    raw["quantization_config"] |= config
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


# What is refused


def test_refused_calibration():
    with pytest.raises(ValueError, match="0 calibration tokens cannot determine a 64x64 covariance; give at least 64"):
        Qronos(3).quantize(llama(), [])
    with pytest.raises(ValueError, match="48 calibration tokens cannot determine a 64x64"):
        Qronos(3).quantize(llama(), [ids(2, 24)])
    with pytest.raises(ValueError, match="sequences of 65 tokens, the model's context is 64"):
        Qronos(3).quantize(llama(), [ids(4, 65)])
    with pytest.raises(ValueError, match="blocks=3, the model has 2"):
        Qronos(3).quantize(llama(), [ids()], blocks=3)


def test_few_tokens_are_warned_about():
    with pytest.warns(UserWarning, match="will overfit the calibration text; give 1024 or more"):
        Qronos(3).quantize(llama(), [ids(4, 32)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Qronos(3).quantize(llama(), [ids(32, 32)])


def test_refused_models():
    done = Qronos(3).quantize(llama(), [ids()])
    with pytest.raises(ValueError, match=r"already quantized \(bakeoff\)"):
        Qronos(3).quantize(done, [ids()])
    with pytest.raises(ValueError, match="lm_head shares its weight"):
        Qronos(3, skip=()).quantize(llama(), [ids()])
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.q_proj: group_size 40 .* 32 inputs"):
        Qronos(3, group_size=40).quantize(llama(), [ids()])
    with pytest.raises(ValueError, match=r"no layer to quantize: found ReLU; supported are torch\.nn\.Linear"):
        Qronos(3).quantize(nn.Sequential(nn.ReLU()), [torch.randn(8, 8)])
    experts = MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, max_position_embeddings=64)
    with pytest.raises(ValueError, match=r"supported are torch\.nn\.Linear and transformers"):
        Qronos(3).quantize(AutoModelForCausalLM.from_config(experts), [ids()])


def test_nan_names_the_first_module():
    model = llama()
    model.model.layers[0].self_attn.v_proj.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinite activations at the input of model\.layers\.0\.self_attn\.o"):
        Qronos(3).quantize(model, [ids()])


# The metric


def test_hidden_error_leaves_out_position_0():
    model, tokens = llama(), ids(4)
    assert (hidden_err(model, clone(model), tokens, 2) == 0).all()
    other = clone(model)
    other.model.layers[1].mlp.down_proj.weight = nn.Parameter(model.model.layers[1].mlp.down_proj.weight * 1.1)
    h, noisy = (hidden_states(m, tokens, 2)[:, 1:] for m in (model, other))
    expected = (noisy - h).flatten(1).norm(dim=1) / h.flatten(1).norm(dim=1)
    assert torch.allclose(hidden_err(other, model, tokens, 2).float(), expected, rtol=1e-5)
    full = model(input_ids=tokens, output_hidden_states=True).hidden_states[1]
    assert torch.equal(hidden_states(model, tokens, 1), full)


def test_language_errors_against_the_host():
    model, other, tokens = llama(), llama(1), ids(6)
    found = language_errors(other, model, tokens)
    losses = [other(input_ids=row[None], labels=row[None]).loss for row in tokens]
    assert torch.allclose(found["nll"].float(), torch.stack(losses), rtol=1e-4)
    assert (found["kl"] > 0).all()
    assert float(language_errors(model, clone(model), tokens)["kl"].max()) < 1e-6
    assert BakeoffConfig().to_dict()["quant_method"] == "bakeoff"

"""PT2LLM on models of transformers: which it takes, what it refuses, and checkpoints that load in a fresh process."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from bakeoff.compress import PT2LLM, TernaryLinear
from bakeoff.compress.pt2_llm.blocks import ternarize

SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 64, "initializer_range": 0.2}
GROUPS = [
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ["self_attn.o_proj"],
    ["mlp.gate_proj", "mlp.up_proj"],
    ["mlp.down_proj"],
]


def llama(heads: int = 4, kv_heads: int = 2, tied: bool = False, bias: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "attention_bias": bias, "mlp_bias": bias}
    model = LlamaForCausalLM(LlamaConfig(**SMALL, **heads_of, tie_word_embeddings=tied)).eval()
    if bias:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return model


def tokens(batch: int = 8, length: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids).logits


def alike(model: torch.nn.Module, other: torch.nn.Module) -> float:
    """Share of equal rows in the weights of block 0 and of q, k and v of block 1.

    Not of later layers: a level that hangs on the last bit of a sum falls otherwise in a row once in a while, and then
    the inputs of all later layers are others.
    """
    names = [f"layers.0.{name}" for group in GROUPS for name in group] + [f"layers.1.{name}" for name in GROUPS[0]]
    pairs = [[dense(m.model.get_submodule(name)) for m in (model, other)] for name in names]
    return torch.cat([((a - b).abs().amax(1) < 1e-3).float() for a, b in pairs]).mean().item()


def dense(layer: torch.nn.Module) -> torch.Tensor:
    return layer.dequantize() if isinstance(layer, TernaryLinear) else layer.weight


@torch.no_grad()
def slow(model: torch.nn.Module, ids: torch.Tensor, **options) -> torch.nn.Module:
    """A reference without the shared walk: a hooked pass of the whole model for every group, dense weights."""
    model = copy.deepcopy(model)
    for block in model.model.layers:
        for group in GROUPS:
            seen = []
            hook = block.get_submodule(group[0]).register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0]))
            model(input_ids=ids)
            hook.remove()
            X = seen[0].flatten(0, 1)
            for name in group:
                layer = block.get_submodule(name)
                layer.weight.copy_(ternarize(layer.weight, X.T @ X / len(X), **options).dequantize())
    return model


@pytest.mark.parametrize("kind", [{}, {"tied": True}, {"bias": True}, {"kv_heads": 1}, {"heads": 4, "kv_heads": 4}])
def test_models_are_ternarized_as_by_a_slow_reference(kind):
    model, ids = llama(**kind), tokens()
    reference = slow(model, ids, block_size=16, ssr=False)
    made = PT2LLM(block_size=16, ssr=False).quantize(model, [ids])
    assert made is model
    assert alike(made, reference) > 0.95
    assert alike(made, slow(llama(**kind), tokens(seed=2), block_size=16, ssr=False)) < 0.5
    assert sum(isinstance(m, TernaryLinear) for m in made.modules()) == 14
    assert isinstance(made.lm_head, torch.nn.Linear)
    if kind.get("tied"):
        assert made.lm_head.weight is made.model.embed_tokens.weight


def test_conv1d_layers_and_biases_of_gpt2():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=64, initializer_range=0.2)).eval()
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.bias.normal_()
    original = copy.deepcopy(model)
    made = PT2LLM(block_size=16).quantize(model, [tokens()])
    layer = made.transformer.h[0].attn.c_attn
    assert (layer.in_features, layer.out_features) == (48, 144)
    X = original.transformer.h[0].ln_1(original.transformer.wte(tokens()) + original.transformer.wpe.weight[:32])
    X = X.flatten(0, 1).detach()
    wanted = ternarize(original.transformer.h[0].attn.c_attn.weight.T.detach(), X.T @ X, block_size=16).dequantize()
    torch.testing.assert_close(layer.dequantize(), wanted, rtol=1e-3, atol=1e-3)
    assert torch.equal(layer.bias, original.transformer.h[0].attn.c_attn.bias)
    assert logits(made, tokens()).isfinite().all()


def test_bfloat16_models_stay_bfloat16():
    model = llama(bias=True).bfloat16()
    made = PT2LLM(block_size=16).quantize(model, [tokens()])
    assert made.model.layers[0].self_attn.q_proj.alpha.dtype == torch.float16
    assert logits(made, tokens()).dtype == torch.bfloat16
    exact = PT2LLM(block_size=16).quantize(llama(bias=True), [tokens()])
    error = (logits(made, tokens()).float() - logits(exact, tokens())).norm() / logits(exact, tokens()).norm()
    assert error < 0.5


def test_padding_is_not_calibrated_on():
    ids = tokens()
    padded = torch.cat([torch.zeros(8, 5, dtype=torch.int64), ids], 1)
    mask = torch.cat([torch.zeros(8, 5, dtype=torch.int64), torch.ones_like(ids)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    method = PT2LLM(block_size=16, ssr=False)
    plain = method.quantize(llama(), [ids])
    batch = {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
    assert alike(method.quantize(llama(), [batch]), plain) > 0.95
    del batch["attention_mask"]
    assert alike(method.quantize(llama(), [batch]), plain) < 0.5


def test_batching_of_the_calibration_does_not_matter():
    method = PT2LLM(block_size=16, ssr=False)
    one, many = (method.quantize(llama(), batches) for batches in ([tokens()], tokens().split(1)))
    assert alike(one, many) > 0.95


def test_only_the_first_blocks_and_not_what_is_skipped():
    made = PT2LLM(block_size=16, skip=("lm_head", "down_proj")).quantize(llama(), [tokens()], blocks=1)
    names = {name for name, m in made.named_modules() if isinstance(m, TernaryLinear)}
    assert len(names) == 6
    assert all(name.startswith("model.layers.0.") for name in names)


def test_calibration_makes_the_outputs_better():
    original = llama()
    ids = tokens(32, 64)
    error = {}
    for name, parts in (("whole", {}), ("none", {"itf": False, "aga": False, "ssr": False})):
        made = PT2LLM(block_size=16, **parts).quantize(copy.deepcopy(original), [ids])
        error[name] = (logits(made, ids) - logits(original, ids)).norm().item()
    assert error["whole"] < error["none"]


FRESH = """
import sys, torch
import bakeoff.compress
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[4]))
ids = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    torch.save(model(input_ids=ids).logits, sys.argv[3])
model.save_pretrained(sys.argv[1] + "-again")
"""


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [({}, "float32"), ({"tied": True, "bias": True}, "float32"), ({"kv_heads": 1, "bias": True}, "bfloat16")],
)
def test_a_checkpoint_gives_equal_logits_in_a_fresh_process(kind, dtype, tmp_path):
    llama(**kind).save_pretrained(tmp_path / "float")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "float", dtype=getattr(torch, dtype))
    PT2LLM(block_size=16).quantize(model, [tokens()]).save_pretrained(tmp_path / "model")
    torch.save(tokens(), tmp_path / "ids.pt")
    words = [str(tmp_path / name) for name in ("model", "ids.pt", "logits.pt")]
    done = subprocess.run([sys.executable, "-c", FRESH, *words, dtype], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), logits(model, tokens()))
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("model", "model-again")]
    assert sizes[1] == sizes[0], "loading and saving again changed what is stored"


# Refused


def refused(told: str, model: torch.nn.Module, calibration, **options):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=told):
        PT2LLM(**{"block_size": 16, **options}).quantize(model, calibration)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) or before[name].isnan().any() for name in before)


def test_calibrations_that_are_too_short():
    refused("15 calibration tokens are fewer than the block_size 16", llama(), [tokens(1, 15)])
    refused("0 calibration tokens", llama(), [])
    with pytest.warns(UserWarning, match="40 calibration tokens .* a layer of 80.*singular"):
        PT2LLM(block_size=16).quantize(llama(), [tokens(1, 40)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PT2LLM(block_size=16).quantize(llama(), [tokens(4, 32)])


def test_block_sizes_name_the_layer():
    refused("model.layers.0.self_attn.q_proj: block_size 49 .* 48 inputs", llama(), [tokens()], block_size=49)
    refused("q_proj: block_size 4 is not between 8", llama(), [tokens()], block_size=4)


def test_quantized_models():
    model = PT2LLM(block_size=16).quantize(llama(), [tokens()])
    refused("quantized already", model, [tokens()])
    model = llama()
    model.model.layers[1].mlp.up_proj = TernaryLinear(48, 80, 16)
    refused("model.layers.1.mlp.up_proj is quantized already", model, [tokens()])
    model = llama()
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(
        torch.zeros(80, 48, dtype=torch.int8), requires_grad=False
    )
    refused("model.layers.1.mlp.up_proj: weights of int8", model, [tokens()])


def test_activations_that_are_not_finite():
    model = llama()
    with torch.no_grad():
        model.model.layers[1].post_attention_layernorm.weight[3] = torch.nan
    refused(r"NaN or infinite activations at the input of model\.layers\.1\.mlp\.gate_proj", model, [tokens()])


def test_scales_beyond_float16_name_layer_and_row():
    model = llama()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[7] *= 1e7
    refused(r"model\.layers\.0\.mlp\.up_proj: row 7: the .* is beyond float16", model, [tokens()])


def test_models_without_linear_layers():
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = LlamaConfig(**SMALL, num_attention_heads=4)
            self.layers = torch.nn.ModuleList([torch.nn.Embedding(4, 4), torch.nn.Embedding(4, 4)])

    refused("Embedding", Plain(), [tokens()])
    refused("no model of transformers", torch.nn.Sequential(torch.nn.Linear(16, 16)), [tokens()])


def test_qwen_with_its_biases_on_q_k_v():
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SMALL, num_attention_heads=4, num_key_value_heads=2)).eval()
    made = PT2LLM(block_size=16).quantize(model, [tokens()])
    assert made.model.layers[0].self_attn.q_proj.bias is not None
    assert made.model.layers[0].self_attn.o_proj.bias is None
    assert logits(made, tokens()).isfinite().all()

"""FASA inside transformers: generation is what it would be if the masked full attention had generated."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DynamicCache,
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

from bakeoff.compress import Fasa, FasaCache, FasaCalibration, calibrate_fasa
from bakeoff.compress.fasa.hook import install
from bakeoff.compress.fasa.planes import rotary_of

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.3}


def build(kind=LlamaForCausalLM, config=LlamaConfig, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config(**{**SMALL, **options})).eval().requires_grad_(False)


def some_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, 96, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def calibration(model):
    return calibrate_fasa(model, some_ids(1, 128), n_tip=3)


def generate(model, ids, **options):
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **{**settings, **options})


def stepwise(model, ids, prompt, cache=None):
    """Logits of a prompt and of every later token, fed one at a time."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    logits = [model(ids[:, :prompt], cache=cache, use_cache=True).logits]
    logits += [model(ids[:, i : i + 1], cache=cache, use_cache=True).logits for i in range(prompt, ids.shape[1])]
    return torch.cat(logits, 1)


class Reference:
    """FASA written with loops over rows and heads and Python's sort; the first `dense` rows attend to everything."""

    def __init__(self, calibration, n, sink, recent, dense):
        self.calibration, self.n, self.sink, self.recent, self.dense = calibration, n, sink, recent, dense

    def __call__(self, module, query, key, value, mask, scaling):
        rotary, planes = self.calibration.rotary, self.calibration.dominant[module.layer_idx]
        keep = (
            torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril().expand(*query.shape[:2], -1, -1).clone()
        )
        for b in range(query.shape[0]):
            for h in range(rotary.heads):
                pairs = [(p, p + rotary.rotary_dim // 2) if rotary.layout == "half" else (2 * p, 2 * p + 1)
                         for p in planes[h].tolist()]  # fmt: skip
                dims = [dim for pair in pairs for dim in pair]
                partial = query[b, h][:, dims] @ key[b, h // rotary.group][:, dims].T
                for row in range(self.dense, query.shape[2]):
                    keep[b, h, row] = self._row(partial[row], row)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=scaling)

    def _row(self, scores, row):
        seen = list(range(row + 1))
        must = set(seen[: self.sink]) | set(seen[-max(self.recent, 1) :])
        best = sorted((j for j in seen if j not in must), key=lambda j: (-scores[j].item(), j))
        chosen = must | set(best[: max(self.n - len(must), 0)])
        return torch.tensor([j in chosen for j in range(len(scores))])


def reference_logits(model, calibration, ids, n, sink, recent, dense):
    undo = install(model, lambda tokens, cache: Reference(calibration, n, sink, recent, dense))
    try:
        return model(ids, use_cache=False).logits
    finally:
        undo()


FAMILIES = {
    "llama, groups": (LlamaForCausalLM, LlamaConfig, {}),
    "llama, one key head": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1}),
    "llama, no sharing": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "cohere, interleaved": (CohereForCausalLM, CohereConfig, {}),
    "glm, interleaved and partial": (GlmForCausalLM, GlmConfig, {"head_dim": 16}),
    "phi, partial": (PhiForCausalLM, PhiConfig, {}),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("sink", "recent"), [(2, 3), (0, 0)])
def test_decoding_equals_plain_loops(family, sink, recent):
    kind, config, options = FAMILIES[family]
    model, ids = build(kind, config, **options), some_ids(2, 40, seed=3)
    calibration = calibrate_fasa(model, some_ids(1, 128), n_tip=2)
    expected = reference_logits(model, calibration, ids, 12, sink, recent, dense=24)
    with Fasa(calibration, 12, sink, recent).attach(model) as fasa:
        torch.testing.assert_close(stepwise(model, ids, 24, fasa.cache()), expected, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(stepwise(model, ids, 24), expected, atol=2e-4, rtol=1e-4)  # transformers' own cache
    own = model(ids).logits
    assert (own - expected).abs().max() > 1e-2  # it does prune


@pytest.mark.parametrize("mode", ["per_head", "per_group"])
def test_sparse_prefill_simulates_decoding(model, calibration, mode):
    ids = some_ids(2, 40, seed=4)
    with Fasa(calibration, 16, 2, 3, "sparse", mode).attach(model):
        at_once = model(ids).logits
        torch.testing.assert_close(stepwise(model, ids, 1), at_once, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["C", "M"])
def test_everything_fits_into_the_budget_then_it_is_full_attention(model, calibration, variant):
    ids = some_ids(2, 40)
    full = stepwise(model, ids, 8)
    with Fasa(calibration, 40, variant=variant).attach(model) as fasa:
        torch.testing.assert_close(stepwise(model, ids, 8, fasa.cache()), full, atol=1e-6, rtol=1e-6)


def test_all_planes_are_the_oracle(model, calibration):
    """n_tip = d / 2 and nothing forced: attention masked to the true top n_fac (the current token among them)."""
    ids, every = some_ids(1, 40), calibration.with_n_tip(8)
    expected = reference_logits(model, every, ids, 12, 0, 0, dense=20)
    with Fasa(every, 12, 0, 0).attach(model) as fasa:
        torch.testing.assert_close(stepwise(model, ids, 20, fasa.cache()), expected, atol=1e-4, rtol=1e-4)


# ---- generation


def test_generate_is_the_argmax_of_its_own_steps(model, calibration):
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        out = generate(model, some_ids(1, 30), cache=fasa.cache())
        logits = stepwise(model, out[:, :-1], 30, fasa.cache())
    assert torch.equal(logits[:, 29:].argmax(-1), out[:, 30:])


def test_cache_choice_does_not_change_what_is_generated(model, calibration):
    ids = some_ids(2, 30)
    static = StaticCache(config=model.config, max_cache_len=64)
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        expected = generate(model, ids, cache=fasa.cache())
        assert torch.equal(generate(model, ids), expected)
        assert torch.equal(generate(model, ids, cache=static), expected)  # its unfilled slots are never read
    with Fasa(calibration, 16, 2, 3, variant="M").attach(model) as fasa:
        assert torch.equal(generate(model, ids, cache=fasa.cache()), expected)
    with Fasa(calibration.with_n_tip(2), 16, 2, 3).attach(model) as fasa:
        assert not torch.equal(generate(model, ids, cache=fasa.cache(), max_new_tokens=24)[:, :42], expected)


def test_padding_on_the_left_changes_nothing(model, calibration):
    short, long = some_ids(1, 20), some_ids(1, 30, seed=1)
    both = torch.cat([torch.cat([torch.zeros(1, 10).long(), short], 1), long])
    mask = torch.cat([torch.cat([torch.zeros(1, 10), torch.ones(1, 20)], 1), torch.ones(1, 30)]).long()
    for mode in ("per_head", "per_group"):
        with Fasa(calibration, 16, 2, 3, group_mode=mode).attach(model) as fasa:
            out = generate(model, both, attention_mask=mask, cache=fasa.cache())
            alone = [generate(model, ids, cache=fasa.cache()) for ids in (short, long)]
        assert torch.equal(out[0, 10:], alone[0][0])
        assert torch.equal(out[1], alone[1][0])


def test_fewer_real_keys_than_the_budget(model, calibration):
    short = some_ids(1, 5)
    padded = torch.cat([torch.zeros(1, 35).long(), short], 1)
    mask = (torch.arange(40) >= 35).long()[None]
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        out = generate(model, padded, attention_mask=mask, cache=fasa.cache(), max_new_tokens=6)
    assert torch.equal(out[:, 35:], generate(model, short, max_new_tokens=6))


@pytest.mark.parametrize("variant", ["C", "M"])
def test_beam_search_reorders_the_copy(model, calibration, variant):
    ids = some_ids(2, 30)
    options = {"num_beams": 3, "max_new_tokens": 16}
    with Fasa(calibration, 16, 2, 3).attach(model):
        expected = generate(model, ids, **options)  # transformers' own cache
    with Fasa(calibration, 16, 2, 3, variant=variant).attach(model) as fasa:
        cache = fasa.cache()
        assert torch.equal(generate(model, ids, cache=cache, **options), expected)
    layer = cache.layers[1]
    heads = torch.arange(4) // 2
    assert torch.equal(layer.dom_keys, layer.keys.transpose(-1, -2)[:, heads[:, None], layer.dims])


def test_prompt_of_one_token(model, calibration):
    with Fasa(calibration, 4, 1, 1).attach(model) as fasa:
        out = generate(model, some_ids(1, 1), cache=fasa.cache())
        logits = stepwise(model, out[:, :-1], 1, fasa.cache())
    assert torch.equal(logits.argmax(-1), out[:, 1:])


def test_bfloat16_weights(calibration):
    model = build().to(torch.bfloat16)
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        cache = fasa.cache()
        out = generate(model, some_ids(2, 30), cache=cache)
        assert torch.isfinite(stepwise(model, out[:, :-1], 30, fasa.cache()).float()).all()
    assert cache.layers[0].dom_keys.dtype == torch.bfloat16
    assert out.shape == (2, 42)
    with Fasa(calibration, 64).attach(model) as fasa:
        same = generate(model, some_ids(2, 30), cache=fasa.cache())
    assert torch.equal(same, generate(model, some_ids(2, 30)))


def test_assisted_decoding_crops_the_cache(model, calibration):
    """Prompt lookup feeds several tokens at once (full attention) and takes back what was guessed wrong."""
    ids = some_ids(1, 15).repeat(1, 3)
    with Fasa(calibration, 128).attach(model) as fasa:
        out = generate(model, ids, cache=fasa.cache(), prompt_lookup_num_tokens=3)
    assert torch.equal(out, generate(model, ids))


def test_two_requests_share_a_model(model, calibration):
    a, b = some_ids(1, 30, seed=5), some_ids(1, 36, seed=6)
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        alone = [stepwise(model, ids, 20, fasa.cache()) for ids in (a, b)]
        caches = [fasa.cache(), fasa.cache()]
        turns = [[model(ids[:, :20], cache=cache).logits] for ids, cache in zip((a, b), caches, strict=True)]
        for i in range(20, 30):
            for ids, cache, logits in zip((a, b), caches, turns, strict=True):
                logits.append(model(ids[:, i : i + 1], cache=cache).logits)
    for logits, expected in zip(turns, alone, strict=True):
        assert torch.equal(torch.cat(logits, 1), expected[:, :30])


def test_a_cached_prompt_can_be_copied_and_gone_on_from(model, calibration):
    ids = some_ids(1, 40)
    with Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        expected = stepwise(model, ids, 30, fasa.cache())[:, 30:]
        prompt = fasa.cache()
        model(ids[:, :30], cache=prompt)
        for _ in range(2):
            cache = copy.deepcopy(prompt)
            steps = [model(ids[:, i : i + 1], cache=cache).logits for i in range(30, 40)]
            assert torch.equal(torch.cat(steps, 1), expected)
        prompt.reset()
        assert prompt.get_seq_length() == 0


def test_detached_model_is_as_before(model, calibration):
    ids = some_ids(1, 40)
    before, name = model(ids).logits, model.config._attn_implementation
    fasa = Fasa(calibration, 8, 1, 1, prefill="sparse").attach(model)
    assert not torch.equal(model(ids).logits, before)
    fasa.detach()
    fasa.detach()
    assert torch.equal(model(ids).logits, before)
    assert model.config._attn_implementation == name
    assert not model.get_decoder()._forward_pre_hooks


def test_dense_layers_and_budgets_by_layer(model, calibration):
    ids = some_ids(1, 40)
    full = stepwise(model, ids, 20)
    with Fasa(calibration, 8, 1, 1, full_layers=3).attach(model) as fasa:
        torch.testing.assert_close(stepwise(model, ids, 20, fasa.cache()), full, atol=1e-6, rtol=1e-6)
    fasa = Fasa(calibration, 30, decay=2.0)
    assert fasa.budgets == [40, 30, 20]
    assert Fasa(calibration, 30, full_layers=1).cache().layers[0].dims is None


def test_unrotated_dimensions_on_request():
    model = build(PhiForCausalLM, PhiConfig)
    calibration = calibrate_fasa(model, some_ids(1, 64), n_tip=1)
    assert calibration.rotary.rotary_dim == 8
    assert calibration.dims()[0].shape == (4, 2)
    assert calibration.dims(include_rest=True)[0][:, 2:].tolist() == [list(range(8, 16))] * 4
    with Fasa(calibration, 16, 2, 3, include_rest=True).attach(model) as fasa:
        out = generate(model, some_ids(1, 30), cache=fasa.cache())
        assert torch.equal(out, generate(model, some_ids(1, 30)))


# ---- memory


def test_memory_that_stays_on_the_device(calibration):
    cache = FasaCache(calibration, "M")
    for layer in range(3):
        cache.update(torch.ones(1, 2, 50, 16), torch.ones(1, 2, 50, 16), layer)
    whole, copies = 3 * 2 * 2 * 50 * 16 * 4, 3 * 4 * 6 * 50 * 4
    assert cache.nbytes() == {"keys_values": whole, "dom_keys": copies, "resident": copies}
    rotary = calibration.rotary
    assert copies / whole == rotary.group * calibration.n_tip / rotary.head_dim
    assert FasaCache(calibration).nbytes()["resident"] == 0


def test_a_step_copies_no_cache(calibration):
    cache = FasaCache(calibration)
    cache.update(torch.ones(1, 2, 50, 16), torch.ones(1, 2, 50, 16), 0)
    places = set()
    for _ in range(40):
        cache.update(torch.ones(1, 2, 1, 16), torch.ones(1, 2, 1, 16), 0)
        places.add(cache.layers[0].keys.data_ptr())
    assert len(places) == 1


# ---- calibration


def test_calibration_against_plain_loops(model):
    ids, seen = some_ids(1, 64), {}

    def record(module, query, key, value, mask, scaling):
        seen[module.layer_idx] = (query[0], key[0])

    undo = install(model, lambda tokens, cache: record)
    model(ids)
    undo()
    found = calibrate_fasa(model, ids, n_tip=2, k=5, stride=8)
    for layer, (query, key) in seen.items():
        for h in range(4):
            for p in range(8):
                shares = []
                for row in range(32, 64, 8):
                    q, k = query[h, row], key[h // 2, : row + 1]
                    full = set(sorted(range(row + 1), key=lambda j: -(q @ k[j]).item())[:5])
                    part = set(sorted(range(row + 1), key=lambda j: -(q[[p, p + 8]] @ k[j][[p, p + 8]]).item())[:5])
                    shares.append(len(full & part) / 5)
                assert found.ca[layer][h, p].item() == pytest.approx(sum(shares) / len(shares), abs=1e-6)


def test_calibration_survives_a_file(calibration, tmp_path):
    file = calibration.save(tmp_path)
    again = FasaCalibration.load(file)
    assert (again.rotary, again.n_tip, again.meta) == (calibration.rotary, calibration.n_tip, calibration.meta)
    for layer, planes in calibration.dominant.items():
        assert torch.equal(again.dominant[layer], planes)
        assert torch.equal(again.ca[layer], calibration.ca[layer])


def test_calibration_goes_on(model):
    a, b = some_ids(1, 64), some_ids(1, 64, seed=1)
    both = calibrate_fasa(model, torch.cat([a, b]))
    going_on = calibrate_fasa(model, b, previous=calibrate_fasa(model, a))
    assert going_on.meta["queries"] == both.meta["queries"] == 4
    for layer in both.ca:
        torch.testing.assert_close(going_on.ca[layer], both.ca[layer])


def test_equal_planes_in_order(calibration):
    flat = FasaCalibration({0: torch.full((4, 8), 0.5)}, calibration.rotary, 3)
    assert flat.dominant[0].tolist() == [[0, 1, 2]] * 4


def test_one_calibration_for_all_budgets(model, calibration):
    assert calibration.with_n_tip(5).dominant[0].shape == (4, 5)
    assert rotary_of(model).planes == 8


def test_no_warning(model, calibration):
    with warnings.catch_warnings(), Fasa(calibration, 16, 2, 3).attach(model) as fasa:
        warnings.simplefilter("error")
        generate(model, some_ids(1, 30), cache=fasa.cache())

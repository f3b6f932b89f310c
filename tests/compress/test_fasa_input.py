"""What a user can get wrong with FASA, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    BartConfig,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DynamicCache,
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from bakeoff.arena.types import InputError
from bakeoff.compress import Fasa, FasaCache, FasaCalibration, calibrate_fasa
from bakeoff.compress.fasa.bout import load
from bakeoff.compress.fasa.planes import check_config

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


def some_ids(length: int) -> torch.Tensor:
    return torch.randint(2, 96, (1, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return LlamaForCausalLM(LlamaConfig(**SMALL)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def calibration(model):
    return calibrate_fasa(model, some_ids(64))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (GPT2Config(), "FASA needs rotary positions; GPT2Config has none"),
        (BloomConfig(), "FASA needs rotary positions; BloomConfig has none"),
        (DeepseekV3Config(), "DeepseekV3Config has latent attention"),
        (BartConfig(), "BartConfig has cross-attention"),
        (Gemma2Config(), "Gemma2Config has sliding_attention"),
    ],
)
def test_models_that_it_is_not_for(config, told):
    with pytest.raises(ValueError, match=told):
        check_config(config)


@pytest.mark.parametrize(
    "kind",
    [
        (GPT2LMHeadModel, GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=96)),
        (BloomForCausalLM, BloomConfig(n_layer=1, hidden_size=32, n_head=2, vocab_size=96)),
    ],
)
def test_no_rotary_positions(kind):
    with pytest.raises(ValueError, match="needs rotary positions"):
        calibrate_fasa(kind[0](kind[1]), some_ids(64))


@pytest.mark.parametrize("n_tip", [0, 9, -1])
def test_planes_out_of_range(model, calibration, n_tip):
    with pytest.raises(ValueError, match=f"n_tip is {n_tip}; a head has 8 planes"):
        calibrate_fasa(model, some_ids(64), n_tip=n_tip)
    with pytest.raises(ValueError, match=f"n_tip is {n_tip}; a head has 8 planes"):
        calibration.with_n_tip(n_tip)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_fac": 0}, "n_fac is 0"),
        ({"n_fac": 11}, "keep_sink 4 and keep_recent 8 .* n_fac 11"),
        ({"n_fac": 4, "keep_sink": 4, "keep_recent": 0}, "keep_sink 4 and keep_recent 0 .* n_fac 4"),
        ({"prefill": "some"}, "prefill must be 'full' or 'sparse', not 'some'"),
        ({"group_mode": "per_layer"}, "group_mode"),
        ({"variant": "X"}, "variant must be 'C' or 'M'"),
        ({"full_layers": 3}, "full_layers is 3; the model has 2 layers"),
        ({"decay": 0.0}, "decay is 0.0"),
        ({"n_fac": 16, "decay": 9.0}, "with decay 9.0 a layer gets 3 tokens; 12 are always read"),
    ],
)
def test_budgets(calibration, options, told):
    with pytest.raises(ValueError, match=told):
        Fasa(calibration, **options)


def test_text_too_short(model):
    with pytest.raises(ValueError, match="at least 256 tokens is needed, 4 k; found 255"):
        calibrate_fasa(model, torch.zeros(1, 255).long(), k=64)
    with pytest.raises(ValueError, match="found 3"):
        calibrate_fasa(model, torch.zeros(1, 3).long())


def test_calibration_of_another_model(calibration, model):
    other = LlamaForCausalLM(LlamaConfig(**{**SMALL, "num_hidden_layers": 1, "num_attention_heads": 2}))
    with pytest.raises(ValueError, match="layers 2, not 1; heads 4, not 2; head_dim 16, not 32; rotary_dim 16, not 32"):
        Fasa(calibration).attach(other)
    assert other.config._attn_implementation != "bakeoff_fasa"
    with pytest.raises(ValueError, match="`previous` is of another model"):
        calibrate_fasa(other, some_ids(64), previous=calibration)


def test_not_a_calibration_file(tmp_path: Path, calibration):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("no")
    save_file({"ca.0": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    for name in ("text", "other.safetensors"):
        with pytest.raises(ValueError, match=f"{name} is not a calibration"):
            FasaCalibration.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        FasaCalibration.load(tmp_path / "none")
    broken = FasaCalibration({0: calibration.ca[0]}, calibration.rotary, 2, calibration.meta).save(tmp_path / "half")
    with pytest.raises(ValueError, match="does not hold the layers"):
        FasaCalibration.load(broken)


def test_calibration_beyond_the_window(model):
    longest = model.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"longest context is {longest}"):
        calibrate_fasa(model, some_ids(longest + 1))


def test_prompt_beyond_the_window(model, calibration):
    with Fasa(calibration).attach(model) as fasa, pytest.raises(ValueError, match=r"a prompt of 129 tokens; .* 128"):
        model.generate(some_ids(129), cache=fasa.cache(), max_new_tokens=1)


def test_variant_m_wants_its_cache(model, calibration):
    for cache in (None, DynamicCache(config=model.config), FasaCache(calibration, "C")):
        with (
            Fasa(calibration, variant="M").attach(model),
            pytest.raises(ValueError, match="variant M needs its own cache"),
        ):
            model.generate(some_ids(20), cache=cache, max_new_tokens=2)
    with pytest.raises(ValueError, match="variant must be"):
        FasaCache(calibration, "X")


def test_cache_of_another_calibration(model, calibration):
    slow = FasaCalibration(
        {i: torch.arange(8.0).expand(4, -1) for i in range(2)}, calibration.rotary, calibration.n_tip
    )
    fast = FasaCalibration({i: -ca for i, ca in slow.ca.items()}, slow.rotary, slow.n_tip)
    for other in (fast, slow.with_n_tip(slow.n_tip + 1)):
        with Fasa(slow).attach(model), pytest.raises(ValueError, match="of another calibration"):
            model.generate(some_ids(20), cache=FasaCache(other), max_new_tokens=2)


def test_attached_twice(model, calibration):
    with Fasa(calibration).attach(model) as fasa:
        with pytest.raises(ValueError, match="replaced already"):
            Fasa(calibration).attach(model)
        with pytest.raises(ValueError, match="attached already"):
            fasa.attach(model)


def test_crop_takes_a_negative_number(calibration):
    with pytest.raises(ValueError, match="negative"):
        FasaCache(calibration).layers[0].crop(3)


# ---- the bout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seq_len": 9000}, "--seq-len: 9000 tokens; the model's longest context is 8192"),
        ({"budget": 600}, "--budget: 600 tokens of a window of 512"),
        ({"budget": 8}, "--budget: --keep-sink 4 and --keep-recent 8 .* exceed 8"),
        ({"budget": 0}, "--budget: 0 is too small"),
        ({"n_tip": 0}, "--n-tip: 0 is too small"),
        ({"keep_sink": -1}, "--keep-sink: -1"),
        ({"windows": 0}, "--windows: 0"),
        ({"n_tip": 17, "quick": True}, "--n-tip: 17 of the 16 planes"),
        ({"full_layers": 4, "quick": True}, "--full-layers: 4 of 4 layers"),
        ({"text": Path("/no/such/file")}, "--text: /no/such/file"),
        ({"model": Path("/no/such/folder")}, "--model: /no/such/folder"),
    ],
)
def test_load_refuses(options, told):
    with pytest.raises(InputError, match=told):
        load(**options)


def test_load_refuses_texts(tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes(b"abc \xe9 def")
    with pytest.raises(InputError, match="not UTF-8 at byte 4"):
        load(text=tmp_path / "latin.txt", quick=True)
    (tmp_path / "short.txt").write_text("A few words only. " * 6)
    with pytest.raises(InputError, match=r"\d+ tokens for the calibration sample .*, 256 are needed"):
        load(text=tmp_path / "short.txt", quick=True)


def test_load_refuses_models(tmp_path: Path):
    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=1024, n_positions=512)).save_pretrained(
        folder
    )
    from bakeoff.inputs.language import tiny_llama

    tiny_llama().tokenizer.save_pretrained(folder)
    with pytest.raises(InputError, match="--model: FASA needs rotary positions; GPT2Config has none"):
        load(model=folder, quick=True)
    with pytest.raises(InputError, match="longest context is 512"):
        load(model=folder, seq_len=600)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "code.Model"}}))
    with pytest.raises(InputError, match="auto_map"):
        load(model=folder)

"""The bout of Qronos: what a user can get wrong, and what is kept."""

from pathlib import Path

import pytest
import torch

from bakeoff.arena.types import InputError
from bakeoff.compress.qronos import bout
from bakeoff.compress.qronos.figures import figures
from bakeoff.compress.qronos.options import SHAPE
from bakeoff.inputs.language import cache_folder, smollm2, tiny_llama


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 7}, "--bits: 7 is not supported; choose 1.58, 2, 3"),
        ({"bits": 4, "group_size": 32}, "--group-size: the default model's weights lie on a 4-bit grid"),
        ({"group_size": 7}, "--group-size: 7 is less than 8"),
        ({"group_size": 600}, "--group-size: 600 columns of layers with 576 inputs"),
        ({"blocks": "0"}, "--blocks: 0 of a model with 30 blocks"),
        ({"blocks": "31"}, "--blocks: 31 of a model with 30 blocks"),
        ({"blocks": "some"}, "--blocks: some of"),
        ({"seq_len": 8193}, "--seq-len: 8193 tokens, the model's context is 8192"),
        ({"samples": 2, "seq_len": 48}, "96 calibration tokens cannot determine a 1536x1536 covariance"),
        ({"samples": 0}, "--samples: 0 is too small"),
        ({"act_bits": 1}, "--act-bits: 1 is not between"),
        ({"kv_bits": 9}, "--kv-bits: 9 is not between"),
        ({"transform": "magr"}, "--transform: 'magr' is not known; choose none, hadamard, equalize"),
        ({"damp": "much"}, "--damp: 'much' is no share"),
        ({"damp": "-1"}, "--damp: '-1' is no share"),
        ({"damp": "nan"}, "--damp: 'nan' is no share"),
    ],
)
def test_bad_options_before_anything_is_loaded(options: dict, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bout, "load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InputError) as error:
        bout.load(**options)
    assert message in str(error.value)


def test_bad_text(tmp_path: Path):
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "short.txt").write_text("few words")
    (tmp_path / "latin.txt").write_bytes(b"abc\xe9def")
    folder = tiny_folder()
    for name, message in (("empty", "is empty"), ("short", "are needed"), ("latin", "not UTF-8 at byte 3")):
        with pytest.raises(InputError, match=message):
            bout.load(model=folder, text=tmp_path / f"{name}.txt")


def test_bad_model(tmp_path: Path):
    for config, message in (
        ('{"auto_map": {"AutoModel": "x.y"}}', "code of its own"),
        ('{"quantization_config": {"quant_method": "gptq"}}', "already quantized .gptq."),
    ):
        (tmp_path / "config.json").write_text(config)
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(InputError, match=message):
            bout.load(model=tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="--trust-pickle"):
        bout.load(model=tmp_path)


def test_shape_of_the_default_model():
    config = smollm2().model.config
    assert {name: getattr(config, name) for name in SHAPE} == SHAPE


def test_kept_checkpoint_has_the_same_perplexity_with_and_without_bakeoff(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = bout.load(quick=True)
    output = next(c for c in bout.contenders(data) if c.role == "paper").call(data, 0)
    output.save(tmp_path)
    expected = output.model(input_ids=data.windows, labels=data.windows).loss
    for folder in (tmp_path, tmp_path / "dequantized"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(model(input_ids=data.windows, labels=data.windows).loss, expected)
        assert AutoTokenizer.from_pretrained(folder)("a b")["input_ids"] == data.tokenizer("a b")["input_ids"]
    assert (tmp_path / "model.safetensors").stat().st_size < (tmp_path / "dequantized/model.safetensors").stat().st_size


def test_figures_of_no_runs(tmp_path: Path):
    assert figures([], tmp_path) == {}


def tiny_folder() -> Path:
    tiny_llama()
    return next(path for path in cache_folder().glob("tiny-llama-*") if (path / "SHA256").is_file())

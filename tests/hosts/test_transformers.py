"""Nothing of a checkpoint is opened before it is known to be safe; attention functions get the mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bakeoff.hosts.transformers import CheckpointError, check_checkpoint, load_causal_lm, register_attention
from bakeoff.inputs.language import tiny_llama

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def checkpoint(folder: Path, config: object = LLAMA, weights: str = "model.safetensors") -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / weights).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({**LLAMA, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ({**LLAMA, "text_config": {"auto_map": {"AutoModel": "evil.Model"}}}, "auto_map"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_config_that_is_refused(tmp_path, config, told):
    with pytest.raises(CheckpointError, match=told):
        check_checkpoint(checkpoint(tmp_path, config))


def test_folders_that_are_no_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="is not a folder"):
        check_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no readable config\.json"):
        check_checkpoint(tmp_path)
    checkpoint(tmp_path, weights="README.md")
    with pytest.raises(CheckpointError, match="has no weights"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickles_are_refused_until_trusted(tmp_path, name):
    checkpoint(tmp_path, weights=name)
    with pytest.raises(CheckpointError, match=f"{name} is a pickle.*--trust-pickle"):
        check_checkpoint(tmp_path)
    assert check_checkpoint(tmp_path, trust_pickle=True) == LLAMA


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_trusted_pickle_still_runs_no_code(tmp_path):
    made, folder = tmp_path / "made", tmp_path / "model"
    folder.mkdir()
    tiny_llama().model.config.save_pretrained(folder)
    torch.save({"model.embed_tokens.weight": Evil(made)}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        load_causal_lm(folder, trust_pickle=True)
    assert not made.exists()


def test_pickled_weights_are_loaded_when_trusted(tmp_path):
    model, tokenizer = tiny_llama()
    model.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    loaded, _ = load_causal_lm(tmp_path, trust_pickle=True)
    assert torch.equal(loaded.model.norm.weight, model.model.norm.weight)


def test_weights_that_do_not_fit_are_told(tmp_path):
    model, tokenizer = tiny_llama()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError) as told:
        load_causal_lm(tmp_path)
    assert "\n" not in str(told.value)


def test_a_registered_attention_gets_the_mask_of_a_padded_batch():
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        seen.append(attention_mask)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    model = tiny_llama().model
    ids = torch.arange(20).reshape(2, 10)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    expected = model(input_ids=ids, attention_mask=mask).logits
    register_attention("bakeoff_test", attention)
    register_attention("bakeoff_test", attention)
    model.set_attn_implementation("bakeoff_test")
    found = model(input_ids=ids, attention_mask=mask).logits
    assert all(m is not None for m in seen)
    assert len(seen) == model.config.num_hidden_layers
    assert torch.equal(found[mask.bool()], expected[mask.bool()])

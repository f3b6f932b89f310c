"""The bout of PT2-LLM: what load refuses, models of the user's own, and what a run leaves behind."""

import copy
import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from bakeoff.arena import store
from bakeoff.arena.types import InputError, Run
from bakeoff.compress.pt2_llm import bout, figures
from bakeoff.inputs.language import tiny_llama


def bakeoff(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bakeoff.cli", "run", "pt2-llm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=dict(os.environ, OMP_NUM_THREADS="1"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama, as a checkpoint of the user's own."""
    folder = tmp_path_factory.mktemp("checkpoint") / "mine"
    model, tokenizer = tiny_llama()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_text("The assignment statement binds a name to the value of an expression, once.\n" * 400)
    return path


# Models of the user's own


def test_a_llama_of_the_users_own_is_kept_and_loads_again(checkpoint, text, tmp_path):
    words = ("--samples", 16, "--seq-len", 64, "--blocks", "all", "--block-size", 64, "--seeds", 1)
    done = bakeoff(
        "--model", checkpoint, "--text", text, *words, "--contenders", "pt2-llm", "--keep", "--out", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    runs, _ = store.read_runs(tmp_path / "out")
    (run,) = runs
    assert run.status == "ok"
    assert len(run.details["layers"]) == 28
    (config,) = (tmp_path / "out").rglob("config.json")
    assert json.loads(config.read_text())["quantization_config"]["scheme"] == "ternary"
    code = (
        "import sys, torch, bakeoff.compress; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))\n"
        "ids = tokenizer(open(sys.argv[2]).read()[-2000:], return_tensors='pt').input_ids\n"
        "print(model(input_ids=ids, labels=ids).loss.item())"
    )
    loss = float(
        subprocess.run([sys.executable, "-c", code, config.parent, text], capture_output=True, text=True).stdout
    )
    data = bout.load(model=checkpoint, text=text, samples=16, seq_len=64, blocks="all", block_size=64)
    output = bout.contenders(data)[0].call(data, 0)
    ids = data.tokenizer(text.read_text()[-2000:], return_tensors="pt").input_ids
    with torch.no_grad():
        assert loss == pytest.approx(output.model(input_ids=ids, labels=ids).loss.item(), abs=1e-4)


def test_a_gpt2_of_the_users_own_runs(text, tmp_path):
    _, tokenizer = tiny_llama()
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=1024, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    data = bout.load(model=tmp_path / "gpt2", text=text, samples=8, seq_len=32, block_size=64)
    for contender in bout.contenders(data)[:7]:
        scores = bout.score(contender.call(data, 0), data)
        assert np.isfinite(scores["hidden_err"]).all(), contender.name
        assert len(scores["layers"]) == 8


def test_mixtures_of_experts_get_one_line(text, tmp_path):
    _, tokenizer = tiny_llama()
    size = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MixtralConfig(**size, num_key_value_heads=2, vocab_size=1024, num_local_experts=2)
    MixtralForCausalLM(config).save_pretrained(tmp_path / "mixtral")
    tokenizer.save_pretrained(tmp_path / "mixtral")
    with pytest.raises(InputError, match=r"Mixtral.*supported are torch.nn.Linear"):
        bout.load(model=tmp_path / "mixtral", text=text, block_size=64)


# Bad input


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"blocks": "0"}, "--blocks: '0'"),
        ({"blocks": "some"}, "--blocks: 'some'"),
        ({"blocks": "31"}, "31 blocks, the model has 30"),
        ({"block_size": 7}, "--block-size: 7 is too small"),
        ({"block_size": 577}, "blocks of 577 columns, layers have 576 inputs"),
        ({"samples": 0}, "--samples: 0 is too small"),
        ({"samples": 1, "seq_len": 100}, "100 calibration tokens for blocks of 128 columns"),
        ({"seq_len": 8193}, "8193 tokens, the model's context is 8192"),
        ({"seq_len": 1}, "--seq-len: 1 is too small"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(InputError, match=told):
        bout.load(**options)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"ab\xff", "not UTF-8 at byte 2"),
        (b"word " * 30, "tokens for calibration"),
    ],
)
def test_wrong_texts_are_refused(content, told, checkpoint, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        bout.load(model=checkpoint, text=path)


def test_wrong_checkpoints_are_refused(tmp_path):
    for name, config, told in (
        ("own-code", {"auto_map": {"AutoModel": "code.Model"}}, "auto_map|code of its own"),
        (
            "done",
            {"quantization_config": {"quant_method": "gptq"}, "num_hidden_layers": 2},
            r"already quantized \(gptq\)",
        ),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(b"")
        with pytest.raises(InputError, match=told):
            bout.load(model=folder)
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "config.json").write_text("{}")
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(InputError, match="--trust-pickle"):
        bout.load(model=tmp_path / "pickle")


# What is measured


@pytest.fixture(scope="module")
def data() -> bout.Data:
    return bout.load(quick=True)


def test_switches_are_those_of_the_contender():
    off = bout.load(no_ssr=True, no_aga=True, no_itf=True, quick=True)
    named = {contender.name: contender for contender in bout.contenders(off)}
    whole, none = (bout.score(named[name].call(off, 0), off) for name in ("pt2-llm", "no-itf-aga-ssr"))
    assert (whole["hidden_err"] == none["hidden_err"]).all()


def test_bits_are_those_of_the_formula(data):
    """Scales, offsets, order and padding included; rivals by hand."""
    named = {contender.name: contender for contender in bout.contenders(data)}
    shapes = [(128, 128), (64, 128), (64, 128), (128, 128), (384, 128), (384, 128), (128, 384)]
    weights = sum(n * m for n, m in shapes)

    def ternary(group: int, per_group: int, per_column: int) -> float:
        return sum(8 * n * math.ceil(m / 5) + per_group * n * math.ceil(m / group) + per_column * m for n, m in shapes)

    assert named["pt2-llm"].call(data, 0).bits == pytest.approx(ternary(64, 32, 16) / weights)
    assert named["no-ssr"].call(data, 0).bits == pytest.approx(ternary(64, 32, 0) / weights)
    assert named["OPTQ-ternary"].call(data, 0).bits == pytest.approx(ternary(64, 16, 0) / weights)
    assert named["TWN"].call(data, 0).bits == pytest.approx(ternary(10**6, 16, 0) / weights)


def test_rivals_are_what_they_say(data):
    """TWN and absmean, entry by entry."""
    named = {contender.name: contender for contender in bout.contenders(data)}
    W = data.model.model.layers[0].mlp.up_proj.weight
    found = named["TWN"].call(data, 0).model.model.layers[0].mlp.up_proj.dequantize()
    for row, values in zip(W[:20].tolist(), found[:20].tolist(), strict=True):
        threshold = 0.75 * sum(map(abs, row)) / len(row)
        large = [abs(w) for w in row if abs(w) > threshold]
        alpha = sum(large) / len(large)
        wanted = [math.copysign(alpha, w) if abs(w) > threshold else 0.0 for w in row]
        assert values == pytest.approx(wanted, rel=1e-3)
    found = named["absmean"].call(data, 0).model.model.layers[0].mlp.up_proj.dequantize()
    scale = W.abs().mean()
    torch.testing.assert_close(found, scale * (W / scale).round().clamp(-1, 1), rtol=1e-3, atol=1e-5)


def test_weights_of_zeros_stay_zero(data):
    model = copy.deepcopy(data.model)
    model.model.layers[0].mlp.up_proj.weight.zero_()
    zeros = dataclasses.replace(data, model=model)
    for contender in bout.contenders(zeros)[:7]:
        layer = contender.call(zeros, 0).model.model.layers[0].mlp.up_proj
        assert (layer.dequantize() == 0).all(), contender.name


def test_errors_of_layers_are_squared_and_relative(data):
    """On the first layer, whose inputs are those of the float model."""
    output = bout.contenders(data)[0].call(data, 3)
    name = "model.layers.0.self_attn.q_proj"
    from bakeoff.inputs.language import random_windows

    seen = []
    hook = data.model.get_submodule(name).register_forward_pre_hook(lambda _, x: seen.append(x[0].flatten(0, 1)))
    data.model(random_windows(data.train, data.samples, data.seq_len, 3))
    hook.remove()
    W, V, X = data.model.get_submodule(name).weight, output.model.get_submodule(name).dequantize(), seen[0]
    wanted = (X @ (W - V).T).square().sum() / (X @ W.T).square().sum()
    assert output.layers[name]["e_x"] == pytest.approx(wanted.item(), rel=1e-3)
    assert output.layers[name]["e_w"] == pytest.approx(((W - V).norm() / W.norm()).item() ** 2, rel=1e-4)


def test_pareto_front_and_figures(tmp_path):
    points = {"a": (1.0, 5.0), "b": (2.0, 3.0), "c": (2.5, 4.0), "d": (3.0, 1.0), "e": (1.0, 6.0)}
    assert figures.pareto(points) == ["a", "b", "d"]
    layers = {"model.layers.0.mlp.up_proj": {"e_w": 0.5, "e_x": 0.1}}
    runs = [
        Run(
            "",
            "pt2-llm",
            name,
            0,
            {},
            "",
            "",
            "ok",
            {"hidden_err": e, "bits": b},
            {"hidden_err": [e, e]},
            {"layers": layers},
        )
        for name, b, e in (
            ("pt2-llm", 1.9, 0.3),
            ("no-ssr", 1.88, 0.35),
            ("OPTQ-2bit", 2.2, 0.2),
            ("RTN-2bit", 2.2, 0.5),
        )
    ]
    drawn = bout.figures(runs, tmp_path)
    assert set(drawn) == {"size_error.svg", "parts.svg", "layers.svg"}
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)
    assert drawn["size_error.svg"].endswith("pt2-llm, OPTQ-2bit.")
    assert bout.figures([], tmp_path) == {}

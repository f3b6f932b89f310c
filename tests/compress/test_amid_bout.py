"""The bout: equal trials, text and windows, students cut from a teacher, figures, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bakeoff.arena.types import InputError, Run
from bakeoff.compress.amid import bout, training
from bakeoff.compress.amid.corpus import make_corpus
from bakeoff.compress.amid.rivals import Taid, amid, skewed_kl
from bakeoff.compress.amid.students import first_layers
from bakeoff.compress.amid.training import Data, Student, compare, distilled, train, training_batches, untrained
from bakeoff.inputs.language import default_text, tiny_llama


@pytest.fixture(scope="module")
def data() -> Data:
    return bout.load(quick=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as a user's own checkpoint."""
    folder = tmp_path_factory.mktemp("teacher")
    model, tokenizer = tiny_llama()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_everybody_has_six_trials(monkeypatch: pytest.MonkeyPatch, data: Data):
    calls: list[str] = []
    monkeypatch.setattr(
        training, "train", lambda *a: calls.append("t") or {"gradient_norm": 0.0, "seconds_a_step": 0.0}
    )
    monkeypatch.setattr(training, "compare", lambda *a: {"overlap": np.zeros(1)})
    full = Data(**{**vars(data), "trials": 6})
    made = {c.name: c.call(full, 0).trials for c in bout.contenders(full) if c.role != "floor" and c.call}
    assert {name: len(trials) for name, trials in made.items()} == dict.fromkeys(made, 6)
    assert len(calls) == 6 * len(made) == 48
    for trials in made.values():
        assert len({json.dumps(trial, sort_keys=True) for trial in trials}) == 6
    assert Counter(trial["alpha"] for trial in made["amid"]) == {-1.0: 2, 0.0: 2, 0.5: 2}


def test_the_best_trial_on_validation_is_kept(data: Data):
    few = Data(**{**vars(data), "trials": 6})
    kept = distilled(few, 0, make=skewed_kl, grid=({"skew": 0.1}, {"skew": 0.3}, {"skew": 0.5}))
    best = max(kept.trials, key=lambda trial: trial["validation"])
    assert kept.setting == {"skew": best["skew"], "rate": best["rate"]}
    again = float(compare(few, kept.model, few.corpus.validation)["overlap"].mean())
    assert again == pytest.approx(best["validation"], abs=1e-9)


def test_alpha_minus_one_and_skewed_kl_train_to_the_very_same_student(data: Data):
    found = [distilled(data, 0, make=make, grid=(s,)) for make, s in ((skewed_kl, {"skew": 0.1}), (amid, AT_MINUS_ONE))]
    for a, b in zip(*(student.model.parameters() for student in found), strict=True):
        assert torch.equal(a, b)


AT_MINUS_ONE: Any = {"alpha": -1.0, "lam": 0.1, "divergence": "kl"}


def test_training_lowers_the_distance(data: Data):
    model = untrained(data, 0)
    before = compare(data, model, data.corpus.test)
    batches = training_batches(Data(**{**vars(data), "steps": 40}), 0)
    logits = training.teacher_logits(Data(**{**vars(data), "steps": 40}), batches)
    train(model, amid(0.5, 0.1, "kl"), 1e-2, batches, logits, data.vocabulary)
    after = compare(data, model, data.corpus.test)
    assert after["overlap"].mean() > before["overlap"].mean() + 0.03
    assert after["kl_teacher_student"].mean() < before["kl_teacher_student"].mean() - 0.1


def test_scores_of_the_teacher_itself(data: Data):
    scores = bout.score(Student(data.teacher, data.tokenizer), data)
    assert 1 - 1e-5 < scores["overlap"] <= 1
    assert scores["top1"] == 1
    assert scores["kl_teacher_student"] == pytest.approx(0, abs=1e-6)
    assert 3 < scores["nll"] < 5.5
    assert all(isinstance(scores[metric.name], float) for metric in bout.METRICS)  # so that seeds are paired


def test_scores_are_means_over_windows_whatever_the_batches(data: Data):
    """Against each window on its own, in float64; 5 windows are a whole batch and a rest."""
    model, windows = untrained(data, 5), data.corpus.test
    expected = []
    for ids in windows.ids:
        with torch.no_grad():
            p, q = (m(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1) for m in (data.teacher, model))
        ratio, nll = p - q, torch.nn.functional.nll_loss(q, ids[1:])
        both = (p.exp() * ratio).sum(-1).mean(), -(q.exp() * ratio).sum(-1).mean()
        expected.append([float(value) for value in (nll, *both, (p.argmax(-1) == q.argmax(-1)).double().mean())])
    scores = bout.score(Student(model, data.tokenizer), data)
    names = ("nll", "kl_teacher_student", "kl_student_teacher", "top1")
    assert [scores[name] for name in names] == pytest.approx(np.mean(expected, 0).tolist(), rel=1e-4)
    teacher = training.teacher_logits(data, training.in_batches(windows))
    for name, values in compare(data, model, windows, teacher).items():
        assert values.mean() == pytest.approx(scores[name], abs=1e-12)


def test_teacher_logits_are_the_same_kept_or_computed_anew(data: Data, monkeypatch: pytest.MonkeyPatch):
    batches = training_batches(data, 0)
    kept = training.teacher_logits(data, batches)
    monkeypatch.setattr(training, "CACHED", 0)
    asked = training.teacher_logits(data, batches)
    assert asked.__name__ == "ask"
    assert torch.equal(kept(3), asked(3))


def test_overlap_is_one_minus_total_variation(data: Data):
    model = untrained(data, 3)
    ids = data.corpus.test.ids[:1]
    with torch.no_grad():
        p, q = (m(input_ids=ids).logits[0, :-1].double().softmax(-1) for m in (data.teacher, model))
    found = compare(data, model, data.corpus.test)["overlap"][0]
    assert found == pytest.approx(float(1 - 0.5 * (p - q).abs().sum(-1).mean()))


def test_longest_common_subsequence():
    assert training._common([1, 2, 3, 4], [2, 9, 4, 1]) == 2
    assert training._common([], [1]) == 0
    assert training._common([1, 2, 1], [1, 2, 1]) == 3


def test_taid_goes_from_its_start_to_the_teacher():
    student, teacher = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    loss = Taid(0.2)
    assert loss.t == 0.2
    seen = []
    for step in range(100):
        loss(student, teacher, None, step / 100)
        seen.append(loss.t)
    assert seen == sorted(seen)
    assert 0.98 < seen[-1] <= 1
    flat = Taid(0.0)
    assert float(flat(student, teacher, None, 0.0)) == pytest.approx(0, abs=1e-12)
    assert flat(student, teacher, None, 0.5) >= 0


# Text


def test_windows_do_not_overlap(data: Data):
    """Training, validation and test are disjoint stretches of the text, in this order."""
    tokenizer = data.tokenizer
    corpus = make_corpus(default_text(), tokenizer, quick=False)
    assert corpus.validation.ids.shape == (20, 128)
    assert corpus.test.ids.shape == (40, 128)
    cut = int(0.9 * len(default_text()))
    ids = tokenizer(default_text()[:cut], add_special_tokens=False, verbose=False)["input_ids"]
    assert corpus.train.ids.tolist() + corpus.validation.ids.flatten().tolist() == ids
    assert all(part.keep.all() for part in corpus)


def test_only_responses_are_kept(tmp_path: Path, data: Data):
    file = tmp_path / "rows.jsonl"
    words = default_text().split()
    rows = [
        {"prompt": " ".join(words[i : i + 12]), "response": " ".join(words[i + 12 : i + 30])}
        for i in range(0, 60000, 30)
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    found = bout.load(text=file, quick=True)
    encode = data.tokenizer
    first = [len(encode(rows[0][name], add_special_tokens=False)["input_ids"]) for name in ("prompt", "response")]
    assert found.corpus.train.keep[: sum(first)].tolist() == [False] * first[0] + [True] * first[1]
    assert 0.3 < float(found.corpus.test.keep.double().mean()) < 0.9
    model = untrained(found, 0)
    with torch.no_grad():
        log_q = model(input_ids=found.corpus.test.ids[:1]).logits[0, :-1].double().log_softmax(-1)
    ids, keep = (part[0] for part in found.corpus.test)
    nll = -log_q.gather(1, ids[1:, None])[keep[1:]].mean()
    assert compare(found, model, found.corpus.test)["nll"][0] == pytest.approx(float(nll))
    output = distilled(found, 0, make=amid, grid=(AT_MINUS_ONE,))
    assert all(np.isfinite(trial["validation"]) for trial in output.trials)


# Students


def test_first_layers_of_a_teacher(data: Data):
    student = first_layers(data.teacher, 2)
    ids = data.corpus.test.ids[:2]
    with torch.no_grad():
        hidden = data.teacher.model(input_ids=ids, output_hidden_states=True).hidden_states[2]
        expected = data.teacher.lm_head(data.teacher.model.norm(hidden))
        assert torch.allclose(student(input_ids=ids).logits, expected, atol=1e-4)
        assert torch.equal(first_layers(data.teacher, 4)(input_ids=ids).logits, data.teacher(input_ids=ids).logits)


def test_own_checkpoint_and_saved_student(checkpoint: Path, tmp_path: Path):
    found = bout.load(model=checkpoint, student="layers:2", quick=True)
    output = next(c for c in bout.contenders(found) if c.role == "paper").call(found, 0)  # type: ignore[misc]
    output.save(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.num_hidden_layers == 2
    ids = found.corpus.test.ids[:2]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, output.model(input_ids=ids).logits)
    assert tokenizer.get_vocab() == found.tokenizer.get_vocab()
    again = bout.load(model=checkpoint, student=str(tmp_path), quick=True)
    assert again.start.config.num_hidden_layers == 2
    assert again.vocabulary == 1024


def test_students_of_another_tokenizer(checkpoint: Path, tmp_path: Path):
    model, tokenizer = tiny_llama()
    model.save_pretrained(tmp_path)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"tokenizers differ \(1024 vs 1025 tokens\).*one vocabulary"):
        bout.load(model=checkpoint, student=str(tmp_path), quick=True)


def test_a_padded_student_is_cut_to_the_tokenizer(checkpoint: Path, tmp_path: Path):
    model, tokenizer = tiny_llama()
    model.resize_token_embeddings(1088)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = bout.load(model=checkpoint, student=str(tmp_path), quick=True)
    assert found.vocabulary == 1024
    assert compare(found, found.start, found.corpus.test)["overlap"].tolist() == pytest.approx([1] * 5)


# Bad input

BAD: list[tuple[dict[str, Any], str]] = [
    ({"alphas": "a,b"}, "--alphas: 'a,b' is not a list of numbers"),
    ({"alphas": "nan"}, "--alphas: alpha=nan is not finite"),
    ({"alphas": "-1,0,1,2"}, "--alphas: 4 alphas do not share 6 trials"),
    ({"lam": 1.5}, "--lam: lam=1.5 is outside"),
    ({"lam": float("nan")}, "--lam: lam=nan is outside"),
    ({"lam": 1.0}, "--lam: no gradient: lam=1 with order"),
    ({"divergence": "js"}, "--divergence: 'js' is not known; choose kl or ab"),
    ({"steps": 0}, "--steps: 0 is too small"),
    ({"student": "layers:0"}, "--student: layers:0 of a teacher with 4 layers"),
    ({"student": "layers:5"}, "--student: layers:5 of a teacher with 4 layers"),
    ({"student": "layers:two"}, "--student: layers:two of a teacher with 4 layers"),
    ({"student": "/no/such/folder"}, "--student: /no/such/folder is not a folder"),
    ({"model": Path("/no/such/folder")}, "--model: /no/such/folder is not a folder"),
    ({"text": Path("/no/such/file")}, "--text: /no/such/file"),
]


def test_pickled_weights_need_trust(checkpoint: Path, tmp_path: Path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    torch.save(AutoModelForCausalLM.from_pretrained(checkpoint).state_dict(), tmp_path / "pytorch_model.bin")
    for where, options in (("--model", {"model": tmp_path}), ("--student", {"student": str(tmp_path)})):
        with pytest.raises(InputError, match=f"{where}: .*pickle"):
            bout.load(**options, quick=True)  # type: ignore[arg-type]
    trusted = bout.load(model=tmp_path, student="layers:1", trust_pickle=True, quick=True)
    assert trusted.teacher.config.num_hidden_layers == 4


def test_too_few_windows_with_a_response_to_choose_by(tmp_path: Path):
    words = default_text().split()
    rows = [{"prompt": " ".join(words[i : i + 20]), "response": ""} for i in range(0, 18000, 20)]
    rows += [{"prompt": "", "response": " ".join(words[i : i + 100])} for i in range(0, 10000, 100)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    message = r"--text: 0 tokens for 20 validation windows of 128 and 4 to train on, 3072 are needed"
    with pytest.raises(InputError, match=message):
        bout.load(text=file, quick=True)


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options: dict[str, Any], message: str):
    begun = time.process_time()
    with pytest.raises(InputError) as told:
        bout.load(**options)
    assert str(told.value).startswith(message)
    assert "\n" not in str(told.value)
    assert time.process_time() - begun < 1


def test_layers_of_ones_own_teacher(checkpoint: Path):
    with pytest.raises(InputError, match="layers:8 of a teacher with 4 layers"):  # what --model stands for alone
        bout.load(model=checkpoint)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"short", "test windows of 128"),
        ("a.txt", b"word " * 8000, "test windows of 128"),
        ("a.txt", b"fine \xff", "is not UTF-8 at byte 5"),
        ("a.txt", b" \n", "is empty"),
        ("a.jsonl", b'{"text": "a"}\n{"words": "b"}', "line 2 has no text"),
        ("a.jsonl", b'{"prompt": "a", "response": "b"}\n{"prompt": "b"}', "line 2 has no prompt and response"),
        ("a.jsonl", b'{"prompt": "a", "response": "b"}\n{"prompt', "line 2 is not JSON"),
        ("a.jsonl", b'{"prompt": "a", "response": "b"}', "test windows of 128"),
    ],
)
def test_bad_text(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as told:
        bout.load(text=tmp_path / name, quick=True)
    assert "--text" in str(told.value)
    assert "\n" not in str(told.value)


def test_needed_and_found_are_told(tmp_path: Path, data: Data):
    file = tmp_path / "a.txt"
    file.write_text(default_text()[:60_000])
    with pytest.raises(InputError, match=r"\d+ tokens for 30 test windows of 128, 3840 are needed"):
        bout.load(text=file)


# Without torch, on the command line, and in pictures


def test_the_bout_is_imported_without_torch():
    code = (
        "import sys, bakeoff.compress.amid.bout;"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line(checkpoint: Path, tmp_path: Path):
    command = [sys.executable, "-m", "bakeoff.cli", "run", "amid", "--model", str(checkpoint), "--student", "layers:1"]
    command += ["--alphas=-1,0,0.5", "--quick", "--seeds", "1", "--contenders", "amid,forward-KL,untrained", "--keep"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "artefacts" / "amid" / "seed-0")
    assert kept.config.num_hidden_layers == 1


def test_figures(tmp_path: Path, data: Data):
    paper = bout.contenders(data)[0]
    scores = bout.score(paper.call(data, 0), data)  # type: ignore[misc]
    details = {name: scores[name] for name in ("setting", "trials")}
    run = Run("k", "amid", "amid", 0, {}, "", "", status="ok", details=details)
    names = (
        f"{m}_{d}_{a}" for m in ("overlap", "nll") for d in ("kl", "ab") for a in ("-5", "-3", "-1", "0", "0.5", "1")
    )
    scan = Run("s", "amid", "claim:scan", 0, {}, "", "", status="ok", scores=dict.fromkeys(names, 0.5))
    drawn = bout.figures([run, scan], tmp_path)
    assert set(drawn) == {"trials.svg", "alpha.svg"} == {path.name for path in tmp_path.iterdir()}
    assert "seed 0: alpha -1" in drawn["trials.svg"]
    assert bout.figures([], tmp_path) == {}

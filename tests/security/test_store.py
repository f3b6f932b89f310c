"""Results folders hold no secrets, and a hostile one does no harm."""

from __future__ import annotations

import json
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff import catalog
from bakeoff.arena import contest, plan, store
from bakeoff.arena.types import Bout, InputError, Run, Settings
from bakeoff.cli import main

XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
CANARIES = {
    "PLANTED_TOKEN": "canary01-in-a-url",
    "MY_API_KEY": "canary02/with+signs==",
    "DB_PASSWORD": "canary03 with spaces",
    "AWS_SECRET_ACCESS_KEY": "canary04\\back",
    "GOOGLE_CREDENTIALS": '{"canary05": "json"}',
    "BASIC_AUTH": "canary06ünïcode",
    "DATABASE_URL": "postgres://user:canary07@db.example/x",
    "SERVICE": "https://canary08@host.example/v1?api_key=canary09&page=2",
}


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_planted_secrets_reach_nothing(cli, tmp_path, form):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "token").write_text("canary10-of-the-hub\n")
    flags = ["--api-key", "canary11-flag", "--source", "https://me:canary12@host.example/d?token=canary13x"]
    run = ["run", "toy", "--contenders", "mean,leaks", "--seeds", 1, "--out", "out", *flags, *form]
    done = cli(*run, env={**CANARIES, "HF_HOME": str(tmp_path / "hub")})
    assert done.returncode == 3, done.stderr
    files = _files(tmp_path / "out")
    assert len(files) >= 5
    error = next(run.error for run in store.read_runs(tmp_path / "out")[0] if run.contender == "leaks")
    assert error.count("REDACTED") >= 10  # the plants did get that far
    assert "GET https:" in error
    for where, text in {**files, "stdout": done.stdout.encode(), "stderr": done.stderr.encode()}.items():
        assert b"canary" not in text, (where, text[max(0, text.index(b"canary") - 80) :][:120])


def test_option_naming_a_variable_stays():
    """The name of a variable is no secret, nor is a word that merely contains one."""
    plain = {
        "options": {"api_key_env": "OPENAI_API_KEY", "tokens": 4096, "tokenizer": "wordpiece-cased", "keys": "a,b"}
    }
    assert store.redact(plain) == plain
    assert store.redact({"options": {"api_key": "hunter2"}}) == {"options": {"api_key": "REDACTED"}}
    assert (
        store.redact("bakeoff run x --api-key-env MY_VARIABLE_NAME") == "bakeoff run x --api-key-env MY_VARIABLE_NAME"
    )


@pytest.fixture
def folder(tmp_path, toy) -> Path:
    """Sound results of two contenders and two seeds, without a process for each."""
    out = tmp_path / "out"
    store.open_folder(out, "toy")
    planned = plan.make(toy, {}, Settings(seeds=2, contenders=["mean"]), command="bakeoff run toy")
    store.write_bout(out, planned.bout)
    journal = store.Journal(out)
    for task in planned.tasks:
        journal.append(replace(task.run, status="ok", scores={"error": 0.5 + task.run.seed, "estimate": 1.0}))
    journal.close()
    return out


def _journal(folder: Path) -> Path:
    (path,) = (folder / "runs").glob("*.jsonl")
    return path


def _sealed(body: dict) -> bytes:
    """A record whose check sum holds, whatever is in it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f'{{"run":{text},"sha256":"{store._check_sum(text)}"}}\n'.encode()


class Evil:
    def __reduce__(self):
        return os.system, ("touch canary-file",)


def _with(**changes):
    """Adds a record with a valid check sum and these changes."""

    def change(folder: Path) -> None:
        body = json.loads(_journal(folder).read_bytes().splitlines()[0])["run"]
        with _journal(folder).open("ab") as file:
            file.write(_sealed({**body, "seed": 7, "key": "f" * 16, **changes}))

    return change


def _append(blob: bytes):
    def change(folder: Path) -> None:
        with _journal(folder).open("ab") as file:
            file.write(blob)

    return change


def _linked(folder: Path) -> None:
    os.rename(_journal(folder), folder.parent / "elsewhere.jsonl")
    (folder / "runs" / "1.jsonl").symlink_to(folder.parent / "elsewhere.jsonl")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "runs" / "1.jsonl")


JOURNALS = {
    "pickle": _append(pickle.dumps(Evil())),
    "symlink": _linked,
    "pipe": _fifo,
    "infinite": _append(b'{"run":{"scores":{"error":1e999}},"sha256":"0"}\n'),
    "number of 5,000 digits": _append(b'{"run":{"seed":1' + b"0" * 5000 + b'},"sha256":"0"}\n'),
    "number of 4,000 digits": _with(scores={"error": 10**4000}),
    "deep": _append(b'{"run":' + b"[" * 200_000 + b"]" * 200_000 + b',"sha256":"0"}\n'),
    "deep details": _append(b'{"run":{"details":' * 100_000 + b"\n"),
    "NaN": _append(b'{"run":{"scores":{"error":NaN}},"sha256":"0"}\n'),
    "text for a number": _with(scores={"error": "0.5"}),
    "list for a dict": _with(scores=[1.0]),
    "number for a text": _with(error=5),
    "null": _with(cost=None),
    "unknown status": _with(status="excellent"),
    "unhashable status": _with(status=[]),
    "unknown field": _with(grade="A"),
    "newer schema": _with(schema=2),
    "NUL": _append(b"\0" * 5000 + b"\n"),
    "invalid UTF-8": _append(b'{"run":{"error":"\xff\xfe\xc3"},"sha256":"0"}\n'),
}


@pytest.mark.parametrize("name", JOURNALS)
def test_hostile_journal(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    JOURNALS[name](folder)
    report = contest.rebuild([folder], None, {})
    assert len(report.runs) == (0 if name == "symlink" else 4)
    assert any("left out" in note for note in report.bout.notes)
    assert not list(folder.rglob("canary-file"))
    for path in folder.glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def _bout(**changes):
    def change(folder: Path) -> None:
        data = json.loads((folder / "bout.json").read_text())
        (folder / "bout.json").write_text(json.dumps({**data, **changes}))

    return change


def _raw(blob: bytes):
    return lambda folder: (folder / "bout.json").write_bytes(blob)


def _linked_bout(folder: Path) -> None:
    os.rename(folder / "bout.json", folder.parent / "bout.json")
    (folder / "bout.json").symlink_to(folder.parent / "bout.json")


METRIC = {"name": "error", "better": "lower", "primary": True, "bounds": ["-inf", "inf"]}
BOUTS = {
    "pickle": _raw(pickle.dumps(Evil())),
    "symlink": _linked_bout,
    "empty": _raw(b""),
    "list": _raw(b"[]"),
    "NUL": _raw(b"\0" * 100),
    "invalid UTF-8": _raw(b'{"method": "\xff"}'),
    "deep": _raw(b"[" * 200_000),
    "traversal": _bout(method="../../escape"),
    "number": _bout(title=5),
    "wrong seeds": _bout(seeds=["0"]),
    "no paper": _bout(contenders=[]),
    "no primary": _bout(metrics=[]),
    "bounds": _bout(metrics=[{**METRIC, "bounds": [1, 2, 3]}]),
    "margin": _bout(metrics=[{**METRIC, "margin": 10**4000}]),
    "infinite": _raw(b'{"overlap": 1e999, "seeds": Infinity}'),
    "unknown field": _bout(extra=1),
    "newer schema": _bout(schema=99),
}


@pytest.mark.parametrize("name", BOUTS)
def test_hostile_bout(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    BOUTS[name](folder)
    for read in (lambda: contest.rebuild([folder], None, {}), lambda: contest.write_board([folder], folder / "site")):
        with pytest.raises(InputError) as caught:
            read()
        assert "\n" not in str(caught.value)
    assert not list(folder.parent.rglob("canary-file")) + list(folder.parent.parent.rglob("escape*"))


def test_endless_claim_and_giant_strings(folder):
    """A number of seeds is not counted through, and 5 MB of text are read."""
    data = json.loads((folder / "bout.json").read_text())
    data["claims"][1]["seeds"] = 2**40
    data["codes"]["claim:coverage"] = "x"
    data["title"] = "x" * 5_000_000
    (folder / "bout.json").write_text(json.dumps(data))
    assert len(contest.rebuild([folder], None, {}).runs) == 4


def _spoil(value, keep=()):
    if isinstance(value, dict):
        return {k: v if k in keep else _spoil(v, keep) for k, v in value.items()}
    if isinstance(value, list):
        return [_spoil(v, keep) for v in value]
    return value + XSS if isinstance(value, str) else value


def test_markup_in_every_field(folder):
    keep = ("method", "better", "bounds", "scale", "role", "status", "key", "input_hash", "codes")
    data = json.loads((folder / "bout.json").read_text())
    spoiled = _spoil(data, (k for k in keep if k != "scale")) | {"scale": XSS}
    spoiled = {**_spoil(data, keep), "scale": XSS, "notes": [XSS], "absent": {XSS: XSS}, "options": {XSS: XSS}}
    spoiled["codes"] = {name + XSS: code for name, code in data["codes"].items()}
    (folder / "bout.json").write_text(json.dumps(spoiled))
    bout = store.read_bout(folder)
    journal = store.Journal(folder)
    for contender in bout.contenders:
        for seed in bout.seeds:
            run = _named(bout, contender.name, seed)
            journal.append(replace(run, status="ok", scores={"error" + XSS: 1.0 + seed}, environment={XSS: XSS}))
    failed = replace(_named(bout, bout.contenders[1].name, 0), status="failed", error=XSS)
    journal.append(replace(failed, key=plan.key(bout, failed.contender, 1), seed=1))
    journal.close()
    report = contest.rebuild([folder], None, {})
    assert len(report.runs) == 4
    contest.write_board([folder], folder / "site")
    for page in [report.page, *(folder / "site").glob("*.html")]:
        text = page.read_text()
        assert "&lt;script&gt;alert(1)" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def _named(bout: Bout, name: str, seed: int) -> Run:
    return Run(plan.key(bout, name, seed), bout.method, name, seed, {}, bout.input_hash, bout.codes[name])


@pytest.mark.parametrize("link", [".lock", "runs", "figures", "artefacts", "runs.csv"])
def test_links_in_a_results_folder_are_refused(folder, tmp_path, link, cli):
    """Going on in a folder from elsewhere must not write where its links point."""
    target = tmp_path / "precious"
    target.write_text("precious")
    if link == "runs":
        os.rename(folder / "runs", folder / "runs2")
    (folder / link).symlink_to(target)
    done = cli("run", "toy", "--out", folder, "--seeds", 1)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    if link == ".lock":
        with pytest.raises(InputError), store.locked(folder):
            pytest.fail("locked")
    assert target.read_text() == "precious"


NAMES = (
    *("../../escape", "/etc/passwd", "..", ".", "a/b", "a\\b", "~root", "-rf", "--", "CON\u202e"),
    *("x" * 300, "\x1b[2J", "a\nb", "a\rb", "\u0000x", "%s%n", "${HOME}", "$(touch canary-file)", XSS, "\ud800"),
)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names(name, toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    places = [["run", name], ["show", name], ["run", "toy", "--contenders", name], ["run", "toy", "--rival", name]]
    places += [["run", "toy", "--rival", f"{name}:f"], ["run", "toy", "--shard", name], ["report", f"nowhere/{name}"]]
    for tokens in places:
        monkeypatch.setattr(sys, "argv", ["bakeoff", *tokens])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        if tokens[:2] in (["run", "-rf"], ["run", "--"], ["show", "--"]):  # parsed as options of `bakeoff run`
            assert ended.value.code in (0, 2)
            continue
        assert ended.value.code == 2, (tokens, said)
        assert said.err.strip(), tokens
        assert len(said.err.strip().splitlines()) == 1, said.err
        assert "\x1b" not in said.err
        assert "Traceback" not in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x" * 300, "\x1b[2J", "a\nb", "/dev/null/x", "/proc/x", "file", "full", "\u202ex"])
def test_unusable_out(name, toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["bakeoff", "run", "toy", "--seeds", "1", "--out", name])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1), said
    assert "\x1b" not in said
    assert {p.name: p.is_dir() for p in tmp_path.rglob("*")} == {"file": False, "full": True, "thesis.tex": False}


@pytest.mark.parametrize(
    "name", ["../../escape", "..", ".hidden", "a/b", "/abs", "", "a\nb", "claim:coverage", "x" * 99]
)
def test_guest_cannot_name_a_path(name, cli, tmp_path):
    script = f"""if True:
        import bakeoff
        from bakeoff.arena.types import Contender, InputError
        try:
            bakeoff.compare("toy", extra=[Contender({name!r}, "rival", lambda data, seed: 3.0)], keep=True, out="out")
        except InputError as error:
            print("refused:", error)
    """
    done = cli.python(script)
    assert done.stdout.startswith("refused:"), done.stderr
    assert not (tmp_path / "out").exists()


def test_kept_output_stays_inside(cli, tmp_path):
    done = cli("run", "toy", "--contenders", "keeps", "--seeds", 2, "--keep", "--out", "out")
    assert done.returncode == 0, done.stderr
    kept = sorted(p.relative_to(tmp_path / "out/artefacts") for p in (tmp_path / "out/artefacts").rglob("value.txt"))
    assert kept == [Path(f"keeps/seed-{seed}/value.txt") for seed in (0, 1)]
    runs = [run for run in store.read_runs(tmp_path / "out")[0] if run.contender == "keeps"]
    assert all(run.cost["artefact_bytes"] > 0 for run in runs)
    assert cli("run", "toy", "--contenders", "keeps", "--seeds", 2, "--keep", "--out", "out").returncode == 0
    assert len(cli.calls()) == 4  # nothing ran twice, outputs that cannot be kept included


def test_records_are_strict_json():
    run = Run("k", "toy", "mean", 0, {}, "a", "b", "ok", scores={"error": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.encode(run)


def test_card_from_elsewhere(tmp_path):
    for text in ("slug = 1", "[[", "slug = 'x'\nunknown = 1"):
        (tmp_path / "card.toml").write_text(text)
        with pytest.raises(InputError):
            catalog.read_card(tmp_path / "card.toml", "x.y")

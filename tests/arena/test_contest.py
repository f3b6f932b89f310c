"""Results folders: what they take in, how they are merged, and who may write into them at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff import compare
from bakeoff.arena import contest, plan, store
from bakeoff.arena.types import Contender, InputError, Settings


def results(out: Path, toy, seeds=(0, 1), contenders=("mean", "zero"), absent=None) -> Path:
    """A folder of sound results, without a process for each."""
    store.open_folder(out, "toy")
    planned = plan.make(toy, {}, Settings(seeds=2, contenders=contenders), command="bakeoff run toy --shard 1/2")
    bout = replace(planned.bout, absent=absent or {})
    store.write_bout(out, bout)
    journal = store.Journal(out)
    for task in planned.tasks:
        if task.run.seed in seeds:
            journal.append(replace(task.run, status="ok", scores={"error": 0.5 + task.run.seed, "estimate": 1.0}))
    journal.close()
    return out


def test_a_folder_of_another_method_is_left_alone(tmp_path, toy, cli):
    folder = results(tmp_path / "out", toy)
    before = (folder / "bout.json").read_bytes()
    done = cli("run", "merge-kernel", "--quick", "--seeds", "1", "--out", folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "results of toy" in done.stderr
    assert (folder / "bout.json").read_bytes() == before


def test_a_folder_with_runs_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        store.open_folder(tmp_path, "toy")
    (tmp_path / "report.html").unlink()
    store.open_folder(tmp_path, "toy")  # as a crash before the first write leaves it


def test_merged_runs_stay_with_the_folder_that_shows_them(tmp_path, toy):
    first, second = (results(tmp_path / str(seed), toy, seeds=(seed,)) for seed in (0, 1))
    assert len(contest.rebuild([first, second], None, {}).runs) == 6
    again = contest.rebuild([first], None, {})
    assert len(again.runs) == 6
    assert "--shard" not in again.bout.command
    lines = sum(len(path.read_text().splitlines()) for path in (first / "runs").glob("*.jsonl"))
    contest.rebuild([first, second], None, {})
    assert sum(len(path.read_text().splitlines()) for path in (first / "runs").glob("*.jsonl")) == lines


def test_a_contender_that_was_absent_in_one_part_only_is_there(tmp_path, toy):
    lacking = results(tmp_path / "a", toy, contenders=("mean",), absent={"zero": "needs nopkg"})
    whole = results(tmp_path / "b", toy)
    for folders in ([lacking, whole], [whole, lacking]):
        report = contest.rebuild(folders, tmp_path / f"out{len(list(tmp_path.iterdir()))}", {})
        assert {run.contender for run in report.runs} >= {"mean", "zero"}
        assert report.bout.absent == {}


def test_shards_share_a_folder_and_a_whole_run_does_not(tmp_path):
    with store.locked(tmp_path, "1/2"), store.locked(tmp_path, "2/2"):
        with pytest.raises(InputError, match="in use"), store.locked(tmp_path, "1/2"):
            pytest.fail("locked")
        with pytest.raises(InputError, match="in use"), store.locked(tmp_path):
            pytest.fail("locked")
    with store.locked(tmp_path):
        pass


def test_a_board_has_a_page_for_each_report(tmp_path, toy):
    folders = [results(tmp_path / name, toy) for name in "ab"]
    for folder in folders:
        contest.rebuild([folder], None, {"toy": toy})
    contest.write_board(folders, tmp_path / "site")
    index = (tmp_path / "site" / "index.html").read_text()
    for name in ("toy.html", "toy-2.html"):
        assert f'href="{name}"' in index
        assert (tmp_path / "site" / name).is_file()
    with pytest.raises(InputError, match="no results folder"):
        contest.write_board([], tmp_path / "site2")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seeds": 0}, "--seeds"),
        ({"seeds": 10**9}, "--seeds"),
        ({"seeds": 2.5}, "--seeds"),
        ({"seeds": "2"}, "--seeds"),
        ({"jobs": 0}, "--jobs"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"memory": -1.0}, "--memory"),
        ({"engine": "slurm"}, "no engine"),
        ({"address": "10.0.0.1:6379"}, "--engine ray"),
    ],
    ids=str,
)
def test_settings_out_of_range(given, told):
    with pytest.raises(InputError, match=told):
        Settings(**given)


def test_one_name_may_stand_alone_in_python():
    assert Settings(contenders="mean", rival="a:b") == Settings(contenders=("mean",), rival=("a:b",))


@pytest.mark.parametrize(
    "own",
    [
        Contender("mine", "paper", lambda data, seed: 0.0),
        Contender("mine", "rival", None),
        Contender(3, "rival", lambda data, seed: 0.0),
        Contender("mine", "rival", lambda data, seed: 0.0, why=None),
        "mine",
    ],
    ids=["role", "no function", "name", "why", "text"],
)
def test_guests_that_cannot_take_part(toy, own, tmp_path):
    with pytest.raises(InputError, match="cannot take part"):
        compare("toy", extra=[own], out=tmp_path / "out", seeds=1)


def test_a_number_that_is_none_is_refused_before_any_file_is_made(cli, tmp_path):
    done = cli("run", "toy", "--pause", "nan", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--pause" in done.stderr
    assert not (tmp_path / "out").exists()


def test_names_may_be_given_in_parts_but_not_left_out(cli, tmp_path):
    done = cli("run", "toy", "--contenders", "zero", "--contenders", "median", "--seeds", 1, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = {run.contender for run in store.read_runs(tmp_path / "out")[0]}
    assert {"zero", "median"} <= found
    done = cli("run", "toy", "--contenders", ",", "--out", tmp_path / "none")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--contenders" in done.stderr


@pytest.mark.parametrize("name", ["next-token", "sort_key"])
def test_a_contender_may_be_called_like_a_secret(name):
    record = {"codes": {name: "abc"}, "contenders": [{"name": name}], "options": {"api_key": "hunter2"}}
    assert store.redact(record) == record | {"options": {"api_key": "REDACTED"}}


def test_names_are_no_secrets_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("GIT_AUTHOR_NAME", "net_discoveries")
    monkeypatch.setenv("MLFLOW_KEY", "merge-kernel")
    record = {"method": "merge-kernel", "scores": {"net_discoveries": 0.5}}
    assert store.redact(record) == record
    monkeypatch.setenv("MLFLOW_KEY", "s3cr3t-value")
    assert store.redact({"method": "merge-kernel", "error": "got s3cr3t-value"})["error"] == "got REDACTED"

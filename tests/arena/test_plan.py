"""Shards, merging, and runs that are a pure function of their key."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.arena import plan, store
from bakeoff.arena.types import Bout, InputError, Settings, from_json, to_json


def results(folder) -> dict[tuple[str, int], dict]:
    """Scores to the last bit, without what may differ: costs and environment."""
    runs = store.read_runs(folder)[0]
    return {(r.contender, r.seed): {"key": r.key, "scores": {k: v.hex() for k, v in r.scores.items()}} for r in runs}


def test_one_job_equals_two_and_order_is_irrelevant(cli, tmp_path):
    for out, more in {
        "one": ["-j", 1],
        "two": ["-j", 2],
        "turned": ["--contenders", "zero,median,mean,trimmed"],
        "part": ["--contenders", "median"],
    }.items():
        assert cli("run", "toy", "--seeds", 4, "--out", out, *more).returncode == 0
    one, two, turned, part = (results(tmp_path / name) for name in ("one", "two", "turned", "part"))
    assert one == two == turned
    assert len(one) == 16
    assert part.items() <= one.items()
    assert len(part) == 8
    assert len({r["scores"]["error"] for (name, _), r in one.items() if name == "mean"}) == 4


def test_three_shards_make_the_whole(cli, tmp_path):
    assert cli("run", "toy", "--claims", "--seeds", 4, "--out", "whole").returncode == 0
    parts = [f"part{i}" for i in (1, 2, 3)]
    for i, part in enumerate(parts, 1):
        done = cli("run", "toy", "--claims", "--seeds", 4, "--out", part, "--shard", f"{i}/3")
        assert done.returncode == 0, done.stderr
    merged = cli("report", *parts, "--out", "merged", "--json")
    assert merged.returncode == 0, merged.stderr
    pieces = [results(tmp_path / part) for part in parts]
    assert sum(map(len, pieces)) == 24
    assert results(tmp_path / "merged") == results(tmp_path / "whole") == {k: v for p in pieces for k, v in p.items()}
    whole = json.loads((tmp_path / "whole/report.json").read_text())
    other = json.loads(merged.stdout)
    for report in (whole, other):  # cost is measured, not computed
        report["rows"] = [{k: v for k, v in row.items() if k != "cost"} for row in report["rows"]]
    assert other["rows"] == whole["rows"]
    assert other["claims"] == whole["claims"]
    assert not cli.calls()[48:]


@pytest.fixture
def planned(toy) -> plan.Plan:
    return plan.make(toy, {}, Settings(seeds=6, claims=True), command="")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(n=st.integers(1, 40))
def test_shards_partition(planned, n):
    parts = [plan.shard(planned.tasks, f"{i}/{n}") for i in range(1, n + 1)]
    assert sorted(t.run.key for part in parts for t in part) == sorted(t.run.key for t in planned.tasks)


def test_shards_do_not_depend_on_order_or_company(planned):
    turned = random.Random(0).sample(planned.tasks, len(planned.tasks))
    for i in (1, 2, 3):
        mine = {t.run.key for t in plan.shard(planned.tasks, f"{i}/3")}
        assert {t.run.key for t in plan.shard(turned, f"{i}/3")} == mine
        assert {t.run.key for t in plan.shard(planned.tasks[:9], f"{i}/3")} <= mine
        assert len(mine) >= 2


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/0", "-1/3", "a/b", "1/3/5", "1/99999", "١/٢x"])
def test_wrong_shard(planned, text):
    with pytest.raises(InputError, match="--shard"):
        plan.shard(planned.tasks, text)


def test_keys_are_distinct_and_stable(toy, planned):
    again = plan.make(toy, {}, Settings(seeds=6, claims=True, jobs=7), command="other")
    assert [t.run.key for t in again.tasks] == [t.run.key for t in planned.tasks]
    assert len({t.run.key for t in planned.tasks}) == len(planned.tasks) == 6 * 4 + 8
    other = plan.make(toy, {"size": 50}, Settings(seeds=6, claims=True), command="")
    same = {t.run.key for t in planned.tasks} & {t.run.key for t in other.tasks}
    assert same == {t.run.key for t in planned.tasks if t.run.contender.startswith("claim:")}


def test_defaults_spelled_out_are_the_same_input(toy, planned):
    spelled = plan.make(toy, {"size": 100, "pause": 0.0}, Settings(seeds=1), command="")
    assert spelled.bout.input_hash == planned.bout.input_hash


def test_paper_contender_is_always_there(toy):
    made = plan.make(toy, {}, Settings(seeds=1, contenders=["mean"]), command="")
    assert [c.name for c in made.bout.contenders] == ["trimmed", "mean"]


def test_merge_refuses_what_does_not_belong_together(toy, planned):
    small = plan.make(toy, {"size": 50}, Settings(seeds=1), command="")
    with pytest.raises(InputError, match="different bouts or inputs"):
        plan.merge([planned.bout, small.bout])
    changed = json.loads(json.dumps(to_json(planned.bout)))
    changed["codes"]["mean"] = "0" * 16
    with pytest.raises(InputError, match="different code"):
        plan.merge([planned.bout, from_json(Bout, changed)])


def test_old_and_foreign_runs_are_left_out(planned):
    runs = [task.run for task in planned.tasks]
    assert plan.select(planned.bout, runs) == runs
    foreign = [type(r)(**{**vars(r), "key": "0" * 16}) for r in runs]
    late = [type(r)(**{**vars(r), "seed": 6 + r.seed}) for r in runs]
    assert plan.select(planned.bout, [*foreign, *late]) == []

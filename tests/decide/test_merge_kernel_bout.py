"""The bout: options and their errors, fair contenders, scores on the stated scale, claims, figures."""

import inspect
import json
import math
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from bakeoff.arena.types import InputError
from bakeoff.decide.merge_kernel import bout
from bakeoff.decide.merge_kernel.gap import gaps, scale
from bakeoff.decide.merge_kernel.rivals import Orders, Trace
from bakeoff.inputs.permutation_problems import load_problem

NAMES = ("merge", "mallows", "position", "spearman", "local-search", "random", "kendall", "merge-position",
         "mallows-position", "tpe")  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return bout.load(quick=True)


@pytest.fixture(scope="module")
def outputs(data):
    return {c.name: c.call(data, 0) for c in bout.contenders(data)}


def contender(data, name):
    return next(c for c in bout.contenders(data) if c.name == name)


def test_default_is_the_suite_with_60_evaluations():
    data = bout.load()
    assert [p.name for p in data.problems] == ["tsp:15", "lop:60", "fsp:50x5", "ft10"]
    assert (data.budget, data.init, data.search) == (60, 15, (5, 40, 12))


def test_roles(data):
    everyone = bout.contenders(data)
    assert tuple(c.name for c in everyone) == NAMES
    assert [c.role for c in everyone].count("paper") == 1
    assert {c.name for c in everyone if c.optional} == {"kendall", "merge-position", "mallows-position", "tpe"}
    assert contender(data, "tpe").needs == ("optuna",)


@pytest.mark.parametrize("name", NAMES)
def test_all_evaluate_as_often_from_the_same_design(name, outputs, data):
    for problem in data.problems:
        trace, reference = outputs[name].traces[problem.name], outputs["random"].traces[problem.name]
        assert trace.perms.shape == (14, problem.n)
        assert (np.sort(trace.perms, axis=1) == np.arange(problem.n)).all()
        assert (trace.perms[:8] == reference.perms[:8]).all()
        assert trace.values == pytest.approx([problem.objective(p) for p in trace.perms])


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_are_equal_and_others_differ(name, outputs, data):
    again, other = (contender(data, name).call(data, seed) for seed in (0, 1))
    for problem in data.problems:
        assert (again.traces[problem.name].perms == outputs[name].traces[problem.name].perms).all()
        assert (other.traces[problem.name].perms != outputs[name].traces[problem.name].perms).any()


def test_no_global_random_state_is_used(data):
    before = np.random.get_state()[1].copy()
    for name in ("merge", "local-search", "random"):
        contender(data, name).call(data, 3)
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_finite_and_in_bounds(name, outputs, data):
    scores = bout.score(outputs[name], data)
    for metric in bout.METRICS:
        if metric.name in scores:
            assert metric.bounds[0] <= scores[metric.name] <= metric.bounds[1]
    assert {"gap", "area", "features"} <= set(scores)
    json.dumps(scores, allow_nan=False)


def test_scores_of_the_suite():
    data = bout.load()
    values = {"tsp:15": 5.06, "lop:60": -998.0, "fsp:50x5": 3164.8, "ft10": 1175.5}
    traces = {n: Trace(np.zeros((60, 2), int), np.full(60, v)) for n, v in values.items()}
    scores = bout.score(Orders(traces), data)
    assert scores["gap_tsp15"] == pytest.approx(0.27, abs=0.01)
    assert scores["gap_lop60"] == pytest.approx(0.44, abs=0.01)
    assert scores["gap_ft10"] == pytest.approx(0.53, abs=0.01)
    assert scores["gap_fsp50"] == pytest.approx((3164.8 - 3042) / (3437.17 - 3042), abs=1e-4)
    assert scores["gap_large"] == pytest.approx(np.mean([scores[f"gap_{k}"] for k in ("lop60", "fsp50", "ft10")]))
    assert scores["gap"] == pytest.approx((scores["gap_tsp15"] + 3 * scores["gap_large"]) / 4)
    assert scores["area"] == pytest.approx(scores["gap"])
    assert bout.METRICS[0].primary
    assert sum(m.primary for m in bout.METRICS) == 1


def test_scale_of_other_problems():
    assert scale(load_problem("ft06"), np.ones(15), 60) == (pytest.approx(79.96), 55.0)
    mean, reference = scale(load_problem("tsp:8"), np.ones(15), 60)
    assert reference < mean
    own = SimpleNamespace(cheap=False, objective=None)
    values = np.array([1.0, 2.0, 3.0, 2.0, 0.5])
    mean, reference = scale(own, values[:4], 60)
    assert (mean, reference) == (2.0, pytest.approx(2.0 - 5 * values[:4].std()))
    assert gaps(own, np.ones(5), 4, 60).tolist() == [0.0] * 5


def test_own_objective(tmp_path, monkeypatch):
    (tmp_path / "shop_orders.py").write_text("def cost(perm):\n    return float(perm[0]) + 0.1 * perm[1]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    data = bout.load(objective="shop_orders:cost", n=6, budget=20, init=5)
    merge = contender(data, "merge").call(data, 0)
    scores = bout.score(merge, data)
    assert scores["best"] == {"shop_orders:cost": pytest.approx(0.1)}
    assert "gap_large" not in scores
    assert "only differences between contenders mean something" in data.notes[0]
    merge.save(tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "orders.json").read_text())["shop_orders:cost"]
    assert kept["order"][:2] == [0, 1]
    assert len(kept["values"]) == 20


def test_claims_on_the_suite_are_not_judged_on_other_problems():
    data = bout.load(problem="la01", budget=4, init=3)
    scores = bout.score(contender(data, "random").call(data, 0), data)
    assert data.problems[0].n == 50
    assert {m.name for m in bout.METRICS} & set(scores) == {"gap", "area", "features"}


def test_notes_say_what_the_scale_is_where_it_is_not_published():
    assert bout.load().notes == bout.load(problem="ft06").notes == ()
    assert "0 is the best of 2000 local-search steps, no proven optimum" in bout.load(problem="tsp:9").notes[0]


@pytest.mark.parametrize("evaluations", [13, 28])
def test_contenders_with_another_budget_are_refused(evaluations, data):
    traces = {p.name: Trace(np.tile(np.arange(p.n), (evaluations, 1)), np.ones(evaluations)) for p in data.problems}
    with pytest.raises(ValueError, match=f"{evaluations} evaluations, but the budget is 14"):
        bout.score(Orders(traces), data)


@pytest.mark.parametrize(("options", "message"), [
    ({"problem": "tsp:2", "budget": 2, "init": 1}, "give at least 2"),
    ({"problem": "tsp:2"}, "2 items have only 2 orderings; give a problem of 3 items"),
    ({"noise": "1e-20"}, "give a number from 1e-10 up, or learn"),
    ({"problem": "la1"}, "near names"),
    ({"problem": "tsp:8", "objective": "a:b"}, "--objective and --problem"),
    ({"n": 5}, "--n belongs to --objective"),
    ({"objective": "math:nothing", "n": 5}, "cannot import"),
    ({"objective": "math:nothing"}, "--n"),
    ({"budget": 15}, "15 evaluations, of which 15 are initial"),
    ({"init": 1}, "give at least 2"),
    ({"problem": "tsp:4"}, "only 4! = 24 orderings"),
    ({"kind": "lop"}, "--kind says what"),
    ({"noise": "loud"}, "is no variance"),
    ({"noise": "-1"}, "is no variance"),
    ({"descriptors": "shift,odd"}, "descriptor 'odd'"),
    ({"anchors": 0}, "anchors"),
    ({"embedding_dim": 0}, "embedding_dim"),
    ({"problem": "gone.csv", "kind": "lop"}, "no such file"),
])  # fmt: skip
def test_bad_options_fail_at_once_in_one_line(options, message):
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        bout.load(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - start < 3


def test_settings_reach_the_optimiser():
    data = bout.load(quick=True, noise="learn", descriptors="shift, motif", anchors=2, space="auto", acqf="ucb")
    assert (data.noise, data.descriptors) == ("learn", ("shift", "motif"))
    plain = contender(bout.load(quick=True), "merge").call(bout.load(quick=True), 0)
    other = contender(data, "merge").call(data, 0)
    assert any((plain.traces[n].perms != other.traces[n].perms).any() for n in plain.traces)


def test_claims_name_what_exists(data):
    names = {m.name for m in bout.METRICS}
    for claim in bout.CLAIMS:
        if claim.check:
            assert callable(getattr(bout, claim.check))
            assert list(inspect.signature(getattr(bout, claim.check)).parameters) == ["seed"]
        else:
            assert claim.metric in names
            assert {claim.contender, claim.rival} <= set(NAMES)


def test_lengths_claim_holds():
    assert bout.check_lengths(0) == {"wrong": 0.0, "lost": 0.0}


def test_cost_claim_measures_both_ratios(monkeypatch):
    monkeypatch.setattr("bakeoff.decide.merge_kernel.claims.LARGE", 150)
    ratios = bout.check_cost(0)
    assert set(ratios) == {"features_ratio", "suggestion_ratio"}
    assert 0.2 < ratios["features_ratio"] < math.inf
    assert 1 < ratios["suggestion_ratio"] < math.inf


def test_equal_time_claim_gives_mallows_fewer_evaluations_or_as_many(monkeypatch):
    monkeypatch.setattr("bakeoff.decide.merge_kernel.claims.EQUAL_TIME", ("lop:150",))
    values = bout.check_equal_time(0)
    assert set(values) == {"evaluations_ratio", "gain"}
    assert 1 < values["evaluations_ratio"] < 4
    assert -1 < values["gain"] < 1


def test_figures(outputs, data, tmp_path):
    runs = [
        SimpleNamespace(status="ok", contender=name, details=bout.score(output, data))
        for name, output in outputs.items()
    ]
    captions = bout.figures([*runs, SimpleNamespace(status="failed", contender="merge", details={})], tmp_path)
    assert set(captions) == {"best-so-far.svg", "suggestion-time.svg"}
    for name in captions:
        assert "<svg" in (tmp_path / name).read_text()
    assert bout.figures([], tmp_path) == {}


def test_importing_the_bout_is_light():
    code = (
        "import bakeoff.decide.merge_kernel.bout as b, sys; b.load();"
        "assert not {'torch', 'scipy', 'pandas', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

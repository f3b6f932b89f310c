"""The statistics against closed forms, scipy, statsmodels and simulations of what they promise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference
from statsmodels.stats.multitest import multipletests

from bakeoff.arena import stats
from bakeoff.arena.stats import Comparison, Summary, judge_claim, summarise
from bakeoff.arena.types import Bout, Claim, Contender, Metric, Run

pytestmark = pytest.mark.filterwarnings("error")

Scores = dict[str, Any]


def bout_of(names: str = "ours theirs", n: int = 8, **changes: Any) -> Bout:
    """A bout of the named contenders: the first is the paper's, ``floor`` is a floor, all others are rivals."""
    metric = {k: changes.pop(k) for k in ("better", "margin", "scale") if k in changes}
    role = {names.split()[0]: "paper", "floor": "floor"}
    return Bout(
        method="m",
        title="",
        paper="",
        job="",
        use="",
        scale="",
        metrics=(
            Metric("score", **{"better": "higher", "margin": 0.0, **metric}, primary=True),
            Metric("other", "lower"),
        ),
        claims=(),
        contenders=tuple(Contender(name, role.get(name, "rival")) for name in names.split()),
        seeds=tuple(range(n)),
        options={},
        command="",
        **changes,
    )


def run_of(contender: str, seed: int, score: float | list[float] | None, cpu_s: float = 1.0, status: str = "ok") -> Run:
    """A run with one score, or with per-example scores; None for a run that did not end ok."""
    run = Run("k", "m", contender, seed, {}, "i", "c", status="failed" if score is None else status)
    if score is not None:
        run.scores = {"score": float(np.mean(score)), "other": 1.0}
        run.cost = {"cpu_s": cpu_s, "wall_s": 2 * cpu_s, "peak_mb": 5.0}
    if isinstance(score, list):
        run.examples = {"score": score}
    return run


def runs_of(**scores: Any) -> list[Run]:
    """The runs of each contender, one score per seed."""
    return [run_of(name, seed, value) for name, values in scores.items() for seed, value in enumerate(values)]


def contest(bout: Bout, **scores: Any) -> Summary:
    return summarise(bout, runs_of(**scores))


def versus(summary: Summary, rival: str = "theirs") -> Comparison:
    found = next(row.versus for row in summary.rows if row.contender == rival)
    assert found is not None
    return found


def ends(interval: stats.Interval | None) -> tuple[float, float]:
    """Both bounds of an interval that must have them."""
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def numbers(value: Any) -> list[float]:
    """Every float in nested plain data."""
    if isinstance(value, dict):
        return [x for item in value.values() for x in numbers(item)]
    if isinstance(value, list | tuple):
        return [x for item in value for x in numbers(item)]
    return [value] if isinstance(value, float) else []


# Intervals


@pytest.mark.parametrize("n", [5, 6, 8, 40])
def test_interval_is_students_t(n: int) -> None:
    values = np.random.default_rng(n).normal(3, 2, n)
    ours = stats.t_interval(values)
    theirs = reference.t.interval(0.95, n - 1, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(n))
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=1e-10)
    assert ours.mean == pytest.approx(values.mean())
    assert ours.n == n


@pytest.mark.parametrize("n", [1, 4])
def test_no_interval_below_five(n: int) -> None:
    assert stats.t_interval(np.arange(n)) == stats.Interval((n - 1) / 2, None, None, n)


@pytest.mark.parametrize("n", [6, 8])
def test_paired_intervals_cover_95_percent(n: int) -> None:
    rng = np.random.default_rng(n)
    effect = rng.normal(size=(3000, n))
    ours, theirs = effect + rng.normal(0.2, 0.3, (3000, n)), effect + rng.normal(0, 0.4, (3000, n))
    found = [ends(stats.t_interval(d)) for d in ours - theirs]
    assert 0.93 <= np.mean([low <= 0.2 <= high for low, high in found]) <= 0.97
    for k in range(0, 3000, 100):
        assert ends(versus(contest(bout_of(n=n), ours=ours[k], theirs=theirs[k])).difference) == pytest.approx(found[k])


def redrawn_splits(rng: np.random.Generator, n: int) -> tuple[list[float], list[float]]:
    """Test losses of two equally good ridge regressions on n redrawn 50/50 splits of one random table."""
    X = rng.normal(size=(100, 6))
    y = X.sum(axis=1) / 2 + rng.normal(size=100)
    losses: tuple[list[float], list[float]] = ([], [])
    for _ in range(n):
        order = rng.permutation(100)
        train, test = order[:50], order[50:]
        for columns, loss in zip((slice(0, 3), slice(3, 6)), losses, strict=True):
            A = X[train, columns]
            w = np.linalg.solve(A.T @ A + np.eye(3), A.T @ y[train])
            loss.append(float(np.mean((y[test] - X[test, columns] @ w) ** 2)))
    return losses


def test_overlapping_splits_need_the_factor() -> None:
    """Exchangeable columns: the true difference is 0; without the factor four in ten intervals miss it."""
    rng = np.random.default_rng(0)
    splits = [redrawn_splits(rng, 8) for _ in range(400)]
    for overlap, least, most in ((1.0, 0.93, 0.99), (0.0, 0.45, 0.75)):
        bout = bout_of(overlap=overlap, better="lower")
        found = [ends(versus(contest(bout, ours=a, theirs=b)).difference) for a, b in splits]
        assert least <= np.mean([low <= 0 <= high for low, high in found]) <= most


def test_overlap_gives_no_p_and_says_so() -> None:
    values = np.arange(8.0)
    summary = contest(bout_of(overlap=1.0), ours=values + 5, theirs=values[::-1])
    assert versus(summary).p is None
    assert versus(summary).p_holm is None
    assert any("Nadeau-Bengio factor with r = 1" in note for note in summary.notes)


def test_examples_are_the_unit_and_cover() -> None:
    """A fixed test set of 100 examples, 6 seeds: intervals over seeds alone would miss the truth half of the time."""
    rng, by_example, by_seed = np.random.default_rng(1), [], []
    for _ in range(300):
        effect = rng.normal(0.1, 1.0, 100)
        ours, theirs = effect + rng.normal(0, 0.5, (6, 100)), rng.normal(0, 0.5, (6, 100))
        found = versus(contest(bout_of(n=6), ours=ours.tolist(), theirs=theirs.tolist()))
        assert found.unit == "example"
        by_example.append(ends(found.difference))
        by_seed.append(ends(stats.t_interval((ours - theirs).mean(axis=1))))
    assert 0.92 <= np.mean([low <= 0.1 <= high for low, high in by_example]) <= 0.98
    assert np.mean([low <= 0.1 <= high for low, high in by_seed]) < 0.7


def test_examples_are_averaged_over_seeds() -> None:
    rng = np.random.default_rng(2)
    ours, theirs = rng.normal(size=(2, 6, 50))
    found = versus(contest(bout_of(n=6), ours=ours.tolist(), theirs=theirs.tolist()))
    d = (ours - theirs).mean(axis=0)
    expected = reference.t.interval(0.95, 49, loc=d.mean(), scale=d.std(ddof=1) / math.sqrt(50))
    assert ends(found.difference) == pytest.approx(expected)
    assert found.wins == (d > 0).sum()
    assert found.losses == (d < 0).sum()
    assert found.needed is None


@pytest.mark.parametrize(("length", "overlap", "short"), [(29, 0.0, 0), (40, 0.5, 0), (40, 0.0, 1)])
def test_seed_is_the_unit_otherwise(length: int, overlap: float, short: int) -> None:
    """Too few examples, redrawn ones, or one run that scored fewer of them."""
    ours = np.random.default_rng(0).normal(size=(6, length)).tolist()
    theirs = np.random.default_rng(1).normal(size=(6, length)).tolist()
    theirs[2] = theirs[2][: length - short]
    found = versus(contest(bout_of(n=6, overlap=overlap), ours=ours, theirs=theirs))
    assert found.unit == "seed"
    assert found.difference
    assert found.difference.n == 6


def test_log_scale_shows_geometric_means_and_ratios() -> None:
    rng = np.random.default_rng(0)
    theirs = np.exp(rng.normal(0, 2, 8))
    ours = theirs * np.exp(rng.normal(-0.7, 0.1, 8))
    summary = contest(bout_of(better="lower", scale="log", margin=0.05), ours=ours, theirs=theirs)
    found, logs = versus(summary), np.log(ours / theirs)
    expected = np.exp(reference.t.interval(0.95, 7, loc=logs.mean(), scale=logs.std(ddof=1) / math.sqrt(8)))
    assert found.difference
    assert found.difference.mean == pytest.approx(np.exp(logs.mean()))
    assert ends(found.difference) == pytest.approx(tuple(expected))
    assert found.verdict == "better"
    assert found.wins == 8
    assert summary.rows[0].primary
    assert summary.rows[0].primary.mean == pytest.approx(reference.gmean(ours))


@pytest.mark.parametrize(
    ("ratio", "word"), [(1.04, "practically equal"), (1 / 1.04, "practically equal"), (1.06, "better")]
)
def test_log_margin_is_relative(ratio: float, word: str) -> None:
    theirs = np.array([1e-3, 1, 10, 1e3, 1e6])
    assert versus(contest(bout_of(n=5, scale="log", margin=0.05), ours=ratio * theirs, theirs=theirs)).verdict == word
    back = {"better": "worse"}.get(word, word)
    assert versus(contest(bout_of(n=5, scale="log", margin=0.05), ours=theirs, theirs=ratio * theirs)).verdict == back


def test_log_metric_with_a_zero_has_no_interval() -> None:
    summary = contest(
        bout_of("ours zero theirs", n=6, scale="log"), ours=[2.0] * 6, zero=[0, 1, 1, 1, 1, 1], theirs=[1.0] * 6
    )
    assert versus(summary, "zero").difference is None
    assert versus(summary, "zero").verdict == "not shown"
    assert summary.rows[1].primary is None
    assert summary.rows[1].values[0] == 0
    assert versus(summary).verdict == "better"
    assert any("zero" in note and "0 or less" in note for note in summary.notes)


# Verdicts


def test_equal_contenders_are_hardly_ever_told_apart() -> None:
    """With a margin of a quarter of the differences' sd; with equal scores never, even without a margin."""
    rng, told = np.random.default_rng(0), 0
    for _ in range(500):
        ours, theirs = rng.normal(size=(2, 8))
        bout = bout_of(margin=0.25 * math.sqrt(2))
        told += versus(contest(bout, ours=ours, theirs=theirs)).verdict in ("better", "worse")
        same = versus(contest(bout_of(), ours=ours, theirs=ours))
        assert (same.verdict, same.ties, same.p) == ("practically equal", 8, 1.0)
    assert told / 500 <= 0.03


@pytest.mark.parametrize(
    ("shift", "spread", "word"),
    [
        (1.0, 0.1, "better"),
        (-1.0, 0.1, "worse"),
        (0.25, 0.1, "practically equal"),
        (0.5, 0.1, "not shown"),
        (1.0, 5, "not shown"),
    ],
)
def test_verdict_words(shift: float, spread: float, word: str) -> None:
    d = reference.zscore([-2, -1, -1, 0, 0, 1, 1, 2], ddof=1) * spread + shift
    theirs = np.random.default_rng(0).normal(size=8)
    assert versus(contest(bout_of(margin=0.5), ours=theirs + d, theirs=theirs)).verdict == word


def test_half_the_margin_becomes_practically_equal() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.normal(size=400)
    ours = theirs + 0.25 + rng.normal(0, 0.5, 400)
    assert versus(contest(bout_of(n=400, margin=0.5), ours=ours, theirs=theirs)).verdict == "practically equal"


score = st.integers(-1000, 1000).map(lambda k: k / 10)
pair = st.integers(5, 13).flatmap(lambda n: st.tuples(*[st.lists(score, min_size=n, max_size=n)] * 2))


@settings(max_examples=150, deadline=None)
@given(pair, st.sampled_from([0.0, 0.1, 1.0, 20.0]), st.sampled_from([0.0, 1.0]))
def test_units_and_direction_change_no_verdict(
    scores: tuple[list[float], list[float]], margin: float, overlap: float
) -> None:
    ours, theirs = map(np.array, scores)
    setting = {"n": len(ours), "overlap": overlap}
    one = versus(contest(bout_of(margin=margin, **setting), ours=ours, theirs=theirs))
    scaled = versus(contest(bout_of(margin=1000 * margin, **setting), ours=1000 * ours, theirs=1000 * theirs))
    flipped = versus(contest(bout_of(margin=margin, better="lower", **setting), ours=-ours, theirs=-theirs))
    for other, factor in ((scaled, 1000.0), (flipped, -1.0)):
        assert (other.verdict, other.wins, other.ties, other.losses) == (one.verdict, one.wins, one.ties, one.losses)
        assert other.needed == one.needed
        assert other.p == one.p
        assert other.difference
        assert one.difference
        assert other.difference.mean == pytest.approx(factor * one.difference.mean, rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(pair, st.sampled_from([0.0, 5.0]))
def test_changing_sides_mirrors_everything(scores: tuple[list[float], list[float]], margin: float) -> None:
    ours, theirs = scores
    bout = bout_of(n=len(ours), margin=margin)
    one, back = versus(contest(bout, ours=ours, theirs=theirs)), versus(contest(bout, ours=theirs, theirs=ours))
    assert {one.verdict, back.verdict} in ({"better", "worse"}, {"not shown"}, {"practically equal"})
    assert (one.wins, one.ties, one.losses) == (back.losses, back.ties, back.wins)
    assert one.p == back.p
    assert one.difference
    assert back.difference
    assert one.difference.low == pytest.approx(-back.difference.high, abs=1e-9)


@pytest.mark.parametrize("overlap", [0.0, 0.25])
@pytest.mark.parametrize(("shift", "margin"), [(0.3, 0.0), (0.3, 0.2), (0.1, 0.3)])
def test_needed_is_the_first_number_of_seeds_that_decides(shift: float, margin: float, overlap: float) -> None:
    """Recomputed with samples of exactly that mean and standard deviation."""
    sd = abs(shift - margin) * (0.7 if overlap else 2.0)

    def decide(n: int) -> Comparison:
        d = reference.zscore(np.arange(n), ddof=1) * sd + shift
        return versus(contest(bout_of(n=n, margin=margin, overlap=overlap), ours=d, theirs=np.zeros(n)))

    needed = decide(5).needed
    assert needed is not None
    assert decide(needed).verdict == ("better" if shift > margin else "practically equal")
    assert decide(needed - 1).verdict == "not shown"


def test_needed_is_none_where_no_number_decides() -> None:
    d = reference.zscore(np.arange(8), ddof=1)
    assert versus(contest(bout_of(overlap=1.0), ours=d + 0.3, theirs=np.zeros(8))).needed is None
    assert versus(contest(bout_of(margin=0.5), ours=d + 0.5, theirs=np.zeros(8))).needed is None
    assert versus(contest(bout_of(), ours=d + 5, theirs=np.zeros(8))).needed is None


def test_few_seeds_have_values_but_no_verdict() -> None:
    summary = contest(bout_of(n=4), ours=[1, 2, 3, 4], theirs=[0, 0, 0, 0])
    found = versus(summary)
    assert (found.verdict, found.p, found.needed, found.wins) == ("too few runs", None, None, 4)
    assert found.difference == stats.Interval(2.5, None, None, 4)
    assert summary.rows[0].primary == stats.Interval(2.5, None, None, 4)
    assert summary.rows[0].values == [1, 2, 3, 4]
    assert any("to show p < 0.05" in note for note in summary.notes)


# Pairing


def test_permuting_one_contender_widens_the_interval() -> None:
    rng = np.random.default_rng(0)
    effect = rng.normal(size=8)
    ours, theirs = effect + rng.normal(0.3, 0.2, 8), effect + rng.normal(0, 0.2, 8)

    def width(theirs: Any) -> float:
        low, high = ends(versus(contest(bout_of(), ours=ours, theirs=theirs)).difference)
        return high - low

    assert width(np.roll(theirs, 3)) > 2 * width(theirs)


def test_one_failed_seed_drops_the_pair() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 8))
    summary = contest(bout_of(), ours=ours, theirs=[*theirs[:3], None, *theirs[4:]])
    kept = contest(bout_of(n=7), ours=np.delete(ours, 3), theirs=np.delete(theirs, 3))
    assert versus(summary) == versus(kept)
    assert summary.rows[1].statuses == {"ok": 7, "failed": 1}
    assert summary.rows[1].planned == 8
    assert summary.rows[0].primary
    assert summary.rows[0].primary.n == 8
    assert any("theirs: seed 3 failed" in note for note in summary.notes)


def test_missing_runs_and_order_of_runs() -> None:
    runs = runs_of(ours=np.arange(8.0), theirs=np.arange(8.0)[::-1])
    lacking = [run for run in runs if (run.contender, run.seed) != ("ours", 5)]
    summary = summarise(bout_of(), lacking)
    assert summary.rows[0].statuses == {"ok": 7, "missing": 1}
    assert summary.rows[0].values == [0, 1, 2, 3, 4, 6, 7]
    assert summary == summarise(bout_of(), lacking[::-1])


def test_a_later_record_replaces_an_earlier_one() -> None:
    runs = [*runs_of(ours=[None] * 5, theirs=[0.0] * 5), *runs_of(ours=[1.0] * 5)]
    assert versus(summarise(bout_of(n=5), runs)).verdict == "better"


def test_a_contender_without_ok_runs() -> None:
    summary = contest(bout_of("ours theirs gone"), ours=np.arange(8), theirs=np.zeros(8), gone=[None] * 8)
    assert versus(summary, "gone") == Comparison("gone", "seed", None, 0, 0, 0, None, None, "too few runs", None)
    assert summary.rows[2].primary is None
    assert summary.rows[2].cost == {}
    nothing = summarise(bout_of("ours theirs floor"), [])
    assert nothing.floor_beaten is None
    assert nothing.rows[0].statuses == {"missing": 8}


def test_a_third_contender_changes_only_holm() -> None:
    rng = np.random.default_rng(3)
    scores = dict(
        zip(("ours", "theirs", "third", "floor"), rng.normal(size=(4, 8)) + np.arange(4)[:, None] / 2, strict=True)
    )
    four = contest(bout_of("ours theirs third floor"), **scores)
    three = contest(bout_of("ours theirs floor"), **{k: v for k, v in scores.items() if k != "third"})
    for name in ("theirs", "floor"):
        a, b = versus(four, name), versus(three, name)
        assert a.p_holm is not None
        assert b.p_holm is not None
        assert a.p_holm >= b.p_holm
        assert dataclasses.replace(a, p_holm=None) == dataclasses.replace(b, p_holm=None)


# p


@pytest.mark.parametrize("n", [5, 8, 12])
def test_sign_flip_is_exact(n: int) -> None:
    d = np.random.default_rng(n).normal(0.4, 1, n)
    every = np.array(list(itertools.product([-1, 1], repeat=n))) @ d
    assert stats.sign_flip_p(d) == np.mean(np.abs(every) >= abs(d.sum()) - 1e-12)
    theirs = reference.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True)
    assert stats.sign_flip_p(d) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_sign_flip_by_draws() -> None:
    d = np.random.default_rng(0).normal(0.5, 1, 14)
    theirs = reference.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True)
    assert stats.sign_flip_p(d) == pytest.approx(theirs.pvalue, abs=4 * math.sqrt(theirs.pvalue / 20_000))
    assert stats.sign_flip_p(d) == stats.sign_flip_p(1000 * d) == stats.sign_flip_p(-d)
    many = np.random.default_rng(0).normal(0.05, 1, 3000)
    assert stats.sign_flip_p(many) == pytest.approx(reference.ttest_1samp(many, 0).pvalue, abs=0.01)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_statsmodels(p: list[float]) -> None:
    assert stats.holm(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)


def test_p_only_where_it_could_reach_5_percent() -> None:
    rng = np.random.default_rng(0)
    for n, rivals, given_ in ((5, 1, False), (6, 1, True), (6, 2, False), (8, 6, True), (8, 7, False), (13, 20, True)):
        names = [f"r{i}" for i in range(rivals)]
        scores = {name: rng.normal(size=n) for name in ["ours", *names]}
        summary = contest(bout_of(" ".join(scores), n=n), **scores)
        found = [versus(summary, name) for name in names]
        assert all((v.p is not None) == given_ for v in found)
        assert any("to show p" in note for note in summary.notes) != given_
        if given_:
            assert [v.p_holm for v in found] == pytest.approx(multipletests([v.p for v in found], method="holm")[1])


# Floor, cost, notes


@pytest.mark.parametrize(
    ("shift", "spread", "beaten"),
    [(1.0, 0.1, True), (0.6, 2.0, True), (-0.6, 2.0, False), (-1.0, 0.1, False), (0.1, 0.1, False)],
)
def test_floor(shift: float, spread: float, beaten: bool) -> None:
    d = reference.zscore(np.arange(8), ddof=1) * spread + shift
    for better, sign in (("higher", 1), ("lower", -1)):
        bout = bout_of("ours theirs floor", margin=0.5, better=better)
        assert contest(bout, ours=sign * d, theirs=d, floor=np.zeros(8)).floor_beaten is beaten


def test_floor_cannot_be_told() -> None:
    assert contest(bout_of(), ours=np.ones(8), theirs=np.ones(8)).floor_beaten is None
    gone = bout_of("ours floor")
    assert contest(gone, ours=np.ones(8), floor=[None] * 8).floor_beaten is None
    assert contest(bout_of("ours floor", n=3), ours=np.ones(3), floor=np.zeros(3)).floor_beaten is True


def test_cost_is_the_median_over_ok_runs() -> None:
    rng = np.random.default_rng(0)
    times = np.exp(rng.normal(0, 1, 8))
    runs = [run_of(name, s, 1.0, cpu_s=times[s]) for name in ("ours", "theirs") for s in range(8)]
    ours, _ = summarise(bout_of(overlap=1.0), runs).rows
    assert ours.cost == {
        "cpu_s": pytest.approx(np.median(times)),
        "wall_s": pytest.approx(2 * np.median(times)),
        "peak_mb": 5,
    }


def test_a_contender_to_whom_the_metric_does_not_apply_has_not_failed() -> None:
    runs = [run_of("ours", s, 1.0) for s in range(6)] + [run_of("theirs", s, 0.0) for s in range(6)]
    for run in runs[6:]:
        run.scores = {"other": 1.0}
    summary = summarise(bout_of(n=6), runs)
    assert summary.rows[1].statuses == {"ok": 6}
    assert summary.rows[1].primary is None
    assert versus(summary).verdict == "too few runs"
    assert not any("diverged" in note for note in summary.notes)
    assert summary.rows[1].cost


def test_notes_and_absent_contenders() -> None:
    bout = bout_of("ours theirs elsewhere", jobs=3, absent={"elsewhere": "no endpoint"})
    summary = contest(bout, ours=np.arange(8), theirs=np.zeros(8))
    assert [row.contender for row in summary.rows] == ["ours", "theirs"]
    assert [note for note in summary.notes if "timings" in note] == ["timings taken with 3 runs at a time"]
    assert "paired by seed over 8 seeds" in summary.notes
    assert summary.rows[0].exploratory == {"other": stats.Interval(1.0, 1.0, 1.0, 8)}


# Claims


def rivalry(margin: float = 0.0, **more: Any) -> Claim:
    return Claim(
        "text",
        "expect",
        "Table 1",
        **{"metric": "score", "contender": "ours", "rival": "theirs", "margin": margin, **more},
    )


@pytest.mark.parametrize(("margin", "verdict"), [(0.5, "held"), (1.0, "not shown"), (1.5, "not held"), (-1.0, "held")])
@pytest.mark.parametrize("n", [1, 4, 5, 8])
def test_claim_over_a_rival(margin: float, verdict: str, n: int) -> None:
    """Below 5 pairs there is no interval to read it off, however clear the values are."""
    d = 1 + 0.2 * (reference.zscore(np.arange(n), ddof=1) if n > 1 else np.zeros(1))
    for better, sign in (("higher", 1), ("lower", -1)):
        found = judge_claim(rivalry(margin), bout_of(n=n, better=better), runs_of(ours=sign * d, theirs=np.zeros(n)))
        assert found.verdict == (verdict if n >= 5 else "not shown")
        assert ("too few runs for an interval" in found.why) == (n < 5)
        assert found.value
        assert found.value.mean == pytest.approx(1)
        assert (found.value.low is None) == (n < 5)


def test_failed_pairs_and_designed_claims_below_five() -> None:
    ours, theirs = np.ones(8), [0.0] * 4 + [None] * 4
    assert judge_claim(rivalry(0.5), bout_of(), runs_of(ours=ours, theirs=theirs)).verdict == "not shown"
    for margin in (0.5, 1.5):
        by_design = judge_claim(rivalry(margin, status="by design"), bout_of(), runs_of(ours=ours, theirs=theirs))
        assert by_design.verdict == "by design"
    ours_by_example, theirs_by_example = np.ones((2, 30)).tolist(), np.zeros((2, 30)).tolist()
    runs = runs_of(ours=ours_by_example, theirs=theirs_by_example)  # 2 seeds, but 30 pairs
    assert judge_claim(rivalry(0.5), bout_of(n=2), runs).verdict == "held"


def test_claim_between_others_on_a_ratio() -> None:
    base = np.array([1.0, 2, 3, 4, 5, 6])
    bout, runs = bout_of("ours a b", n=6, better="lower", scale="log"), runs_of(ours=base, a=base, b=3 * base)
    found = judge_claim(rivalry(1.5, contender="a", rival="b"), bout, runs)
    assert found.verdict == "held"
    assert found.value
    assert found.value.mean == pytest.approx(3)
    assert judge_claim(rivalry(2.5, contender="a", rival="b"), bout, runs).verdict == "not held"
    assert judge_claim(rivalry(-2.5, contender="b", rival="a"), bout, runs).verdict == "held"
    assert judge_claim(rivalry(-1.5, contender="b", rival="a"), bout, runs).verdict == "not held"


def test_claim_exactly_on_the_margin_is_held() -> None:
    theirs = np.array([0.7, 0.8, 0.1, 0.2, 0.3])
    assert theirs[0] + 0.1 - theirs[0] < 0.1  # rounding must not decide
    assert judge_claim(rivalry(0.1), bout_of(n=5), runs_of(ours=theirs + 0.1, theirs=theirs)).verdict == "held"


def test_the_interval_of_a_check_knows_no_splits() -> None:
    values = np.random.default_rng(0).normal(size=6)
    claim = Claim("t", "e", "Table 1", metric="score", check="power")
    found = judge_claim(claim, bout_of(n=1, overlap=1.0), runs_of(**{"claim:power": values})).value
    assert ends(found) == pytest.approx(ends(stats.t_interval(values)))


@pytest.mark.parametrize(
    ("better", "margin", "verdict"),
    [
        ("higher", 0.5, "held"),
        ("higher", 1.05, "not shown"),
        ("higher", 2, "not held"),
        ("lower", 2, "held"),
        ("lower", 0.5, "not held"),
    ],
)
@pytest.mark.parametrize("n", [2, 6])
def test_claim_by_a_check(better: Any, margin: float, verdict: str, n: int) -> None:
    claim = Claim("t", "e", "Table 1", metric="score", check="power", better=better, margin=margin)
    found = judge_claim(claim, bout_of(n=1), runs_of(**{"claim:power": np.linspace(0.95, 1.15, n)}))
    assert found.verdict == verdict
    assert found.value
    assert found.value.mean == pytest.approx(1.05)
    assert found.value.n == n
    if found.value.low is not None and found.value.high is not None:
        assert found.value.low < 1.05 < found.value.high


def test_claim_without_evidence_is_not_tested() -> None:
    check = Claim("t", "e", "Table 1", metric="score", check="power")
    assert (judge_claim(check, bout_of(), []).verdict, judge_claim(check, bout_of(), []).why) == (
        "not tested",
        "run with --claims",
    )
    failed = judge_claim(check, bout_of(), runs_of(**{"claim:power": [None, None]}))
    assert failed.verdict == "not tested"
    assert "2 runs of claim:power" in failed.why
    assert failed.value is None
    gone = judge_claim(rivalry(), bout_of(), runs_of(ours=np.ones(8), theirs=[None] * 8))
    assert gone.verdict == "not tested"
    assert "theirs" in gone.why
    assert judge_claim(rivalry(metric="nonsense"), bout_of(), runs_of(ours=[1], theirs=[1])).verdict == "not tested"


def test_claim_status_passes_through_unless_contradicted() -> None:
    bout, runs = bout_of(n=6), runs_of(ours=np.ones(6), theirs=np.zeros(6))
    by_design = judge_claim(rivalry(0.5, status="by design"), bout, runs)
    assert by_design.verdict == "by design"
    assert by_design.value
    assert by_design.value.mean == 1
    assert judge_claim(rivalry(1.5, status="by design"), bout, runs).verdict == "not held"
    assert judge_claim(rivalry(0.5, status="by design"), bout, []).verdict == "by design"
    large = judge_claim(rivalry(0.5, status="not decidable here"), bout, runs)
    assert (large.verdict, large.value) == ("not decidable here", None)
    assert [c.verdict for c in summarise(dataclasses.replace(bout, claims=(rivalry(0.5),)), runs).claims] == ["held"]


# Degenerate numbers


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_constant_scores_have_width_zero(n: int, scale: Any) -> None:
    summary = contest(bout_of(n=n, scale=scale, margin=0.01), ours=[0.3] * n, theirs=[0.1] * n)
    found = versus(summary)
    assert found.difference
    assert found.verdict == ("better" if n >= 5 else "too few runs")
    if n >= 5:
        assert found.difference.low == found.difference.high == found.difference.mean
        assert summary.rows[0].primary
        assert summary.rows[0].primary.low == summary.rows[0].primary.high


def test_rounding_is_a_tie() -> None:
    found = versus(contest(bout_of(n=5), ours=[0.1 + 0.2] * 5, theirs=[0.3] * 5))
    assert (found.ties, found.verdict) == (5, "practically equal")
    same = versus(contest(bout_of(n=5, better="lower"), ours=[1.0] * 5, theirs=[1.0] * 5)).difference
    assert all(math.copysign(1, x) == 1 for x in ends(same))  # no -0.0


def test_tiny_scores_keep_their_width() -> None:
    values = np.random.default_rng(0).normal(size=8)
    assert np.multiply(ends(stats.t_interval(1e-200 * values)), 1e200) == pytest.approx(ends(stats.t_interval(values)))


def test_a_constant_gain_has_width_zero_despite_rounding() -> None:
    theirs = np.array([0.1, 0.7, 1.3, 2.9, 1e3])
    found = versus(contest(bout_of(n=5, margin=0.2), ours=theirs + 0.2, theirs=theirs))
    assert found.difference
    assert found.difference.low == found.difference.high
    assert found.verdict == "practically equal"


extreme = st.one_of(st.floats(), st.sampled_from([0.0, 1e-300, 1e300, 1.0]), st.none())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(extreme, extreme, extreme), min_size=1, max_size=8), st.sampled_from(["linear", "log"]))
def test_no_nan_ever(scores: list[tuple[float | None, ...]], scale: Any) -> None:
    ours, theirs, floor = zip(*scores, strict=True)
    bout = bout_of("ours theirs floor", n=len(scores), scale=scale, margin=0.1)
    bout = dataclasses.replace(bout, claims=(rivalry(0.1), Claim("t", "e", "", metric="score", check="c")))
    summary = summarise(bout, runs_of(ours=ours, theirs=theirs, floor=floor, **{"claim:c": floor}))
    plain = dataclasses.asdict(summary)
    assert all(math.isfinite(x) for x in numbers(plain))
    json.dumps(plain, allow_nan=False)


def test_an_ok_run_without_a_finite_score_has_diverged() -> None:
    summary = contest(bout_of(n=6), ours=[1.0] * 6, theirs=[0.0, math.nan, 0.0, 0.0, 0.0, 1e200])
    assert summary.rows[1].statuses == {"ok": 4, "diverged": 2}
    assert versus(summary).verdict == "too few runs"
    assert any("theirs: seed 1 diverged, seed 5 diverged" in note for note in summary.notes)

"""Paired differences, intervals and verdicts.

All work is done on gains: how much better one contender is than another, positive in the metric's better direction,
a log-ratio for ``scale="log"``. Intervals are Student's t, with the factor of Nadeau and Bengio (2003) where seeds
redraw overlapping splits; p is a sign-flip permutation test with Holm's (1979) adjustment. What is undefined is None.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bakeoff.arena.types import Bout, Claim, Metric, Run

COSTS = ("wall_s", "cpu_s", "peak_mb", "artefact_bytes", "model_calls")
ALPHA, MIN_SEEDS, MIN_EXAMPLES, MAX_SEEDS, EXACT_UP_TO, DRAWS = 0.05, 5, 30, 10_000, 12, 20_000
UNTESTED = "run with --claims"
TIE, HUGE = 1e-12, 1e150  # differences below this share of the scores are rounding; squares of more overflow

Unit = Literal["seed", "example"]
Word = Literal["better", "worse", "practically equal", "not shown", "too few runs"]
ClaimWord = Literal["held", "not held", "not shown", "by design", "not decidable here", "not tested"]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval; ``low`` and ``high`` are None where n is too small for one."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Comparison:
    """The paper's contender against one other, on the primary metric.

    ``difference`` is paper minus other, for ``scale="log"`` the ratio paper / other; ``verdict`` says how the paper's
    contender does; ``needed`` seeds would decide a "not shown", None where no number would or nothing is to decide;
    ``p`` and ``p_holm`` are None where the test could not reach 0.05 with this n.
    """

    rival: str
    unit: Unit
    difference: Interval | None
    wins: int
    ties: int
    losses: int
    p: float | None
    p_holm: float | None
    verdict: Word
    needed: int | None


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``values``: primary scores of the seeds that ended ok; ``statuses``: seeds that ended in each, or are "missing";
    ``cost``: medians over the ok runs.
    """

    contender: str
    role: str
    primary: Interval | None
    exploratory: dict[str, Interval]
    values: list[float]
    planned: int
    statuses: dict[str, int]
    cost: dict[str, float] = field(default_factory=dict)
    versus: Comparison | None = None


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its verdict and the number that it rests on; ``why`` says what was compared, or why nothing was."""

    claim: Claim
    verdict: ClaimWord
    value: Interval | None
    why: str = ""


@dataclass(frozen=True)
class Summary:
    """All numbers of a report; ``floor_beaten`` is None where it cannot be told."""

    rows: list[Row]
    claims: list[ClaimResult]
    floor_beaten: bool | None
    notes: list[str]


@dataclass(frozen=True)
class _Gains:
    """Gains per unit, of one contender over another or of a claim's check; no mean where there is a problem."""

    problem: str = ""
    seeds: tuple[int, ...] = ()
    unit: Unit = "seed"
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    tolerance: float = 0.0
    mean: Interval | None = None


def summarise(bout: Bout, runs: list[Run]) -> Summary:
    """The numbers of a report. The last record of each seed counts."""
    primary, paper = bout.primary, bout.paper_contender.name
    roles = {c.name: c.role for c in bout.contenders if c.name not in bout.absent}
    ok = {name: _ok(runs, name, primary.name, bout.seeds) for name in roles}
    last = {(run.contender, run.seed): _ended(run, primary.name) for run in runs}
    ended = {name: {seed: last.get((name, seed), "missing") for seed in bout.seeds} for name in roles}
    gains = {name: _gains(bout, runs, primary, paper, name) for name in roles if name != paper}
    versus = _compare(bout, gains)
    rows = []
    for name, role in roles.items():
        others = {m.name: s for m in bout.metrics if not m.primary and (s := _score(bout, runs, name, m))}
        score, values = _score(bout, runs, name, primary), [run.scores[primary.name] for run in ok[name].values()]
        ends, cost = dict(Counter(ended[name].values())), _cost([r for r in runs if r.contender == name])
        rows.append(Row(name, role, score, others, values, len(bout.seeds), ends, cost, versus.get(name)))
    # A gain within the margin beats nothing; an undecided one counts by its mean.
    floors = [(gains[name], versus[name].verdict) for name, role in roles.items() if role == "floor"]
    beats = [g.values.mean() > 0 and verdict != "practically equal" for g, verdict in floors if g.mean]
    beaten = False if not all(beats) else True if beats and len(beats) == len(floors) else None
    return Summary(rows, [judge_claim(c, bout, runs) for c in bout.claims], beaten, _notes(bout, ended, gains, rows))


def _compare(bout: Bout, gains: dict[str, _Gains]) -> dict[str, Comparison]:
    metric = bout.primary
    margin = math.log1p(metric.margin) if metric.scale == "log" else metric.margin
    # No p for overlapping splits: they correlate the differences, and flipping each sign on its own then rejected
    # 38 % of true null hypotheses in a simulation (two ridge regressions, 8 splits of 120 rows into halves).
    family = {name: g.values for name, g in gains.items() if g.mean and not bout.overlap}
    p = {n: sign_flip_p(v) for n, v in family.items() if max(2.0 ** (1 - len(v)), 1 / DRAWS) * len(family) <= ALPHA}
    p_holm = dict(zip(p, holm(list(p.values())), strict=True))
    versus = {}
    for name, g in gains.items():
        difference = g.mean and _shown(g.mean, metric.better, metric.scale)
        counts = (int((g.values > 0).sum()), int((g.values == 0).sum()), int((g.values < 0).sum()))
        verdict, needed = _verdict(g, margin, bout.overlap)
        versus[name] = Comparison(name, g.unit, difference, *counts, p.get(name), p_holm.get(name), verdict, needed)
    return versus


def _verdict(g: _Gains, margin: float, overlap: float) -> tuple[Word, int | None]:
    """Read the interval against the margin; where it shows nothing, also the seeds that would, all else unchanged."""
    if g.mean is None or g.mean.low is None or g.mean.high is None:
        return "not shown" if g.problem and g.seeds else "too few runs", None
    mean, low, high, reach = g.mean.mean, g.mean.low, g.mean.high, margin + g.tolerance
    if low > reach or high < -reach:
        return "better" if mean > 0 else "worse", None
    if -reach <= low and high <= reach:
        return "practically equal", None
    sd, room = (high - low) / 2 / _t_factor(g.mean.n, overlap), abs(abs(mean) - margin)
    n = bisect_left(range(MAX_SEEDS + 1), True, lo=g.mean.n + 1, key=lambda n: sd * _t_factor(n, overlap) < room)
    return "not shown", n if n <= MAX_SEEDS and g.unit == "seed" else None


def judge_claim(claim: Claim, bout: Bout, runs: list[Run]) -> ClaimResult:
    """Hold a claim against the runs; the value of one with a rival is the gain: above 0, a ratio above 1, if better."""
    if claim.status == "not decidable here":
        return ClaimResult(claim, claim.status, None)
    ours, wanted = claim.contender or bout.paper_contender.name, claim.metric or bout.primary.name
    names, what, better = [ours, claim.rival], f"gain of {ours} over {claim.rival} in {wanted}", "higher"
    metric = next((m for m in bout.metrics if m.name == wanted), Metric(wanted, "higher"))
    if not claim.rival:
        names, what, better = [f"claim:{claim.check}"], f"{claim.metric} of {claim.check}", claim.better
        metric = Metric(claim.metric, claim.better)
        bout = replace(bout, overlap=0.0, seeds=tuple(sorted({run.seed for run in runs if run.contender in names})))
    g, by_design = _gains(bout, runs, metric, *names), claim.status == "by design"
    if g.mean is None:
        why = g.problem if claim.rival or bout.seeds else UNTESTED
        return ClaimResult(claim, "by design" if by_design else "not tested", None, why)
    # A margin of -m (may be worse by m) mirrors m, also between ratios.
    margin = math.copysign(math.log1p(abs(claim.margin)), claim.margin) if metric.scale == "log" else claim.margin
    needed = f"a ratio of {math.exp(margin):.4g}" if metric.scale == "log" else f"{margin:.4g}"
    margin = (margin if better == "higher" else -margin) - g.tolerance
    # Without an interval, every single value of a check must be on the same side; a rivalry is left open.
    bounds = [x for x in (g.mean.low, g.mean.high) if x is not None]
    low, high = bounds or (g.values.min(), g.values.max())
    word: ClaimWord = "held" if low >= margin else "not held" if high < margin else "not shown"
    n, side = g.mean.n, "more" if better == "higher" else "less"
    why = f"{what}, {n} {g.unit}{'s' * (n != 1)}; needed: {needed} or {side}"
    if claim.rival and not bounds:
        word, why = "not shown", f"{why}; too few runs for an interval"
    word = "by design" if by_design and word != "not held" else word
    return ClaimResult(claim, word, _shown(g.mean, better, metric.scale), why)


def t_interval(values: ArrayLike, overlap: float = 0.0, tolerance: float = 0.0) -> Interval:
    """Mean with 95 % t interval, no bounds below 5 values; those within `tolerance` are one; `overlap` as in `Bout`."""
    values = np.asarray(values, dtype=float)
    n, largest = len(values), float(np.abs(values).max()) or 1.0
    scaled = values / largest  # the squares of tiny scores would be 0
    mean, half = float(values[0]), 0.0
    if np.ptp(scaled) > max(TIE, tolerance / largest):
        mean, half = float(scaled.mean()) * largest, float(scaled.std(ddof=1)) * largest * _t_factor(n, overlap)
    return Interval(mean, mean - half, mean + half, n) if n >= MIN_SEEDS else Interval(mean, None, None, n)


def _t_factor(n: int, overlap: float) -> float:
    from scipy import special  # here, because the command line must start without scipy

    return float(special.stdtrit(n - 1, 1 - ALPHA / 2)) * math.sqrt(1 / n + overlap)


def sign_flip_p(gains: ArrayLike) -> float:
    """Two-sided p of the mean under random signs: exact up to n = 12, else 20,000 draws of a fixed generator."""
    gains, rng = np.asarray(gains, dtype=float), np.random.default_rng(0)
    n, total, exact = len(gains), gains.sum(), len(gains) <= EXACT_UP_TO
    reached = abs(total) - TIE * np.abs(gains).sum()
    drawn = (rng.integers(2, size=(500, n), dtype=np.int8) for _ in range(DRAWS // 500))
    blocks = [np.arange(2**n)[:, None] >> np.arange(n) & 1] if exact else drawn
    hits = sum(int((np.abs(2 * (flips @ gains) - total) >= reached).sum()) for flips in blocks)
    return hits / 2**n if exact else (hits + 1) / (DRAWS + 1)


def holm(p: list[float]) -> list[float]:
    """Holm's step-down adjustment for the family of all given p."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.arange(len(p), 0, -1) * np.asarray(p, dtype=float)[order])
    return [float(value) for value in np.minimum(1.0, stepped)[np.argsort(order)]]


def _ended(run: Run, metric: str) -> str:
    """How a run ended; one without the metric is ok all the same: it does not apply to every contender."""
    return "diverged" if run.status == "ok" and not abs(run.scores.get(metric, 0.0)) < HUGE else run.status


def _ok(runs: list[Run], name: str, metric: str, seeds: tuple[int, ...]) -> dict[int, Run]:
    """The runs of one contender that ended ok and have the metric, in the order of `seeds`."""
    latest = {run.seed: run for run in runs if run.contender == name}
    ok = {s: r for s, r in latest.items() if r.status == "ok" and abs(r.scores.get(metric, math.inf)) < HUGE}
    return {seed: ok[seed] for seed in seeds if seed in ok}


def _gains(bout: Bout, runs: list[Run], metric: Metric, *names: str) -> _Gains:
    """Gains of one contender over another, or over nothing, from the seeds where all named ended ok."""
    found = [_ok(runs, name, metric.name, bout.seeds) for name in names]
    seeds = tuple(seed for seed in bout.seeds if all(seed in ok for ok in found))
    if not seeds:
        lacking = [name for name, ok in zip(names, found, strict=True) if not ok] or names
        n = sum(run.contender in lacking for run in runs)
        who = " and ".join(lacking)
        return _Gains(f"no seed with {metric.name} in {n} runs of {who}" if n else f"{who} did not run")
    sides = [[ok[seed] for seed in seeds] for ok in found]
    lengths = {len(run.examples.get(metric.name, [])) for side in sides for run in side}
    unit: Unit = "example" if not bout.overlap and len(lengths) == 1 and min(lengths) >= MIN_EXAMPLES else "seed"
    scores = np.array([[run.scores[metric.name] for run in side] for side in sides], dtype=float)
    if unit == "example":
        scores = np.array([np.mean([run.examples[metric.name] for run in side], axis=0) for side in sides])
    tolerance = TIE * np.abs(scores).max(axis=0)
    if metric.scale == "log":
        if scores.min() <= 0:
            return _Gains(f"no ratio of {' to '.join(names)}: {metric.name} has a value of 0 or less", seeds, unit)
        scores, tolerance = np.log(scores), np.full(scores.shape[1], TIE)
    values = (scores[0] - scores[1:].sum(axis=0)) * (1 if metric.better == "higher" else -1)
    values, widest = np.where(np.abs(values) <= tolerance, 0.0, values), float(tolerance.max())
    return _Gains("", seeds, unit, values, widest, t_interval(values, bout.overlap, widest))


def _score(bout: Bout, runs: list[Run], name: str, metric: Metric) -> Interval | None:
    """Mean of one contender; geometric for a log metric, None where that does not exist."""
    mean = _gains(bout, runs, metric, name).mean
    return mean and _shown(mean, metric.better, metric.scale)


def _shown(gain: Interval, better: str, scale: str) -> Interval:
    """From gains to what is printed: the metric's own direction, and ratios for logarithms (exp overflows at 710)."""
    ends = (gain.low, gain.mean, gain.high) if better == "higher" else (gain.high, gain.mean, gain.low)
    own = [x if better == "higher" else 0.0 - x for x in ends if x is not None]  # no -0.0
    own = [math.exp(min(x, 709.0)) for x in own] if scale == "log" else own
    return Interval(own[1], own[0], own[2], gain.n) if len(own) == 3 else Interval(own[0], None, None, gain.n)


def _cost(runs: list[Run]) -> dict[str, float]:
    ok = [run.cost for run in runs if run.status == "ok"]
    return {name: float(np.median(known)) for name in COSTS if (known := [cost[name] for cost in ok if name in cost])}


def _notes(bout: Bout, ended: dict[str, dict[int, str]], gains: dict[str, _Gains], rows: list[Row]) -> list[str]:
    lost = {n: ", ".join(f"seed {seed} {how}" for seed, how in e.items() if how != "ok") for n, e in ended.items()}
    notes = [f"{name}: {which}; left out with their pairs, nothing is imputed" for name, which in lost.items() if which]
    notes += [g.problem for g in gains.values() if g.problem]
    overlap = f", overlapping splits: Nadeau-Bengio factor with r = {bout.overlap:.4g}, no p" if bout.overlap else ""
    for unit, n, seeds in dict.fromkeys((g.unit, len(g.values), len(g.seeds)) for g in gains.values() if not g.problem):
        means = f", means of {seeds} seed{'s' * (seeds != 1)}: intervals speak for new examples, not new seeds"
        notes.append(f"paired by {unit} over {n} {unit}s{means if unit == 'example' else ''}{overlap}")
    untested = [row.contender for row in rows if row.versus and row.versus.difference and row.versus.p is None]
    if untested and not bout.overlap:
        names = ", ".join(untested)
        notes.append(f"too few pairs to show p < 0.05 (Holm over {len(gains)} comparisons) against {names}")
    return notes + ([f"timings taken with {bout.jobs} runs at a time"] if bout.jobs > 1 else [])

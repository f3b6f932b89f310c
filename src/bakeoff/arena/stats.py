"""Paired differences, intervals and verdicts.

All work is done on gains: how much better one contender is than another, positive in the metric's better direction,
a log-ratio for ``scale="log"``. Intervals are Student's t (a percentile bootstrap at n = 5 covers 84 %), with the
factor of Nadeau and Bengio (2003) where seeds redraw overlapping splits; p is a sign-flip permutation with Holm's
(1979) adjustment. What is undefined is None: never 0, never NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bakeoff.arena.types import Bout, Claim, Metric, Run

FloatArray = NDArray[np.float64]
Unit = Literal["seed", "example"]
ALPHA, MIN_SEEDS, MIN_EXAMPLES, MAX_SEEDS = 0.05, 5, 30, 10_000
EXACT_UP_TO, DRAWS = 12, 20_000
TIE = 1e-12
"""Differences below this share of the scores are rounding."""

Verdict = Literal["better", "worse", "practically equal", "not shown"]
Word = Verdict | Literal["too few runs"]


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

    ``difference`` is paper minus other in the metric's unit; for ``scale="log"`` it is the ratio paper / other.
    ``verdict`` says how the paper's contender does ("better": it is better). ``needed`` is the number of seeds that
    would decide a "not shown", None where no number would (or nothing is to decide). ``p`` and ``p_holm`` are None
    where the test could not reach 0.05 with this n.
    """

    rival: str
    unit: Literal["seed", "example"]
    difference: Interval | None
    wins: int
    ties: int
    losses: int
    p: float | None
    p_holm: float | None
    verdict: Verdict | Literal["too few runs"]
    needed: int | None


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    contender: str
    role: str
    primary: Interval | None
    exploratory: dict[str, Interval]
    values: list[float]
    """The primary score of every seed that ended ok, in the order of seeds."""
    planned: int
    statuses: dict[str, int]
    """How many runs ended in each status; missing ones are counted as 'missing'."""
    cost: dict[str, float] = field(default_factory=dict)
    """Median wall_s, cpu_s, peak_mb, artefact_bytes, model_calls over the ok runs, where known."""
    cpu_ratio: Interval | None = None
    """Geometric mean of CPU seconds relative to the cheapest contender, interval on the log-ratio."""
    versus: Comparison | None = None


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its verdict and the number that it rests on."""

    claim: Claim
    verdict: Literal["held", "not held", "not shown", "by design", "not decidable here", "not tested"]
    value: Interval | None
    why: str = ""
    """One line: what was compared, or why there is no verdict."""


@dataclass(frozen=True)
class Summary:
    """All numbers of a report."""

    rows: list[Row]
    claims: list[ClaimResult]
    floor_beaten: bool | None
    """None where it cannot be told."""
    notes: list[str]
    """Exclusions, pairing, and what the reader must know."""


@dataclass(frozen=True)
class _Gains:
    """Gains of one contender over another (of a claim: over nothing), one per unit; none where there is a problem."""

    unit: Unit = "seed"
    seeds: tuple[int, ...] = ()
    values: FloatArray = field(default_factory=lambda: np.zeros(0))
    tolerance: float = 0.0
    problem: str = ""


def summarise(bout: Bout, runs: list[Run]) -> Summary:
    """Turn the runs of a bout into the numbers of its report.

    Parameters
    ----------
    bout : Bout
        Contenders in ``bout.absent`` get no row.
    runs : list of Run
        In any order; of several records of one contender and seed, the last counts.
    """
    primary, paper = bout.primary, bout.paper_contender.name
    roles = {c.name: c.role for c in bout.contenders if c.name not in bout.absent}
    gains = {name: _gains(bout, runs, paper, name, primary) for name in roles if name != paper}
    versus = _compare(bout, gains)
    ok = {name: _ok(runs, name, primary.name, bout.seeds) for name in roles}
    cost = {name: _cost(found) for name, found in ok.items()}
    cheapest = min((n for n in ok if "cpu_s" in cost[n]), key=lambda n: cost[n]["cpu_s"], default=paper)
    ended = {name: _statuses(runs, name, bout.seeds) for name in roles}
    rows = [
        Row(
            contender=name,
            role=role,
            primary=_score(bout, runs, name, primary),
            exploratory={m.name: s for m in bout.metrics if not m.primary and (s := _score(bout, runs, name, m))},
            values=[run.scores[primary.name] for run in ok[name].values()],
            planned=len(bout.seeds),
            statuses=dict(Counter(ended[name].values())),
            cost=cost[name],
            cpu_ratio=_cpu_ratio(ok[name], ok.get(cheapest, {})),
            versus=versus.get(name),
        )
        for name, role in roles.items()
    ]
    claims = [judge_claim(claim, bout, runs) for claim in bout.claims]
    floors = [(gains[name], versus[name].verdict) for name, role in roles.items() if role == "floor"]
    return Summary(rows, claims, _floor_beaten(floors), _notes(bout, ended, gains, versus))


def _compare(bout: Bout, gains: dict[str, _Gains]) -> dict[str, Comparison]:
    metric, sign = bout.primary, 1 if bout.primary.better == "higher" else -1
    margin = _margin(metric.margin, metric)
    p = _p_values({name: found.values for name, found in gains.items() if not found.problem}, bout.overlap)
    versus = {}
    for name, found in gains.items():
        shown, needed = None, None
        word: Word = "not shown" if found.seeds else "too few runs"
        if not found.problem:
            gain = t_interval(found.values, bout.overlap, found.tolerance)
            shown, word = _shown(gain, sign, metric), verdict_of(gain, margin, found.tolerance)
            if word == "not shown" and found.unit == "seed":
                needed = seeds_needed(gain, margin, bout.overlap)
        wins, ties, losses = (int((np.sign(found.values) == s).sum()) for s in (1, 0, -1))
        raw, adjusted = p.get(name, (None, None))
        versus[name] = Comparison(name, found.unit, shown, wins, ties, losses, raw, adjusted, word, needed)
    return versus


def _p_values(gains: dict[str, FloatArray], overlap: float) -> dict[str, tuple[float, float]]:
    """p and Holm's p per rival; none where the smallest p that n allows is above 0.05 after Holm.

    None at all for overlapping splits: their differences are correlated, and flipping each sign on its own rejected
    38 % of true null hypotheses (two ridge regressions, 8 splits 60/60) [ours].
    """
    least = {name: 2.0 ** (1 - len(g)) if len(g) <= EXACT_UP_TO else 1 / (DRAWS + 1) for name, g in gains.items()}
    p = {n: sign_flip_p(g) for n, g in gains.items() if overlap == 0 and least[n] * len(gains) <= ALPHA}
    return {name: (p[name], adjusted) for name, adjusted in zip(p, holm(list(p.values())), strict=True)}


def _floor_beaten(floors: list[tuple[_Gains, Word]]) -> bool | None:
    """A gain within the margin beats nothing; an undecided one counts by its mean."""
    known = [found.values.mean() > 0 and word != "practically equal" for found, word in floors if not found.problem]
    return False if not all(known) else True if known and len(known) == len(floors) else None


def judge_claim(claim: Claim, bout: Bout, runs: list[Run]) -> ClaimResult:
    """Hold what the paper says against the runs.

    The interval decides (held: wholly at or beyond the margin; not held: wholly short of it), below 5 units every
    single value. The value of a claim with a rival is the gain over it: positive, or a ratio above 1, says that the
    contender is better, whatever the metric's direction.
    """
    if claim.status == "not decidable here":
        return ClaimResult(claim, claim.status, None)
    name, wanted = claim.contender or bout.paper_contender.name, claim.metric or bout.primary.name
    metric = next((m for m in bout.metrics if claim.rival and m.name == wanted), Metric(wanted, claim.better))
    found = _gains(bout, runs, name, claim.rival, metric) if claim.rival else _checked(claim, runs)
    by_design = claim.status == "by design"
    if found.problem:
        return ClaimResult(claim, "by design" if by_design else "not tested", None, found.problem)
    sign = -1 if claim.better == "lower" and not claim.rival else 1
    margin = sign * _margin(claim.margin, metric)
    gain = t_interval(found.values, bout.overlap if claim.rival else 0.0, found.tolerance)
    low = found.values.min() if gain.low is None else gain.low
    high = found.values.max() if gain.high is None else gain.high
    held, short = low >= margin - found.tolerance, high < margin - found.tolerance
    what = f"gain of {name} over {claim.rival} in {wanted}" if claim.rival else f"{wanted} of {claim.check}"
    why = f"{what}, {gain.n} {found.unit}s; needed: {claim.margin:.4g} or {'more' if sign == 1 else 'less'}"
    verdict = "not held" if short else "by design" if by_design else "held" if held else "not shown"
    return ClaimResult(claim, verdict, _shown(gain, sign, metric), why)


def _checked(claim: Claim, runs: list[Run]) -> _Gains:
    """The values of a stand-alone experiment, negative where less is better."""
    name = f"claim:{claim.check}"
    ok, ended = _ok(runs, name, claim.metric), Counter(run.status for run in runs if run.contender == name)
    if not claim.check or not ok:
        failed = f"no {claim.metric} from any run of {claim.check}: " + ", ".join(
            f"{n} {how}" for how, n in ended.items()
        )
        nothing = "run with --claims" if claim.check else "the claim names neither a rival nor a check"
        return _Gains(problem=failed if ended else nothing)
    values = np.array([run.scores[claim.metric] for run in ok.values()], dtype=float)
    return _Gains("seed", tuple(ok), values if claim.better == "higher" else -values, TIE * float(np.abs(values).max()))


def t_interval(values: ArrayLike, overlap: float = 0.0, tolerance: float = 0.0) -> Interval:
    """Mean with 95 % Student t interval; no bounds below 5 values.

    ``overlap``: test rows per training row of redrawn splits, the factor then is sqrt(1/n + overlap) in place of
    sqrt(1/n). ``tolerance``: values within this range of each other are one value.
    """
    values = np.asarray(values, dtype=float)
    n, largest = len(values), float(np.abs(values).max()) or 1.0
    scaled = values / largest  # the squares of huge or tiny scores would leave the range of a float
    mean, half = float(values[0]), 0.0
    if np.ptp(scaled) > max(TIE, tolerance / largest):
        mean, half = float(scaled.mean()) * largest, float(scaled.std(ddof=1) * _t_factor(n, overlap)) * largest
    bounded = n >= MIN_SEEDS and math.isfinite(abs(mean) + half)
    return Interval(mean, mean - half if bounded else None, mean + half if bounded else None, n)


def _t_factor(n: Any, overlap: float) -> Any:
    """Half-width of the interval in standard deviations, for one n or an array of them."""
    from scipy.special import stdtrit

    return stdtrit(n - 1, 1 - ALPHA / 2) * np.sqrt(1 / n + overlap)


def verdict_of(gain: Interval, margin: float, tolerance: float = 0.0) -> Word:
    """Read an interval of gains against the practical margin, both on the working scale."""
    if gain.low is None or gain.high is None:
        return "too few runs"
    margin += tolerance
    if gain.low > margin or gain.high < -margin:
        return "better" if gain.mean > 0 else "worse"
    return "practically equal" if -margin <= gain.low and gain.high <= margin else "not shown"


def seeds_needed(gain: Interval, margin: float, overlap: float = 0.0) -> int | None:
    """Seeds at which the interval, mean and deviation unchanged, would be wholly beyond or wholly within the margin.

    None where no number up to 10,000 does: the mean is on the margin, or overlapping splits keep the interval wide.
    """
    if gain.low is None or gain.high is None:
        return None
    n = np.arange(gain.n + 1, MAX_SEEDS + 1)
    half = (gain.high - gain.low) / 2 * _t_factor(n, overlap) / _t_factor(gain.n, overlap)
    enough = n[half < abs(abs(gain.mean) - margin)]
    return int(enough[0]) if enough.size else None


def sign_flip_p(gains: ArrayLike) -> float:
    """Two-sided p of the mean under random signs: exact up to n = 12, else 20,000 draws of a fixed generator."""
    gains = np.asarray(gains, dtype=float)
    n, total = len(gains), gains.sum()
    reached = abs(total) - TIE * np.abs(gains).sum()
    if n <= EXACT_UP_TO:
        bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float(np.mean(np.abs(2 * (bits @ gains) - total) >= reached))
    generator, hits, block = np.random.default_rng(0), 0, max(1, 4_000_000 // n)
    for start in range(0, DRAWS, block):
        rows = min(block, DRAWS - start)
        packed = np.frombuffer(generator.bytes(-(-rows * n // 8)), np.uint8)
        sums = np.unpackbits(packed, count=rows * n).reshape(rows, n) @ gains
        hits += int(np.count_nonzero(np.abs(2 * sums - total) >= reached))
    return (hits + 1) / (DRAWS + 1)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment for the family of all given p."""
    order = np.argsort(p, kind="stable")
    stepped = (len(p) - np.arange(len(p))) * np.asarray(p, dtype=float)[order]
    adjusted = np.minimum(1.0, np.maximum.accumulate(stepped))
    return [float(value) for value in adjusted[np.argsort(order)]]


def _ok(runs: list[Run], name: str, metric: str, seeds: tuple[int, ...] = ()) -> dict[int, Run]:
    """The runs of one contender that ended ok and have the metric, in the order of `seeds` (default: all)."""
    latest = {run.seed: run for run in runs if run.contender == name}
    ok = {s: run for s, run in latest.items() if run.status == "ok" and math.isfinite(run.scores.get(metric, math.nan))}
    return {seed: ok[seed] for seed in seeds or ok if seed in ok}


def _statuses(runs: list[Run], name: str, seeds: tuple[int, ...]) -> dict[int, str]:
    latest = {run.seed: run.status for run in runs if run.contender == name}
    return {seed: latest.get(seed, "missing") for seed in seeds}


def _units(bout: Bout, metric: Metric, *groups: list[Run]) -> tuple[Unit, list[FloatArray]]:
    """Scores per unit, for each group of runs: per example, averaged over seeds, where all scored the same examples."""
    lengths = {len(run.examples.get(metric.name, [])) for group in groups for run in group}
    if bout.overlap == 0 and len(lengths) == 1 and min(lengths) >= MIN_EXAMPLES:
        return "example", [np.mean([run.examples[metric.name] for run in group], axis=0) for group in groups]
    return "seed", [np.array([run.scores[metric.name] for run in group], dtype=float) for group in groups]


def _score(bout: Bout, runs: list[Run], name: str, metric: Metric) -> Interval | None:
    """Mean of one contender; geometric for a log metric, None where that does not exist."""
    ok = list(_ok(runs, name, metric.name, bout.seeds).values())
    units, log = _units(bout, metric, ok)[1][0] if ok else np.zeros(0), metric.scale == "log"
    if not ok or (log and units.min() <= 0):
        return None
    return _shown(t_interval(np.log(units) if log else units, bout.overlap), 1, metric)


def _gains(bout: Bout, runs: list[Run], ours: str, theirs: str, metric: Metric) -> _Gains:
    """Gains of one contender over another, from the seeds where both ended ok."""
    a, b = (_ok(runs, name, metric.name, bout.seeds) for name in (ours, theirs))
    seeds = tuple(seed for seed in a if seed in b)
    if not seeds:
        lacking = " and of ".join(name for name, found in ((ours, a), (theirs, b)) if not found)
        return _Gains(problem=f"no {metric.name} of {lacking}" if lacking else f"{ours} and {theirs} share no ok seed")
    unit, (us, them) = _units(bout, metric, [a[s] for s in seeds], [b[s] for s in seeds])
    tolerance = TIE * np.maximum(np.abs(us), np.abs(them))
    if metric.scale == "log":
        if min(us.min(), them.min()) <= 0:
            return _Gains(
                unit, seeds, problem=f"no ratio of {ours} to {theirs}: {metric.name} has a value of 0 or less"
            )
        us, them, tolerance = np.log(us), np.log(them), np.full(len(us), TIE)
    values = us - them if metric.better == "higher" else them - us
    return _Gains(unit, seeds, np.where(np.abs(values) <= tolerance, 0.0, values), float(tolerance.max()))


def _margin(margin: float, metric: Metric) -> float:
    """On the scale of gains; -m (may be worse by m) mirrors m, also between ratios."""
    return math.copysign(math.log1p(abs(margin)), margin) if metric.scale == "log" else margin


def _shown(gain: Interval, sign: int, metric: Metric) -> Interval:
    """From gains to what is printed: own direction, and ratios for logarithms."""
    ends = [None if x is None else _print(sign * x, metric) for x in (gain.low, gain.high)[::sign]]
    return Interval(_print(sign * gain.mean, metric), ends[0], ends[1], gain.n)


def _print(x: float, metric: Metric) -> float:
    return math.exp(min(x, 709.0)) if metric.scale == "log" else x  # no float holds exp(710)


def _cost(ok: dict[int, Run]) -> dict[str, float]:
    names = ("wall_s", "cpu_s", "peak_mb", "artefact_bytes", "model_calls")
    known = {name: [run.cost[name] for run in ok.values() if name in run.cost] for name in names}
    return {name: float(np.median(values)) for name, values in known.items() if values}


def _cpu_ratio(ok: dict[int, Run], cheapest: dict[int, Run]) -> Interval | None:
    times = [(run.cost.get("cpu_s", 0), cheapest[s].cost.get("cpu_s", 0)) for s, run in ok.items() if s in cheapest]
    logs = [math.log(ours / theirs) for ours, theirs in times if min(ours, theirs) > 0]
    return _shown(t_interval(logs), 1, Metric("cpu_s", "lower", scale="log")) if logs else None


def _notes(
    bout: Bout, ended: dict[str, dict[int, str]], gains: dict[str, _Gains], versus: dict[str, Comparison]
) -> list[str]:
    notes = []
    for name, statuses in ended.items():
        for status in sorted(set(statuses.values()) - {"ok"}):
            which = ", ".join(str(seed) for seed, how in statuses.items() if how == status)
            notes.append(f"{name}: {status} with seed {which}; left out of its pairs, nothing is imputed")
    notes += [found.problem for found in gains.values() if found.problem]
    overlap = f", overlapping splits: Nadeau-Bengio factor with r = {bout.overlap:.4g}" if bout.overlap else ""
    for unit, n, seeds in dict.fromkeys((f.unit, len(f.values), len(f.seeds)) for f in gains.values() if not f.problem):
        mean = f", averaged over {seeds} seeds: intervals speak for new examples, not for new seeds"
        notes.append(f"paired by {unit} over {n} {unit}s" + (mean if unit == "example" else overlap))
    mute = " or ".join(
        str(n) for n in sorted({v.difference.n for v in versus.values() if v.difference and v.p is None})
    )
    if mute and overlap:
        notes.append("no p: sign flips need independent seeds, and overlapping splits are not")
    elif mute:
        notes.append(f"{mute} seeds cannot show p < 0.05 (Holm over {len(versus)} comparisons)")
    return notes + ([f"timings taken with {bout.jobs} runs at a time"] if bout.jobs > 1 else [])

"""What the paper claims, and the stand-alone experiments for length, cost and equal time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bakeoff.arena.types import Claim
from bakeoff.inputs.permutation_problems import load_problem

from .feature_map import FeatureMap
from .features import mallows_features, merge_features, merge_length, pair_length
from .gap import gaps
from .rivals import Data, optimise
from .search import initial_design

CLAIMS = (
    Claim(
        "Merge features need Theta(n log n) comparisons where Mallows needs n(n-1)/2",
        "exact lengths for 16 n up to 1,000 and 3 numbers of pairs; never above n log2 n + 1 for n < 2,000",
        "abstract",
        metric="wrong",
        check="check_lengths",
        better="lower",
    ),
    Claim(
        "No information is lost",
        "no two permutations share their features: all of n = 2..7 enumerated",
        "abstract",
        metric="lost",
        check="check_lengths",
        better="lower",
    ),
    Claim(
        "Cheaper features at large n",
        "n = 280, 200 permutations, float32: at least 4 times faster than Mallows features, both vectorised "
        "(the Mallows distance alone can be had in O(n log n) by counting inversions)",
        "abstract",
        metric="features_ratio",
        margin=4.0,
        check="check_cost",
        seeds=5,
    ),
    Claim(
        "Cheaper suggestions at large n",
        "n = 280, 60 evaluations: fit and 2,400 acquisition values at least 3 times faster than with Mallows",
        "abstract",
        metric="suggestion_ratio",
        margin=3.0,
        check="check_cost",
        seeds=5,
    ),
    Claim(
        "Competitive with Mallows at small n",
        "tsp:15, 60 evaluations: gap within .05 of Mallows's",
        "abstract",
        metric="gap_tsp15",
        contender="merge",
        rival="mallows",
        margin=-0.05,
    ),
    Claim(
        "Better than Mallows at large n for the same number of evaluations",
        "lop:60, fsp:50x5, ft10 (n = 60, 50, 100), 60 evaluations: mean gap at most Mallows's",
        "abstract",
        metric="gap_large",
        contender="merge",
        rival="mallows",
    ),
    Claim(
        "More evaluations in the same time",
        "lop:60, ft10, lop:200, Mallows stopped at the CPU time of merge's 60 evaluations: ratio of evaluations "
        "above 1; an objective that costs more than a suggestion makes it vanish",
        "abstract",
        metric="evaluations_ratio",
        margin=1.0,
        check="check_equal_time",
        seeds=8,
    ),
    Claim(
        "Better at equal time",
        "the same runs: Mallows's mean gap minus merge's is at least 0; an objective that costs more than a suggestion "
        "makes it vanish",
        "abstract",
        metric="gain",
        check="check_equal_time",
        seeds=8,
    ),
)

LENGTHS = {2: 1, 3: 3, 4: 5, 5: 8, 6: 11, 7: 14, 10: 25, 15: 45, 16: 49, 30: 119, 32: 129, 64: 321}
LENGTHS |= {100: 573, 128: 769, 280: 2009, 1000: 8977}
PAIRS = {15: 105, 100: 4950, 280: 39060}

LARGE, TRAINING, BATCH = 280, 60, 200
EQUAL_TIME = ("lop:60", "ft10", "lop:200")
UNLIMITED = 100_000


def check_lengths(seed: int) -> dict[str, float]:
    """Table rows that are off, and permutations of n = 2..7 items that share their merge features with another."""
    wrong = sum(merge_length(n) != length for n, length in LENGTHS.items())
    wrong += sum(pair_length(n) != length for n, length in PAIRS.items())
    wrong += sum(merge_length(n) > n * np.log2(n) + 1 for n in range(2, 2000))
    lost = 0
    for n in range(2, 8):
        everything = np.array(list(itertools.permutations(range(n))))
        lost += len(everything) - len(np.unique(merge_features(everything), axis=0))
        wrong += merge_features(everything).shape[1] != merge_length(n)
        wrong += mallows_features(everything).shape[1] != pair_length(n)
    return {"wrong": float(wrong), "lost": float(lost)}


def check_cost(seed: int) -> dict[str, float]:
    """Mallows / merge seconds at n = 280: float32 features of 200 permutations; a suggestion after 60 evaluations."""
    features = [median_seconds(featurise(kernel, seed), 9) for kernel in ("mallows", "merge")]
    suggestions = [median_seconds(suggest(kernel, seed), 3) for kernel in ("mallows", "merge")]
    return {"features_ratio": features[0] / features[1], "suggestion_ratio": suggestions[0] / suggestions[1]}


def featurise(kernel: Any, seed: int) -> Callable[[], object]:
    """A call that makes the float32 features of 200 permutations of 280 items."""
    perms = initial_design(LARGE, BATCH, seed)
    feature_map = FeatureMap(LARGE, kernel)
    return lambda: feature_map(perms)


def suggest(kernel: Any, seed: int) -> Callable[[], object]:
    """A call that fits 60 evaluations of 280 items and suggests the next; the objective takes no part."""
    from .bo import PermutationBO

    objective = load_problem(f"lop:{LARGE}").objective
    perms = initial_design(LARGE, TRAINING, seed)
    values = [objective(perm) for perm in perms]

    def call() -> object:
        optimiser = PermutationBO(LARGE, kernel=kernel, n_init=1, seed=seed)
        optimiser.tell(perms, values)
        return optimiser.ask()

    return call


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def check_equal_time(seed: int) -> dict[str, float]:
    """Mallows stopped at the CPU time of merge's 60 evaluations: ratio of evaluations, and how much better merge is."""
    ratios, gains = [], []
    for name in EQUAL_TIME:
        problem = load_problem(name)
        start = time.process_time()
        merge = optimise(problem, Data((problem,), 60, 15), seed, "merge", "order")
        seconds = time.process_time() - start
        mallows = optimise(problem, Data((problem,), UNLIMITED, 15), seed, "mallows", "order", seconds)
        ratios.append(len(merge.values) / len(mallows.values))
        last = [float(gaps(problem, trace.values, 15, 60)[-1]) for trace in (merge, mallows)]
        gains.append(last[1] - last[0])
    return {"evaluations_ratio": float(np.mean(ratios)), "gain": float(np.mean(gains))}

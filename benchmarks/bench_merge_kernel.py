"""Merge against Mallows at n = 280: seconds and memory of features and suggestions, both from this one run."""

from __future__ import annotations

import tracemalloc

import numpy as np

from bakeoff.decide.merge_kernel.claims import BATCH, LARGE, TRAINING, featurise, median_seconds, suggest
from bakeoff.decide.merge_kernel.feature_map import FeatureMap
from bakeoff.decide.merge_kernel.features import merge_length, pair_length
from bakeoff.decide.merge_kernel.search import initial_design

KERNELS = ("mallows", "merge")


def seconds_of_products(kernel: str) -> float:
    """Inner products of a candidate block with the training rows, float32 for both kernels."""
    feature_map = FeatureMap(LARGE, kernel)
    block, rows = (feature_map(initial_design(LARGE, count, seed)) for count, seed in ((BATCH, 0), (TRAINING, 1)))
    return median_seconds(lambda: feature_map.products(block, rows), 9)


def seconds_of_indexed_pairs() -> float:
    """Mallows features the usual way, two gathers of all pairs: what the vectorised form is to be compared with."""
    perms = initial_design(LARGE, BATCH, 0)
    i, j = np.triu_indices(LARGE, 1)
    return median_seconds(lambda: np.where(perms[:, i] < perms[:, j], np.float32(-1), np.float32(1)), 5)


def block_megabytes(kernel: str) -> float:
    """Peak memory that featurising one candidate block allocates."""
    call = featurise(kernel, 0)
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def line(name: str, mallows: float, merge: float, unit: str, target: float, higher: bool = True) -> None:
    """One ratio with its target."""
    ratio = mallows / merge if higher else merge / mallows
    met = ratio >= target if higher else ratio <= target
    bound = f">= {target:g}" if higher else f"<= {target:g}"
    form = "Mallows / merge" if higher else "merge / Mallows"
    print(
        f"{name:34} Mallows {mallows:9.3f} {unit}  merge {merge:9.3f} {unit}  {form} {ratio:7.3f}  target {bound}  "
        f"{'met' if met else 'missed'}"
    )


def main() -> None:
    """Print every ratio of the method's cost targets."""
    print(
        f"n = {LARGE}: {pair_length(LARGE)} Mallows features, {merge_length(LARGE)} merge features; "
        f"{BATCH} candidates, {TRAINING} evaluations. "
        "The Mallows distance alone can be had in O(n log n) by counting inversions."
    )
    features = [1e3 * median_seconds(featurise(kernel, 0), 15) for kernel in KERNELS]
    line("features, both vectorised", *features, "ms", 4)
    line("features, Mallows by indexed pairs", 1e3 * seconds_of_indexed_pairs(), features[1], "ms", 4)
    line("products with the training rows", *(1e3 * seconds_of_products(k) for k in KERNELS), "ms", 4)
    line("suggestion (fit + 2,400 values)", *(median_seconds(suggest(k, 0), 5) for k in KERNELS), "s ", 3)
    line("peak memory of a candidate block", *(block_megabytes(k) for k in KERNELS), "MB", 0.1, higher=False)
    line("feature length", pair_length(LARGE), merge_length(LARGE), "  ", 0.052, higher=False)


if __name__ == "__main__":
    main()

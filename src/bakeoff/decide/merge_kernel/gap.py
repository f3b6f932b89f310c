"""The scale that orderings are scored on: 1 is a random ordering, 0 the best that is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bakeoff.inputs.permutation_problems import SUITE, Problem

from .search import initial_design, local_search

SAMPLES, SAMPLE_SEED = 300, 12345
SEARCH_SEED = 777
SPREADS = 5.0


def scale(problem: Problem, design_values: NDArray[np.float64], budget: int) -> tuple[float, float]:
    """(random mean, reference) of a problem.

    Both are frozen for the suite. Elsewhere the mean is that of 300 random permutations and the reference is the
    published bound or, where there is none, what 20 * budget (at least 2,000) evaluations of local search find. An
    objective of the user's own is not called for this: there the seed's initial design gives the mean, and the
    reference lies five of its standard deviations below, so that only differences between contenders mean something.
    """
    if not problem.cheap:
        mean = float(design_values.mean())
        return mean, mean - SPREADS * float(design_values.std())
    known_mean, known_best = problem.random_mean, problem.reference
    return (
        _random_mean(problem) if known_mean is None else known_mean,
        _long_search(problem, _effort(budget)) if known_best is None else float(known_best),
    )


def meaning(problem: Problem, budget: int) -> str:
    """What 0 and 1 mean for a problem whose best value is not published; nothing for the others."""
    if problem.name in SUITE or problem.reference is not None:
        return ""
    kept = "--keep writes the best orderings to orders.json"
    if problem.cheap:
        return (
            f"gap of {problem.name}: 0 is the best of {_effort(budget)} local-search steps, no proven optimum; {kept}"
        )
    return (
        f"gap of {problem.name}: 1 is the mean of a seed's initial orderings and 0 lies {SPREADS:g} of their standard "
        f"deviations below: only differences between contenders mean something; {kept}"
    )


def _effort(budget: int) -> int:
    """Evaluations of the search for a reference."""
    return max(2000, 20 * budget)


def _random_mean(problem: Problem) -> float:
    rng = np.random.default_rng(SAMPLE_SEED)
    return float(np.mean([problem.objective(rng.permutation(problem.n)) for _ in range(SAMPLES)]))


def _long_search(problem: Problem, evaluations: int) -> float:
    design, rng = initial_design(problem.n, 15, SEARCH_SEED), np.random.default_rng(SEARCH_SEED)
    return float(min(local_search(problem.objective, design, evaluations, rng)[1]))


def gaps(problem: Problem, values: NDArray[np.float64], init: int, budget: int) -> NDArray[np.float64]:
    """The gap of the best so far after every evaluation; 0 throughout where the objective is flat."""
    mean, reference = scale(problem, values[:init], budget)
    best = np.minimum.accumulate(values)
    return (best - reference) / (mean - reference) if mean > reference else np.zeros(len(values))

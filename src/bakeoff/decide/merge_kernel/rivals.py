"""The participants of the merge-kernel bout: what each does with a problem and a seed, all from one initial design."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bakeoff.inputs.permutation_problems import Problem

from .feature_map import FeatureMap, KernelName, Space
from .features import Ints
from .search import initial_design, local_search


@dataclass(frozen=True)
class Data:
    """The problems and the settings that all Gaussian processes share.

    Parameters
    ----------
    problems : tuple of Problem
    budget, init : int
        Evaluations of a problem in all, and the uniform permutations among them.
    search : (starts, neighbours, rounds)
        Acquisition values per suggestion.
    notes : tuple of str
        What the reader of the report must know of the scale of the gaps.
    """

    problems: tuple[Problem, ...]
    budget: int
    init: int
    search: tuple[int, int, int] = (5, 40, 12)
    space: Literal["order", "position", "auto"] = "order"
    anchors: int = 1
    acqf: Literal["logei", "ei", "ucb"] = "logei"
    noise: float | Literal["learn"] = 1e-4
    descriptors: tuple[str, ...] = ()
    embedding_dim: int | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Trace:
    """What a contender evaluated on one problem, in order, and the seconds that its suggestions took."""

    perms: Ints
    values: NDArray[np.float64]
    seconds: float = 0.0
    length: int = 0


@dataclass
class Orders:
    """The output of a contender: a trace for every problem."""

    traces: dict[str, Trace]

    def save(self, folder: Path) -> None:
        """Write the best ordering of every problem, and all evaluations, to ``orders.json``."""
        content = {
            name: {
                "best": float(trace.values.min()),
                "order": trace.perms[trace.values.argmin()].tolist(),
                "evaluated": trace.perms.tolist(),
                "values": trace.values.tolist(),
            }
            for name, trace in self.traces.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "orders.json").write_text(json.dumps(content), encoding="utf-8")


def _on_all(data: Data, solve: Callable[[Problem], Trace]) -> Orders:
    return Orders({problem.name: solve(problem) for problem in data.problems})


def optimise(
    problem: Problem, data: Data, seed: int, kernel: KernelName, space: str, seconds: float = float("inf")
) -> Trace:
    """Bayesian optimisation of one problem until its budget, or ``seconds`` of CPU time, are used up."""
    from .bo import PermutationBO

    optimiser = PermutationBO(
        problem.n,
        kernel=kernel,
        n_init=data.init,
        acqf=data.acqf,
        noise=data.noise,
        budget=data.search,
        space=space,  # type: ignore[arg-type]
        anchors=data.anchors,
        descriptors=data.descriptors,
        embedding_dim=data.embedding_dim,
        seed=seed,
    )
    perms: list[Ints] = []
    values: list[float] = []
    thinking, began = 0.0, time.process_time()
    while len(values) < data.budget and time.process_time() - began < seconds:
        start = time.perf_counter()
        perm = optimiser.ask()[0]
        thinking += time.perf_counter() - start
        perms.append(perm)
        values.append(problem.objective(perm.copy()))
        optimiser.tell(perm[None, :], values[-1:])
    plain: Space = "position" if space == "position" else "order"
    length = FeatureMap(problem.n, kernel, plain, data.anchors, data.descriptors, data.embedding_dim, seed).length
    return Trace(np.array(perms), np.array(values), thinking, length)


def bayesian(data: Data, seed: int, kernel: KernelName, space: str | None = None) -> Orders:
    """A Gaussian process with this kernel; ``space`` overrides the one that was chosen for all."""
    return _on_all(data, lambda problem: optimise(problem, data, seed, kernel, space or data.space))


def plain_local_search(data: Data, seed: int) -> Orders:
    """The same three moves, one evaluation each, from the best of the initial design."""

    def solve(problem: Problem) -> Trace:
        design = initial_design(problem.n, data.init, seed)
        rng = np.random.default_rng((seed, 2))
        perms, values = local_search(lambda perm: problem.objective(perm.copy()), design, data.budget, rng)
        return Trace(perms, np.array(values))

    return _on_all(data, solve)


def random_orders(data: Data, seed: int) -> Orders:
    """Different uniform permutations; the first ones are everybody's initial design."""

    def solve(problem: Problem) -> Trace:
        perms = initial_design(problem.n, data.budget, seed)
        return Trace(perms, np.array([problem.objective(perm.copy()) for perm in perms]))

    return _on_all(data, solve)


def tpe(data: Data, seed: int) -> Orders:
    """Optuna's TPE on random keys: one number per item, whose ranks are the ordering."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def solve(problem: Problem) -> Trace:
        perms: list[Ints] = []
        values: list[float] = []
        n, thinking = problem.n, 0.0
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=data.init))
        for perm in initial_design(n, data.init, seed):
            study.enqueue_trial({f"x{v}": float(place) for v, place in enumerate((np.argsort(perm) + 0.5) / n)})
        for _ in range(data.budget):
            start = time.perf_counter()
            trial = study.ask()
            keys = np.array([trial.suggest_float(f"x{v}", 0.0, 1.0) for v in range(n)])
            thinking += time.perf_counter() - start
            perms.append(np.argsort(keys))
            values.append(problem.objective(perms[-1].copy()))
            study.tell(trial, values[-1])
        return Trace(np.array(perms), np.array(values), thinking)

    return _on_all(data, solve)

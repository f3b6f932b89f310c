"""Cost of FDFI as ratios of one run, and its Type I error over 60 repetitions: ``python benchmarks/bench_fdfi.py``."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds: a busy machine changes them little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def told(what: str, value: float, relation: str, target: float) -> None:
    met = value >= target if relation == ">=" else value <= target
    print(f"{what:80s} {value:8.3f}   {relation} {target:<6g} {'met' if met else 'missed'}", flush=True)


def correlated(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * rng.normal(size=(d, d)) / np.sqrt(d))


def first(X: np.ndarray) -> np.ndarray:
    return X[:, 0]


def jacobian() -> None:
    """All rows at once against a loop over rows with the same forward-mode products."""
    from bakeoff.explain.fdfi.flow import FlowDisentangler

    X = correlated(1000, 20)
    X = (X - X.mean(0)) / X.std(0)
    flow = FlowDisentangler(n_steps=100).fit(X)
    Z = flow.encode(X)
    flow.jacobian(Z[:10])
    loop = 5 * seconds(lambda: [flow.jacobian(Z[i : i + 1]) for i in range(200)])
    at_once = seconds(lambda: flow.jacobian(Z))
    told("Jacobian of 1,000 rows, d=20: time of a per-row loop / all rows", loop / at_once, ">=", 5)


def authors_package() -> None:
    """Fit and score, 300 + 300 rows, d=10, 500 steps, 10 redraws; ours with its five decoys."""
    from bakeoff.explain import FlowImportance

    X = correlated(600, 10)
    y = X[:300, 0]

    def ours(disentangler: str) -> None:
        importance = FlowImportance(first, disentangler=disentangler, n_steps=500, n_samples=10, random_state=0)
        importance.fit(X[300:]).importance(X[:300], y)

    def theirs() -> None:
        from fdfi.explainers import FlowExplainer

        options = {"num_steps": 500, "nsamples": 10, "jacobian_mode": "per_sample", "verbose": False}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            FlowExplainer(first, X[300:], random_state=0, **options)(X[:300], y)

    flow, linear = seconds(lambda: ours("flow")), seconds(lambda: ours("linear"))
    if importlib.util.find_spec("torchdiffeq"):
        told("time / pip fdfi's FlowExplainer (per_sample), equal steps and redraws", flow / seconds(theirs), "<=", 0.5)
    else:
        print("time / pip fdfi's FlowExplainer: not measured, it needs `pip install torchdiffeq`")
    print(f"{'  for information: time / DFI-linear':80s} {flow / linear:8.1f}")


def memory() -> None:
    """Peak memory of a process of its own, imports included."""
    code = (
        "import numpy as np; from bakeoff.explain import FlowImportance;"
        "X = np.random.default_rng(0).normal(size=(4000, 30)); f = lambda X: X[:, 0];"
        "FlowImportance(f, n_steps=50, random_state=0).fit(X[:2000]).importance(X[2000:], X[2000:, 0]);"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    told("peak memory in GiB at n=2000, d=30 (all of the process)", peak / 2**20, "<=", 1)


def type_one() -> None:
    """Null columns of the power law with the predictor known: 60 repetitions of the linear map, 6 of the flow."""
    from bakeoff.explain.fdfi.experiments import nulls

    for name, seeds, repetitions, steps in (("linear", 1, 60, 0), ("flow", 6, 1, 400)):
        runs = [nulls(seed, repetitions, disentangler=name, n_steps=steps) for seed in range(100, 100 + seeds)]
        tests = 3 * seeds * repetitions
        bound = 0.05 + 2 * np.sqrt(0.05 * 0.95 / tests)
        mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        told(f"{name}: rejected of {tests} null tests, margin 'decoys'", mean["nulls_rejected"], "<=", round(bound, 3))
        print(f"  margin 0 rejects {mean['nulls_rejected_margin0']:.3f}; active columns found: "
              f"{mean['active_found']:.3f} with the margin, {mean['active_found_margin0']:.3f} without")  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    for part in (jacobian, authors_package, memory, type_one):
        part()


if __name__ == "__main__":
    main()

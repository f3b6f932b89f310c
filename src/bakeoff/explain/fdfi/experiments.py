"""The stand-alone experiments behind the claims: ``experiment(seed) -> {metric: value}``, fresh data for every seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bakeoff.inputs.tables import diabetes

from .rivals import Ranking, conditional, disentangled, left_out, permutation
from .studies import Data, power_law, power_mean, shape_law

FloatArray = npt.NDArray[np.float64]

PAIR = np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1.0]])
PAIR_SCORES = np.array([0.68, 0.32])
"""phi_X of f = X1 where X has covariance PAIR: (S^1/2)^2 (S^1/2 b)^2, squares elementwise."""


def _law(study: str, trees: int) -> Data:
    return Data(np.empty((0, 0)), np.empty(0), (), study, False, "forest", {}, 0, trees, 600, 10)


def power(seed: int) -> dict[str, float]:
    """Share of the five active columns found at 5 %: 300 + 300 rows, two pairs with correlation .9, forest of 40."""
    data = _law("power", 40)
    found = {
        "fdfi": _active(disentangled(data, seed, disentangler="flow", margin="decoys")),
        "dfi_linear": _active(disentangled(data, seed, disentangler="linear", margin="decoys")),
        "pfi": _active(permutation(data, seed, shipped=False)),
        "cfi": _active(conditional(data, seed, shipped=False)),
        "loco": _active(left_out(data, seed)),
    }
    return found | {"over_loco": found["fdfi"] - found["loco"], "over_cfi": found["fdfi"] - found["cfi"]}


def _active(ranking: Ranking) -> float:
    assert ranking.p is not None
    return float((ranking.p[~np.isin(ranking.features, ranking.null)] <= 0.05).mean())


def table_decoys(seed: int) -> dict[str, float]:
    """Share of the five bout decoys that FDFI rejects on the diabetes table."""
    table = diabetes()
    data = Data(table.X, table.y, table.names, "table", False, "forest", {}, 5, 100, 600, 10)
    ranking = disentangled(data, seed, disentangler="flow", margin="decoys")
    assert ranking.p is not None
    return {"decoys_rejected": float((ranking.p[np.isin(ranking.features, ranking.null)] <= 0.05).mean())}


def nulls_linear(seed: int) -> dict[str, float]:
    """Share of three null columns rejected with the predictor known and the linear map; 8 repetitions a seed."""
    return nulls(seed, repetitions=8, disentangler="linear", n_steps=0)


def nulls_flow(seed: int) -> dict[str, float]:
    """The same with the trained flow, 400 steps, once a seed."""
    return nulls(seed, repetitions=1, disentangler="flow", n_steps=400)


def nulls(seed: int, repetitions: int, disentangler: str, n_steps: int) -> dict[str, float]:
    """Rejections at 5 % among X6 to X8 (null) and X1 to X5 (active), with the decoys' margin and with margin 0."""
    from .method import FlowImportance

    p: dict[str | float, list[FloatArray]] = {"decoys": [], 0.0: []}
    for repetition in range(repetitions):
        rng = np.random.default_rng([seed, repetition, 3])
        X, y, *_ = power_law(rng)
        importance = FlowImportance(power_mean, disentangler=disentangler, n_steps=n_steps, random_state=repetition)
        importance.fit(X[:300])
        for margin, values in p.items():
            table = importance.set_params(margin=margin).importance(X[300:], y[300:])
            values.append(table.frame["p"].to_numpy() <= 0.05)
    with_decoys, without = np.mean(p["decoys"], axis=0), np.mean(p[0.0], axis=0)
    return {
        "nulls_rejected": float(with_decoys[5:].mean()),
        "active_found": float(with_decoys[:5].mean()),
        "nulls_rejected_margin0": float(without[5:].mean()),
        "active_found_margin0": float(without[:5].mean()),
    }


def log_loss(seed: int) -> dict[str, float]:
    """f = sigmoid(2 X1), corr(X1, X2) = .9, X3 null; 300 + 300 rows, 600 steps, B = 50."""
    from .method import FlowImportance

    rng = np.random.default_rng([seed, 4])
    X = rng.normal(size=(600, 3))
    X[:, 1] = 0.9 * X[:, 0] + np.sqrt(1 - 0.9**2) * X[:, 1]
    y = (rng.random(600) < _probability(X)).astype(np.float64)
    importance = FlowImportance(_probability, loss="log_loss", n_samples=50, n_steps=600, random_state=seed)
    p = importance.fit(X[:300]).importance(X[300:], y[300:]).frame["p"]
    return {"p_active": float(p[:2].max()), "p_null": float(p[2])}


def _probability(X: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-2 * X[:, 0])))


def shape(seed: int) -> dict[str, float]:
    """X2 = X1^2 + .3 e, X3 noise, f = X2; 1200 + 300 rows, 1500 steps."""
    from .method import FlowImportance

    X = shape_law(np.random.default_rng([seed, 5]))
    flow = FlowImportance(_second, n_steps=1500, random_state=seed).fit(X[:1200])
    linear = FlowImportance(_second, disentangler="linear", random_state=seed).fit(X[:1200])
    table, rival = (one.importance(X[1200:], X[1200:, 1]) for one in (flow, linear))
    score, p = table.frame["score"], table.frame["p"]
    return {
        "p_x1": float(p[0]),
        "x1_over_linear": float(score[0] / rival.frame["score"][0]),
        "p_x3": float(p[2]),
        "x3_over_margin": float(score[2] - table.margin),
        "pathway": float(table.pathway[1, 0]),
        "mean_derivative_squared": _mean_derivative(flow, X[1200:]) ** 2,
    }


def _second(X: FloatArray) -> FloatArray:
    return X[:, 1]


def _mean_derivative(flow: Any, X: FloatArray) -> float:
    """Mean of dX2/dZ1 over the rows."""
    prepared = flow.columns_.prepare(X, np.random.default_rng(0))
    Z = flow.disentangler_.encode(prepared)
    return float(flow.disentangler_.jacobian(Z)[:, 1, 0].mean())


def coverage(seed: int) -> dict[str, float]:
    """Share of 95 % intervals that hold the true score: linear-Gaussian, exact map, 300 rows, 100 times."""
    from .method import FlowImportance

    root = np.linalg.cholesky(PAIR).T
    inside = []
    for repetition in range(100):
        rng = np.random.default_rng([seed, repetition, 6])
        X = rng.normal(size=(4300, 3)) @ root
        y = X[:300, 0] + rng.normal(size=300)
        importance = FlowImportance(_first, disentangler="linear", covariance=PAIR, random_state=repetition)
        frame = importance.fit(X[300:]).importance(X[:300], y).frame[:2]
        inside.append((frame["ci_low"].to_numpy() <= PAIR_SCORES) & (frame["ci_high"].to_numpy() >= PAIR_SCORES))
    return {"coverage": float(np.mean(inside))}


def _first(X: FloatArray) -> FloatArray:
    return X[:, 0]

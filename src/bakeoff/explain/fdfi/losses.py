"""Per-sample losses ``(y, f) -> (n,)`` by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Loss = Callable[[FloatArray, FloatArray], FloatArray]


def _squared_error(y: FloatArray, f: FloatArray) -> FloatArray:
    return np.asarray((y - f) ** 2)


def _absolute_error(y: FloatArray, f: FloatArray) -> FloatArray:
    return np.abs(y - f)


def _huber(y: FloatArray, f: FloatArray) -> FloatArray:
    r = np.abs(y - f)
    return np.asarray(np.where(r <= 1, r**2 / 2, r - 0.5))


def _pinball(y: FloatArray, f: FloatArray) -> FloatArray:
    return np.abs(y - f) / 2


def _log_loss(y: FloatArray, f: FloatArray) -> FloatArray:
    f = np.clip(f, 1e-6, 1 - 1e-6)
    return np.asarray(-(y * np.log(f) + (1 - y) * np.log1p(-f)))


def _zero_one(y: FloatArray, f: FloatArray) -> FloatArray:
    return np.asarray(y != (f >= 0.5), dtype=np.float64)


LOSSES: dict[str, Loss] = {
    "squared_error": _squared_error,
    "absolute_error": _absolute_error,
    "huber": _huber,
    "pinball": _pinball,
    "log_loss": _log_loss,
    "brier": _squared_error,
    "zero_one": _zero_one,
}
QUADRATIC = ("squared_error", "brier")
"""Losses whose bias from averaging B draws is exactly Var(f)/B."""
OF_PROBABILITY = ("log_loss", "brier", "zero_one")
"""Losses of P(class): ``f`` comes from ``predict_proba`` and y is 0 or 1."""

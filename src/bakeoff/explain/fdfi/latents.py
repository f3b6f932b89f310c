"""Importance of the latents, row by row, and its way back to the columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .losses import Loss

FloatArray = npt.NDArray[np.float64]

ROWS = 32_768
"""Rows that are decoded and predicted at a time."""
ENTRIES = 4_000_000
"""Entries of Jacobians held at a time."""


class Disentangler(Protocol):
    """An invertible map between columns (n, d) and independent latents (n, d)."""

    def encode(self, X: FloatArray, /) -> FloatArray:
        """Latents of rows."""

    def decode(self, Z: FloatArray, /) -> FloatArray:
        """Rows of latents."""

    def jacobian(self, Z: FloatArray, /) -> FloatArray:
        """dX_l/dZ_k at every row, as (n, d, d) [row, l, k]."""


@dataclass(frozen=True)
class InUnits:
    """A map of the user's own, in the units of the data, as a map of standardised columns."""

    inner: Disentangler
    mean: FloatArray
    sd: FloatArray

    def encode(self, X: FloatArray) -> FloatArray:
        """Latents of standardised rows."""
        return np.asarray(self.inner.encode(X * self.sd + self.mean), dtype=np.float64)

    def decode(self, Z: FloatArray) -> FloatArray:
        """Standardised rows of latents."""
        return (np.asarray(self.inner.decode(Z), dtype=np.float64) - self.mean) / self.sd

    def jacobian(self, Z: FloatArray) -> FloatArray:
        """Jacobian of standardised columns."""
        return np.asarray(self.inner.jacobian(Z), dtype=np.float64) / self.sd[:, None]


def redraws(
    Z: FloatArray, background: FloatArray, k: int, n_samples: int, sampling: str, rng: np.random.Generator
) -> FloatArray:
    """Replacements (n_samples, n) for column k of Z (n, p); see `FlowImportance` for the kinds of `sampling`."""
    shape = (n_samples, len(Z))
    if sampling == "resample":
        return rng.choice(background[:, k], size=shape)
    if sampling == "normal":
        return rng.normal(size=shape)
    if sampling == "permutation":
        return rng.permuted(np.tile(Z[:, k], (n_samples, 1)), axis=1)
    others, rest = np.delete(background, k, axis=1), np.delete(Z, k, axis=1)
    centre, target = others.mean(0), background[:, k].mean()
    A = others - centre
    slope = np.linalg.solve(A.T @ A + np.eye(A.shape[1]), A.T @ (background[:, k] - target))
    expected = target + (rest - centre) @ slope
    permuted: FloatArray = expected + rng.permuted(np.tile(Z[:, k] - expected, (n_samples, 1)), axis=1)
    return permuted


def latent_values(
    k: int,
    Z: FloatArray,
    new: FloatArray,
    predict: Callable[[FloatArray, npt.NDArray[np.intp]], FloatArray],
    y: FloatArray,
    f0: FloatArray,
    loss: Loss,
    order: str,
    debias: bool,
) -> FloatArray:
    """u_ik (n,) of latent k: how much the loss of every row rises when the latent is redrawn.

    Parameters
    ----------
    Z : ndarray of shape (n, p)
    new : ndarray of shape (B, n)
        Replacements of column k.
    predict : callable (latents (r, p), rows (r,)) -> (r,)
        Decode and predict; `rows` says which row of the data each one comes from.
    y, f0 : ndarray of shape (n,)
        Labels and reference predictions.
    debias : bool
        Subtract the variance of the average over B draws: right for "scpi" under squared error.
    """
    B, n = new.shape
    u = np.empty(n)
    for rows in np.array_split(np.arange(n), -(-n * B // ROWS)):
        latents = np.tile(Z[rows], (B, 1))
        latents[:, k] = new[:, rows].ravel()
        f = predict(latents, np.tile(rows, B)).reshape(B, len(rows))
        before = loss(y[rows], f0[rows])
        if order == "cpi":
            u[rows] = np.mean([loss(y[rows], one) - before for one in f], axis=0) / 2
            continue
        change = f - f0[rows]  # so that a latent without effect gives exactly 0
        u[rows] = loss(y[rows], f0[rows] + change.mean(0)) - before
        if debias:
            u[rows] -= change.var(0, ddof=1) / B
    return u


def pull_back(
    jacobian: Callable[[FloatArray], FloatArray], Z: FloatArray, u: FloatArray, how: str
) -> tuple[FloatArray, FloatArray]:
    """Importance of the columns u_X (n, p), and the pathway mean_i H_i^2 (p, p).

    ``avg_sq`` carries the error of its weights by the delta method [ours]:
    ``u_X[i] = Hbar u_i + (H_i^2 - Hbar) ubar``, which leaves the mean as it is.
    """
    n, p = Z.shape
    ubar = u.mean(0)
    weights_of_row, own = np.empty((n, p)), np.empty((n, p))
    mean_square, mean = np.zeros((p, p)), np.zeros((p, p))
    for rows in np.array_split(np.arange(n), -(-n * p * p // ENTRIES)):
        H = jacobian(Z[rows])
        mean += H.sum(0) / n
        square = H**2
        mean_square += square.sum(0) / n
        weights_of_row[rows] = square @ ubar
        own[rows] = np.einsum("nlk,nk->nl", square, u[rows])
    if how == "per_sample":
        return own, mean_square
    if how == "average":
        return u @ (mean**2).T, mean_square
    return u @ mean_square.T + weights_of_row - mean_square @ ubar, mean_square

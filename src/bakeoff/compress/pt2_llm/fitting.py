"""Asymmetric ternary fit of the rows of one block: start, iterative fitting (ITF), activation-aware alignment (AGA).

A row w (k,) is written as ``alpha * t + mu`` with t in {-1, 0, 1}^k. Rows are independent of each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

TINY_DETERMINANT = 1e-8
"""An alignment whose 2x2 system is this close to singular is not taken [ours]."""
UNSEEN = 1e-6
"""A share of the inputs' power; sums of inputs with less are rounding errors of a float32 C [ours]."""


class Fit(NamedTuple):
    """``alpha * T + mu``: T (n, k) int8, alpha and mu (n,); `rounds` of ITF until T stood still."""

    T: torch.Tensor
    alpha: torch.Tensor
    mu: torch.Tensor
    rounds: int = 0

    def values(self) -> torch.Tensor:
        """The ternary block, (n, k)."""
        return self.alpha[:, None] * self.T.to(self.alpha.dtype) + self.mu[:, None]


def fit_block(B: torch.Tensor, C: torch.Tensor, *, itf: bool = True, aga: bool = True, max_iter: int = 50) -> Fit:
    """Fit one block.

    Parameters
    ----------
    B : Tensor (n, k)
        Weights, one row per output channel.
    C : Tensor (k, k)
        X'X of the inputs of these columns.
    itf, aga : bool
        Iterate between grid and levels; align the grid to the activations at the end. Without either this is the
        threshold rule of ternary weight networks around the row's mean.
    max_iter : int
        Most rounds of ITF [ours]; the paper needs about 10.

    Returns
    -------
    Fit
    """
    fit = refined(B, started(B), max_iter) if itf else started(B)
    return aligned(B, C, fit) if aga else fit


def started(B: torch.Tensor) -> Fit:
    """Levels by a threshold of .75 mean |w - mu| around the row's mean mu, alpha = mean of |w - mu| above it."""
    mu = B.mean(1)
    centred = B - mu[:, None]
    threshold = 0.75 * centred.abs().mean(1, keepdim=True)
    T = (centred > threshold).to(torch.int8) - (centred < -threshold).to(torch.int8)
    alpha = (centred * T).sum(1) / T.abs().sum(1).clamp(min=1)
    return Fit(T, alpha, mu)


def refined(B: torch.Tensor, start: Fit, max_iter: int = 50) -> Fit:
    """Iterative ternary fitting: least-squares grid for the levels, nearest levels for the grid, until nothing moves.

    Neither half-step raises ||B - alpha T - mu||^2. Rows that stand still are left out of later rounds.
    """
    mean = B.mean(1)
    moving = B - mean[:, None]
    T = start.T.clone()
    alpha, offset = _grid(moving, T)
    rows, rounds = torch.arange(len(B), device=B.device), 1
    while rounds <= max_iter:
        levels = _nearest(moving, alpha[rows], offset[rows])
        # all levels of a row equal: its grid is one point, and "nearest" would only follow rounding errors
        changed = (levels != T[rows]).any(1) & (alpha[rows] > 0)
        if not changed.any():
            break
        rows, levels, moving = rows[changed], levels[changed], moving[changed]
        T[rows] = levels
        alpha[rows], offset[rows] = _grid(moving, levels)
        rounds += 1
    return Fit(T, alpha, mean + offset, rounds)


def _grid(centred: torch.Tensor, T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least-squares alpha and mu of rows whose mean is 0; alpha = mu = 0 where all levels of a row are equal.

    With r = sum w = 0 the normal equations give alpha = k p / den and mu = -s1 p / den, without the cancellation that
    r brings in where a row's mean is large.
    """
    levels = T.to(centred.dtype)
    s1, s2, p = levels.sum(1), levels.abs().sum(1), (centred * levels).sum(1)
    den = T.shape[1] * s2 - s1 * s1
    slope = torch.where(den > 0, p / den.clamp(min=1), 0.0)
    return T.shape[1] * slope, -s1 * slope


def _nearest(B: torch.Tensor, alpha: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
    """The nearest of {-1, 0, 1} to (B - mu) / alpha for alpha > 0; halves go to 0, as with torch.round and clip."""
    upper, lower = (mu + alpha / 2)[:, None], (mu - alpha / 2)[:, None]
    return B.gt(upper).to(torch.int8) - B.lt(lower).to(torch.int8)


def aligned(B: torch.Tensor, C: torch.Tensor, fit: Fit) -> Fit:
    """Activation-aware grid alignment: the alpha and mu that minimise ||(B - alpha T - mu) X||^2 for these levels.

    Solves the 2x2 system of each row [paper, eq. 12] in float64. (The vectorised form that the paper prints as eq. 13
    equals it only for diagonal C and makes the error larger elsewhere.) Levels are not updated, and a row keeps its
    grid where the system is singular or nearly so, as where the inputs sum to zero and the offset reaches no output.
    """
    B64, C64, T = B.double(), C.double(), fit.T.double()
    ones = C64.sum(1)
    d = ones.sum()
    TC = T @ C64
    A, Bv, P, R = (TC * T).sum(1), T @ ones, (TC * B64).sum(1), B64 @ ones
    den = d * A - Bv * Bv
    summed = d > UNSEEN * C64.diagonal().sum()
    solvable = summed & (den > TINY_DETERMINANT * d * A)
    safe = torch.where(solvable, den, 1.0)
    alpha = torch.where(solvable, (d * P - Bv * R) / safe, fit.alpha.double())
    mu = torch.where(solvable, (A * R - Bv * P) / safe, fit.mu.double())
    equal = fit.T.amin(1) == fit.T.amax(1)  # one level only: alpha says nothing, mu is the weighted mean
    weighted = R / d if summed else fit.mu.double()
    alpha, mu = torch.where(equal, 0.0, alpha), torch.where(equal, weighted, mu)
    flipped = torch.where(alpha < 0, -1, 1).to(torch.int8)
    return Fit(fit.T * flipped[:, None], alpha.abs().to(B.dtype), mu.to(B.dtype), fit.rounds)

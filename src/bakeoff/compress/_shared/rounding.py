"""Rounding a weight to a grid without a view of the float model's activations: RTN, OPTQ and AWQ.

Weights W are (n, N), one row per output; H (N, N) is the mean of x x' over the calibration tokens.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import torch

from .grid import Grid, GridSpec

MOST_DAMPING = 0.1
"""Of the mean of diag(H), when a Cholesky factorisation keeps failing."""

Damp = float | Literal["sigma"]


def rtn(W: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Round to nearest, (n, N)."""
    return grid.to(W).round(W)


def optq(
    W: torch.Tensor, H: torch.Tensor, grid: Grid, *, damp: Damp = 0.01, act_order: bool = True, block_size: int = 128
) -> torch.Tensor:
    """OPTQ (GPTQ): round column by column and let the columns that are left make up for each error.

    Parameters
    ----------
    W : Tensor (n, N)
    H : Tensor (N, N)
        Mean of x x' over the tokens; its scale does not matter.
    grid : Grid
        Of the original W: group scales are static.
    damp : float or "sigma"
        See `damping`.
    act_order : bool
        Columns by descending diag(H).
    block_size : int
        Columns per lazy update; only speed.

    Returns
    -------
    Tensor (n, N), in the dtype of W; computed in float64.
    """
    order = column_order(H, act_order)
    U, _ = inverse_factor(ordered(H, order), damping(H, damp))
    rounded = sweep(W.double()[:, order], U, grid.to(U).take(order), block_size)
    return scatter(rounded, order, W)


def sweep(
    W: torch.Tensor, U: torch.Tensor, grid: Grid, block_size: int, mismatch: torch.Tensor | None = None
) -> torch.Tensor:
    """Round the columns in their order; U (N, N) is upper triangular with U'U the inverse of the (damped) H.

    `mismatch` (N, N), strictly upper triangular, also adds ``w_j mismatch[j]`` to the columns after j.
    """
    W, Q = W.clone(), torch.empty_like(W)
    for start in range(0, W.shape[1], block_size):
        stop = min(start + block_size, W.shape[1])
        errors, before = torch.empty_like(W[:, start:stop]), torch.empty_like(W[:, start:stop])
        for j in range(start, stop):
            before[:, j - start] = w = W[:, j]
            Q[:, j] = grid.round_column(w, j)
            errors[:, j - start] = error = (w - Q[:, j]) / U[j, j]
            W[:, j + 1 : stop].addr_(error, U[j, j + 1 : stop], alpha=-1)
            if mismatch is not None:
                W[:, j + 1 : stop].addr_(before[:, j - start], mismatch[j, j + 1 : stop])
        W[:, stop:].addmm_(errors, U[start:stop, stop:], alpha=-1)
        if mismatch is not None:
            W[:, stop:].addmm_(before, mismatch[start:stop, stop:])
    return Q


def column_order(H: torch.Tensor, act_order: bool) -> torch.Tensor:
    """The columns whose inputs are not always zero, by descending diag(H) or as they are."""
    diagonal = H.diagonal()
    live = (diagonal > 0).nonzero()[:, 0]
    return live[diagonal[live].argsort(descending=True, stable=True)] if act_order else live


def ordered(H: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows and columns in this order, float64."""
    return H[order[:, None], order].double()


def scatter(Q: torch.Tensor, order: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo `column_order`: columns with dead inputs are 0."""
    result = torch.zeros_like(like)
    result[:, order] = Q.to(like.dtype)
    return result


def damping(H: torch.Tensor, damp: Damp) -> float:
    """What is added to diag(H): `damp` times its mean, or with "sigma" a millionth of the largest eigenvalue."""
    if damp != "sigma":
        return float(damp) * float(H.diagonal().double().mean())
    matrix = H.double()
    v = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(matrix.device)
    for _ in range(30):
        v = matrix @ (v / v.norm())
    return 1e-6 * float(v.norm())


def inverse_factor(H: torch.Tensor, lam: float) -> tuple[torch.Tensor, float]:
    """Upper triangular U with ``U'U = inv(H + lam I)`` and the lam that was used.

    Where the factorisation fails, lam is raised tenfold, up to a tenth of the mean of diag(H), with a warning [ours].

    Raises
    ------
    ValueError
        It fails with that too.
    """
    if not len(H):
        return H, lam
    most, tried = MOST_DAMPING * float(H.diagonal().mean()), lam
    while True:
        # the Cholesky factor of the reversed matrix, reversed back: H = R R' with R upper triangular, U = inv(R)
        damped = H.flip(0, 1)
        damped.diagonal().add_(tried)
        L, failed = torch.linalg.cholesky_ex(damped)
        del damped
        if not failed:
            break
        if tried >= most:
            raise ValueError(f"the covariance is not positive definite, even with {tried:.3g} added to its diagonal")
        tried = min(max(10 * tried, 1e-8 * most), most)
    if tried > lam:
        warnings.warn(f"damping raised from {lam:.3g} to {tried:.3g} to factor the covariance", stacklevel=2)
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    return torch.linalg.solve_triangular(L.flip(0, 1), eye, upper=True), tried


class Scaled(NamedTuple):
    """AWQ's result: ``values / s`` is the weight, `values` lie on `grid`."""

    values: torch.Tensor
    grid: Grid
    s: torch.Tensor


def awq(W: torch.Tensor, H: torch.Tensor, spec: GridSpec, *, exponents: int = 21) -> Scaled:
    """AWQ: enlarge the columns of strong inputs, round to nearest, divide again.

    Column scales are ``rms(x_j)^a`` divided by the root of their largest times their smallest, for `exponents` values
    of a from 0 to 1; the one with the least ``tr(E H E')``, E the error of the weight, is kept.
    """
    H = H.to(W.dtype)
    rms = H.diagonal().clamp(min=0).sqrt()
    rms = rms.clamp(min=1e-4 * float(rms.max()) or 1.0)
    tries = [_awq_once(W, rms**a, spec) for a in torch.linspace(0, 1, exponents).tolist()]
    errors = (found.values / found.s - W for found in tries)
    losses = [float(((error @ H) * error).sum()) for error in errors]
    return tries[losses.index(min(losses))]


def _awq_once(W: torch.Tensor, s: torch.Tensor, spec: GridSpec) -> Scaled:
    s = (s / (s.max() * s.min()).sqrt()).half().to(W.dtype)
    grid = spec.fit(W * s)
    return Scaled(grid.round(W * s), grid, s)

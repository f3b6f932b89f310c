"""Ternarize a matrix block by block: reorder columns (SSR), fit, push the error into the columns that are left."""

from __future__ import annotations

import torch

from .._shared.grid import LARGEST
from .._shared.rounding import damping, inverse_factor
from .fitting import Fit, fit_block
from .linear import TernaryWeight


def ternarize(
    W: torch.Tensor,
    C: torch.Tensor,
    *,
    block_size: int = 128,
    itf: bool = True,
    aga: bool = True,
    ssr: bool = True,
    damp: float = 0.01,
    max_iter: int = 50,
) -> TernaryWeight:
    """The ternary form of a weight; see `PT2LLM` for the parameters.

    The block loop is exact block OBS: with Hinv the inverse of H on the columns that are left, the error E of block b
    changes the rest by -E inv(Hinv[b, b]) Hinv[b, rest], and Hinv itself by a Schur complement.

    Parameters
    ----------
    W : Tensor (n, m)
        In the dtype of the computation.
    C : Tensor (m, m)
        X'X of the inputs, or their mean.

    Returns
    -------
    TernaryWeight

    Raises
    ------
    ValueError
        A scale or an offset beyond float16.
    """
    Hinv, live = inverse(C, damp), C.diagonal() > 0
    rest, left = W, torch.arange(W.shape[1], device=W.device)
    fits, order = [], []
    while len(left):
        chosen = most_alike(rest, block_size) if ssr else torch.arange(len(left), device=W.device)[:block_size]
        columns, B = left[chosen], rest[:, chosen]
        fit = _stored(_fit_live(B, C[columns[:, None], columns], live[columns], itf, aga, max_iter))
        others = torch.ones_like(left, dtype=torch.bool).index_fill_(0, chosen, False).nonzero()[:, 0]
        cross = Hinv[chosen[:, None], others]
        carried = torch.cholesky_solve(cross, torch.linalg.cholesky(Hinv[chosen[:, None], chosen]))
        rest = rest[:, others].addmm_(B - fit.values(), carried.to(W.dtype), alpha=-1)
        Hinv = Hinv[others[:, None], others].addmm_(cross.T, carried, alpha=-1)
        left = left[others]
        fits.append(fit)
        order.append(columns)
    perm = torch.cat(order)
    alpha, mu = torch.stack([f.alpha for f in fits], 1), torch.stack([f.mu for f in fits], 1)
    made = TernaryWeight(torch.cat([f.T for f in fits], 1), alpha, mu, perm, block_size, {})
    rounds = max(f.rounds for f in fits)
    return made._replace(errors={**relative_errors(W, made.dequantize(), C), "rounds": rounds})


def most_alike(W: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` columns of W (n, m) closest to their mean column in cosine, in ascending order.

    Ties go to the earlier column; a column of zeros has cosine 0, and so has every column where the mean is zero.
    """
    mean = W.mean(1)
    cosine = (mean @ W) / (W.norm(dim=0) * mean.norm()).clamp(min=torch.finfo(W.dtype).tiny)
    chosen: torch.Tensor = cosine.argsort(descending=True, stable=True)[:count].sort().values
    return chosen


def relative_errors(W: torch.Tensor, V: torch.Tensor, C: torch.Tensor) -> dict[str, float]:
    """``e_w`` = ||W - V||^2 / ||W||^2 and ``e_x`` = ||(W - V) X||^2 / ||W X||^2."""
    error, C = W - V, C.to(W.dtype)
    return {
        "e_w": _ratio(error.square().sum(), W.square().sum()),
        "e_x": _ratio(((error @ C) * error).sum(), ((W @ C) * W).sum()),
    }


def _ratio(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error / of) if of > 0 else 0.0


def _fit_live(B: torch.Tensor, C: torch.Tensor, live: torch.Tensor, itf: bool, aga: bool, max_iter: int) -> Fit:
    """Fit the columns whose inputs are not always zero; the others get level 0."""
    if live.all():
        return fit_block(B, C, itf=itf, aga=aga, max_iter=max_iter)
    if not live.any():
        return Fit(torch.zeros_like(B, dtype=torch.int8), B.new_zeros(len(B)), B.mean(1))
    fit = fit_block(B[:, live], C[live][:, live], itf=itf, aga=aga, max_iter=max_iter)
    T = torch.zeros_like(B, dtype=torch.int8)
    T[:, live] = fit.T
    return fit._replace(T=T)


def _stored(fit: Fit) -> Fit:
    """Scales and offsets as float16 holds them, so that their rounding too is made up for by later columns [ours]."""
    for name, values in (("scale", fit.alpha), ("offset", fit.mu)):
        if (values.abs() > LARGEST).any():
            row = int(values.abs().argmax())
            raise ValueError(f"row {row}: the {name} {values[row]:.3g} is beyond float16 ({LARGEST:.0f})")
    return fit._replace(alpha=fit.alpha.half().to(fit.alpha.dtype), mu=fit.mu.half().to(fit.mu.dtype))


def inverse(C: torch.Tensor, damp: float) -> torch.Tensor:
    """Inverse of C + damp mean(diag C) I in float64; inputs that are always zero stay apart from all others."""
    lam, dead = damping(C, damp), C.diagonal() == 0
    H = C.to(torch.float64, copy=True)
    H.diagonal().add_(lam)
    H.diagonal()[dead] = 1
    L, failed = torch.linalg.cholesky_ex(H, out=(H, torch.empty((), dtype=torch.int32, device=C.device)))
    if not failed:
        return torch.cholesky_inverse(L)
    U, _ = inverse_factor(C.double() + torch.diag(dead.double()), lam)
    return U.T @ U

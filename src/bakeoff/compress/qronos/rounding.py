"""Rounding with a view of both models' activations: Qronos, GPTAQ and GPFQ.

Weights W are (n, N), one row per output. ``H = mean(x~ x~')`` and ``G = mean(x~ x')`` (row: quantized input x~, column:
float input x), both (N, N) and over the same tokens.
"""

from __future__ import annotations

import torch

from bakeoff.compress._shared.grid import Grid
from bakeoff.compress._shared.rounding import Damp, column_order, damping, inverse_factor, ordered, scatter, sweep


def qronos(
    W: torch.Tensor,
    H: torch.Tensor,
    G: torch.Tensor,
    grid: Grid,
    *,
    damp: Damp = 0.01,
    act_order: bool = True,
    block_size: int = 128,
) -> torch.Tensor:
    """Qronos in its efficient form (Theorem 3.1, Lemma 3.2, Remark 3.3 of the paper), (n, N); float64 inside.

    1. Columns by descending diag(H); those with dead inputs become 0.
    2. Correct the past: round the first weight for the whole mismatch of the two models (H and G undamped), and solve
       for all others at once, ``H' v = G' w - H q`` on the system without column 1 (H', G': lam on the diagonal).
    3. Shape the future: round the others in turn, each error spread over the columns that are left, as in OPTQ.
    """
    order = column_order(H, act_order)
    if not len(order):
        return torch.zeros_like(W)
    W64 = W.double()[:, order]
    H64, grid64 = ordered(H, order), grid.to(W64).take(order)
    past = W64 @ ordered(G, order).T
    first = grid64.round_column((past[:, 0] - W64[:, 1:] @ H64[0, 1:]) / H64[0, 0], 0)
    U, lam = inverse_factor(H64[1:, 1:], damping(H, damp))
    wanted = past[:, 1:] + lam * W64[:, 1:] - torch.outer(first, H64[1:, 0])
    rest = wanted @ U.T @ U
    rounded = sweep(rest, U, grid64.take(torch.arange(1, len(order))), block_size)
    return scatter(torch.cat([first[:, None], rounded], 1), order, W)


def gptaq(
    W: torch.Tensor,
    H: torch.Tensor,
    G: torch.Tensor,
    grid: Grid,
    *,
    strength: float = 0.25,
    damp: Damp = 0.01,
    act_order: bool = True,
    block_size: int = 128,
) -> torch.Tensor:
    """GPTAQ: OPTQ that also passes on each column's own mismatch, ``P = strength triu((G - H)' U', 1) U``.

    `strength` 0.25 is the setting of its authors for language models.
    """
    order = column_order(H, act_order)
    H64, G64 = ordered(H, order), ordered(G, order)
    U, _ = inverse_factor(H64, damping(H, damp))
    P = strength * torch.triu((G64.T - H64) @ U.T, 1) @ U
    return scatter(sweep(W.double()[:, order], U, grid.to(H64).take(order), block_size, P), order, W)


def gpfq(W: torch.Tensor, H: torch.Tensor, G: torch.Tensor, grid: Grid, *, act_order: bool = True) -> torch.Tensor:
    """GPFQ: round each column for the error so far; nothing is spread ahead, and there is no damping."""
    order = column_order(H, act_order)
    H64, G64 = ordered(H, order), ordered(G, order)
    W64, grid64 = W.double()[:, order], grid.to(H64).take(order)
    wanted = W64 @ torch.tril(G64).T
    Q = torch.zeros_like(W64)
    for t in range(len(order)):
        Q[:, t] = grid64.round_column((wanted[:, t] - Q[:, :t] @ H64[t, :t]) / H64[t, t], t)
    return scatter(Q, order, W)

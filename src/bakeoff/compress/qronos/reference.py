"""Qronos as it is defined: the oracle of the tests."""

from __future__ import annotations

import torch

from bakeoff.compress._shared.grid import Grid


def qronos_reference(X: torch.Tensor, Xt: torch.Tensor, W: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Qronos in its alternating form: correct a weight for all errors so far, then solve for the ones that are left.

    With w the row, q the rounded weights and v the others at step t:

    1. ``q_t = Q(<Xt_t, X w - sum_{j<t} q_j Xt_j - sum_{j>t} v_j Xt_j> / ||Xt_t||^2)``
    2. ``v_{>t} = argmin ||X w - Xt_{<=t} q_{<=t} - Xt_{>t} v_{>t}||^2``

    No damping, columns in their order, float64, O(m N^3): for small N.

    Parameters
    ----------
    X, Xt : Tensor (m, N)
        Inputs of the layer in the float and in the quantized model.
    W : Tensor (n, N)
    grid : Grid

    Returns
    -------
    Tensor (n, N) float64

    Notes
    -----
    Source: arXiv 2505.11695, the definition that its Theorem 3.1 makes efficient.

    Examples
    --------
    >>> import torch
    >>> from bakeoff.compress._shared.grid import GridSpec
    >>> X = torch.tensor([[-2.0, -2, 1], [0, 0, -1], [-1, 0, 0], [-2, 0, 2]])
    >>> Xt = torch.tensor([[-2.0, -2, 1], [-1, 0, -1], [-1, 0, 0], [-2, -1, 2.5]])
    >>> W = torch.tensor([[-0.7, -1.6, 0.9]])
    >>> grid = GridSpec(2, symmetric=False, scale="absmax").fit(torch.tensor([[-2.0, 1.0, 0.0]]))
    >>> qronos_reference(X, Xt, W, grid).tolist()
    [[0.0, -2.0, 1.0]]
    """
    X, Xt, V = X.double(), Xt.double(), W.double().clone()
    target, grid = X @ V.T, grid.to(V)
    for t in range(V.shape[1]):
        column = Xt[:, t]
        others = V.clone()
        others[:, t] = 0  # rounded ones before t, solved ones after it
        V[:, t] = grid.round_column(column @ (target - Xt @ others.T) / column.square().sum(), t)
        rest = target - Xt[:, : t + 1] @ V[:, : t + 1].T
        V[:, t + 1 :] = (torch.linalg.pinv(Xt[:, t + 1 :]) @ rest).T
    return V

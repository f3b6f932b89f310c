"""Stand-alone experiments behind the claims; each one runs in a process of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .rivals import amid

ALPHAS = (-5.0, -3.0, -1.0, 0.0, 0.5, 1.0)
SPECIAL = (-1.0, 1.0)


def scan(seed: int) -> dict[str, float]:
    """Alpha from -5 to 1 at lam .1 with kl and ab, one rate (3e-3) for all, scored on the test windows.

    ``gain_*`` is the best of the other alphas minus the better of -1 and 1 (positive: another alpha is best);
    ``kink_*`` is the largest distance of a point of the overlap curve from the line between its neighbours.
    """
    from .bout import load
    from .training import compare, teacher_logits, train, training_batches, untrained

    data = load()
    batches = training_batches(data, seed)
    logits = teacher_logits(data, batches)
    found: dict[str, float] = {}
    for divergence in ("kl", "ab"):
        curves: dict[str, list[float]] = {"overlap": [], "nll": []}
        for alpha in ALPHAS:
            model = untrained(data, seed)
            train(model, amid(alpha, 0.1, divergence), 3e-3, batches, logits, data.vocabulary)
            scores = compare(data, model, data.corpus.test)
            for name, curve in curves.items():
                curve.append(float(scores[name].mean()))
                found[f"{name}_{divergence}_{alpha:g}"] = curve[-1]
        found[f"gain_overlap_{divergence}"] = _gain(curves["overlap"], 1)
        found[f"gain_nll_{divergence}"] = _gain(curves["nll"], -1)
        found[f"kink_{divergence}"] = _kink(curves["overlap"])
    return found


def _gain(curve: list[float], sign: int) -> float:
    special = [sign * value for alpha, value in zip(ALPHAS, curve, strict=True) if alpha in SPECIAL]
    other = [sign * value for alpha, value in zip(ALPHAS, curve, strict=True) if alpha not in SPECIAL]
    return max(other) - max(special)


def _kink(curve: list[float]) -> float:
    off = []
    for i in range(1, len(curve) - 1):
        line = np.interp(ALPHAS[i], [ALPHAS[i - 1], ALPHAS[i + 1]], [curve[i - 1], curve[i + 1]])
        off.append(abs(curve[i] - float(line)))
    return max(off)


def steering(seed: int) -> dict[str, float]:
    """A Gaussian fitted to a two-peaked law by KL(p || r): its standard deviation, alpha by alpha; no draw, no seed.

    ``rise_L`` is the relative rise from alpha = -5 to 1 at lam L, ``step_L`` the smallest rise between neighbours.
    """
    found: dict[str, float] = {}
    for lam in (0.1, 0.5, 0.9):
        stds = [fitted_std(alpha, lam) for alpha in ALPHAS]
        found |= {f"std_{lam:g}_{alpha:g}": std for alpha, std in zip(ALPHAS, stds, strict=True)}
        found[f"rise_{lam:g}"] = stds[-1] / stds[0] - 1
        found[f"step_{lam:g}"] = float(min(np.diff(stds)))
    return found


def fitted_std(alpha: float, lam: float) -> float:
    """Of a Gaussian on a grid of 201 points in [-10, 10] that minimises KL(p || r) to unit Gaussians at -3 and 3."""
    import torch

    from .method import amid_loss

    grid = torch.linspace(-10, 10, 201, dtype=torch.float64)
    p = torch.logaddexp(-0.5 * (grid - 3) ** 2, -0.5 * (grid + 3) ** 2)
    theta = torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True)  # mean and log of the std
    fit = torch.optim.LBFGS(
        [theta], max_iter=1000, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        fit.zero_grad()
        q = -0.5 * ((grid - theta[0]) / theta[1].exp()) ** 2
        loss = amid_loss(q, p, alpha=alpha, lam=lam)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    fit.step(closure)  # type: ignore[no-untyped-call]
    return float(theta[1].detach().exp())


def stability(seed: int) -> dict[str, float]:
    """Logits from N(0, 40^2) for both sides, V = 512, 64 positions, lam .1, inputs in float32 and bfloat16.

    ``finite`` is the share of finite losses and gradients for alpha in [-5, 5]; ``bounded`` the largest loss at
    alpha = -1 (its bound is ln 10), ``forward_kl`` what KL(p || q) is there; ``signal_A`` the norm of the logit
    gradient at alpha A over that of forward KL.
    """
    import torch

    from .method import amid_loss

    generator = torch.Generator().manual_seed(seed)
    student, teacher = 40 * torch.randn(2, 64, 512, generator=generator)
    finite = []
    norms: dict[float, float] = {}
    losses: dict[float, Any] = {}
    for dtype in (torch.bfloat16, torch.float32):
        for alpha in (*ALPHAS, 3.0, 5.0):
            leaf = student.to(dtype).requires_grad_()
            each = amid_loss(leaf, teacher.to(dtype), alpha=alpha, lam=0.1, reduction="none")
            (gradient,) = torch.autograd.grad(each.sum(), leaf)
            finite.append(bool(each.isfinite().all() and gradient.isfinite().all()))
            norms[alpha], losses[alpha] = float(gradient.float().norm(dim=-1).mean()), each.detach()
    leaf = student.clone().requires_grad_()
    kl = amid_loss(leaf, teacher, lam=0, reduction="none")
    (gradient,) = torch.autograd.grad(kl.sum(), leaf)
    reference = float(gradient.norm(dim=-1).mean())
    signal = {f"signal_{alpha:g}": norms[alpha] / reference for alpha in ALPHAS}
    return {
        "finite": float(np.mean(finite)),
        "bounded": float(losses[-1.0].max()) - math.log(10),
        "forward_kl": float(kl.detach().mean()),
        **signal,
    }

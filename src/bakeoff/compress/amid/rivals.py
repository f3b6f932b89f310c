"""The losses that meet: AMiD and what else distils one language model into another.

Each maker gives a loss ``(student logits (n, V), teacher logits (n, V), targets (n,), progress in [0, 1)) -> scalar``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor", Any, "torch.Tensor", float], "torch.Tensor"]


def amid(alpha: float, lam: float, divergence: str) -> Loss:
    """AMiD, order "pr"."""
    from .method import amid_loss

    def loss(student: Any, teacher: Any, targets: Any, progress: float) -> Any:
        return amid_loss(student, teacher, alpha=alpha, lam=lam, divergence=divergence)  # type: ignore[arg-type]

    return loss


def cross_entropy() -> Loss:
    """Plain fine-tuning: the teacher is not asked."""
    import torch

    def loss(student: Any, teacher: Any, targets: Any, progress: float) -> Any:
        return torch.nn.functional.cross_entropy(student, targets)

    return loss


def _of_logs(formula: Callable[[Any, Any], Any]) -> Loss:
    """A loss from a formula (log p, log q) -> (n,)."""

    def loss(student: Any, teacher: Any, targets: Any, progress: float) -> Any:
        return formula(teacher.log_softmax(-1), student.log_softmax(-1)).mean()

    return loss


def _kl(log_a: Any, log_b: Any) -> Any:
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def _mixed(log_p: Any, log_q: Any, weight: float) -> Any:
    """``log(weight p + (1 - weight) q)``."""
    import torch

    return torch.logaddexp(log_p + math.log(weight), log_q + math.log1p(-weight))


def forward_kl() -> Loss:
    """KL(p || q)."""
    return _of_logs(_kl)


def reverse_kl() -> Loss:
    """KL(q || p)."""
    return _of_logs(lambda log_p, log_q: _kl(log_q, log_p))


def skewed_kl(skew: float) -> Loss:
    """DistiLLM: KL(p || skew p + (1 - skew) q).

    It is AMiD's member alpha = -1, lam = skew, and computed as that: written in another way it differs in rounding,
    which 150 steps blow up to .02 of overlap between students of one and the same loss.
    """
    return amid(-1.0, skew, "kl")


def generalized_jsd(beta: float) -> Loss:
    """GKD: beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q."""

    def formula(log_p: Any, log_q: Any) -> Any:
        middle = _mixed(log_p, log_q, beta)
        return beta * _kl(log_p, middle) + (1 - beta) * _kl(log_q, middle)

    return _of_logs(formula)


def abkd(x: float, y: float) -> Loss:
    """ABKD: the alpha-beta divergence of p and q."""

    def formula(log_p: Any, log_q: Any) -> Any:
        import torch

        s = x + y
        cross = torch.exp(x * log_p + y * log_q)
        return -(cross - x / s * torch.exp(s * log_p) - y / s * torch.exp(s * log_q)).sum(-1) / (x * y)

    return _of_logs(formula)


class Taid:
    """TAID: KL(r || q), r the geometric mixture with the student constant in it; its weight t goes from start to 1.

    The weight is at least linear in the progress of training; it grows faster while the loss falls: by
    ``step sigmoid(momentum) (1 - t)``, momentum a running mean of the loss's relative change. That the change is kept
    within [-1, 1] is ours: from start 0 the loss itself starts at 0.
    """

    def __init__(self, start: float, step: float = 5e-4, decay: float = 0.99) -> None:
        self.start, self.step, self.decay = start, step, decay
        self.t, self.momentum, self.last = start, 0.0, None  # type: float, float, float | None

    def __call__(self, student: Any, teacher: Any, targets: Any, progress: float) -> Any:
        log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
        log_r = (self.t * log_p + (1 - self.t) * log_q.detach()).log_softmax(-1)
        loss = _kl(log_r, log_q).mean()
        self._advance(float(loss.detach()), progress)
        return loss

    def _advance(self, value: float, progress: float) -> None:
        change = 0.0 if self.last is None else max(-1.0, min(1.0, (self.last - value) / (self.last + 1e-15)))
        self.last = value
        self.momentum = self.decay * self.momentum + (1 - self.decay) * change
        faster = self.t + self.step / (1 + math.exp(-self.momentum)) * (1 - self.t)
        self.t = min(1.0, max(self.start + (1 - self.start) * progress, faster))


taid: Callable[[float], Loss] = partial(Taid)

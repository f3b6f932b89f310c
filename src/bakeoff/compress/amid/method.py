"""AMiD: distillation of a language model through an assistant on the path between teacher and student.

Source: "AMiD: Knowledge Distillation for LLMs with alpha-mixture Assistant Distribution", ICLR 2026, arXiv 2510.15982.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DivergenceName = Literal["kl", "rkl", "js", "ab"]
Order = Literal["pr", "qr", "rp", "rq"]
Reduction = Literal["mean", "none"]

IGNORED = -100
"""Label of a position that is left out, as everywhere in transformers."""

GEOMETRIC = 1e-4
"""Closer to alpha = 1 than this, the geometric mixture is used."""

# The assistant


def alpha_mixture(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float, lam: float) -> torch.Tensor:
    """The normalised alpha-mixture of two distributions, in logarithms.

    With c = (1 - alpha) / 2: ``r ~ (lam p^c + (1 - lam) q^c)^(1/c)``, and ``p^lam q^(1-lam)`` at alpha = 1. It is the
    arithmetic mixture at alpha = -1, the geometric one at 1, the harmonic one at 3; it tends to the elementwise
    maximum for alpha -> -inf and to the minimum for +inf. Below alpha = 1 its support is the union of both supports,
    from 1 on the intersection. Gradients flow to both arguments.

    Parameters
    ----------
    log_p, log_q : Tensor of shape (..., V)
        Log-probabilities of teacher and student, normalised; -inf where there is no probability.
    alpha : float
    lam : float
        Weight of the TEACHER, in [0, 1]: 0 gives q, 1 gives p.

    Returns
    -------
    Tensor of shape (..., V)
        Log-probabilities.

    Raises
    ------
    ValueError
        `lam` outside [0, 1], `alpha` not finite, or no common token in a row where `alpha` asks for one.

    Notes
    -----
    The authors' code uses the geometric mixture for every alpha >= 1; here the definition holds there too. That it is
    also used within 1e-4 of alpha = 1, for the sake of continuity, is ours. O(V) a row.

    Examples
    --------
    >>> import torch
    >>> p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    >>> r = alpha_mixture(p.log(), q.log(), alpha=-1, lam=0.1).exp()
    >>> [round(value, 4) for value in r.tolist()]
    [0.25, 0.29, 0.46]
    """
    check_path(alpha, lam)
    if lam > 0.5:  # the same path walked from the other end; keeps 1 - lam exact where it is small
        return alpha_mixture(log_q, log_p, alpha, 1 - lam)
    if lam == 0:
        return log_q
    if not any(bool(side.detach().amin().isneginf()) for side in (log_p, log_q)):
        return _unnormalised(log_p, log_q, alpha, lam).log_softmax(-1)
    missing = log_p.isneginf() | log_q.isneginf()
    # Both sides are filled before any arithmetic: inf - inf would make the gradient NaN even where it is masked.
    u = _unnormalised(log_p.masked_fill(missing, 0.0), log_q.masked_fill(missing, 0.0), alpha, lam)
    if alpha <= 1 - GEOMETRIC:
        c = (1 - alpha) / 2
        alone = torch.where(log_q.isneginf(), log_p + (math.log(lam) - math.log1p(-lam)) / c, log_q)  # same constant
        u = torch.where(missing, alone, u)
    else:
        u = u.masked_fill(missing, -math.inf)
        if u.isneginf().all(-1).any():
            raise ValueError(
                f"teacher and student share no token in a row; alpha={alpha} needs one (alpha < 1 does not)"
            )
    return u.log_softmax(-1)


def _unnormalised(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float, lam: float) -> torch.Tensor:
    """``log(lam p^c + (1 - lam) q^c) / c`` up to a constant; p^c itself would underflow or overflow."""
    if abs(alpha - 1) < GEOMETRIC:
        return lam * log_p + (1 - lam) * log_q
    # log q + softplus(c (log p - log q) + odds) / c, which is a softplus of steepness c. In place: memory is the cost.
    c, odds = (1 - alpha) / 2, math.log(lam) - math.log1p(-lam)
    shifted = (log_p - log_q).add_(odds / c)
    return torch.nn.functional.softplus(shifted, beta=c, threshold=40.0).add_(log_q)


# Divergences: (log_a, log_b) of shape (..., V) -> (...)


def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """KL(a || b); entries where either side has no probability count as 0, and so do their gradients."""
    a, ratio = log_a.exp(), log_a - log_b
    total = (a * ratio).sum(-1)
    return total if total.isfinite().all() else (a * ratio.nan_to_num(0.0, 0.0, 0.0)).sum(-1)


def reverse_kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """KL(b || a)."""
    return kl(log_b, log_a)


def jensen_shannon(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """Mean of both KL to the even arithmetic mixture."""
    middle = alpha_mixture(log_a, log_b, -1.0, 0.5)
    return 0.5 * (kl(log_a, middle) + kl(log_b, middle))


def alpha_beta(log_a: torch.Tensor, log_b: torch.Tensor, x: float = 0.2, y: float = 0.7) -> torch.Tensor:
    """The alpha-beta divergence of ABKD with exponents `x` and `y`, by default those of the authors' code.

    ``-(sum a^x b^y - x/(x+y) sum a^(x+y) - y/(x+y) sum b^(x+y)) / (x y)``, for positive exponents.
    """
    s = x + y  # no term exceeds 1, so a plain sum of exp is safe; logsumexp has NaN gradients where all are 0
    cross, first, second = (z.exp().sum(-1) for z in (x * log_a + y * log_b, s * log_a, s * log_b))
    return -(cross - x / s * first - y / s * second) / (x * y)


DIVERGENCES: dict[str, Divergence] = {"kl": kl, "rkl": reverse_kl, "js": jensen_shannon, "ab": alpha_beta}

# The loss


def amid_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    labels: torch.Tensor | None = None,
    *,
    alpha: float = 0.5,
    lam: float = 0.1,
    divergence: DivergenceName | Divergence = "kl",
    order: Order = "pr",
    temperature: float = 1.0,
    reduction: Reduction = "mean",
    num_items: int | torch.Tensor | None = None,
    chunk: int | None = None,
    clamp_alpha: bool = False,
) -> torch.Tensor:
    """Divergence between teacher p (or student q) and their alpha-mixture r, over the positions that are kept.

    The mixture depends on the student and is differentiated; only the teacher is constant. No alpha is best
    everywhere: try -1, 0 and 0.5 on validation data. Losses of different divergences, alpha or lam cannot be compared
    by value.

    1. Log-probabilities of both sides, by log_softmax in float32 whatever the dtype of the logits.
    2. ``r = alpha_mixture(p, q, alpha, lam)``.
    3. The divergence of each position, averaged over those whose label is not -100.

    Parameters
    ----------
    student_logits, teacher_logits : Tensor of shape (..., V)
        Of any floating dtype. If one vocabulary is the other padded with logits 0 or -inf, both are cut to the smaller.
    labels : Tensor of shape (...), optional
        Integers in line with the logits (already shifted); positions with -100 are left out. None keeps all.
    alpha : float, default 0.5
        Shape of the path; -1 is DistiLLM's skewed KL, 1 is TAID's geometric path. Larger: more mode covering.
    lam : float, default 0.1
        How far along the path: weight of the teacher, in [0, 1].
    divergence : {"kl", "rkl", "js", "ab"} or callable, default "kl"
        A callable takes (log_a, log_b) of shape (n, V) and gives (n,). "ab" has small gradients and wants a learning
        rate of its own.
    order : {"pr", "qr", "rp", "rq"}, default "pr"
        The arguments of the divergence.
    temperature : float, default 1.0
        Divides both logits; the loss is not scaled back.
    reduction : {"mean", "none"}, default "mean"
        "none" gives a value for each position, 0 for those left out.
    num_items : int or Tensor, optional
        Divisor of the mean: the kept positions of the whole accumulated batch. By default those of this call.
    chunk : int, optional
        Positions at a time, recomputed in the backward pass: memory beyond the logits falls from about 7 times the
        student's to once (its gradient) plus about 16 times a chunk's; a hundredth of the positions is a good size.
    clamp_alpha : bool, default False
        Treat alpha > 1 as 1, as the authors' code does.

    Returns
    -------
    Tensor
        float32 (float64 if a side is): a scalar, or the leading shape of the logits for ``reduction="none"``.

    Raises
    ------
    ValueError
        An option out of range, shapes or vocabularies that differ, NaN logits, or no gradient by construction.

    Notes
    -----
    Default divergence and lam are ours (the authors' script has "ab" and 0.5); order and alpha are theirs.

    Examples
    --------
    >>> import torch
    >>> student = torch.tensor([[0.1, -0.4, 0.9, 0.2]], requires_grad=True)
    >>> teacher = torch.tensor([[0.5, 0.1, 0.1, 0.3]]).log()
    >>> amid_loss(student, teacher, alpha=-3).backward()
    >>> student.grad.tolist()
    [[-0.1772..., 0.0019..., 0.2628..., -0.0875...]]
    """
    check_path(alpha, lam)
    check_options(lam, divergence, order, temperature, reduction, chunk)
    _check_shapes(student_logits, teacher_logits, labels)
    student, teacher = _one_vocabulary(student_logits, teacher_logits.detach())
    shape, size = student.shape[:-1], student.shape[-1]
    keep = torch.ones(shape, dtype=torch.bool, device=student.device) if labels is None else labels != IGNORED
    rows = keep.flatten().nonzero().squeeze(1)
    if len(rows) == 0:
        warnings.warn("no position is kept: all labels are -100; the loss is 0", stacklevel=2)
        return _spread(student[..., :0].sum(-1).float(), rows, shape, reduction, 1)
    losses = partial(
        _position_losses,
        alpha=min(alpha, 1.0) if clamp_alpha else alpha,
        lam=lam,
        divergence=divergence if callable(divergence) else DIVERGENCES[divergence],
        order=order,
        temperature=temperature,
    )
    flat = student.reshape(-1, size), teacher.reshape(-1, size)
    if chunk is not None:
        kept: torch.Tensor = _Chunked.apply(*flat, rows, chunk, losses)  # type: ignore[no-untyped-call]
    else:
        kept = losses(*flat) if len(rows) == len(flat[0]) else losses(flat[0][rows], flat[1][rows])
    return _spread(kept, rows, shape, reduction, len(rows) if num_items is None else num_items)


def _spread(
    kept: torch.Tensor, rows: torch.Tensor, shape: torch.Size, reduction: Reduction, items: int | torch.Tensor
) -> torch.Tensor:
    """The mean over positions, or their values back in place."""
    if reduction == "mean":
        return kept.sum() / items
    if len(rows) == 0:
        return kept
    return kept.new_zeros(shape.numel()).index_put((rows,), kept).reshape(shape)


def _position_losses(
    student: torch.Tensor,
    teacher: torch.Tensor,
    alpha: float,
    lam: float,
    divergence: Divergence,
    order: Order,
    temperature: float,
) -> torch.Tensor:
    """Losses (n,) of logits (n, V), steps 1 to 3."""
    dtype = torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)
    # 1. log-probabilities: a softmax in bfloat16 would lose the tail before the logarithm
    named = {"p": teacher, "q": student}
    logs = {name: _tempered(logits.to(dtype), temperature).log_softmax(-1) for name, logits in named.items()}
    for name, side in (("p", "teacher"), ("q", "student")):
        if logs[name][..., 0].isnan().any():  # a NaN or +inf anywhere makes its whole row NaN
            raise ValueError(f"{side}_logits contain NaN or +inf")
    # 2. the assistant
    logs["r"] = alpha_mixture(logs["p"], logs["q"], alpha, lam)
    # 3. the divergence
    return divergence(logs[order[0]], logs[order[1]])


def _tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits if temperature == 1 else logits / temperature


class _Chunked(torch.autograd.Function):
    """Losses of some rows, a chunk at a time; the backward pass computes each chunk again."""

    @staticmethod
    def forward(
        ctx: Any, student: torch.Tensor, teacher: torch.Tensor, rows: torch.Tensor, chunk: int, losses: Divergence
    ) -> torch.Tensor:
        ctx.save_for_backward(student, teacher, rows)
        ctx.chunk, ctx.losses = chunk, losses
        return torch.cat([losses(student[part], teacher[part]) for part in torch.split(rows, chunk)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        student, teacher, rows = ctx.saved_tensors
        gradient = torch.zeros_like(student)
        for part, grad in zip(torch.split(rows, ctx.chunk), torch.split(grads[0], ctx.chunk), strict=True):
            with torch.enable_grad():
                leaf = student[part].detach().requires_grad_()
                loss = ctx.losses(leaf, teacher[part])
            gradient[part] = torch.autograd.grad(loss, leaf, grad)[0]
        return gradient, None, None, None, None


# Checks


def check_path(alpha: float, lam: float) -> None:
    if not math.isfinite(alpha):
        raise ValueError(f"alpha={alpha} is not finite")
    if not 0 <= lam <= 1:  # a NaN fails too
        raise ValueError(f"lam={lam} is outside [0, 1]")


def check_options(
    lam: float, divergence: Any, order: str, temperature: float, reduction: str, chunk: int | None
) -> None:
    if not callable(divergence) and divergence not in DIVERGENCES:
        raise ValueError(f"divergence={divergence!r}; use {', '.join(DIVERGENCES)} or a callable")
    for name, value, allowed in (("order", order, get_args(Order)), ("reduction", reduction, get_args(Reduction))):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}; use {', '.join(allowed)}")
    if (lam == 0 and "q" in order) or (lam == 1 and "p" in order):
        raise ValueError(f'no gradient: lam={lam:g} with order "{order}"')
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature} is not positive and finite")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} is less than one position")


def _check_shapes(student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor | None) -> None:
    if student.shape[:-1] != teacher.shape[:-1]:
        raise ValueError(f"student_logits {tuple(student.shape)} and teacher_logits {tuple(teacher.shape)} differ")
    if labels is not None and labels.shape != student.shape[:-1]:
        raise ValueError(f"labels {tuple(labels.shape)} do not fit student_logits {tuple(student.shape)}")


def _one_vocabulary(student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both cut to the smaller vocabulary where the larger one is it with padding; log_softmax renormalises."""
    sizes = teacher.shape[-1], student.shape[-1]
    if sizes[0] == sizes[1]:
        return student, teacher
    extra = (teacher if sizes[0] > sizes[1] else student)[..., min(sizes) :]
    if not ((extra == 0) | extra.isneginf()).all():
        raise ValueError(
            f"teacher and student tokenizers differ ({sizes[0]} vs {sizes[1]} tokens); "
            "logit distillation needs one vocabulary"
        )
    return student[..., : min(sizes)], teacher[..., : min(sizes)]

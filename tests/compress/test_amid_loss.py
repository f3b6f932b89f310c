"""The loss as a function that is handed real tensors: labels, dtypes, padding, chunks, stability and bad input."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from bakeoff.compress import alpha_mixture, amid_loss
from bakeoff.compress.amid.experiments import ALPHAS, fitted_std, stability, steering


def logits(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def loss_and_gradient(student: torch.Tensor, *arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = student.clone().requires_grad_()
    loss = amid_loss(leaf, *arguments, **options)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


# Positions


def test_labels_leave_positions_out():
    student, teacher = logits(0, 2, 3, 5, 7)
    labels = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(0))
    labels[0, :3] = labels[2] = -100
    kept = labels != -100
    loss, gradient = loss_and_gradient(student, teacher, labels)
    each = amid_loss(student, teacher, reduction="none")
    assert float(loss) == pytest.approx(float(each[kept].mean()))
    assert (gradient[~kept] == 0).all()
    assert (gradient[kept].abs().sum(-1) > 0).all()
    spread = amid_loss(student, teacher, labels, reduction="none")
    assert torch.allclose(spread[kept], each[kept])
    assert (spread[~kept] == 0).all()
    assert float(amid_loss(student, teacher, labels, num_items=100)) == pytest.approx(float(each[kept].sum() / 100))
    assert float(amid_loss(student, teacher, labels, num_items=torch.tensor(7.0))) == pytest.approx(
        float(each[kept].sum() / 7)
    )


def test_positions_left_out_may_hold_anything():
    """A fully masked, left-padded position can be NaN in some attention kernels."""
    student, teacher = logits(1, 2, 2, 4, 6)
    labels = torch.tensor([[-100, 1, 2, 3], [1, 2, 3, 4]])
    expected = loss_and_gradient(student, teacher, labels)
    student[0, 0], teacher[0, 0] = math.nan, math.inf
    for chunk in (None, 2):
        loss, gradient = loss_and_gradient(student, teacher, labels, chunk=chunk)
        assert float(loss) == pytest.approx(float(expected[0]))
        assert torch.allclose(gradient, expected[1])


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("divergence", ["kl", "ab", "js"])
def test_chunks_change_nothing(chunk: int, reduction: Any, divergence: Any):
    student, teacher = logits(2, 2, 3, 5, 7)
    labels = torch.ones(3, 5, dtype=torch.long)
    labels[1, 2:] = -100
    options: Any = {"reduction": reduction, "divergence": divergence, "alpha": -2.0}
    whole, part = (loss_and_gradient(student, teacher, labels, chunk=c, **options) for c in (None, chunk))
    assert torch.allclose(whole[0], part[0])
    assert torch.allclose(whole[1], part[1])


def test_chunks_go_backward_twice():
    student, teacher = logits(3, 2, 6, 7)
    leaf = student.requires_grad_()
    loss = amid_loss(leaf, teacher, chunk=4)
    first, second = (torch.autograd.grad(2 * loss, leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.autograd.gradcheck(lambda z: amid_loss(z, teacher, chunk=4, reduction="none"), (leaf,))


def test_the_teacher_gets_no_gradient():
    student, teacher = logits(4, 2, 3, 5)
    for chunk in (None, 2):
        loss = amid_loss(student.requires_grad_(), teacher.requires_grad_(), chunk=chunk)
        loss.backward()
        assert teacher.grad is None


def test_without_a_label_the_loss_is_zero_and_has_a_graph():
    student, teacher = logits(5, 2, 2, 3, 4)
    student[0, 0, 0] = math.nan
    for reduction, shape in (("mean", ()), ("none", (2, 3))):
        leaf = student.clone().requires_grad_()
        with pytest.warns(UserWarning, match="no position is kept"):
            loss = amid_loss(leaf, teacher, torch.full((2, 3), -100), reduction=reduction)
        assert loss.shape == shape
        assert (loss == 0).all()
        loss.sum().backward()
        assert (leaf.grad == 0).all()


# Numbers


def test_bfloat16_logits_are_softened_in_float32():
    student, teacher = logits(6, 2, 8, 300, dtype=torch.bfloat16)
    loss, gradient = loss_and_gradient(student, teacher)
    assert loss.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16
    exact, slope = loss_and_gradient(student.double(), teacher.double())
    assert float(loss) == pytest.approx(float(exact), rel=1e-5)
    assert torch.allclose(gradient.double(), slope, rtol=1e-2, atol=1e-6)
    chunked, again = loss_and_gradient(student, teacher, chunk=3)
    assert float(chunked) == pytest.approx(float(loss), rel=1e-6)
    assert torch.allclose(again, gradient, rtol=2e-2, atol=1e-6)


def test_temperature_divides_both_sides():
    student, teacher = logits(7, 2, 4, 9)
    assert float(amid_loss(student, teacher, temperature=2.5)) == pytest.approx(
        float(amid_loss(student / 2.5, teacher / 2.5))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [-5, -3, -1, 0, 0.5, 0.999, 1, 1.001, 3, 5])
@pytest.mark.parametrize("divergence", ["kl", "rkl", "js", "ab"])
@pytest.mark.parametrize("order", ["pr", "qr"])
def test_finite_on_logits_that_hardly_overlap(dtype: torch.dtype, alpha: float, divergence: Any, order: Any):
    student, teacher = 40 * logits(8, 2, 16, 512).div(3).to(dtype)
    loss, gradient = loss_and_gradient(student, teacher, alpha=alpha, divergence=divergence, order=order)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_skewed_kl_saturates_at_its_bound():
    found = stability(0)
    assert found["finite"] == 1
    assert found["bounded"] == pytest.approx(0, abs=1e-4)  # ln 10
    assert found["forward_kl"] > 50
    signals = [found[f"signal_{alpha:g}"] for alpha in ALPHAS]
    assert signals == sorted(signals)
    assert signals[-2] < 0.01 < signals[-1]


def test_tiny_weights_and_ratios_keep_their_digits():
    """Against the definition in float64, on log-probabilities down to -90."""
    q = torch.linspace(-90, 0, 40, dtype=torch.float64).log_softmax(-1)
    p = q.flip(0)
    for alpha in (-5.0, -1.0, 0.9, 1.1, 5.0):
        for lam in (1e-6, 0.1, 0.5, 1 - 1e-6):
            c = (1 - alpha) / 2
            u = torch.logaddexp(c * p + math.log(lam), c * q + math.log1p(-lam)) / c
            exact = u.log_softmax(-1)
            assert torch.allclose(alpha_mixture(p, q, alpha, lam), exact, atol=1e-8)
            single = alpha_mixture(p.float(), q.float(), alpha, lam)
            assert torch.allclose(single.double(), exact, atol=1e-3)


# Mode covering


@pytest.mark.parametrize(
    ("lam", "stds"),
    [(0.1, (3.138, 3.159, 3.175, 3.192, 3.228, 3.388)), (0.5, (3.064, 3.073, 3.098, 3.213, 3.499, 3.982))],
)
def test_larger_alpha_covers_more(lam: float, stds: tuple[float, ...]):
    assert [fitted_std(alpha, lam) for alpha in ALPHAS] == pytest.approx(stds, abs=6e-4)


def test_mode_covering_is_not_monotone_near_the_teacher():
    found = steering(0)
    assert [found[f"std_0.9_{alpha}"] for alpha in (-5, -3, -1, 0)] == pytest.approx(
        [2.984, 2.942, 2.887, 3.249], abs=6e-4
    )
    assert found["step_0.9"] < 0 < min(found["step_0.1"], found["step_0.5"])


# Vocabularies


def test_padding_of_a_vocabulary_is_cut_off():
    student, teacher = logits(9, 2, 2, 3, 6)
    expected = loss_and_gradient(student, teacher)
    for fill in (0.0, -math.inf):
        pad = torch.full((2, 3, 4), fill, dtype=torch.float64)
        loss, gradient = loss_and_gradient(student, torch.cat([teacher, pad], -1))
        assert float(loss) == pytest.approx(float(expected[0]))
        assert torch.allclose(gradient, expected[1])
        loss, gradient = loss_and_gradient(torch.cat([student, pad], -1), teacher)
        assert float(loss) == pytest.approx(float(expected[0]))
        assert torch.allclose(gradient[..., :6], expected[1])
        assert (gradient[..., 6:] == 0).all()


# Bad input

BAD: list[tuple[dict[str, Any], str]] = [
    ({"lam": 1.5}, r"lam=1.5 is outside \[0, 1\]"),
    ({"lam": -0.1}, r"lam=-0.1 is outside \[0, 1\]"),
    ({"lam": math.nan}, r"lam=nan is outside \[0, 1\]"),
    ({"alpha": math.nan}, "alpha=nan is not finite"),
    ({"alpha": math.inf}, "alpha=inf is not finite"),
    ({"lam": 1, "order": "pr"}, 'no gradient: lam=1 with order "pr"'),
    ({"lam": 1, "order": "rp"}, 'no gradient: lam=1 with order "rp"'),
    ({"lam": 0, "order": "qr"}, 'no gradient: lam=0 with order "qr"'),
    ({"lam": 0, "order": "rq"}, 'no gradient: lam=0 with order "rq"'),
    ({"order": "pq"}, "order='pq'; use pr, qr, rp, rq"),
    ({"divergence": "fkl"}, "divergence='fkl'; use kl, rkl, js, ab"),
    ({"reduction": "sum"}, "reduction='sum'; use mean, none"),
    ({"temperature": 0}, "temperature=0 is not positive"),
    ({"chunk": 0}, "chunk=0"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options: dict[str, Any], message: str):
    student, teacher = logits(10, 2, 2, 3, 4)
    with pytest.raises(ValueError, match=message):
        amid_loss(student, teacher, **options)


def test_end_points_that_do_have_a_gradient():
    student, teacher = logits(10, 2, 2, 3, 4)
    for options in ({"lam": 0, "order": "pr"}, {"lam": 0, "order": "rp"}, {"lam": 1, "order": "qr"}):
        assert loss_and_gradient(student, teacher, **options)[1].abs().sum() > 0


def test_bad_shapes():
    student, teacher = logits(11, 2, 2, 3, 4)
    with pytest.raises(ValueError, match=r"student_logits \(2, 3, 4\) and teacher_logits \(3, 4\) differ"):
        amid_loss(student, teacher[0])
    with pytest.raises(ValueError, match=r"labels \(2, 2\) do not fit student_logits \(2, 3, 4\)"):
        amid_loss(student, teacher, torch.zeros(2, 2, dtype=torch.long))


def test_two_tokenizers():
    message = r"tokenizers differ \(5 vs 4 tokens\); logit distillation needs one vocabulary"
    with pytest.raises(ValueError, match=message):
        amid_loss(logits(12, 2, 4), logits(13, 2, 5))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("chunk", [None, 2])
def test_wrong_logits_name_the_side(wrong: float, chunk: int | None):
    for side in (0, 1):
        both = logits(14, 2, 3, 4)
        both[side, 1, 2] = wrong
        with pytest.raises(ValueError, match=f"{('student', 'teacher')[side]}_logits contain NaN"):
            amid_loss(both[0], both[1], chunk=chunk)


def test_no_token_in_common():
    p, q = torch.tensor([[0.0, -math.inf]]), torch.tensor([[-math.inf, 0.0]])
    with pytest.raises(ValueError, match="share no token"):
        alpha_mixture(p, q, 1.0, 0.1)
    assert alpha_mixture(p, q, -1.0, 0.1).exp().tolist()[0] == pytest.approx([0.1, 0.9])


def test_ordinary_use_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_and_gradient(*logits(15, 2, 3, 5), torch.zeros(3, dtype=torch.long), chunk=2)

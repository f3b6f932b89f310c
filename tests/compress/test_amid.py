"""The alpha-mixture and the loss: right values, closed forms, identities and limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.compress import alpha_mixture, amid_loss
from bakeoff.compress.amid.method import alpha_beta, jensen_shannon, kl, reverse_kl
from bakeoff.compress.amid.rivals import Taid, abkd, amid, forward_kl, generalized_jsd
from bakeoff.compress.amid.rivals import reverse_kl as reverse_kl_loss

P, Q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
TABLE = [  # alpha, r, KL(p||r), KL(q||r), AB(p,r) at lam .5
    (-5, (0.459893, 0.213260, 0.326847), 0.162789, 0.148404, 0.222105),
    (-3, (0.455443, 0.225563, 0.318994), 0.160810, 0.145682, 0.216363),
    (-1, (0.450000, 0.250000, 0.300000), 0.154793, 0.147923, 0.202233),
    (0, (0.447255, 0.268597, 0.284149), 0.150155, 0.154765, 0.191704),
    (0.5, (0.445746, 0.279329, 0.274925), 0.147985, 0.160186, 0.186463),
    (1, (0.443997, 0.290664, 0.265339), 0.146330, 0.166784, 0.181909),
    (3, (0.433437, 0.334365, 0.232198), 0.148509, 0.196287, 0.176737),
    (5, (0.421007, 0.364317, 0.214676), 0.159564, 0.215601, 0.186197),
]
ALPHAS = st.floats(-6, 6)
WEIGHTS = st.floats(0.01, 0.99)
SEEDS = st.integers(0, 10_000)


def logits(seed: int, *shape: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(seed: int, size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = logits(seed, 2, 4, size).log_softmax(-1)
    return p, q


def mixture_by_powers(p: np.ndarray, q: np.ndarray, alpha: float, lam: float) -> np.ndarray:
    """The definition, word for word."""
    c = (1 - alpha) / 2
    r = p**lam * q ** (1 - lam) if alpha == 1 else (lam * p**c + (1 - lam) * q**c) ** (1 / c)
    return r / r.sum(-1, keepdims=True)


def gradient(loss: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


# The mixture


@pytest.mark.parametrize(("alpha", "r", "kl_pr", "kl_qr", "ab_pr"), TABLE)
def test_right_values(alpha: float, r: tuple[float, ...], kl_pr: float, kl_qr: float, ab_pr: float):
    found = alpha_mixture(P.log(), Q.log(), alpha, 0.5)
    assert found.exp().tolist() == pytest.approx(r, abs=1e-6)
    for order, divergence, value in (("pr", "kl", kl_pr), ("qr", "kl", kl_qr), ("pr", "ab", ab_pr)):
        loss = amid_loss(Q.log(), P.log(), alpha=alpha, lam=0.5, divergence=divergence, order=order)
        assert float(loss) == pytest.approx(value, abs=1e-6)


def test_right_values_of_the_end_points():
    assert float(amid_loss(Q.log(), P.log(), lam=0)) == pytest.approx(0.634897, abs=1e-6)
    assert float(amid_loss(Q.log(), P.log(), lam=0, divergence="ab")) == pytest.approx(0.727508, abs=1e-6)


@pytest.mark.parametrize(
    ("alpha", "r"),
    [(-1, (0.25, 0.29, 0.46)), (0, (0.243236, 0.297513, 0.459251)), (1, (0.241049, 0.306323, 0.452628))],
)
def test_lam_is_the_weight_of_the_teacher(alpha: float, r: tuple[float, ...]):
    assert alpha_mixture(P.log(), Q.log(), alpha, 0.1).exp().tolist() == pytest.approx(r, abs=1e-6)


@given(SEEDS, st.one_of(ALPHAS.filter(lambda a: abs(a - 1) > 1e-3), st.just(1.0)), WEIGHTS)
def test_mixture_is_the_definition(seed: int, alpha: float, lam: float):
    p, q = pair(seed)
    expected = mixture_by_powers(p.exp().numpy(), q.exp().numpy(), alpha, lam)
    np.testing.assert_allclose(alpha_mixture(p, q, alpha, lam).exp().numpy(), expected, rtol=1e-8)


@given(SEEDS, ALPHAS, WEIGHTS)
def test_mixture_identities(seed: int, alpha: float, lam: float):
    p, q = pair(seed)
    r = alpha_mixture(p, q, alpha, lam)
    assert torch.allclose(r.exp().sum(-1), torch.ones(4, dtype=torch.float64))
    assert torch.allclose(r, alpha_mixture(q, p, alpha, 1 - lam), atol=1e-9)
    assert torch.allclose(p, alpha_mixture(p, p, alpha, lam), atol=1e-9)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(r[:, order], alpha_mixture(p[:, order], q[:, order], alpha, lam), atol=1e-9)
    assert torch.equal(alpha_mixture(p, q, alpha, 0), q)
    assert torch.equal(alpha_mixture(p, q, alpha, 1), p)


@given(SEEDS, st.floats(-3, 0.9), WEIGHTS)
@settings(max_examples=30)
def test_mixture_minimises_the_mean_amari_divergence(seed: int, alpha: float, lam: float):
    """r = argmin lam D(p||r) + (1-lam) D(q||r), so no small step along the simplex helps."""

    def amari(a: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        mixed = torch.exp((1 - alpha) / 2 * a + (1 + alpha) / 2 * r).sum(-1)
        return 4 / (1 - alpha**2) * (1 - mixed)

    if abs(alpha + 1) < 1e-2:
        return
    p, q = pair(seed)
    r = alpha_mixture(p, q, alpha, lam)

    def mean(z: torch.Tensor) -> torch.Tensor:
        return (lam * amari(p, z.log_softmax(-1)) + (1 - lam) * amari(q, z.log_softmax(-1))).sum()

    assert gradient(mean, r).abs().max() < 1e-8
    for k in range(5):
        assert mean(r + 0.1 * logits(seed + k, *r.shape)) > mean(r)


def test_continuous_in_alpha_around_one():
    p, q = pair(3)
    at_one = alpha_mixture(p, q, 1.0, 0.3)
    for gap in (1e-6, 0.99e-4, 1.01e-4, 1e-3):
        for alpha in (1 - gap, 1 + gap):
            assert (alpha_mixture(p, q, alpha, 0.3) - at_one).abs().max() < 10 * gap
            found = alpha_mixture(p.float(), q.float(), alpha, 0.3)
            assert (found - at_one).abs().max() < 10 * gap + 1e-2 * (gap > 1e-4)


def test_far_alphas_are_maximum_and_minimum():
    p, q = pair(1)
    for alpha, elementwise in ((-5000.0, torch.maximum), (5000.0, torch.minimum)):
        assert torch.allclose(alpha_mixture(p, q, alpha, 0.4), elementwise(p, q).log_softmax(-1), atol=1e-2)


@pytest.mark.parametrize("alpha", [-5.0, -1.0, 0.5, 0.99, 1.0, 1.5, 5.0])
@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
def test_support_is_union_below_one_and_intersection_from_one(alpha: float, lam: float):
    inf = -math.inf
    teacher = torch.tensor([[0.3, inf, 0.2, inf, 1.0]], dtype=torch.float64)
    student = torch.tensor([[inf, 0.1, 0.4, inf, -1.0]], dtype=torch.float64)
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    r = alpha_mixture(p, q, alpha, lam).exp()
    support = [True, True, True, False, True] if alpha < 1 else [False, False, True, False, True]
    assert (r[0] > 0).tolist() == support
    with np.errstate(divide="ignore"):
        expected = mixture_by_powers(p.exp().numpy(), q.exp().numpy(), alpha, lam)
    np.testing.assert_allclose(r.numpy(), expected, rtol=1e-8)
    for order in ("pr", "qr", "rp", "rq"):
        for divergence in ("kl", "rkl", "js", "ab"):
            options: Any = {"alpha": alpha, "lam": lam, "order": order, "divergence": divergence}
            g = gradient(lambda z, o=options: amid_loss(z, teacher, **o), student)
            assert g.isfinite().all()


@pytest.mark.parametrize("divergence", ["kl", "rkl", "js", "ab"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_no_token_in_common_has_a_finite_gradient(divergence: Any, lam: float):
    teacher = torch.tensor([[0.0, 1.0, -math.inf, -math.inf]])
    loss = gradient(lambda z: amid_loss(z, teacher, alpha=-1, lam=lam, divergence=divergence), teacher.flip(-1))
    assert loss.isfinite().all()


def test_masked_entries_do_not_change_the_rest():
    """-inf on both sides is as if the token were not there, for values and gradients."""
    student, teacher = logits(5, 2, 3, 6)
    pad = torch.full((3, 2), -math.inf, dtype=torch.float64)
    for divergence in ("kl", "ab", "js"):
        full = amid_loss(torch.cat([student, pad], 1), torch.cat([teacher, pad], 1), alpha=-3, divergence=divergence)
        assert float(full) == pytest.approx(float(amid_loss(student, teacher, alpha=-3, divergence=divergence)))


# The gradient


def test_right_value_of_the_gradient():
    found = gradient(
        lambda z: amid_loss(z, torch.tensor([0.5, 0.1, 0.1, 0.3], dtype=torch.float64).log(), alpha=-3, lam=0.1),
        torch.tensor([0.1, -0.4, 0.9, 0.2], dtype=torch.float64),
    )
    assert found.tolist() == pytest.approx([-0.177287358, 0.001960764, 0.262850847, -0.087524253], abs=1e-9)
    assert float(found.sum()) == pytest.approx(0, abs=1e-12)


@given(SEEDS, st.floats(-5, 4), WEIGHTS)
@settings(max_examples=50)
def test_gradient_is_the_papers_identity(seed: int, alpha: float, lam: float):
    """E_r[w (psi - E_r psi) grad log q], psi(u) = f(u) - u f'(u) = -u for f = u log u."""
    z, teacher = logits(seed, 2, 6)
    q, p = z.softmax(-1), teacher.softmax(-1)
    r = alpha_mixture(p.log(), q.log(), alpha, lam).exp()
    c = (1 - alpha) / 2
    w = (1 - lam) * q**c / (lam * p**c + (1 - lam) * q**c)
    psi = -p / r
    weight = r * w * (psi - (r * psi).sum())
    expected = weight - q * weight.sum()  # grad log q_v in z is e_v - q
    found = gradient(lambda s: amid_loss(s, teacher, alpha=alpha, lam=lam), z)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-8)


@pytest.mark.parametrize("alpha", [-5.0, -1.0, 0.5, 1.0, 3.0])
def test_equal_sides_give_zero_loss_and_gradient(alpha: float):
    z = logits(2, 3, 9)
    for order in ("pr", "qr", "rp", "rq"):
        for divergence in ("kl", "rkl", "js", "ab"):
            options: Any = {"alpha": alpha, "lam": 0.3, "order": order, "divergence": divergence}
            assert abs(float(amid_loss(z, z.clone(), **options))) < 1e-12
            assert gradient(lambda s, o=options: amid_loss(s, z, **o), z).abs().max() < 1e-12


@given(SEEDS, ALPHAS, WEIGHTS, st.sampled_from(["pr", "qr"]), st.sampled_from(["kl", "rkl", "js", "ab"]))
@settings(max_examples=60)
def test_optimality(seed: int, alpha: float, lam: float, order: Any, divergence: Any):
    student, teacher = logits(seed, 2, 5, scale=1.0)
    assert amid_loss(student, teacher, alpha=alpha, lam=lam, order=order, divergence=divergence) > 0


def test_every_order_and_divergence_by_finite_differences():
    student, teacher = logits(11, 2, 2, 5)
    for order in ("pr", "qr", "rp", "rq"):
        for divergence in ("kl", "rkl", "js", "ab"):
            options: Any = {"alpha": -2.0, "lam": 0.7, "order": order, "divergence": divergence}
            leaf = student.clone().requires_grad_()
            assert torch.autograd.gradcheck(lambda z, o=options: amid_loss(z, teacher, **o), (leaf,))


# Special cases, against formulas written apart from it


def skewed_kl(skew: float) -> Any:
    """DistiLLM by plain probabilities; in the bout it is AMiD's member, to the last bit."""

    def loss(student: torch.Tensor, teacher: torch.Tensor, targets: Any, progress: float) -> torch.Tensor:
        p, q = teacher.softmax(-1), student.softmax(-1)
        return (p * (p / (skew * p + (1 - skew) * q)).log()).sum(-1).mean()

    return loss


def rival(loss: Any, student: torch.Tensor, teacher: torch.Tensor) -> float:
    return float(loss(student, teacher, torch.zeros(len(student), dtype=torch.long), 0.0))


@given(SEEDS, WEIGHTS)
@settings(max_examples=30)
def test_special_cases(seed: int, lam: float):
    student, teacher = logits(seed, 2, 4, 6)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (forward_kl(), {"lam": 0}),
        (reverse_kl_loss(), {"lam": 1, "order": "qr"}),
        (reverse_kl_loss(), {"lam": 0, "divergence": "rkl"}),
        (skewed_kl(lam), {"lam": lam, "alpha": -1}),
        (abkd(0.2, 0.7), {"lam": 0, "divergence": "ab"}),
        (generalized_jsd(0.5), {"lam": 0, "divergence": "js"}),
        (Taid(lam), {"lam": lam, "alpha": 1, "order": "rq"}),
        (amid(0.5, lam, "kl"), {"lam": lam}),
    ]
    for loss, options in cases:
        assert float(amid_loss(student, teacher, **options)) == pytest.approx(rival(loss, student, teacher), rel=1e-9)
    both = [lam * amid_loss(student, teacher, alpha=-1, lam=lam, order="pr")]
    both.append((1 - lam) * amid_loss(student, teacher, alpha=-1, lam=lam, order="qr"))
    assert float(sum(both)) == pytest.approx(rival(generalized_jsd(lam), student, teacher), rel=1e-9)


def test_skewed_kl_has_the_gradient_of_alpha_minus_one():
    student, teacher = logits(8, 2, 4, 6)
    ours = gradient(lambda z: amid_loss(z, teacher, alpha=-1, lam=0.1), student)
    theirs = gradient(lambda z: skewed_kl(0.1)(z, teacher, torch.zeros(4), 0.0), student)
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_divergences_in_closed_form():
    p, q = P.log(), Q.log()
    assert float(kl(p, q)) == pytest.approx(float((P * (P / Q).log()).sum()))
    assert float(reverse_kl(p, q)) == pytest.approx(float(kl(q, p)))
    m = (P + Q) / 2
    assert float(jensen_shannon(p, q)) == pytest.approx(float(((P * (P / m).log()) + Q * (Q / m).log()).sum() / 2))
    x, y = 0.5, 0.5  # then it is a multiple of the squared Hellinger distance
    assert float(alpha_beta(p, q, x, y)) == pytest.approx(float(2 * ((P.sqrt() - Q.sqrt()) ** 2).sum()))


def test_a_callable_divergence_sees_log_probabilities_in_order():
    def total_variation(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
        return 0.5 * (log_a.exp() - log_b.exp()).abs().sum(-1)

    loss = amid_loss(Q.log(), P.log(), alpha=-1, lam=0.5, divergence=total_variation, order="pr")
    assert float(loss) == pytest.approx(0.25)
    signed = amid_loss(Q.log(), P.log(), alpha=-1, lam=0.5, divergence=lambda a, b: a[..., 0] - b[..., 0], order="qr")
    assert float(signed) == pytest.approx(math.log(0.2 / 0.45))


def test_clamped_alpha_is_the_geometric_mixture():
    student, teacher = logits(4, 2, 3, 5)
    clamped = float(amid_loss(student, teacher, alpha=4, clamp_alpha=True))
    assert clamped == pytest.approx(float(amid_loss(student, teacher, alpha=1)))
    assert clamped != pytest.approx(float(amid_loss(student, teacher, alpha=4)), rel=1e-3)

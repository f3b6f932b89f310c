"""The maps, the losses and the inference of FDFI, each against an independent reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import brier_score_loss, log_loss, mean_absolute_error, mean_pinball_loss, mean_squared_error
from statsmodels.stats.multitest import multipletests

from bakeoff.explain.fdfi.columns import Columns
from bakeoff.explain.fdfi.diagnostics import distance_correlations
from bakeoff.explain.fdfi.flow import FlowDisentangler
from bakeoff.explain.fdfi.inference import adjust_p, wald_table
from bakeoff.explain.fdfi.latents import pull_back
from bakeoff.explain.fdfi.linear import LinearDisentangler
from bakeoff.explain.fdfi.losses import LOSSES

PAIR = np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1.0]])


def nearly_singular() -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    return (Q * [1e-4, 0.7, 2.0]) @ Q.T


def parabola(n: int) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(n, 3))
    X[:, 1] = X[:, 0] ** 2 + 0.3 * X[:, 1]
    return (X - X.mean(0)) / X.std(0)


@pytest.mark.parametrize("covariance", [PAIR, nearly_singular()])
@pytest.mark.parametrize("ode_steps", [1, 2, 4, 7])
def test_untrained_flow_is_the_symmetric_root_at_any_number_of_steps(covariance, ode_steps):
    X = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance, 50)
    flow = FlowDisentangler(covariance=covariance, n_steps=0, ode_steps=ode_steps).fit(X)
    exact = sqrtm(covariance + 1e-4 * np.eye(3)).real
    np.testing.assert_allclose(flow.jacobian(X), np.broadcast_to(exact, (50, 3, 3)), atol=1e-5)
    np.testing.assert_allclose(flow.decode(flow.encode(X)), X, atol=1e-4)


@pytest.fixture(scope="module")
def trained() -> tuple[FlowDisentangler, np.ndarray]:
    X = parabola(1000)
    return FlowDisentangler(n_steps=600, ode_steps=6).fit(X), X


def test_encode_inverts_decode(trained):
    flow, _ = trained
    Z = np.random.default_rng(1).normal(size=(500, 3))
    error = flow.encode(flow.decode(Z)) - Z
    assert np.sqrt((error**2).mean()) < 1e-3


def test_jacobian_is_the_derivative_of_decode(trained):
    flow, X = trained
    Z, step = flow.encode(X[:40]), 1e-2
    numeric = np.stack(
        [(flow.decode(Z + step * e) - flow.decode(Z - step * e)) / (2 * step) for e in np.eye(3)], axis=2
    )
    np.testing.assert_allclose(flow.jacobian(Z), numeric, atol=0.02)


def test_fixed_steps_agree_with_an_adaptive_solver_of_the_plain_velocity(trained):
    """Independent reference: dx/dt = v_gauss + net in x itself, by scipy's DOP853."""
    from scipy.integrate import solve_ivp

    from bakeoff.explain.fdfi import flow as module

    networks = []

    class Recorded(module._Network):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            networks.append(self)

    X = parabola(400)
    original, module._Network = module._Network, Recorded
    try:
        flow = FlowDisentangler(n_steps=300, ode_steps=4).fit(X)
    finally:
        module._Network = original
    w, V, s = flow._w.double().numpy(), flow._V.double().numpy(), 0.01

    def velocity(t, x):
        x = x.reshape(-1, 3)
        a = 1 - (1 - s) * t
        gain = (t * w - (1 - s) * a) / (a**2 + t**2 * w)
        with torch.no_grad():
            net = networks[0](torch.tensor(x, dtype=torch.float32), torch.full((len(x), 1), float(t))).double().numpy()
        return ((x @ V * gain) @ V.T + net).ravel()

    exact = solve_ivp(velocity, (1, 0), X[:50].ravel(), method="DOP853", rtol=1e-6, atol=1e-7).y[:, -1].reshape(-1, 3)
    error = flow.encode(X[:50]) - exact
    assert np.sqrt((error**2).mean()) < 0.02
    assert np.sqrt((error**2).mean()) < 0.2 * np.sqrt(
        ((LinearDisentangler().fit(X).encode(X[:50]) - exact) ** 2).mean()
    )


def test_stiff_real_data_makes_a_round_trip():
    X = load_breast_cancer().data
    X = (X - X.mean(0)) / X.std(0)
    flow = FlowDisentangler(n_steps=100, covariance="empirical").fit(X)
    finer = FlowDisentangler(n_steps=100, covariance="empirical", ode_steps=16).fit(X)
    Z = flow.encode(X)
    assert np.sqrt(((flow.decode(Z) - X) ** 2).mean()) < 1e-3
    assert np.sqrt(((finer.encode(X) - Z) ** 2).mean()) < 0.01  # a round trip alone would not show this error


def test_training_is_seeded_and_works_on_discrete_columns():
    X = np.column_stack([parabola(200), np.arange(200) % 2 * 2.0 - 1])
    one, same, other = (FlowDisentangler(n_steps=20, random_state=seed).fit(X).encode(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_linear_map_whitens():
    X = np.random.default_rng(0).multivariate_normal(np.zeros(3), PAIR, 5000)
    Z = LinearDisentangler("empirical").fit(X - X.mean(0)).encode(X - X.mean(0))
    np.testing.assert_allclose(np.cov(Z.T, ddof=0), np.eye(3), atol=1e-9)


def test_losses_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    y, f = rng.normal(size=50), rng.normal(size=50)
    label, p = (rng.random(50) < 0.5).astype(float), rng.uniform(0.01, 0.99, 50)
    assert LOSSES["squared_error"](y, f).mean() == pytest.approx(mean_squared_error(y, f))
    assert LOSSES["absolute_error"](y, f).mean() == pytest.approx(mean_absolute_error(y, f))
    assert LOSSES["pinball"](y, f).mean() == pytest.approx(mean_pinball_loss(y, f, alpha=0.5))
    assert LOSSES["log_loss"](label, p).mean() == pytest.approx(log_loss(label, p))
    assert LOSSES["brier"](label, p).mean() == pytest.approx(brier_score_loss(label, p))
    assert LOSSES["zero_one"](label, p).mean() == pytest.approx(np.mean(label != (p >= 0.5)))
    huber = torch.nn.HuberLoss()(torch.tensor(f), torch.tensor(y)).item()
    assert LOSSES["huber"](y, f).mean() == pytest.approx(huber)
    assert np.isfinite(LOSSES["log_loss"](np.array([0.0, 1]), np.array([1.0, 0]))).all()


@settings(max_examples=60, deadline=None)
@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_adjusted_p_agree_with_statsmodels(p):
    for ours, theirs in (("bh", "fdr_bh"), ("holm", "holm"), ("bonferroni", "bonferroni")):
        expected = multipletests(p, method=theirs)[1]
        np.testing.assert_allclose(adjust_p(np.array(p), ours), expected, atol=1e-12)


def test_wald_table_by_hand():
    values = np.random.default_rng(0).normal([1, 0], 1, size=(400, 2))
    loss = np.random.default_rng(1).exponential(size=400)
    table = wald_table(values, loss, ["a", "b"], margin=0.1, alpha=0.1)
    se = np.sqrt(values.var(0, ddof=1) + (0.03 * loss.std(ddof=1)) ** 2) / 20
    np.testing.assert_allclose(table["se"], se)
    np.testing.assert_allclose(table["p"], norm.sf((values.mean(0) - 0.1) / se))
    np.testing.assert_allclose(table["ci_high"] - table["score"], norm.ppf(0.95) * se)
    assert table["rank"].tolist() == [1, 2]


def test_wald_table_of_a_perfect_predictor_keeps_a_floor():
    values = np.column_stack([np.random.default_rng(0).normal(1, 1, 100), np.full(100, 1e-9), np.zeros(100)])
    table = wald_table(values, np.zeros(100), ["a", "tiny", "none"])
    assert table["p"][1] > 0.4  # without a floor its p would be 0
    assert table["p"][2] == 1


def test_one_sided_test_keeps_its_level():
    rng = np.random.default_rng(0)
    p = [wald_table(rng.normal(size=(100, 5)), rng.normal(size=100), list("abcde"))["p"] for _ in range(200)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_row_values_carry_the_error_of_the_weights():
    """Independent reference: the bootstrap of mean(H^2) mean(u)."""
    rng = np.random.default_rng(0)
    H = np.exp(0.7 * rng.normal(size=(400, 2, 2)))
    u = np.abs(rng.normal(size=(400, 2))) + 0.3 * H[:, 0]
    ueif, pathway = pull_back(lambda Z: H, u, u, "avg_sq")
    np.testing.assert_allclose(ueif.mean(0), (H**2).mean(0) @ u.mean(0))
    np.testing.assert_allclose(pathway, (H**2).mean(0))
    drawn = rng.integers(400, size=(2000, 400))
    bootstrap = np.std([(H[rows] ** 2).mean(0) @ u[rows].mean(0) for rows in drawn], axis=0)
    np.testing.assert_allclose(ueif.std(0, ddof=1) / 20, bootstrap, rtol=0.1)
    np.testing.assert_allclose(pull_back(lambda Z: H, u, u, "average")[0], u @ (H.mean(0) ** 2).T)
    np.testing.assert_allclose(pull_back(lambda Z: H, u, u, "per_sample")[0][7], H[7] ** 2 @ u[7])


def test_distance_correlation_against_the_definition():
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=80), 80
    Z = np.column_stack([x, x**2, rng.normal(size=80), 3 * x + 1])

    def centred(v):
        D = np.abs(v[:, None] - v)
        out = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                if i != j:
                    out[i, j] = D[i, j] - D[i].sum() / (n - 2) - D[j].sum() / (n - 2) + D.sum() / ((n - 1) * (n - 2))
        return out

    A, B = centred(x), centred(x**2)
    expected = np.sqrt((A * B).sum() / np.sqrt((A * A).sum() * (B * B).sum()))
    found = distance_correlations(Z)
    assert found[0, 1] == pytest.approx(expected, abs=1e-5)
    assert found[0, 3] == pytest.approx(1, abs=1e-5)
    assert found[0, 2] < 0.2


@settings(max_examples=30, deadline=None)
@given(d=st.integers(1, 5), q=st.integers(0, 4), seed=st.integers(0, 99))
def test_columns_restore_what_they_prepared(d, q, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, d)) * rng.uniform(0.1, 10, d) + rng.normal(size=d)
    columns = Columns(X, [f"x{j}" for j in range(d)], q, rng)
    prepared = columns.prepare(X, rng)
    assert prepared.shape == (40, d + q)
    np.testing.assert_allclose(columns.restore(prepared, X), X, atol=1e-9)
    for j, source in enumerate(columns.sources):
        np.testing.assert_allclose(np.sort(prepared[:, d + j]), np.sort(prepared[:, source]))

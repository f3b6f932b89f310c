"""FlowImportance against closed forms, the authors' package, and what a user can get wrong."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

import bakeoff.explain.fdfi.method as method
from bakeoff.explain import FlowImportance
from bakeoff.explain.fdfi.losses import LOSSES

S = np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1.0]])
ROOT = np.array([[0.8944, 0.4472, 0], [0.4472, 0.8944, 0], [0, 0, 1]])


def gaussian(n: int, seed: int = 0, covariance: np.ndarray = S) -> np.ndarray:
    return np.random.default_rng(seed).multivariate_normal(np.zeros(len(covariance)), covariance, n)


def first(X: np.ndarray) -> np.ndarray:
    return np.asarray(X)[:, 0]


def second(X: np.ndarray) -> np.ndarray:
    return np.asarray(X)[:, 1]


def parabola(n: int, seed: int) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(n, 3))
    X[:, 1] = X[:, 0] ** 2 + 0.3 * X[:, 1]
    return X


def scores(table) -> np.ndarray:
    return table.frame["score"].to_numpy()


def linear(f=first, **options) -> FlowImportance:
    return FlowImportance(f, disentangler="linear", random_state=0, **options)


# ---- right values


@pytest.mark.parametrize(
    ("b", "phi_z", "phi_x"),
    [
        ((1, 0, 0), (0.8, 0.2, 0), (0.68, 0.32, 0)),
        ((1, 1, 0), (1.8, 1.8, 0), (1.8, 1.8, 0)),
        ((1, -1, 0.5), (0.2, 0.2, 0.25), (0.2, 0.2, 0.25)),
    ],
)
@pytest.mark.parametrize("order", ["scpi", "cpi"])
def test_linear_gaussian_closed_form(b, phi_z, phi_x, order):
    X, b = gaussian(12000), np.array(b)
    table = (
        linear(lambda X: X @ b, covariance=S, order=order, n_samples=20)
        .fit(X[:6000])
        .importance(X[6000:], X[6000:] @ b)
    )
    np.testing.assert_allclose(table.ueif_latent.mean(0)[:3], phi_z, atol=0.07)
    np.testing.assert_allclose(scores(table), phi_x, atol=0.07)
    np.testing.assert_allclose(scores(table).sum(), table.ueif_latent.mean(0)[:3].sum(), rtol=0.05)
    np.testing.assert_allclose(table.pathway, ROOT**2, atol=0.06)


def test_scpi_without_its_correction_would_be_inflated_by_one_plus_one_over_b():
    X = gaussian(8000, covariance=np.eye(2))
    table = linear(covariance=np.eye(2), n_samples=5).fit(X[:4000]).importance(X[4000:], X[4000:, 0])
    assert abs(scores(table)[0] - 1) < 0.05
    raw = FlowImportance(
        first, disentangler="linear", covariance=np.eye(2), n_samples=5, random_state=0, loss=LOSSES["squared_error"]
    )
    inflated = scores(raw.fit(X[:4000]).importance(X[4000:], X[4000:, 0]))[0]
    assert abs(inflated - 1.2) < 0.06


def test_trained_flow_agrees_with_the_closed_form():
    X = gaussian(2500, seed=1)
    importance = FlowImportance(first, order="cpi", n_samples=20, n_steps=2000, random_state=0).fit(X[:2000])
    table = importance.importance(X[2000:], X[2000:, 0])
    np.testing.assert_allclose(scores(table), (0.68, 0.32, 0), atol=0.08)
    Z = importance.disentangler_.encode(importance.columns_.prepare(X[2000:], np.random.default_rng(0)))
    H = importance.disentangler_.jacobian(Z)[:, :3, :3]
    np.testing.assert_allclose(H.mean(0), ROOT, atol=0.04)
    # most rows: the far tails of the data train nothing
    assert (np.quantile(H, 0.9, axis=0) - np.quantile(H, 0.1, axis=0)).max() < 0.12


def test_twins_keep_their_importance_where_leaving_one_out_finds_none():
    rho = 0.999
    X = gaussian(4000, covariance=np.array([[1, rho], [rho, 1]]))
    y = X.sum(1)
    table = linear(lambda X: X.sum(1), n_samples=20).fit(X[:2000]).importance(X[2000:], y[2000:])
    np.testing.assert_allclose(scores(table), [2, 2], atol=0.2)
    assert np.linalg.inv(X[:2000].T @ X[:2000] / 2000)[0, 0] ** -1 < 0.01  # what LOCO would score


def test_independent_columns_are_worth_their_squared_coefficient():
    X = gaussian(12000, covariance=np.eye(3))
    b = np.array([1.0, 0.5, 0])
    table = linear(lambda X: X @ b, n_samples=20).fit(X[:6000]).importance(X[6000:], X[6000:] @ b)
    np.testing.assert_allclose(scores(table), b**2, atol=0.05)


def test_agrees_with_the_authors_package_on_the_linear_map():
    from fdfi.explainers import OTExplainer

    X = gaussian(2500)
    X = (X - X[:2000].mean(0)) / X[:2000].std(0)  # their scores are in the units of the columns
    theirs = OTExplainer(first, data=X[:2000], nsamples=50, random_state=0, method="cpi")(X[2000:], X[2000:, 0])
    table = linear(covariance="empirical", order="cpi", n_samples=50, n_decoys=0, margin=0.0).fit(X[:2000])
    ours = table.importance(X[2000:], X[2000:, 0])
    np.testing.assert_allclose(scores(ours), theirs["phi_X"], atol=0.02)
    assert np.std(ours.ueif, axis=0)[0] == pytest.approx(theirs["std_X"][0], rel=0.1)


def test_log_loss_of_a_logistic_model_agrees_with_quadrature():
    covariance = np.array([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])
    X = gaussian(6000, covariance=covariance)

    def f(X):
        return 1 / (1 + np.exp(-2 * X[:, 0]))

    y = (np.random.default_rng(0).random(6000) < f(X)).astype(float)
    importance = linear(f, loss="log_loss", n_samples=50, covariance=covariance).fit(X[:3000])
    table = importance.importance(X[3000:], y[3000:])
    # f depends on z1 and z2 through X1 = a z1 + b z2; phi_Z is the mean divergence of f from its mean over one z
    w, V = np.linalg.eigh(covariance)
    a, b = ((V * np.sqrt(w)) @ V.T)[0, :2]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    p = 1 / (1 + np.exp(-2 * (a * nodes[:, None] + b * nodes)))
    phi_z = []
    for axis in (0, 1):
        mean = np.expand_dims(np.tensordot(weights, p, (0, axis)), axis)
        divergence = rel_entr(p, mean) + rel_entr(1 - p, 1 - mean)
        phi_z.append(weights @ divergence @ weights)
    phi_x = np.array([[a**2, b**2], [b**2, a**2]]) @ phi_z
    np.testing.assert_allclose(table.ueif_latent.mean(0)[:2], phi_z, atol=0.025)
    np.testing.assert_allclose(scores(table), [*phi_x, 0], atol=0.025)
    assert (table.frame["p"][:2] < 0.01).all()
    assert table.frame["p"][2] > 0.05


def test_dependence_without_correlation_is_found_by_the_flow_only():
    X = parabola(1500, seed=0)
    flow = FlowImportance(second, n_steps=1500, random_state=0).fit(X[:1200])
    table = flow.importance(X[1200:], X[1200:, 1])
    with pytest.warns(UserWarning, match="still dependent"):
        whitened = linear(second, covariance="empirical").fit(X[:1200]).importance(X[1200:], X[1200:, 1])
    assert 0.45 < scores(table)[0] < 1.1
    assert scores(table)[0] > 10 * scores(whitened)[0]
    assert scores(whitened)[0] < 0.03
    assert table.frame["p"][0] < 0.01
    assert table.frame["p"][2] > 0.05
    assert flow.pathway_[1, 0] > 0.3
    squared_mean = flow.set_params(jacobian="average").importance(X[1200:], X[1200:, 1])
    assert scores(squared_mean)[0] < 0.4 * scores(table)[0]  # the signs of dX2/dZ1 cancel


def test_an_undertrained_flow_is_told():
    X = parabola(1500, seed=0)
    for steps, dependent in ((0, True), (300, True), (1500, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            FlowImportance(second, n_steps=steps, random_state=0, n_samples=2).fit(X[:1200]).importance(X[1200:])
        assert any("still dependent" in str(w.message) for w in caught) == dependent, steps


def test_constant_predictor_has_no_importance():
    X = gaussian(300)
    y = np.random.default_rng(0).normal(size=300)
    for order in ("scpi", "cpi"):
        table = linear(lambda X: np.full(len(X), 0.3), order=order).fit(X[:150]).importance(X[150:], y[150:])
        assert (scores(table) == 0).all()
        assert (table.frame["p"] == 1).all()


@pytest.mark.slow
def test_intervals_cover_the_truth():
    from bakeoff.explain.fdfi.experiments import coverage

    assert 0.90 <= np.mean([coverage(seed)["coverage"] for seed in range(2)]) <= 0.98


# ---- properties


@settings(max_examples=15, deadline=None)
@given(shift=st.floats(-100, 100), scale=st.floats(1e-3, 1e3), column=st.integers(0, 2))
def test_units_of_a_column_do_not_matter(shift, scale, column):
    X = gaussian(300)
    y = X[:, 0]
    rescaled = X.copy()
    rescaled[:, column] = X[:, column] * scale + shift

    def f(X):
        return (X[:, 0] - shift) / scale if column == 0 else X[:, 0]

    before = scores(linear().fit(X[:150]).importance(X[150:], y[150:]))
    after = scores(linear(f).fit(rescaled[:150]).importance(rescaled[150:], y[150:]))
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("jacobian", ["avg_sq", "per_sample", "average"])
def test_all_jacobians_agree_for_a_linear_map(jacobian):
    X = gaussian(400)
    table = linear(jacobian=jacobian).fit(X[:200]).importance(X[200:], X[200:, 0])
    reference = linear().fit(X[:200]).importance(X[200:], X[200:, 0])
    np.testing.assert_allclose(table.ueif, reference.ueif, atol=1e-12)


@pytest.mark.parametrize("sampling", ["resample", "permutation", "normal", "condperm"])
def test_every_sampling_estimates_the_same(sampling):
    X = gaussian(6000)
    table = linear(sampling=sampling, n_samples=20, covariance=S).fit(X[:3000]).importance(X[3000:], X[3000:, 0])
    np.testing.assert_allclose(scores(table), (0.68, 0.32, 0), atol=0.06)


def test_equal_seeds_equal_numbers_on_any_number_of_workers():
    X = gaussian(300)
    tables = [
        FlowImportance(first, n_steps=20, random_state=3, n_jobs=jobs).fit(X[:150]).importance(X[150:], X[150:, 0])
        for jobs in (None, 2)
    ]
    np.testing.assert_array_equal(tables[0].ueif, tables[1].ueif)
    other = FlowImportance(first, n_steps=20, random_state=4).fit(X[:150]).importance(X[150:], X[150:, 0])
    assert (tables[0].ueif != other.ueif).any()


def test_no_global_random_state_is_touched():
    import torch

    X = gaussian(200)
    before, before_torch = np.random.get_state()[1].copy(), torch.get_rng_state()
    FlowImportance(first, n_steps=5).fit(X[:100]).importance(X[100:], X[100:, 0])
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert torch.equal(torch.get_rng_state(), before_torch)


def test_inputs_are_left_alone():
    X = gaussian(200)
    X[:, 2] = X[:, 1]
    copy = X.copy()
    with pytest.warns(UserWarning, match="'x1' and 'x2' are almost the same"):
        linear().fit(X[:100]).importance(X[100:], X[100:, 0])
    np.testing.assert_array_equal(X, copy)


def test_linear_method_does_not_import_torch():
    code = (
        "import sys, numpy as np; from bakeoff.explain import FlowImportance;"
        "X = np.random.default_rng(0).normal(size=(200, 2));"
        "FlowImportance(lambda X: X[:, 0], disentangler='linear').fit(X).importance(X, X[:, 0]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


# ---- forms of input


def test_label_free_scores_have_no_test():
    X = gaussian(400)
    table = linear().fit(X[:200]).importance(X[200:])
    assert table.frame["p"].isna().all()
    assert "without labels" in table.diagnostics["test"]
    np.testing.assert_allclose(scores(table), (0.68, 0.32, 0), atol=0.2)


def test_groups_add_up_their_columns():
    X = pd.DataFrame(gaussian(400), columns=["a", "b", "c"])
    single = linear(lambda X: X["a"]).fit(X[:200]).importance(X[200:], X["a"][200:])
    grouped = linear(lambda X: X["a"], groups={"ab": ["a", "b"]}).fit(X[:200]).importance(X[200:], X["a"][200:])
    assert grouped.frame["feature"].tolist() == ["ab", "c"]
    assert scores(grouped)[0] == pytest.approx(scores(single)[:2].sum())
    z = (scores(grouped) - grouped.margin * np.array([2, 1])) / grouped.frame["se"]
    np.testing.assert_allclose(grouped.frame["z"], z)


def test_cross_fitting_scores_every_row_once():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(gaussian(300), columns=["a", "b", "c"])
    y = X["a"] + 0.3 * rng.normal(size=300)
    forest = RandomForestRegressor(20, min_samples_leaf=5, random_state=0)
    importance = FlowImportance(forest, disentangler="linear", cv=3, random_state=0)
    table = importance.fit_importance(X, y)
    assert table.ueif.shape == (300, 3)
    assert np.corrcoef(table.ueif[:, 0], X["a"] ** 2)[0, 1] > 0.4  # rows are in the order of the table
    assert importance.table_ is table
    decoys = np.reshape(table.diagnostics["decoy_scores"], (3, 5))  # of every fold
    assert table.margin == pytest.approx(decoys.max(1).clip(0).mean())
    assert table.margin > 0
    assert not hasattr(forest, "estimators_")
    assert table.frame["p"][0] < 0.01
    wider = importance.set_params(se_folds=True).fit_importance(X, y)
    np.testing.assert_allclose(wider.frame["se"], table.frame["se"] * np.sqrt(3 / 2))


def test_margin_is_what_the_best_decoy_scores():
    X = gaussian(400)
    table = linear().fit(X[:200]).importance(X[200:], X[200:, 0])
    assert table.margin == max(0.0, *table.diagnostics["decoy_scores"]) > 0
    assert len(table.diagnostics["decoy_scores"]) == 5
    assert table.ueif_latent.shape == (200, 8)
    np.testing.assert_allclose(table.frame["z"], (scores(table) - table.margin) / table.frame["se"])
    fixed = linear(margin=0.05).fit(X[:200]).importance(X[200:], X[200:, 0])
    np.testing.assert_allclose(fixed.frame["z"], (scores(table) - 0.05) / table.frame["se"])


def test_diagnostics_do_not_depend_on_the_order_of_the_rows():
    X = gaussian(2000)
    X = X[np.argsort(X[:, 0])]  # the first 300 rows alone would look dependent
    table = linear().fit(X[::2]).importance(X[1::2], X[1::2, 0])
    assert table.diagnostics["distance_correlation_max"] < 0.25


def test_classifiers_are_explained_by_their_probability():
    X = pd.DataFrame(gaussian(600), columns=["a", "b", "c"])
    y = np.where(X["a"] + 0.2 * np.random.default_rng(0).normal(size=600) > 0, "yes", "no")
    model = LogisticRegression().fit(X[:300], y[:300])
    for loss in ("log_loss", "brier", "zero_one"):
        table = (
            FlowImportance(model, loss=loss, disentangler="linear", random_state=0)
            .fit(X[:300])
            .importance(X[300:], y[300:])
        )
        assert table.frame["rank"].tolist()[0] == 1
        assert table.frame["p"][0] < 0.01
    three = LogisticRegression().fit(X[:300], np.digitize(X["a"][:300], [-0.5, 0.5]))
    importance = linear(three, loss="brier", class_index=2).fit(X[:300])
    assert importance.importance(X[300:], np.digitize(X["a"][300:], [-0.5, 0.5])).frame["p"][0] < 0.01


def test_a_map_of_ones_own_works_in_the_units_of_the_data():
    class Exact:
        root = np.array([[2.0, 0], [0.0, 3.0]])

        def encode(self, X):
            return (X - 5) @ np.linalg.inv(self.root)

        def decode(self, Z):
            return Z @ self.root + 5

        def jacobian(self, Z):
            return np.broadcast_to(self.root, (len(Z), 2, 2))

    X = 5 + np.random.default_rng(0).normal(size=(4000, 2)) * [2, 3]
    importance = FlowImportance(first, disentangler=Exact(), n_samples=20, random_state=0).fit(X[:2000])
    with pytest.warns(UserWarning, match="no decoys"):
        table = importance.importance(X[2000:], X[2000:, 0])
    np.testing.assert_allclose(scores(table), (4, 0), atol=0.3)
    assert table.margin == 0


def test_roundtrip_base_and_constant_columns():
    X = np.column_stack([gaussian(300), np.full(300, 7.0)])
    importance = linear(lambda X: X[:, 0] + X[:, 3], base="roundtrip")
    with pytest.warns(UserWarning, match="constant in the background, so score 0: column 'x3'"):
        importance.fit(X[:150])
    table = importance.importance(X[150:], X[150:, 0] + 7)
    assert scores(table)[3] == 0
    assert table.frame["p"][3] == 1
    assert table.pathway.shape == (4, 4)


def test_save_writes_parquet_and_strict_json(tmp_path):
    X = gaussian(200)
    table = linear().fit(X[:100]).importance(X[100:])
    table.save(tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "importance.json").read_text())
    assert stored["table"][0]["p"] is None
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "importance.parquet"), table.frame)
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "out" / "ueif.parquet"), table.ueif)


@parametrize_with_checks(
    [FlowImportance(LinearRegression(), disentangler="linear"), FlowImportance(LinearRegression(), n_steps=2)]
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_docstring_example():
    assert doctest.testmod(method).failed == 0
    assert doctest.testmod(method).attempted > 5

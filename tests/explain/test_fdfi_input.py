"""What a user of FlowImportance can get wrong, and what is said about it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression

from bakeoff.explain import FlowImportance

X = np.random.default_rng(0).normal(size=(200, 3))
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


def first(X):
    return np.asarray(X)[:, 0]


def fitted(f=first, data=X, **options):
    return FlowImportance(f, disentangler="linear", random_state=0, **options).fit(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse"}, "loss='mse' is none of squared_error, absolute_error, huber, pinball, log_loss"),
        ({"order": "loco"}, "order='loco' is none of scpi, cpi"),
        ({"sampling": "bootstrap"}, "sampling='bootstrap' is none of resample, permutation, normal, condperm"),
        ({"jacobian": "mean"}, "avg_sq, per_sample, average"),
        ({"disentangler": "vae"}, "flow, linear"),
        ({"base": "x"}, "direct, roundtrip"),
        ({"covariance": "x"}, "ledoit_wolf, empirical"),
        ({"margin": "x"}, "decoys"),
        ({"adjust": "by"}, "bh, holm, bonferroni"),
        ({"n_samples": 1}, "n_samples of 2 or more"),
        ({"n_steps": -1}, "at least 0"),
        ({"alpha": 1.0}, "between 0 and 1"),
        ({"cv": 7}, "2 to 5"),
        ({"groups": {"g": ["x0", "nope"]}}, "group 'g' names column 'nope'"),
        ({"groups": {"g": [0], "h": [0]}}, "in two groups"),
        ({"groups": {"g": [0, 0]}}, "twice in one"),
        ({"groups": {"g": []}}, "group 'g' must be a list of columns"),
        ({"groups": {"g": "x0"}}, "group 'g' must be a list of columns"),
        ({"groups": {"x0": ["x1", "x2"]}}, "group 'x0' has the name of a column that is not in it"),
        ({"covariance": np.eye(2)}, "shape"),
        ({"covariance": np.arange(9.0).reshape(3, 3), "n_steps": 0}, "symmetric"),
        ({"covariance": np.full((3, 3), np.nan), "n_steps": 0}, "finite"),
        ({"n_samples": 2.5}, "n_samples=2.5 must be a whole number"),
        ({"n_steps": "10"}, "n_steps='10' must be a whole number"),
        ({"margin": np.nan}, "margin=nan must be a finite number"),
        ({"margin": -1.0}, "at least 0"),
        ({"se_floor": "x"}, "se_floor='x' must be a finite number"),
        ({"loss": 3}, "loss=3 must be a name or a callable"),
        ({"disentangler": object()}, "disentangler has no encode, decode, jacobian"),
    ],
)
def test_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        FlowImportance(first, **options).fit(X)


def test_estimator_must_predict():
    with pytest.raises(ValueError, match="must have predict"):
        FlowImportance(3).fit(X)


@pytest.mark.parametrize(("value", "count", "words"), [(np.nan, 3, "3 missing values"), (np.inf, 1, "1 missing value")])
def test_missing_values_are_counted_and_named(value, count, words):
    broken = FRAME.copy()
    broken.iloc[:count, 1] = value
    with pytest.raises(ValueError, match=f"column 'b' has {words}.*fill or drop"):
        fitted(data=broken)
    with pytest.raises(ValueError, match=f"column 'b' has {words}"):
        fitted(data=FRAME).importance(broken)


def test_text_columns_are_named():
    with pytest.raises(ValueError, match="column 'b' does not hold numbers: encode it"):
        fitted(data=FRAME.assign(b="red"))


def test_other_columns_than_in_fit_are_named():
    with pytest.raises(ValueError, match="z"):
        fitted(data=FRAME).importance(FRAME.rename(columns={"c": "z"}))
    with pytest.raises(ValueError, match="2 features"):
        fitted().importance(X[:, :2])


def test_zero_one_needs_labels():
    with pytest.raises(ValueError, match=r"zero_one.*needs y"):
        fitted(lambda X: (X[:, 0] > 0) * 1.0, loss="zero_one").importance(X)


def test_predictor_with_several_outputs():
    with pytest.raises(ValueError, match="returns 3 columns: pass a callable or class_index"):
        fitted(lambda X: X).importance(X, X[:, 0])
    model = LogisticRegression().fit(X, np.arange(200) % 3)
    with pytest.raises(ValueError, match="class_index"):
        fitted(model, loss="log_loss").importance(X, np.arange(200) % 3)
    with pytest.raises(ValueError, match="class_index=5"):
        fitted(model, loss="log_loss", class_index=5).importance(X, np.arange(200) % 3)


def test_predictor_with_bad_output():
    with pytest.raises(ValueError, match="200 numbers"):
        fitted(lambda X: X[:5, 0]).importance(X, X[:, 0])
    with pytest.raises(ValueError, match="NaN or inf"):
        fitted(lambda X: X[:, 0] * np.nan).importance(X, X[:, 0])


def test_labels():
    with pytest.raises(ValueError, match="y has 5 rows, X has 200"):
        fitted().importance(X, X[:5, 0])
    with pytest.raises(ValueError, match="1 missing values"):
        fitted().importance(X, np.where(np.arange(200) == 0, np.nan, 1))
    with pytest.raises(ValueError, match="y holds text"):
        fitted().importance(X, np.full(200, "a"))
    with pytest.raises(ValueError, match="y of 0 and 1"):
        fitted(loss="brier").importance(X, X[:, 0])


def test_classes_are_named():
    model = LogisticRegression().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    with pytest.raises(ValueError, match=r"returns no numbers.*use loss='log_loss'"):
        fitted(model).importance(X, np.full(200, "yes"))
    with pytest.raises(ValueError, match=r"y holds 'maybe', and the predictor knows \['no', 'yes'\]"):
        fitted(model, loss="brier").importance(X, np.full(200, "maybe"))


def test_loss_must_be_per_row():
    with pytest.raises(ValueError, match="one value a row"):
        fitted(loss=lambda y, f: np.mean((y - f) ** 2)).importance(X, X[:, 0])


def test_too_many_columns_for_the_flow():
    wide = np.random.default_rng(0).normal(size=(60, 201))
    with pytest.raises(ValueError, match=r"201 columns.*groups.*disentangler='linear'"):
        FlowImportance(first).fit(wide)
    fitted(data=wide)


def test_all_columns_constant():
    with pytest.raises(ValueError, match="every column is constant"):
        fitted(data=np.ones((50, 2)))


def test_few_rows_are_warned_of():
    with pytest.warns(UserWarning, match="background of 20 rows"):
        importance = fitted(data=X[:20])
    with pytest.warns(UserWarning, match="50 evaluation rows"):
        importance.importance(X[:50], X[:50, 0])


def test_a_map_that_misses_its_start_is_told():
    class Off:
        def encode(self, X):
            return X

        def decode(self, Z):
            return 1.1 * Z

        def jacobian(self, Z):
            return np.broadcast_to(1.1 * np.eye(3), (len(Z), 3, 3))

    with pytest.warns(UserWarning, match=r"misses its start by 0\.1 sd"):
        FlowImportance(first, disentangler=Off(), margin=0.0).fit(X).importance(X, X[:, 0])


def test_order_of_calls():
    with pytest.raises(NotFittedError):
        FlowImportance(first).importance(X)
    with pytest.raises(ValueError, match="needs cv"):
        FlowImportance(LinearRegression()).fit_importance(X, X[:, 0])
    with pytest.raises(ValueError, match="not a callable"):
        FlowImportance(first, cv=2).fit_importance(X, X[:, 0])

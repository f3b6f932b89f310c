"""What a seed draws: a split of the user's table with decoys or data of a known law, and the predictor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """The bout's input.

    Parameters
    ----------
    X, y : ndarray of shape (n, d), (n,)
        The table; empty for a study with a known law.
    names : tuple of str
    study : {"table", "power", "shape"}
    classification : bool
        y is 0 or 1 and the predictor gives P(1).
    predictor : str or estimator
        Kind of predictor, or the user's own, which is cloned and refitted.
    groups : dict of str to list of str
    decoys, trees, steps, samples : int
        Null columns added to a table, trees of the forest, training steps of the flow, redraws B.
    """

    X: FloatArray
    y: FloatArray
    names: tuple[str, ...]
    study: str
    classification: bool
    predictor: Any
    groups: dict[str, list[str]]
    decoys: int
    trees: int
    steps: int
    samples: int


@dataclass(frozen=True)
class Split:
    """What every contender of one seed gets: the same halves, and the same predictor fitted on the first.

    Parameters
    ----------
    train, test : tuple of ndarray
        X (n, d), y (n,); columns standardised by the training half.
    names : list of str
    null : tuple of str
        Columns that are without importance under every definition.
    model : estimator
    groups : dict of str to list of str
    classification : bool
    """

    train: tuple[FloatArray, FloatArray]
    test: tuple[FloatArray, FloatArray]
    names: list[str]
    null: tuple[str, ...]
    model: Any
    groups: dict[str, list[str]]
    classification: bool

    @property
    def members(self) -> dict[str, list[int]]:
        """Positions of the columns of every tested unit: groups, then each column that is in none."""
        grouped = {column for columns in self.groups.values() for column in columns}
        single = {name: [j] for j, name in enumerate(self.names) if name not in grouped}
        return {g: [self.names.index(c) for c in columns] for g, columns in self.groups.items()} | single

    def predict(self, X: FloatArray) -> FloatArray:
        """The prediction that is explained: the number, or P(class 1)."""
        f = self.model.predict_proba(X)[:, 1] if self.classification else self.model.predict(X)
        return np.asarray(f, dtype=np.float64)


def draw(data: Data, seed: int) -> Split:
    """The split of one seed; the same for every contender."""
    rng = np.random.default_rng([seed, 20_26])
    laws: dict[str, Callable[[np.random.Generator], Drawn]] = {"power": power_law, "shape": _shape_study}
    X, y, names, null, n_train = laws[data.study](rng) if data.study in laws else _table(data, rng)
    centre, scale = X[:n_train].mean(0), X[:n_train].std(0)
    X = (X - centre) / np.where(scale > 0, scale, 1.0)
    model = _predictor(data, seed).fit(X[:n_train], y[:n_train])
    return Split(
        (X[:n_train], y[:n_train]), (X[n_train:], y[n_train:]), names, null, model, data.groups, data.classification
    )


Drawn = tuple[FloatArray, FloatArray, list[str], tuple[str, ...], int]


def _table(data: Data, rng: np.random.Generator) -> Drawn:
    """Half the rows for training; decoys are columns with one row permutation, so they keep their correlations."""
    rows = _half_first(data.y, data.classification, rng)
    X, y = data.X[rows], data.y[rows] if data.classification else data.y[rows] / data.y.std()
    copied = rng.choice(X.shape[1], size=min(data.decoys, X.shape[1]), replace=False)
    decoys = X[rng.permutation(len(X))][:, copied]
    null = tuple(f"decoy of {data.names[j]}" for j in copied)
    return np.column_stack([X, decoys]), y, [*data.names, *null], null, len(X) // 2


def _half_first(y: FloatArray, classification: bool, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """All rows, the training half first; both halves have the same share of either class."""
    order = rng.permutation(len(y))
    if not classification:
        return order
    order = order[np.argsort(y[order], kind="stable")]
    return np.concatenate([rng.permutation(order[::2]), rng.permutation(order[1::2])])


def power_law(rng: np.random.Generator, n: int = 600) -> Drawn:
    """Two correlated pairs: y = X1 + X2 + X3 X4 + X5 + 2 e; X6 to X8 are null and X7, X8 correlate too."""
    X = rng.normal(size=(n, 8))
    for first, second in ((0, 1), (2, 3), (6, 7)):
        X[:, second] = 0.9 * X[:, first] + np.sqrt(1 - 0.9**2) * X[:, second]
    names = [f"X{j}" for j in range(1, 9)]
    return X, power_mean(X) + 2 * rng.normal(size=n), names, ("X6", "X7", "X8"), n // 2


def power_mean(X: FloatArray) -> FloatArray:
    """What of y the columns of `power_law` determine."""
    return np.asarray(X[:, 0] + X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4])


def shape_law(rng: np.random.Generator, n: int = 1500) -> FloatArray:
    """X2 = X1^2 + .3 e and X3 noise: dependent, but uncorrelated."""
    X = rng.normal(size=(n, 3))
    X[:, 1] = X[:, 0] ** 2 + 0.3 * X[:, 1]
    return X


def _shape_study(rng: np.random.Generator) -> Drawn:
    X = shape_law(rng)
    return X, X[:, 1] + 0.5 * rng.normal(size=len(X)), ["X1", "X2", "X3"], ("X3",), 1200


def _predictor(data: Data, seed: int) -> Any:
    from sklearn import ensemble, linear_model
    from sklearn.base import clone

    if not isinstance(data.predictor, str):
        return clone(data.predictor)
    if data.predictor == "linear":
        return linear_model.LogisticRegression() if data.classification else linear_model.Ridge(1.0)
    if data.predictor == "boosting":
        kind = (
            ensemble.HistGradientBoostingClassifier if data.classification else ensemble.HistGradientBoostingRegressor
        )
        return kind(max_iter=data.trees, random_state=seed)
    forest = ensemble.RandomForestClassifier if data.classification else ensemble.RandomForestRegressor
    return forest(data.trees, min_samples_leaf=5, random_state=seed)

"""The contenders: all score the same held-out rows of the same predictor, and most share one test."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .inference import ImportanceTable, wald_table
from .studies import Data, Split, draw

FloatArray = npt.NDArray[np.float64]

PERMUTATIONS = 20


@dataclass(frozen=True)
class Ranking:
    """What a contender says of the columns or groups of one split.

    Parameters
    ----------
    features, null : list of str
        All of them, and those that are without importance under every definition.
    score : ndarray of shape (g,)
    p : ndarray of shape (g,) or None
        None for contenders that have no test.
    table : ImportanceTable or None
    """

    features: list[str]
    null: list[str]
    score: FloatArray
    p: FloatArray | None
    table: ImportanceTable | None = None

    def save(self, folder: Path) -> None:
        """Write ``ranking.json``, and the full table where there is one."""
        p = None if self.p is None else self.p.tolist()
        content = {"features": self.features, "null": self.null, "score": self.score.tolist(), "p": p}
        (folder / "ranking.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        if self.table is not None:
            self.table.save(folder)


def disentangled(data: Data, seed: int, *, disentangler: str, margin: str | float) -> Ranking:
    """FDFI, or DFI with ``disentangler="linear"``."""
    from .method import FlowImportance

    split = draw(data, seed)
    importance = FlowImportance(
        split.predict,
        disentangler=disentangler,
        n_steps=data.steps,
        n_samples=data.samples,
        margin=margin,
        groups=dict(split.members),
        random_state=seed,
    )
    table = importance.fit(split.train[0]).importance(*split.test)
    return _ranking(split, table.frame["score"], table.frame["p"], table)


def permutation(data: Data, seed: int, *, shipped: bool) -> Ranking:
    """PFI of hidimstat; with the common test, or as shipped with its own p-values."""
    from hidimstat import PFI

    split = draw(data, seed)
    pfi = PFI(split.model, n_permutations=PERMUTATIONS, random_state=seed, **_shared(split, shipped))
    return _hidimstat(pfi.fit(*split.train), split, shipped)


def conditional(data: Data, seed: int, *, shipped: bool) -> Ranking:
    """CFI of hidimstat (ridge regression on the other columns, permuted residuals)."""
    from hidimstat import CFI
    from sklearn.linear_model import RidgeCV

    split = draw(data, seed)
    cfi = CFI(
        split.model,
        n_permutations=PERMUTATIONS,
        imputation_model_continuous=RidgeCV(),
        feature_types="continuous",  # "auto" takes a column with few values for a class, and fails on standardised ones
        random_state=seed,
        **_shared(split, shipped),
    )
    return _hidimstat(cfi.fit(*split.train), split, shipped)


def left_out(data: Data, seed: int) -> Ranking:
    """LOCO of hidimstat: refits the predictor without each column. Its own p-values test another hypothesis."""
    from hidimstat import LOCO

    split = draw(data, seed)
    return _hidimstat(LOCO(split.model, **_shared(split, shipped=False)).fit(*split.train), split, False)


def random_p(data: Data, seed: int) -> Ranking:
    """The floor: uniform p-values."""
    split = draw(data, seed)
    p = np.random.default_rng([seed, 1]).random(len(split.members))
    return _ranking(split, 1 - p, p)


def shap_values(data: Data, seed: int) -> Ranking:
    """Mean absolute SHAP value; a ranking without a test."""
    import shap
    from sklearn import ensemble

    forests = (ensemble.RandomForestRegressor, ensemble.RandomForestClassifier)  # others may explain log-odds
    split = draw(data, seed)
    rng = np.random.default_rng([seed, 2])
    background = split.train[0][rng.choice(len(split.train[0]), min(100, len(split.train[0])), replace=False)]
    if isinstance(split.model, forests):
        values = np.asarray(shap.TreeExplainer(split.model).shap_values(split.test[0]))
        values = values[..., 1] if values.ndim == 3 else values
    else:
        explainer = shap.Explainer(split.predict, shap.maskers.Independent(background), seed=seed)
        values = explainer(split.test[0], silent=True).values
    grouped = [np.abs(values[:, columns].sum(1)).mean() for columns in split.members.values()]
    return _ranking(split, grouped)


def permutation_ranking(data: Data, seed: int) -> Ranking:
    """scikit-learn's permutation_importance; a ranking without a test. Groups add up their columns."""
    from sklearn.inspection import permutation_importance

    split = draw(data, seed)
    scoring = "neg_brier_score" if split.classification else "neg_mean_squared_error"
    found = permutation_importance(
        split.model, *split.test, scoring=scoring, n_repeats=PERMUTATIONS, random_state=seed
    ).importances_mean
    return _ranking(split, [found[columns].sum() for columns in split.members.values()])


def _shared(split: Split, shipped: bool) -> dict[str, Any]:
    shared: dict[str, Any] = {"features_groups": split.members}
    if split.classification:
        shared |= {"method": "predict_proba", "loss": _brier}
    return shared if shipped else shared | {"loss": _loss_per_row}


def _loss_per_row(y: FloatArray, f: FloatArray) -> FloatArray:
    """Without the mean: hidimstat then keeps one value a row."""
    return np.asarray((y - (f[:, 1] if f.ndim == 2 else f)) ** 2)


def _brier(y: FloatArray, f: FloatArray) -> float:
    return float(np.mean((y - f[:, 1]) ** 2))


def _hidimstat(fitted: Any, split: Split, shipped: bool) -> Ranking:
    if shipped:
        score = fitted.importance(*split.test)
        return _ranking(split, score, fitted.pvalues_)
    with contextlib.suppress(AssertionError):  # its check of the p-values' shape; importances_ is there by then
        fitted.importance(*split.test)
    X, y = split.test
    values = np.asarray(fitted.importances_).reshape(len(split.members), len(y)).T
    table = wald_table(values, (y - split.predict(X)) ** 2, list(split.members))
    return _ranking(split, table["score"], table["p"])


def _ranking(split: Split, score: npt.ArrayLike, p: npt.ArrayLike | None = None, table: Any = None) -> Ranking:
    tested = None if p is None else np.asarray(p, dtype=np.float64)
    return Ranking(list(split.members), list(split.null), np.asarray(score, dtype=np.float64), tested, table)

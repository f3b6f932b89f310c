"""One number a row from whatever the user's predictor returns, and labels that match it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils.validation import column_or_1d

from .losses import OF_PROBABILITY, Loss

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predictor:
    """``X -> (n,)`` of a fitted scikit-learn estimator or a callable.

    Parameters
    ----------
    model : estimator or callable
    loss : str or callable
        With a loss of probabilities the prediction of a classifier is P(class).
    class_index : int or None
    names : list of str or None
        Column names, where the model was fitted on a DataFrame.
    """

    model: Any
    loss: str | Loss
    class_index: int | None
    names: list[str] | None

    def __call__(self, X: FloatArray) -> FloatArray:
        """One number a row, from whatever the predictor returns."""
        model, table = self.model, X
        if self._from_frame:
            import pandas as pd

            table = pd.DataFrame(X, columns=self.feature_names_in_)
        of_class = self.class_index is not None or self.loss in OF_PROBABILITY
        if not hasattr(model, "predict"):
            f = np.asarray(model(table), dtype=np.float64)
        elif of_class and is_classifier(model):
            if not hasattr(model, "predict_proba"):
                raise ValueError(f"loss={self.loss!r} needs predict_proba, which {type(model).__name__} does not have")
            f = np.asarray(model.predict_proba(table), dtype=np.float64)
        else:
            f = np.asarray(model.predict(table), dtype=np.float64)
        if f.ndim == 2:
            f = f[:, self._class(f.shape[1])]
        if f.shape != (len(X),) or not np.isfinite(f).all():
            raise ValueError(f"the predictor must return {len(X)} finite numbers; it returned shape {f.shape}")
        return f

    def _class(self, n_classes: int) -> int:
        """The column of a two-dimensional prediction that is explained."""
        if self.class_index is None and n_classes > 2:
            raise ValueError(f"the predictor returns {n_classes} columns: pass a callable or class_index")
        index = min(n_classes - 1, 1) if self.class_index is None else self.class_index
        if not 0 <= index < n_classes:
            raise ValueError(f"class_index={index}, but the predictor returns {n_classes} columns")
        return index

    def labels(self, y: Any, n: int) -> FloatArray:
        """Numbers; for probabilities 1 where y is the explained class."""
        y = column_or_1d(y)
        if len(y) != n:
            raise ValueError(f"y has {len(y)} rows, X has {n}")
        of_class = self.class_index is not None or self.loss in OF_PROBABILITY
        if of_class and hasattr(self.model, "classes_"):
            return np.asarray(y == self.model.classes_[self._class(len(self.model.classes_))], dtype=np.float64)
        try:
            y = np.asarray(y, dtype=np.float64)
        except ValueError as error:
            raise ValueError(
                f"y holds text, and loss={self.loss!r} needs numbers: use 'log_loss' or 'brier'"
            ) from error
        if not np.isfinite(y).all():
            raise ValueError(f"y has {(~np.isfinite(y)).sum()} missing values (NaN or inf): drop these rows")
        if self.loss in OF_PROBABILITY and not np.isin(y, (0, 1)).all():
            raise ValueError(f"loss={self.loss!r} needs y of 0 and 1")
        return y


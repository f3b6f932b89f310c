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
    names : array of str or None
        Column names, where the model was fitted on a DataFrame.
    """

    model: Any
    loss: str | Loss
    class_index: int | None
    names: npt.NDArray[Any] | None

    def __call__(self, X: FloatArray) -> FloatArray:
        """One number a row, from whatever the predictor returns."""
        f = np.asarray(self._raw(X))
        if f.dtype.kind not in "biuf":
            raise ValueError(
                f"the predictor returns no numbers ({f.dtype}): use loss='log_loss' or 'brier', or a callable"
            )
        f = f.astype(np.float64)
        if f.ndim == 2:
            f = f[:, self._column(f.shape[1])]
        if f.shape != (len(X),):
            raise ValueError(f"the predictor must return {len(X)} numbers; it returned shape {f.shape}")
        if not np.isfinite(f).all():
            raise ValueError(f"the predictor returned NaN or inf for {(~np.isfinite(f)).sum()} rows")
        return f

    def _raw(self, X: FloatArray) -> Any:
        table: Any = X
        if self.names is not None:
            import pandas as pd

            table = pd.DataFrame(X, columns=self.names)
        if not hasattr(self.model, "predict"):
            return self.model(table)
        if not self._by_class:
            return self.model.predict(table)
        if not hasattr(self.model, "predict_proba"):
            raise ValueError(f"loss={self.loss!r} needs predict_proba, which {type(self.model).__name__} does not have")
        return self.model.predict_proba(table)

    @property
    def _by_class(self) -> bool:
        """Whether P(class) is explained, and not what ``predict`` returns."""
        asked = self.class_index is not None or self.loss in OF_PROBABILITY
        return asked and hasattr(self.model, "predict") and is_classifier(self.model)

    def _column(self, width: int) -> int:
        """The column of a two-dimensional prediction that is explained: P(class 1), or what class_index says."""
        binary = width == 2 and self._by_class
        if self.class_index is None and width > 1 and not binary:
            raise ValueError(f"the predictor returns {width} columns: pass a callable or class_index")
        index = int(binary) if self.class_index is None else self.class_index
        if not 0 <= index < width:
            raise ValueError(f"class_index={index}, but the predictor returns {width} columns")
        return index

    def labels(self, y: Any, n: int) -> FloatArray:
        """Numbers; for probabilities 1 where y is the explained class."""
        y = column_or_1d(y)
        if len(y) != n:
            raise ValueError(f"y has {len(y)} rows, X has {n}")
        if self._by_class:
            classes = self.model.classes_
            if unknown := set(np.unique(y).tolist()) - set(classes.tolist()):
                raise ValueError(f"y holds {min(unknown, key=str)!r}, and the predictor knows {classes.tolist()}")
            return np.asarray(y == classes[self._column(len(classes))], dtype=np.float64)
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
        labels: FloatArray = y
        return labels

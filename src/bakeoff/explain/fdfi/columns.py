"""The columns that the map works on: standardised, without constants, with decoys; and the way back to the user's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

JITTER = 1e-3


class Columns:
    """Standardise by the background, leave constant columns out, append decoys.

    A decoy is a real column with its rows permuted, anew in every table: its true importance is exactly 0.

    Parameters
    ----------
    X : ndarray of shape (m, d)
        The background.
    names : list of str
        For warnings.
    n_decoys : int
        Each copies a column chosen at random with replacement.
    rng : numpy Generator
    """

    def __init__(self, X: FloatArray, names: list[str], n_decoys: int, rng: np.random.Generator) -> None:
        self.mean, self.sd = X.mean(0), X.std(0)
        varies = (X.max(0) > X.min(0)) & (self.sd > 0)
        if not varies.any():
            raise ValueError("every column is constant: there is nothing to explain")
        if not varies.all():
            constant = ", ".join(repr(names[j]) for j in np.flatnonzero(~varies))
            warnings.warn(f"constant in the background, so score 0: column {constant}", stacklevel=3)
        self.kept = np.flatnonzero(varies)
        self.repeated = self._repeated(X[:, self.kept], [names[j] for j in self.kept])
        self.sources = rng.integers(len(self.kept), size=n_decoys)

    def prepare(self, X: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Standardised columns and fresh decoys (n, kept + q) of rows X (n, d)."""
        S = (X[:, self.kept] - self.mean[self.kept]) / self.sd[self.kept]
        decoys = [rng.permutation(S[:, source]) for source in self.sources]
        S[:, self.repeated] += JITTER * rng.normal(size=(len(S), len(self.repeated)))
        return np.column_stack([S, *decoys])

    def restore(self, prepared: FloatArray, X: FloatArray) -> FloatArray:
        """The user's columns of prepared rows (n, kept + q); constant ones are copied from X (n, d)."""
        restored = X.copy()
        restored[:, self.kept] = prepared[:, : len(self.kept)] * self.sd[self.kept] + self.mean[self.kept]
        return restored

    def spread(self, values: FloatArray) -> FloatArray:
        """Values (n, kept) as (n, d), with 0 for constant columns."""
        wide = np.zeros((len(values), len(self.sd)))
        wide[:, self.kept] = values
        return wide

    def covariance(self, given: str | npt.ArrayLike) -> str | FloatArray:
        """A covariance in the users' units as that of prepared columns; the name of an estimate as it is."""
        if isinstance(given, str):
            return given
        S = np.asarray(given, dtype=np.float64)
        if S.shape != (len(self.sd), len(self.sd)):
            raise ValueError(f"covariance has shape {S.shape}, X has {len(self.sd)} columns")
        if not np.isfinite(S).all() or not np.allclose(S, S.T):
            raise ValueError("covariance must be a symmetric matrix of finite numbers")
        S = S[np.ix_(self.kept, self.kept)] / np.outer(self.sd[self.kept], self.sd[self.kept])
        wide = np.diag(np.append(np.diag(S), np.diag(S)[self.sources]))
        wide[: len(S), : len(S)] = S
        return wide

    @staticmethod
    def _repeated(X: FloatArray, names: list[str]) -> npt.NDArray[np.intp]:
        """Columns that repeat an earlier one; without jitter no smooth map could tell the two apart."""
        with np.errstate(all="ignore"):
            close = np.triu(np.abs(np.atleast_2d(np.corrcoef(X, rowvar=False))) > 0.9999, 1)
        for first, second in np.argwhere(close):
            warnings.warn(
                f"columns {names[first]!r} and {names[second]!r} are almost the same: they share their importance",
                stacklevel=4,
            )
        return np.flatnonzero(close.any(0))


def check_finite(X: FloatArray, names: list[str]) -> None:
    """Raise a ValueError that names the first column with NaN or infinite values."""
    bad = (~np.isfinite(X)).sum(0)
    if bad.any():
        j = int(np.argmax(bad > 0))
        s = "s" if bad[j] > 1 else ""
        raise ValueError(f"column {names[j]!r} has {bad[j]} missing value{s} (NaN or inf): fill or drop them")


def check_numeric(X: Any) -> None:
    """Raise a ValueError that names the text columns of a DataFrame; anything else passes."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        text = [str(c) for c, kind in zip(X.columns, X.dtypes, strict=True) if getattr(kind, "kind", "O") not in "biuf"]
        if text:
            raise ValueError(f"column {', '.join(map(repr, text))} does not hold numbers: encode it")


def members(names: list[str], groups: dict[str, Any] | None) -> dict[str, list[int]]:
    """Columns of every row of the table: the groups, then each column that is in none.

    Raises
    ------
    ValueError
        A group is empty or no list, names an unknown column or one that is named before, or has the name of a column
        that is not in it.
    """
    found: dict[str, list[int]] = {}
    left = dict.fromkeys(range(len(names)))
    for group, columns in (groups or {}).items():
        if isinstance(columns, str) or not len(columns):
            raise ValueError(f"group {group!r} must be a list of columns; it is {columns!r}")
        for column in columns:
            if column not in names and column not in range(len(names)):
                raise ValueError(f"group {group!r} names column {column!r}; the columns are {', '.join(names)}")
            j = names.index(column) if column in names else int(column)
            if j not in left:
                raise ValueError(f"column {column!r} is in two groups, or twice in one")
            del left[j]
            found.setdefault(str(group), []).append(j)
    single = {names[j]: [j] for j in left}
    if both := found.keys() & single.keys():  # one of the two would be lost
        raise ValueError(f"group {min(both)!r} has the name of a column that is not in it: rename the group")
    return found | single

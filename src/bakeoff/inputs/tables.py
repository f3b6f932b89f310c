"""The user's own table, checked before anything is fitted to it; and the real one that scikit-learn ships."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from bakeoff.arena.types import InputError

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
Task = Literal["regression", "classification"]

FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 10


@dataclass(frozen=True)
class Table:
    """Columns of numbers and the one to predict.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
        Numbers; 0 and 1 in a classification.
    names : tuple of str
        Of the d columns.
    target : str
    task : {"regression", "classification"}
    classes : tuple of str
        What 0 and 1 stand for; empty in a regression.
    """

    X: FloatArray
    y: FloatArray
    names: tuple[str, ...]
    target: str
    task: Task
    classes: tuple[str, ...] = ()


def diabetes() -> Table:
    """442 patients, 10 measurements (s1 and s2 correlate .90), disease progression after a year."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return Table(bunch.data, bunch.target, tuple(bunch.feature_names), "progression", "regression")


def load_table(
    path: Path, target: str | None, task: str = "auto", rows: int | None = None, where: str = "--table"
) -> Table:
    """Read a CSV or Parquet file.

    Parameters
    ----------
    path : Path
    target : str or None
        Name of the column to predict.
    task : {"auto", "regression", "classification"}
        "auto" is classification where the target has two values.
    rows : int, optional
        Larger tables are sampled down to so many rows, the same ones every time.
    where : str
        The option, for error messages.

    Raises
    ------
    InputError
        The file cannot be read, or holds something that a predictor cannot use; says what, where, how to mend.
    """
    check_file(path, where, (".csv", ".parquet"))
    if path.suffix.lower() == ".csv":
        _check_header(path)
    frame = _read(path)
    _check_target(frame, target, path)
    assert target is not None
    if rows is not None and len(frame) > rows:
        frame = frame.iloc[np.sort(np.random.default_rng(0).choice(len(frame), rows, replace=False))]
    _check_columns(frame.drop(columns=target), path)
    y, kind, classes = _labels(frame[target], target, task, path)
    if duplicates := int(frame.duplicated().sum()):
        warnings.warn(f"{path.name}: {duplicates} rows repeat another one, also across train and test", stacklevel=2)
    X = frame.drop(columns=target).to_numpy(dtype=np.float64)
    return Table(X, y, tuple(str(c) for c in frame.columns if c != target), target, kind, classes)


def check_file(path: Path, where: str, suffixes: tuple[str, ...]) -> None:
    """An InputError unless `path` is a readable file with one of the `suffixes`."""
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path.name!r} is not {' or '.join(suffixes)}", where, "convert it first")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", where, "give the path of a readable file") from error
    if empty:
        raise InputError(f"{path.name} is empty", where, "it needs a header line and rows")


def load_groups(path: Path, names: tuple[str, ...], where: str = "--groups") -> dict[str, list[str]]:
    """Feature groups from JSON, ``{"group": ["column", ...]}``; columns in none stay on their own.

    Raises
    ------
    InputError
        Not such a file, an unknown column, a column in two groups, or a group with the name of a column outside it.
    """
    check_file(path, where, (".json",))
    try:
        groups: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON ({error})", where, 'write {"group": ["column", ...]}') from error
    lists = groups.values() if isinstance(groups, dict) else [None]
    if not all(isinstance(g, list) and g and all(isinstance(c, str) for c in g) for g in lists):
        raise InputError(f"{path.name} is not a map of names to lists", where, 'write {"group": ["column", ...]}')
    seen: dict[str, str] = {}
    for group, columns in groups.items():
        for column in columns:
            if column not in names:
                raise InputError(f"group {group!r} names column {column!r}", where, f"there are {_listed(names)}")
            if column in seen:
                raise InputError(f"column {column!r} is in {seen[column]!r} and {group!r}", where, "keep it in one")
            seen[column] = group
    if both := groups.keys() & (set(names) - seen.keys()):  # one of the two would be lost
        raise InputError(f"group {min(both)!r} has the name of a column that is not in it", where, "rename the group")
    return {str(group): list(columns) for group, columns in groups.items()}


def load_estimator(path: Path, trust_pickle: bool, task: Task, where: str = "--model") -> Any:
    """A scikit-learn estimator for `task` from a joblib file, which is a pickle and can run code.

    Raises
    ------
    InputError
        `trust_pickle` is off, the file cannot be read, or holds no estimator or one for the other task.
    """
    check_file(path, where, (".joblib", ".pkl", ".pickle"))
    if not trust_pickle:
        raise InputError(
            f"{path.name} is a pickle, which can run any code", where, "add --trust-pickle if you made it yourself"
        )
    import joblib
    from sklearn.base import is_classifier

    try:
        model = joblib.load(path)
    except Exception as error:  # whatever the user's pickle raises
        raise InputError(f"{path.name}: {type(error).__name__}: {error}", where, "save it again with joblib") from error
    if isinstance(model, type):
        raise InputError(f"{path.name} holds the class {model.__name__}, not an object of it", where, "save an object")
    if not all(hasattr(model, name) for name in ("fit", "predict", "get_params")):
        raise InputError(f"{path.name} holds a {type(model).__name__}", where, "it must be a scikit-learn estimator")
    if is_classifier(model) != (task == "classification"):
        kind = "a classifier" if is_classifier(model) else "no classifier"
        raise InputError(f"{path.name} holds {kind}, but this is a {task}", where, "choose another one, or --task")
    if is_classifier(model) and not hasattr(model, "predict_proba"):
        raise InputError(f"{path.name} holds a classifier without predict_proba", where, "calibrate it first")
    return model


def _check_header(path: Path) -> None:
    """What pandas would repair in silence: names that are missing or twice there; and other separators."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name} is not UTF-8 text ({error})", "--table", "save it as CSV UTF-8") from error
    names = [name.strip() for name in header]
    if len(names) == 1:
        other = next((f"; its columns seem to be separated by {s!r}" for s in ";\t|" if s in names[0]), "")
        raise InputError(f"{path.name} has one column{other}", "--table", "separate columns by commas")
    if "" in names:
        raise InputError(f"{path.name}: column {names.index('') + 1} has no name", "--table", "name or drop it")
    _check_names(names, path)


def _check_names(names: list[str], path: Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path.name}: column {_listed(twice)} is there twice", "--table", "rename or drop one")


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the header are cut
            frame = _read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except pd.errors.ParserWarning as error:
        raise InputError(f"{path.name} has rows longer than its header", "--table", "name all columns") from error
    except Exception as error:  # the readers raise a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path.name} cannot be read ({reason})", "--table", "check that it is what it says"
        ) from error
    frame.columns = [str(name).strip() for name in frame.columns]
    _check_names(list(frame.columns), path)
    if len(frame) < FEWEST_ROWS:
        raise InputError(f"{path.name} has {len(frame)} rows", "--table", f"at least {FEWEST_ROWS} are needed")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    # the whole file at once: in pieces, one column could hold both 1 and "1"
    return pd.read_csv(path, encoding="utf-8-sig", index_col=False, low_memory=False)


def _check_target(frame: pd.DataFrame, target: str | None, path: Path) -> None:
    names = [str(c) for c in frame.columns]
    if target is None:
        raise InputError("no column to predict", "--target", f"name one of {_listed(names)}")
    if target not in names:
        raise InputError(f"{path.name} has no column {target!r}", "--target", f"there are {_listed(names)}")
    if len(names) < 2:
        raise InputError(f"{path.name} has only the target", "--table", "it needs columns to predict from")
    if missing := int(frame[target].isna().sum()):
        raise InputError(f"target {target!r} has {missing} missing values", path.name, "drop these rows")
    if not all(isinstance(value, Hashable) for value in frame[target]):
        raise InputError(f"target {target!r} holds lists", path.name, "it must hold numbers or two classes")
    if frame[target].nunique() < 2:
        raise InputError(f"target {target!r} is constant", path.name, "there is nothing to predict")


def _check_columns(frame: pd.DataFrame, path: Path) -> None:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    other = [
        c
        for c in frame.columns
        if not (is_numeric_dtype(frame[c]) or is_bool_dtype(frame[c])) or is_complex_dtype(frame[c])
    ]
    if other:
        example = next((v for v in frame[other[0]] if _is_text(v)), frame[other[0]].iloc[0])
        wrong = f"column {_listed(other)} holds {str(example)[:30]!r}, not numbers"
        raise InputError(wrong, path.name, "encode or drop it")
    for column in frame.columns:
        values = frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
        if missing := int((~np.isfinite(values)).sum()):
            values_are = "values" if missing > 1 else "value"
            raise InputError(f"column {column!r} has {missing} missing {values_are}", path.name, "fill or drop them")
        if np.abs(values).max() > np.finfo(np.float32).max:
            raise InputError(f"column {column!r} reaches {np.abs(values).max():.1e}", path.name, "rescale it")


def _is_text(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return True
    return False


def _labels(values: pd.Series[Any], target: str, task: str, path: Path) -> tuple[FloatArray, Task, tuple[str, ...]]:
    from pandas.api.types import is_numeric_dtype

    distinct = values.nunique()
    numeric = is_numeric_dtype(values) and not np.iscomplexobj(values)
    if task == "classification" and distinct > 2:
        raise InputError(f"target {target!r} has {distinct} classes", path.name, "recode to one class against the rest")
    if task == "classification" or (task == "auto" and distinct == 2):
        classes = sorted(values.unique())
        y = (values == classes[1]).to_numpy(dtype=np.float64)
        if min(y.sum(), len(y) - y.sum()) < FEWEST_OF_A_CLASS:
            raise InputError(
                f"a class of target {target!r} has fewer than {FEWEST_OF_A_CLASS} rows", path.name, "add rows of it"
            )
        return y, "classification", (str(classes[0]), str(classes[1]))
    if not numeric:
        raise InputError(f"target {target!r} does not hold numbers", path.name, "encode it, or keep two classes")
    y = values.to_numpy(dtype=np.float64)
    if not np.isfinite(y).all():
        raise InputError(f"target {target!r} has infinite values", path.name, "drop these rows")
    return y, "regression", ()


def _listed(names: list[Any] | tuple[Any, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")

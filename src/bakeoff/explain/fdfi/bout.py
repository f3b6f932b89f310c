"""The bout of FDFI: which columns of a table matter, at a controlled rate of false findings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bakeoff.arena.types import Contender, InputError, Metric
from bakeoff.inputs.tables import Table, diabetes, load_estimator, load_groups, load_table

from .claims import CLAIMS
from .experiments import coverage, log_loss, nulls_flow, nulls_linear, power, shape, table_decoys
from .figures import figures
from .rivals import (
    Ranking,
    conditional,
    disentangled,
    left_out,
    permutation,
    permutation_ranking,
    random_p,
    shap_values,
)
from .studies import Data

__all__ = [
    "CLAIMS",
    "METRICS",
    "contenders",
    "coverage",
    "figures",
    "load",
    "log_loss",
    "nulls_flow",
    "nulls_linear",
    "overlap",
    "power",
    "score",
    "shape",
    "table_decoys",
]

Study = Literal["table", "power", "shape"]
TaskName = Literal["auto", "regression", "classification"]
PredictorName = Literal["forest", "boosting", "linear"]

# Found is p <= .05, unadjusted. discoveries: share of the table's own columns (or groups) that are found;
# decoys_rejected: share of the null columns that are; net_discoveries: the first minus the second;
# decoy_share: share of the positive scores that null columns have.
METRICS = (
    Metric("net_discoveries", "higher", "share", True, 0.05, (-1.0, 1.0)),
    Metric("discoveries", "higher", "share", bounds=(0.0, 1.0)),
    Metric("decoys_rejected", "lower", "share", bounds=(0.0, 1.0)),
    Metric("decoy_share", "lower", "share", bounds=(0.0, 1.0)),
)

OF_A_TABLE = ("table", "target", "task", "groups", "decoys", "rows")
IDLE = {"table": (), "power": OF_A_TABLE, "shape": (*OF_A_TABLE, "predictor", "model")}
"""Options that a study leaves nothing to say about."""


def load(
    *,
    table: Path | None = None,
    target: str | None = None,
    task: TaskName = "auto",
    predictor: PredictorName = "forest",
    model: Path | None = None,
    trust_pickle: bool = False,
    groups: Path | None = None,
    decoys: int = 5,
    rows: int = 4000,
    study: Study = "table",
    steps: int | None = None,
    quick: bool = False,
) -> Data:
    """Check the options and read the table; scikit-learn's diabetes table where there is none.

    Parameters
    ----------
    table : Path
        CSV or Parquet FILE of numeric columns without missing values.
    target : str
        COL to predict.
    task : {"auto", "regression", "classification"}
        auto: classification where the target has two values.
    predictor : {"forest", "boosting", "linear"}
        NAME of the predictor that is explained.
    model : Path
        FILE.joblib of a scikit-learn estimator instead; it is cloned and refitted, because decoys are added.
    trust_pickle : bool
        Allow --model, which is a pickle and can run any code.
    groups : Path
        FILE.json, {"group": ["column", ...]}: columns that are scored together.
    decoys : int
        Null columns added to the table, at most one for each of its own.
    rows : int
        Larger tables are sampled down to so many rows.
    study : {"table", "power", "shape"}
        power: a known law with correlated pairs; shape: columns that are dependent but not correlated, in a linear
        model.
    steps : int
        Training steps of the flow; 600 by default, 1500 for the study shape.
    quick : bool
        Small budget, for tests.
    """
    _check_options(locals())
    source = _source(table, target, task, rows, study, quick)
    grouped = load_groups(groups, source.names) if groups else {}
    named = "linear" if study == "shape" else predictor
    estimator = load_estimator(model, trust_pickle, source.task) if model else named
    if decoyed := [name for name in (*source.names, *grouped) if name.startswith("decoy of ")]:
        raise InputError(f"{decoyed[0]!r} is the name of a column of the bout", "--table", "rename it")
    wanted = (1500 if study == "shape" else 600) if steps is None else steps
    return Data(
        X=source.X,
        y=source.y,
        names=source.names,
        study=study,
        classification=source.task == "classification",
        predictor=estimator,
        groups=grouped,
        decoys=min(decoys, 2) if quick else decoys,
        trees=20 if quick else 40 if study == "power" else 100,
        steps=min(wanted, 50) if quick else wanted,
        samples=3 if quick else 10,
    )


def _check_options(given: dict[str, Any]) -> None:
    """All that needs no file to be read."""
    for name, valid in (("task", TaskName), ("predictor", PredictorName), ("study", Study)):
        if given[name] not in get_args(valid):
            raise InputError(f"{given[name]!r} is not known", f"--{name}", f"choose {', '.join(get_args(valid))}")
    for name, least in (("decoys", 1), ("rows", 30), ("steps", 0)):
        if given[name] is not None and given[name] < least:
            raise InputError(f"{given[name]} is too small", f"--{name}", f"at least {least}")
    chosen = [name for name, option in signature(load).parameters.items() if given[name] != option.default]
    if idle := [name for name in IDLE[given["study"]] if name in chosen]:
        raise InputError(f"--study {given['study']} draws its own data", f"--{idle[0]}", "leave one of them out")
    if "predictor" in chosen and "model" in chosen:
        raise InputError("--model is a predictor too", "--predictor", "leave one of them out")
    if given["table"] is None and (alone := [name for name in ("target", "task", "rows") if name in chosen]):
        raise InputError("there is no table that it could be for", f"--{alone[0]}", "add --table FILE")


def _source(table: Path | None, target: str | None, task: str, rows: int, study: str, quick: bool) -> Table:
    if study != "table":
        return Table(np.empty((0, 0)), np.empty(0), (), "", "regression")
    source = diabetes() if table is None else load_table(table, target, task, rows)
    if not quick or len(source.y) <= 150:
        return source
    keep = np.sort(np.random.default_rng(0).choice(len(source.y), 150, replace=False))
    return replace(source, X=source.X[keep], y=source.y[keep])


def contenders(data: Data) -> tuple[Contender, ...]:
    """FDFI, what else is used for the job, and the floor."""
    flow = partial(disentangled, disentangler="flow", margin="decoys")
    linear = partial(disentangled, disentangler="linear", margin="decoys")
    without = partial(disentangled, disentangler="flow", margin=0.0)
    hidimstat = ("hidimstat",)
    return (
        Contender("fdfi", "paper", flow, "correlated columns, and p-values are wanted", ("torch",)),
        Contender("DFI-linear", "rival", linear, "the direct predecessor: whitening in place of a flow"),
        Contender("PFI", "rival", partial(permutation, shipped=False), "what everybody uses; common test", hidimstat),
        Contender("CFI", "rival", partial(conditional, shipped=False), "permutes residuals; common test", hidimstat),
        Contender("LOCO", "rival", left_out, "refits without each column; common test", hidimstat),
        Contender("PFI-shipped", "rival", partial(permutation, shipped=True), "PFI with its own p-values", hidimstat),
        Contender("CFI-shipped", "rival", partial(conditional, shipped=True), "CFI with its own p-values", hidimstat),
        Contender("random", "floor", random_p, "uniform p-values"),
        Contender("fdfi-margin0", "rival", without, "FDFI as published, without the margin", ("torch",), True),
        Contender("SHAP", "rival", shap_values, "mean |SHAP value|: a ranking without a test", ("shap",), True),
        Contender("permutation_importance", "rival", permutation_ranking, "a ranking without a test", (), True),
    )


def score(output: Ranking, data: Data) -> dict[str, Any]:
    """Found at p <= .05, unadjusted. A contender without a test has no discoveries to count, only decoy_share."""
    null = np.isin(output.features, output.null)
    positive = np.maximum(output.score, 0)
    details = {"features": output.features, "null": null, "score": output.score, "p": output.p}
    result = {"decoy_share": positive[null].sum() / positive.sum() if positive.sum() > 0 else 0.0, **details}
    if output.table is not None:
        result |= {"margin": output.table.margin, "diagnostics": output.table.diagnostics}
        result |= {"pathway": output.table.pathway, "se": output.table.frame["se"].to_numpy()}
    if output.p is None:
        return result | {"net_discoveries": None, "discoveries": None, "decoys_rejected": None}
    found, false = (output.p[~null] <= 0.05).mean(), (output.p[null] <= 0.05).mean()
    return result | {"net_discoveries": found - false, "discoveries": found, "decoys_rejected": false}


def overlap(data: Data) -> float:
    """Seeds redraw halves of one table, or fresh data."""
    return 1.0 if data.study == "table" else 0.0

"""From per-row values to scores, intervals and tests: the one-sided Wald test that every contender shares."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowValues:
    """What one background and one evaluation set give, before any inference.

    Parameters
    ----------
    ueif, ueif_latent : ndarray of shape (n, d), (n, d + q)
        Values of columns and of latents per row.
    decoy_scores : ndarray of shape (q,)
    loss : ndarray of shape (n,)
        Of the predictor itself.
    pathway : ndarray of shape (d, d)
    dependence : ndarray
        Distance correlations of the pairs of latents.
    roundtrip : float
        Root mean squared error of decode(encode(background)), in sd.
    """

    ueif: FloatArray
    ueif_latent: FloatArray
    decoy_scores: FloatArray
    loss: FloatArray
    pathway: FloatArray
    dependence: FloatArray
    roundtrip: float


def pooled(parts: list[RowValues], order: npt.NDArray[np.intp]) -> RowValues:
    """The folds' rows in the order of the table."""
    return RowValues(
        ueif=np.concatenate([part.ueif for part in parts])[order],
        ueif_latent=np.concatenate([part.ueif_latent for part in parts])[order],
        decoy_scores=np.concatenate([part.decoy_scores for part in parts]),
        loss=np.concatenate([part.loss for part in parts])[order],
        pathway=np.mean([part.pathway for part in parts], axis=0),
        dependence=np.concatenate([part.dependence for part in parts]),
        roundtrip=max(part.roundtrip for part in parts),
    )


def adjust_p(p: FloatArray, method: str) -> FloatArray:
    """Adjusted p-values of p (g,) by "bh" (false discovery rate), "holm" or "bonferroni" (family-wise error)."""
    g = len(p)
    if method == "bonferroni":
        return np.minimum(1.0, g * p)
    order = np.argsort(p)
    if method == "holm":
        stepped = np.maximum.accumulate((g - np.arange(g)) * p[order])
    else:
        stepped = np.minimum.accumulate((g / np.arange(1, g + 1) * p[order])[::-1])[::-1]
    adjusted = np.empty(g)
    adjusted[order] = np.minimum(1.0, stepped)
    return adjusted


def wald_table(
    values: FloatArray,
    loss: FloatArray,
    names: list[str],
    *,
    margin: float | FloatArray = 0.0,
    se_floor: float = 0.03,
    alpha: float = 0.05,
    adjust: str = "bh",
    testable: bool = True,
    rows: float | None = None,
) -> pd.DataFrame:
    """Scores with standard errors, intervals and one-sided p-values for ``score > margin``.

    Parameters
    ----------
    values : ndarray of shape (n, g)
        Per-row importance (uncentred influence function) of g features or groups, in units of the loss.
    loss : ndarray of shape (n,)
        The predictor's own loss per row. ``se_floor`` times its sd is added to the standard deviation of the
        values, so that a score that hardly varies is not tested against a zero error [ours].
    names : list of str
    margin : float or ndarray of shape (g,), default=0
        What a null feature may score by leakage.
    testable : bool, default=True
        False where values cannot be negative (label-free): z and p are NaN.
    rows : float, optional
        Effective number of rows for the standard error; n by default.

    Returns
    -------
    DataFrame
        feature, score, se, ci_low, ci_high, z, p, p_adj, rank; one row per feature.
    """
    import pandas as pd
    from scipy.stats import norm

    n = len(values)
    rows = n if rows is None else rows
    score, sd, total = values.mean(0), values.std(0, ddof=1), values.sum(1).std(ddof=1)
    floor = loss.std(ddof=1)
    if not testable or floor <= 1e-9 * total:  # no labels, or a perfect predictor: its loss does not vary
        floor = total
    se = np.sqrt((sd**2 + (se_floor * floor) ** 2) / rows)
    half = norm.ppf(1 - alpha / 2) * se
    z = np.divide(score - margin, se, out=np.zeros_like(score), where=se > 0)
    # a feature without any effect on any row has no evidence, whatever the floor makes of z
    p = np.where((se == 0) | ((sd == 0) & (score == 0)), 1.0, norm.sf(z))
    if not testable:
        z, p = np.full_like(z, np.nan), np.full_like(p, np.nan)
    frame = pd.DataFrame({"feature": names, "score": score, "se": se, "ci_low": score - half, "ci_high": score + half})
    return frame.assign(
        z=z, p=p, p_adj=adjust_p(p, adjust), rank=frame["score"].rank(ascending=False, method="min").astype(int)
    )


@dataclass(frozen=True)
class ImportanceTable:
    """What `FlowImportance` found.

    Parameters
    ----------
    frame : DataFrame
        One row per feature or group: feature, score, se, ci_low, ci_high, z, p, p_adj, rank.
    margin : float
        What was subtracted from the score of a feature before testing; a group of g features has g times it.
    ueif : ndarray of shape (n, d)
        Uncentred efficient influence function of every row and feature: ``score`` is its mean.
    ueif_latent : ndarray of shape (n, d + q)
        The same for the latents, the q decoys' last.
    pathway : ndarray of shape (d, d)
        Share of the importance of latent k (column) that reaches feature l (row): mean squared dX_l/dZ_k.
    diagnostics : dict
    """

    frame: pd.DataFrame
    margin: float
    ueif: FloatArray = field(repr=False)
    ueif_latent: FloatArray = field(repr=False)
    pathway: FloatArray = field(repr=False)
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> None:
        """Write the table, ueif, ueif_latent and pathway as Parquet, and table and diagnostics as JSON."""
        import pandas as pd

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.frame.to_parquet(folder / "importance.parquet")
        for name in ("ueif", "ueif_latent", "pathway"):
            array = getattr(self, name)
            pd.DataFrame(array, columns=[str(k) for k in range(array.shape[1])]).to_parquet(folder / f"{name}.parquet")
        content = {"margin": self.margin, "table": self.frame.to_dict("records"), "diagnostics": self.diagnostics}
        (folder / "importance.json").write_text(
            json.dumps(_plain(content), indent=1, allow_nan=False), encoding="utf-8"
        )


def _plain(value: Any) -> Any:
    """Numbers as JSON has them; those that are not finite become null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value

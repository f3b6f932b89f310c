"""Pictures of a bout, from its runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.arena.types import Run


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """Which columns every contender finds, and how FDFI's latents reach the columns.

    Parameters
    ----------
    runs : list of Run
    folder : Path
        Receives the files.

    Returns
    -------
    dict of str to str
        File name to caption; empty where no run has ended well.
    """
    tested = [run for run in runs if run.status == "ok" and run.details.get("p")]
    if not tested:
        return {}
    drawn = {"found.svg": _found(tested, folder / "found.svg")}
    paths = [run for run in tested if run.contender == "fdfi" and run.details.get("pathway")]
    if paths:
        drawn["pathway.svg"] = _pathway(paths[0], folder / "pathway.svg")
    return drawn


def _found(runs: list[Run], file: Path) -> str:
    from matplotlib.figure import Figure

    contenders = sorted({run.contender for run in runs}, key=lambda name: (name != "fdfi", name))
    # decoys copy other columns in every seed: they are shown as one
    columns = [*dict.fromkeys(f for run in runs for f, _, null in _units(run) if not null), "null columns"]
    share = np.full((len(contenders), len(columns)), np.nan)
    for i, contender in enumerate(contenders):
        cells: dict[str, list[float]] = {}
        for run in (r for r in runs if r.contender == contender):
            for feature, p, null in _units(run):
                cells.setdefault("null columns" if null else feature, []).append(p <= 0.05)
        share[i] = [float(np.mean(cells.get(column, [np.nan]))) for column in columns]
    figure = Figure(figsize=(1.8 + 0.55 * len(columns), 1.4 + 0.4 * len(contenders)), layout="constrained")
    axes = figure.subplots()
    _heat(axes, share, columns, contenders)
    figure.savefig(file, metadata={"Date": None})
    return "Share of seeds in which each contender finds a column at p <= .05; for null columns the error rate."


def _units(run: Run) -> list[tuple[str, float, bool]]:
    """Feature, p and whether it is null; a p that is not defined (a constant column, as shipped) finds nothing."""
    details = run.details
    p = [1.0 if value is None else value for value in details["p"]]
    return list(zip(details["features"], p, details["null"], strict=True))


def _pathway(run: Run, file: Path) -> str:
    from matplotlib.figure import Figure

    pathway = np.array(run.details["pathway"])
    side = min(10.0, 1.5 + 0.45 * len(pathway))
    figure = Figure(figsize=(side, side), layout="constrained")
    latents = [f"z{k + 1}" for k in range(len(pathway))]
    grouped = run.options.get("groups")  # then the features are not the columns, and not in their order
    columns = [f"column {k + 1}" for k in range(len(pathway))] if grouped else run.details["features"]
    _heat(figure.subplots(), pathway, latents, columns)
    figure.savefig(file, metadata={"Date": None})
    return f"Pathway of seed {run.seed}: mean squared derivative of each column (row) in each latent (column)."


def _heat(axes: Any, values: Any, columns: list[str], rows: list[str]) -> None:
    axes.imshow(values, cmap="Greys", vmin=0, vmax=max(1.0, float(np.nanmax(values))), aspect="auto")
    axes.set_xticks(range(len(columns)), [name[:14] for name in columns], rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), [name[:22] for name in rows])
    if values.size <= 400:
        for (i, j), value in np.ndenumerate(values):
            dark = value > 0.5
            axes.text(
                j,
                i,
                f"{value:.2f}".lstrip("0") or "0",
                ha="center",
                va="center",
                fontsize=7,
                color="w" if dark else "k",
            )

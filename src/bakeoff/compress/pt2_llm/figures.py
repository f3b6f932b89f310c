"""Pictures of a bout, from its runs alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from bakeoff.arena.types import Run

MODES = {
    "ITF and AGA": ("pt2-llm", "no-ssr"),
    "ITF": ("no-aga", "no-aga-ssr"),
    "AGA": ("no-itf", "no-itf-ssr"),
    "neither": ("no-itf-aga", "no-itf-aga-ssr"),
}
"""The contender of each mode with SSR, and without."""


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """Size against error, the error of every layer, and the table of the parts.

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
    done: dict[str, list[Run]] = {}
    for run in runs:
        if run.status == "ok" and "hidden_err" in run.scores and "bits" in run.scores:
            done.setdefault(run.contender, []).append(run)
    if not done:
        return {}
    drawn = {"size_error.svg": _size_error(done, folder / "size_error.svg")}
    if any(name in done for pair in MODES.values() for name in pair if name != "pt2-llm"):
        drawn["parts.svg"] = _parts(done, folder / "parts.svg")
    if any(run.details.get("layers") for run in done.get("pt2-llm", [])):
        drawn["layers.svg"] = _layers(done, folder / "layers.svg")
    return drawn


def mean_error(runs: list[Run]) -> float:
    """Geometric mean over seeds and windows of the hidden error."""
    errors = [e for run in runs for e in run.examples.get("hidden_err", [run.scores["hidden_err"]])]
    return math.exp(float(np.mean(np.log(np.maximum(errors, 1e-12)))))


def pareto(points: dict[str, tuple[float, float]]) -> list[str]:
    """Those that no other beats in one coordinate without losing in the other, by the first coordinate."""
    best, front = math.inf, []
    for name, (_, error) in sorted(points.items(), key=lambda item: item[1]):
        if error < best:
            best = error
            front.append(name)
    return front


def _size_error(done: dict[str, list[Run]], file: Path) -> str:
    from matplotlib.figure import Figure

    parts = {name for pair in MODES.values() for name in pair} - {"pt2-llm"}
    shown = {name: runs for name, runs in done.items() if name not in parts}
    points = {n: (float(np.mean([r.scores["bits"] for r in runs])), mean_error(runs)) for n, runs in shown.items()}
    front = pareto(points)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*[points[name] for name in front], strict=True), color="0.6", lw=1, drawstyle="steps-post")
    for name, (bits, error) in points.items():
        axes.plot(bits, error, "o", color="k" if name in front else "0.6")
        axes.annotate(name, (bits, error), xytext=(6, 3), textcoords="offset points", fontsize=8)
    axes.set(xlabel="bits a weight, all in (from the file)", ylabel="hidden error (geometric mean)", yscale="log")
    axes.margins(x=0.2, y=0.1)
    figure.savefig(file, metadata={"Date": None})
    return f"Size and held-out error; the Pareto set is {', '.join(front)}."


def _parts(done: dict[str, list[Run]], file: Path) -> str:
    from matplotlib.figure import Figure

    cells = [
        [f"{mean_error(done[name]):.4f}" if name in done else "not run" for name in pair] for pair in MODES.values()
    ]
    figure = Figure(figsize=(4.6, 1.9), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    table = axes.table(
        cells, rowLabels=list(MODES), colLabels=["with SSR", "without SSR"], loc="center", edges="horizontal"
    )
    table.scale(1, 1.5)
    figure.savefig(file, metadata={"Date": None})
    return "Hidden error (geometric mean over windows and seeds) of the four modes of the fit, with and without SSR."


def _layers(done: dict[str, list[Run]], file: Path) -> str:
    from matplotlib.figure import Figure

    first = next(run for run in done["pt2-llm"] if run.details.get("layers"))
    names = [name.removeprefix("model.layers.") for name in first.details["layers"]]
    shown = [name for name in ("pt2-llm", "no-ssr", "no-aga", "OPTQ-ternary", "OPTQ-2bit") if _with_layers(done, name)]
    figure = Figure(figsize=(8, 0.9 + 0.28 * len(names)), layout="constrained")
    for axes, key, title in zip(figure.subplots(1, 2, sharey=True), ("e_w", "e_x"), ("E_w", "E_x"), strict=True):
        for name, marker in zip(shown, "osv^x", strict=False):
            runs = _with_layers(done, name)
            values = np.mean([[layer[key] for layer in run.details["layers"].values()] for run in runs], 0)
            axes.plot(values, range(len(names)), marker, label=name, alpha=0.8, ms=5)
        axes.set(xlabel=f"{title}, relative", xscale="log", yticks=range(len(names)), yticklabels=names)
        axes.grid(axis="y", lw=0.3)
    axes.invert_yaxis()
    axes.legend(fontsize=7)
    figure.savefig(file, metadata={"Date": None})
    return "Error of the weights (E_w) and of the outputs on the calibration text (E_x) of every layer, squared."


def _with_layers(done: dict[str, list[Run]], name: str) -> list[Run]:
    return [run for run in done.get(name, []) if run.details.get("layers")]

"""Pictures of a bout, from its runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.arena.types import Run

ALPHAS = ("-5", "-3", "-1", "0", "0.5", "1")


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """Every trial by its validation overlap, and the scan over alpha where the claims were run.

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
    done = [run for run in runs if run.status == "ok"]
    drawn: dict[str, str] = {}
    if tried := [run for run in done if run.details.get("trials")]:
        drawn["trials.svg"] = _trials(tried, folder / "trials.svg")
    if scanned := [run for run in done if run.contender == "claim:scan"]:
        drawn["alpha.svg"] = _scan(scanned, folder / "alpha.svg")
    return drawn


def _trials(runs: list[Run], file: Path) -> str:
    from matplotlib.figure import Figure

    names = sorted({run.contender for run in runs}, key=lambda name: (name != "amid", name))
    figure = Figure(figsize=(6.5, 0.8 + 0.4 * len(names)), layout="constrained")
    axes: Any = figure.subplots()
    for run in runs:
        place = names.index(run.contender)
        for trial in run.details["trials"]:
            chosen = all(trial.get(name) == value for name, value in run.details["setting"].items())
            colour, size = ("black", 30) if chosen else ("0.6", 12)
            axes.scatter(trial["validation"], place, color=colour, s=size, zorder=3 if chosen else 2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("overlap with the teacher on validation windows")
    figure.savefig(file, metadata={"Date": None})
    return f"Every trial of every seed; black: the one that validation chose. AMiD's choices: {_choices(runs)}."


def _choices(runs: list[Run]) -> str:
    chosen = [(run.seed, run.details["setting"]) for run in runs if run.contender == "amid"]
    told = [
        f"seed {seed}: alpha {setting['alpha']:g}, rate {setting['rate']:g}"
        for seed, setting in sorted(chosen, key=lambda c: c[0])
    ]
    return "; ".join(told) or "none"


def _scan(runs: list[Run], file: Path) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for axes, metric, label in zip(panels, ("overlap", "nll"), ("overlap", "NLL in nats"), strict=True):
        for divergence, colour in (("kl", "black"), ("ab", "tab:orange")):
            keys = [f"{metric}_{divergence}_{alpha}" for alpha in ALPHAS]
            curves = np.array([[run.scores[key] for key in keys] for run in runs])
            axes.plot([float(a) for a in ALPHAS], curves.T, color=colour, alpha=0.3)
            axes.plot([float(a) for a in ALPHAS], curves.mean(0), color=colour, marker="o", label=divergence)
        axes.set_xlabel("alpha")
        axes.set_ylabel(f"{label} on test windows")
    panels[0].legend()
    figure.savefig(file, metadata={"Date": None})
    return "The scan over alpha at lam .1, one learning rate (3e-3) for all: each seed, and the mean with points."

"""The figures of the merge-kernel bout: best so far, and the time of a suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.arena.types import Run


def draw(runs: list[Run], folder: Path) -> dict[str, str]:
    """Write the figures as SVG; nothing where no run has curves."""
    done = [run for run in runs if run.status == "ok" and "curves" in run.details]
    if not done:
        return {}
    return {
        "best-so-far.svg": _best_so_far(done, folder / "best-so-far.svg"),
        "suggestion-time.svg": _suggestion_time(done, folder / "suggestion-time.svg"),
    }


def _by_contender(runs: list[Run]) -> dict[str, list[Run]]:
    names = sorted({run.contender for run in runs})
    return {name: [run for run in runs if run.contender == name] for name in names}


def _axes(count: int) -> tuple[Any, list[Any]]:
    """A figure of ``count`` panels that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * count, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


def _best_so_far(runs: list[Run], path: Path) -> str:
    problems = list(runs[0].details["curves"])
    figure, panels = _axes(len(problems))
    for panel, problem in zip(panels, problems, strict=True):
        for name, group in _by_contender(runs).items():
            curves = np.array([run.details["curves"][problem] for run in group])
            evaluations = np.arange(1, curves.shape[1] + 1)
            (line,) = panel.plot(evaluations, curves.mean(axis=0), label=name, linewidth=1.4)
            panel.fill_between(
                evaluations, *np.quantile(curves, (0.25, 0.75), axis=0), color=line.get_color(), alpha=0.1
            )
        panel.set(title=problem, xlabel="evaluations")
    panels[0].set_ylabel("best objective so far (lower is better)")
    panels[-1].legend(fontsize=7, frameon=False)
    figure.savefig(path)
    return "Best objective after each evaluation: mean over seeds, band of the middle half of the seeds."


def _suggestion_time(runs: list[Run], path: Path) -> str:
    figure, (panel,) = _axes(1)
    for name, group in _by_contender(runs).items():
        items = group[0].details["items"]
        points = sorted(
            (items[problem], float(np.median([run.details["seconds_per_suggestion"][problem] for run in group])))
            for problem in items
        )
        if any(seconds > 0 for _, seconds in points):
            panel.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.2, label=name)
    panel.set(xlabel="items n", ylabel="seconds per suggestion", yscale="log")
    panel.legend(fontsize=7, frameon=False)
    figure.savefig(path)
    return "Wall time of one suggestion without the objective, median over seeds; noisy where runs share the machine."

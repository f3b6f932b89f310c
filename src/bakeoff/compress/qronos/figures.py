"""Pictures of a bout, from its runs alone."""

from __future__ import annotations

from pathlib import Path

from bakeoff.arena.types import Run


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """Held-out against calibration error, and how the error spreads over windows.

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
    done = [run for run in runs if run.status == "ok" and "hidden_err" in run.examples]
    if not done:
        return {}
    return {
        "fitting.svg": _fitting(done, folder / "fitting.svg"),
        "windows.svg": _windows(done, folder / "windows.svg"),
    }


def _fitting(runs: list[Run], file: Path) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name in _names(runs):
        mine = [run.scores for run in runs if run.contender == name]
        axes.plot([s["calibration_err"] for s in mine], [s["hidden_err"] for s in mine], "o", label=name)
    top = max(max(run.scores["hidden_err"], run.scores["calibration_err"]) for run in runs) * 1.05
    axes.plot([0, top], [0, top], color="0.7", lw=1)
    axes.set(xlabel="error on the calibration text", ylabel="error on held-out text", xlim=(0, top), ylim=(0, top))
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})
    return "Relative error of the hidden states, a dot per seed; far above the line a method fits its calibration text."


def _windows(runs: list[Run], file: Path) -> str:
    from matplotlib.figure import Figure

    names = _names(runs)
    figure = Figure(figsize=(1.5 + 0.9 * len(names), 3.2), layout="constrained")
    axes = figure.subplots()
    values = [[v for run in runs if run.contender == name for v in run.examples["hidden_err"]] for name in names]
    axes.boxplot(values, tick_labels=names)
    axes.set(ylabel="relative error of a window", yscale="log")
    figure.savefig(file, metadata={"Date": None})
    return "Relative error of the hidden states of each held-out window, all seeds."


def _names(runs: list[Run]) -> list[str]:
    return sorted({run.contender for run in runs}, key=lambda name: (name != "qronos", name))

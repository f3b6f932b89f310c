"""Pictures of a bout, from its runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.arena.types import Run


def figures(runs: list[Run], folder: Path) -> dict[str, str]:
    """When a step gets cheaper, what budgets cost, and which planes agree with the whole head.

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
    drawn = {}
    if timed := [run for run in done if "decode" in run.details]:
        drawn["decode-time.svg"] = _decode_time(timed, folder / "decode-time.svg")
    if swept := [run for run in done if "by_budget" in run.details]:
        drawn["budget.svg"] = _budget(swept, folder / "budget.svg")
    if timed:
        drawn["agreement.svg"] = _agreement(timed[0], folder / "agreement.svg")
    return drawn


def _panels(count: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * count, 3.4), layout="constrained")
    return figure, figure.subplots(1, count)


def crossing(decode: dict[str, list[float]]) -> float | None:
    """The first measured context from which FASA is cheaper at every longer one."""
    wins = [fasa < full for fasa, full in zip(decode["fasa"], decode["full"], strict=True)]
    first = len(wins) - wins[::-1].index(False) if False in wins else 0
    return decode["t"][first] if first < len(wins) else None


def _decode_time(runs: list[Run], path: Path) -> str:
    decode = {name: np.median([run.details["decode"][name] for run in runs], axis=0) for name in ("t", "full", "fasa")}
    at = crossing({name: list(values) for name, values in decode.items()})
    figure, axes = _panels(1)
    axes.plot(decode["t"], decode["full"], marker="o", color="0.5", label="full attention (SDPA)")
    axes.plot(decode["t"], decode["fasa"], marker="o", color="C0", label="FASA: predict, choose, gather, attend")
    if at is not None:
        axes.axvline(at, color="C3", linestyle=":", linewidth=1.2)
        axes.annotate(f"cheaper from {at:,.0f}", (at, axes.get_ylim()[0]), color="C3", fontsize=8, xytext=(4, 8),
                      textcoords="offset points")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(decode["t"], [f"{int(t):,}" for t in decode["t"]], fontsize=7)
    axes.set(yscale="log", xlabel="tokens of context", ylabel="CPU ms a step and layer")
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    told = f"cheaper from {at:,.0f} tokens on, slower below" if at is not None else "slower at every length measured"
    return f"A decode step of one layer, one thread, 256 tokens read: FASA is {told}."


def _budget(runs: list[Run], path: Path) -> str:
    figure, axes = _panels(1)
    for name in dict.fromkeys(run.contender for run in runs):
        found = [run.details["by_budget"] for run in runs if run.contender == name]
        budgets = sorted(found[0], key=int)
        means = [float(np.mean([row[n] for row in found])) for n in budgets]
        axes.plot([int(n) for n in budgets], means, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="tokens read at a step", ylabel="nats a token, first windows")
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    return "Negative log-likelihood by budget on the first windows (a few: no intervals)."


def _agreement(run: Run, path: Path) -> str:
    figure, panels = _panels(2)
    shown = (("ca_by_layer", "layer, mean of its heads"), ("ca_middle", "query head of the middle layer"))
    for axes, (name, label) in zip(panels, shown, strict=True):
        values = np.array(run.details[name])
        image = axes.imshow(values, cmap="Greys", vmin=0, vmax=max(0.8, float(values.max())), aspect="auto")
        axes.set(xlabel="plane, fast to slow", ylabel=label)
        figure.colorbar(image, ax=axes)
    figure.savefig(path, metadata={"Date": None})
    chance = run.details["ca_random"]
    return f"Contextual agreement of every plane, seed {run.seed}; tokens at random would have about {chance:.2f}."

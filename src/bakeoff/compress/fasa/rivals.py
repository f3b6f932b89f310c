"""The contenders of the bout: each a selector at work on the same windows, with the same budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bakeoff.inputs.language import LanguageModel, random_windows

if TYPE_CHECKING:
    import torch

    from .calibration import FasaCalibration
    from .planes import Rotary
    from .selectors import Selector
    from .simulate import Budget

BUDGETS, FEW = (16, 32, 128), 2
"""Further budgets of the figure, on the first few windows."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Data:
    """A model, the tokens for calibration, the windows (W, seq_len + 1) and what a step may read."""

    language: LanguageModel
    rotary: Rotary
    train: torch.Tensor
    windows: torch.Tensor
    budget: Budget
    n_tip: int
    quick: bool

    @property
    def prompt(self) -> int:
        """Tokens of a window with dense attention."""
        return (self.windows.shape[1] - 1) // 2


@dataclass
class Outcome:
    """Means per window; the selector, for other budgets; the calibration, where there is one."""

    nll: np.ndarray
    overlap: np.ndarray
    mass: np.ndarray
    key_read: float
    selector: Selector
    in_figure: bool = False
    calibration: FasaCalibration | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Size of what is calibrated."""
        return 0 if self.calibration is None else sum(ca.nbytes for ca in self.calibration.ca.values())

    def save(self, folder: Path) -> None:
        """Write the calibration, for `FasaCalibration.load`; nothing where there is none."""
        if self.calibration is not None:
            self.calibration.save(folder)


def _outcome(
    data: Data,
    selector: Selector,
    key_read: float,
    in_figure: bool = False,
    calibration: FasaCalibration | None = None,
) -> Outcome:
    from .simulate import simulate

    found = simulate(data.language.model, data.windows, data.prompt, selector, data.budget)
    nll, overlap, mass = (found[name].numpy() for name in ("nll", "overlap", "mass"))
    return Outcome(nll, overlap, mass, key_read, selector, in_figure, calibration)


def fasa(data: Data, seed: int) -> Outcome:
    """Calibrate on one window of the first 90 %, then read the best by the dominant planes."""
    from .calibration import calibrate_fasa
    from .selectors import Planes

    sample = random_windows(data.train, 1, data.windows.shape[1] - 1, seed)
    calibration = calibrate_fasa(data.language.model, sample, n_tip=data.n_tip)
    read = 2 * data.n_tip / data.rotary.head_dim
    return _outcome(data, Planes(calibration.dims()), read, in_figure=True, calibration=calibration)


def fasa_random(data: Data, seed: int) -> Outcome:
    """FASA without its calibration: every head reads planes at random."""
    from .selectors import Planes, random_calibration

    planes = Planes(random_calibration(data.rotary, data.n_tip, seed).dims())
    return _outcome(data, planes, 2 * data.n_tip / data.rotary.head_dim)


def sparq(data: Data, seed: int) -> Outcome:
    """SparQ with as many dimensions as FASA reads."""
    from .selectors import SparQ

    r = 2 * data.n_tip
    return _outcome(data, SparQ(r), r / data.rotary.head_dim, in_figure=True)


def quest(data: Data, seed: int, page: int) -> Outcome:
    """Quest; it reads two bounds a page."""
    from .selectors import Quest

    return _outcome(data, Quest(page), 2 / page, in_figure=page == 8)


def streaming(data: Data, seed: int) -> Outcome:
    """StreamingLLM; it reads no key to choose."""
    from .selectors import streaming

    return _outcome(data, streaming, 0.0, in_figure=True)


def snapkv(data: Data, seed: int) -> Outcome:
    """SnapKV; it chooses once."""
    from .selectors import SnapKV

    return _outcome(data, SnapKV(), 0.0)


def h2o(data: Data, seed: int) -> Outcome:
    """H2O; it chooses by attention that is computed anyway."""
    from .selectors import h2o

    return _outcome(data, h2o, 0.0)


def full(data: Data, seed: int) -> Outcome:
    """Full attention."""
    from .selectors import everything

    return _outcome(data, everything, 1.0)


def oracle(data: Data, seed: int) -> Outcome:
    """The true top tokens."""
    from .selectors import oracle

    return _outcome(data, oracle, 1.0, in_figure=True)


def randomly(data: Data, seed: int) -> Outcome:
    """Tokens at random."""
    import torch

    from .selectors import Randomly

    return _outcome(data, Randomly(torch.Generator().manual_seed(seed)), 0.0)


# For the figures


def by_budget(output: Outcome, data: Data) -> dict[str, float]:
    """Mean likelihood on the first few windows, by budget."""
    from .simulate import simulate

    few = 1 if data.quick else FEW
    found = {data.budget.n: float(output.nll[:few].mean())}
    for n in BUDGETS:
        if data.budget.sink + data.budget.recent <= n and n < data.windows.shape[1] and n not in found:
            budget = replace(data.budget, n=n)
            run = simulate(data.language.model, data.windows[:few], data.prompt, output.selector, budget)
            found[n] = float(run["nll"].mean())
    return {str(n): round(found[n], 5) for n in sorted(found)}


def agreement(calibration: FasaCalibration) -> dict[str, Any]:
    """CA of the planes: means over the heads of every layer, and the heads of the middle layer."""
    middle = calibration.rotary.layers // 2
    chance = calibration.meta["k"] / (0.75 * calibration.meta["tokens"])  # k / t at the middle of the queries
    by_layer = [[round(v, 3) for v in ca.mean(0).tolist()] for ca in calibration.ca.values()]
    heads = [[round(v, 3) for v in row] for row in calibration.ca[middle].tolist()]
    return {"ca_by_layer": by_layer, "ca_middle": heads, "ca_random": chance}


def decode_times(data: Data) -> dict[str, list[float]]:
    """CPU milliseconds of a step in one layer of this model's shape, by context; 256 tokens read, as published."""
    from .cost import decode_step

    rotary = data.rotary
    lengths = LENGTHS[:3] if data.quick else LENGTHS
    steps = [decode_step(t, rotary.heads, rotary.kv_heads, rotary.head_dim) for t in lengths]
    return {name: [round(getattr(step, name), 4) for step in steps] for name in ("t", "full", "fasa", "predict")}

"""Grids: the values that a row of weights may take, fixed from the original weights before anything is rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

BITS = (1.58, 2, 3, 4, 5, 6, 8)
SMALLEST_GROUP = 8
SHRINKS = tuple(round(1 - 0.01 * i, 2) for i in range(80))
"""Of the full range, 1, .99, ..., .21 [ours]."""
LARGEST, SMALLEST = 65504.0, 2.0**-24
"""Of float16, in which scales are stored."""


@dataclass(frozen=True)
class Grid:
    """``scale * (code - zero)`` for whole numbers ``low <= code <= high``, per row and group of columns.

    Attributes
    ----------
    scale, zero : Tensor (n, groups)
        `zero` holds whole numbers.
    low, high : int
    group : Tensor (N,) int64
        The group of each column.
    """

    scale: torch.Tensor
    zero: torch.Tensor
    low: int
    high: int
    group: torch.Tensor

    def codes(self, W: torch.Tensor) -> torch.Tensor:
        """Nearest codes (n, N) of the weights (n, N); halves go to even."""
        return self._codes(W, self.scale[:, self.group], self.zero[:, self.group])

    def round(self, W: torch.Tensor) -> torch.Tensor:
        """Nearest values (n, N) of the weights (n, N)."""
        scale, zero = self.scale[:, self.group], self.zero[:, self.group]
        return (self._codes(W, scale, zero) - zero) * scale

    def round_column(self, w: torch.Tensor, column: int) -> torch.Tensor:
        """Nearest values (n,) of one column (n,)."""
        group = int(self.group[column])
        scale, zero = self.scale[:, group], self.zero[:, group]
        return (self._codes(w, scale, zero) - zero) * scale

    def _codes(self, W: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return torch.clamp(torch.round(W / scale) + zero, self.low, self.high)

    def take(self, columns: torch.Tensor) -> Grid:
        """The grid of these columns in this order."""
        return replace(self, group=self.group[columns])

    def to(self, like: torch.Tensor) -> Grid:
        """In the dtype and on the device of a tensor."""
        return replace(self, scale=self.scale.to(like), zero=self.zero.to(like), group=self.group.to(like.device))


@dataclass(frozen=True)
class GridSpec:
    """How a grid is laid over a weight.

    Parameters
    ----------
    bits : float
        1.58 (the levels -1, 0 and 1), 2, 3, 4, 5, 6 or 8.
    symmetric : bool
        Levels +-(2^(bits-1) - 1) around zero; else 2^bits levels with a zero point. 1.58 bits are always symmetric.
    group_size : int, optional
        Columns that share a scale, the last group may be shorter; by default a row shares one.
    scale : {"mse", "absmax"}
        Least squared error over 80 shrink factors of the full range, or the full range.
    """

    bits: float = 4
    symmetric: bool = True
    group_size: int | None = None
    scale: Literal["mse", "absmax"] = "mse"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits={self.bits} is not one of {', '.join(map(str, BITS))}")
        if self.scale not in ("mse", "absmax"):
            raise ValueError(f"scale={self.scale!r} is neither 'mse' nor 'absmax'")

    @property
    def levels(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        if self.bits == 1.58:
            return -1, 1
        if self.symmetric:
            return 1 - 2 ** (int(self.bits) - 1), 2 ** (int(self.bits) - 1) - 1
        return 0, 2 ** int(self.bits) - 1

    def fit(self, W: torch.Tensor) -> Grid:
        """The grid of the weights (n, N); scales are rounded to float16, in which they are stored [ours].

        Raises
        ------
        ValueError
            A group size below 8 or above N, or a scale beyond float16.
        """
        N = W.shape[1]
        size = N if self.group_size is None else self.group_size
        if self.group_size is not None and not SMALLEST_GROUP <= size <= N:
            raise ValueError(f"group_size {size} is not between {SMALLEST_GROUP} and the {N} inputs")
        low, high = self.levels
        parts = [self._fit_group(part) for part in torch.split(W, size, dim=1)]
        scale, zero = (torch.stack(columns, 1) for columns in zip(*parts, strict=True))
        return Grid(scale, zero, low, high, torch.arange(N, device=W.device) // size)

    def _fit_group(self, W: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point (n,) of one group (n, g)."""
        low, high = self.levels
        top, bottom = W.amax(1).clamp(min=0), W.amin(1).clamp(max=0)
        if low < 0:
            top, bottom = torch.maximum(top, -bottom), torch.zeros_like(top)
        steps = high if low < 0 else high - low
        best = torch.full_like(top, torch.inf)
        scale, zero = torch.ones_like(top), torch.zeros_like(top)
        for shrink in SHRINKS if self.scale == "mse" else (1.0,):
            s = stored((top - bottom) * (shrink / steps))
            z = torch.round(-bottom * shrink / s).clamp(low, high)
            nearest = torch.clamp(torch.round(W / s[:, None]) + z[:, None], low, high)
            error = ((nearest - z[:, None]) * s[:, None] - W).square().sum(1)
            better = error < best
            best, scale, zero = (torch.where(better, a, b) for a, b in ((error, best), (s, scale), (z, zero)))
        return scale, zero


def stored(scale: torch.Tensor) -> torch.Tensor:
    """Scales as float16 holds them; that of a row of zeros becomes 1."""
    if (scale > LARGEST).any():
        row = int(scale.argmax())
        raise ValueError(f"row {row}: the scale {float(scale[row]):.3g} is beyond float16 ({LARGEST:.0f})")
    half = scale.clamp(min=SMALLEST).half().to(scale.dtype)
    return torch.where(scale > 0, half, torch.ones_like(scale))

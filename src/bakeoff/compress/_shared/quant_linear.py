"""A linear layer whose weight is packed whole numbers and scales, and what it does to activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .grid import Grid
from .packing import pack, packed_width, unpack


def fake_quantize(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Every vector along the last axis on its own grid of 2^bits levels between its least and its largest value."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low).float() / (2**bits - 1)
    step = torch.where(step > 0, step, torch.ones_like(step))
    return (torch.round((x.float() - low) / step) * step + low).to(x.dtype)


class QuantLinear(nn.Module):
    """Linear layer with a weight on a `Grid`; the product is taken with the weight decoded to the dtype of the input.

    Parameters
    ----------
    in_features, out_features : int
    low, high : int
        Codes of the grid.
    group_size : int
        Columns that share a scale.
    symmetric : bool
        No zero points are stored.
    bias : bool
    scaled : bool
        Columns have scales too (AWQ): the decoded weight is divided by them.
    act_bits : int, optional
        Inputs are quantized per token, see `fake_quantize`.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    input_scale: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        low: int,
        high: int,
        group_size: int,
        symmetric: bool = True,
        bias: bool = False,
        scaled: bool = False,
        act_bits: int | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.low, self.high = in_features, out_features, low, high
        self.group_size, self.symmetric, self.act_bits = group_size, symmetric, act_bits
        groups, levels = -(-in_features // group_size), high - low + 1
        width, zeros = packed_width(in_features, levels), packed_width(out_features * groups, levels)
        self.register_buffer("packed", torch.zeros(out_features, width, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(out_features, groups, dtype=torch.float16))
        self.register_buffer("zero", None if symmetric else torch.zeros(1, zeros, dtype=torch.uint8))
        self.register_buffer("input_scale", torch.ones(in_features, dtype=torch.float16) if scaled else None)
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)

    @classmethod
    def pack(
        cls,
        values: torch.Tensor,
        grid: Grid,
        bias: torch.Tensor | None = None,
        *,
        input_scale: torch.Tensor | None = None,
        act_bits: int | None = None,
    ) -> QuantLinear:
        """The layer of weights (n, N) that lie on a grid."""
        n, N = values.shape
        size = int((grid.group == 0).sum())
        layer = cls(
            N,
            n,
            low=grid.low,
            high=grid.high,
            group_size=size,
            symmetric=grid.low < 0,
            bias=bias is not None,
            scaled=input_scale is not None,
            act_bits=act_bits,
        )
        levels = grid.high - grid.low + 1
        layer.packed = pack(grid.codes(values) - grid.low, levels).to(values.device)
        layer.scale = grid.scale.half()
        if layer.zero is not None:
            layer.zero = pack((grid.zero - grid.low).reshape(1, -1), levels).to(values.device)
        if input_scale is not None:
            layer.input_scale = input_scale.half()
        if bias is not None:
            layer.bias = bias.detach().clone()
        return layer

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        names = ("in_features", "out_features", "low", "high", "group_size", "symmetric", "act_bits")
        more = {"bias": self.bias is not None, "scaled": self.input_scale is not None}
        return {name: getattr(self, name) for name in names} | more

    def dequantize(self) -> torch.Tensor:
        """The weight (n, N) float32."""
        levels, groups = self.high - self.low + 1, self.scale.shape[1]
        codes = unpack(self.packed, self.in_features, levels).float() + self.low
        scale = self.scale.float()
        zero = torch.zeros_like(scale)
        if self.zero is not None:
            zero = unpack(self.zero, scale.numel(), levels).view_as(scale).float()
        if groups == 1:
            W = (codes - zero) * scale
        else:
            group = torch.arange(self.in_features, device=codes.device) // self.group_size
            W = (codes - zero[:, group]) * scale[:, group]
        return W if self.input_scale is None else W / self.input_scale.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs (..., N) to outputs (..., n) in the dtype of x."""
        if self.act_bits is not None:
            x = fake_quantize(x, self.act_bits)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.dequantize().to(x.dtype), bias)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings().items())

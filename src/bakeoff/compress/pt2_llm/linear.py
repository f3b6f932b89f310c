"""A linear layer stored as five ternary digits a byte, and its products without the dense weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import embedding, pad

from .._shared.packing import DIGITS, TERNARY, pack, unpack

DECODED_AT_ONCE = 2**19
"""Weights: 2 MB of float32."""


class TernaryWeight(NamedTuple):
    """The ternary form of a weight (n, m); its columns are those of the weight in the order `perm`.

    ``W[:, perm[j]]`` is about ``alpha[:, j // k] * T[:, j] + mu[:, j // k]`` with k = `block_size`.

    Parameters
    ----------
    T : Tensor (n, m) int8
        Of -1, 0 and 1.
    alpha, mu : Tensor (n, ceil(m / k))
        Scale and offset of every row in every block; exact in float16.
    perm : Tensor (m,) int64
    block_size : int
    errors : dict
        ``e_w`` = ||W - V||^2 / ||W||^2 and ``e_x`` = ||(W - V) X||^2 / ||W X||^2 for this form V of W, and ``rounds``,
        the most rounds of ITF that a block took.
    """

    T: torch.Tensor
    alpha: torch.Tensor
    mu: torch.Tensor
    perm: torch.Tensor
    block_size: int
    errors: dict[str, float]

    def dequantize(self) -> torch.Tensor:
        """The weight that this stands for, (n, m), its columns in their original order."""
        m = self.T.shape[1]
        alpha, mu = (v.repeat_interleave(self.block_size, 1)[:, :m] for v in (self.alpha, self.mu))
        values = torch.empty_like(alpha)
        values[:, self.perm] = alpha * self.T.to(alpha.dtype) + mu
        return values


def pack_trits(T: torch.Tensor) -> torch.Tensor:
    """Bytes (n, ceil(m / 5)) uint8 of digits (n, m) in {-1, 0, 1}: base 3, the first digit is the lowest."""
    return pack(T + 1, TERNARY)


def unpack_trits(packed: torch.Tensor, m: int) -> torch.Tensor:
    """The digits (n, m) int8 that `pack_trits` packed."""
    return unpack(packed, m, TERNARY).to(torch.int8) - 1


def _levels(device: torch.device) -> torch.Tensor:
    """The five digits of each byte, (243, 5) float32."""
    powers = torch.tensor([3**i for i in range(DIGITS)], device=device)
    return (torch.arange(3**DIGITS, device=device)[:, None] // powers % 3 - 1).float()


class TernaryLinear(nn.Module):
    """A linear layer of weights in {-1, 0, 1} with a scale and an offset per row and block of columns.

    About 1.9 bits a weight: 8/5 for the digits, 32 for every row of a block, 16 a column for the order of the columns.
    The product is ``sum over blocks of alpha_b (T_b x_b) + mu_b sum(x_b)`` [ours], in float32 whatever x is: the
    offsets need only sums of x, and digits are decoded some rows at a time, so that the dense weight is never there.

    Parameters
    ----------
    in_features, out_features : int
    block_size : int
        Columns that share a scale and an offset; the last block may be shorter.
    bias : bool
    permuted : bool
        Inputs are gathered by `perm` first.

    Examples
    --------
    >>> import torch
    >>> from bakeoff.compress import PT2LLM, TernaryLinear
    >>> X = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> W = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    >>> layer = TernaryLinear.pack(PT2LLM(block_size=8).ternarize(W, X.T @ X))
    >>> layer.trits.dtype, tuple(layer.trits.shape)
    (torch.uint8, (4, 4))
    >>> torch.allclose(layer(X), X @ layer.dequantize().T, atol=1e-4)
    True
    """

    trits: torch.Tensor
    alpha: torch.Tensor
    mu: torch.Tensor
    perm: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self, in_features: int, out_features: int, block_size: int, *, bias: bool = False, permuted: bool = True
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.block_size = in_features, out_features, block_size
        blocks = -(-in_features // block_size)
        self.register_buffer("trits", torch.zeros(out_features, -(-in_features // DIGITS), dtype=torch.uint8))
        self.register_buffer("alpha", torch.zeros(out_features, blocks, dtype=torch.float16))
        self.register_buffer("mu", torch.zeros(out_features, blocks, dtype=torch.float16))
        order = torch.arange(in_features, dtype=perm_dtype(in_features)) if permuted else None
        self.register_buffer("perm", order)
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)

    @classmethod
    def pack(cls, weight: TernaryWeight, bias: torch.Tensor | None = None) -> TernaryLinear:
        """The layer of a ternary weight; the order of the columns is stored only where they were moved."""
        n, m = weight.T.shape
        moved = not torch.equal(weight.perm, torch.arange(m, device=weight.perm.device))
        layer = cls(m, n, weight.block_size, bias=bias is not None, permuted=moved).to(weight.T.device)
        layer.trits, layer.alpha, layer.mu = pack_trits(weight.T), weight.alpha.half(), weight.mu.half()
        if moved:
            layer.perm = weight.perm.to(perm_dtype(m))
        if bias is not None:
            layer.bias = bias.detach().clone()
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs (..., m) to outputs (..., n) in the dtype of x."""
        rows = x.reshape(-1, self.in_features).float()
        if self.perm is not None:
            rows = rows[:, self.perm.int()]
        k, blocks = self.block_size, self.alpha.shape[1]
        sums = pad(rows, (0, blocks * k - self.in_features)).view(-1, blocks, k).sum(2)
        products = [rows @ self._scaled(part).T for part in self._parts()]
        y = torch.cat(products, 1) + sums @ self.mu.float().T
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def _parts(self) -> Iterator[slice]:
        """Rows whose decoded weights fit into a processor's cache."""
        step = max(1, DECODED_AT_ONCE // self.in_features)
        for start in range(0, self.out_features, step):
            yield slice(start, start + step)

    def _scaled(self, part: slice) -> torch.Tensor:
        """``alpha * T`` of some rows, in the stored order of the columns."""
        m, k, alpha = self.in_features, self.block_size, self.alpha[part].float()
        whole = m // k  # blocks; the last one may be shorter
        values = embedding(self.trits[part].int(), _levels(self.trits.device)).flatten(1)[:, :m]
        values[:, : whole * k].view(len(values), whole, k).mul_(alpha[:, :whole, None])
        values[:, whole * k :].mul_(alpha[:, whole:])
        return values

    def dequantize(self) -> torch.Tensor:
        """The dense weight (n, m) float32, its columns in the order of the inputs."""
        m = self.in_features
        order = torch.arange(m, device=self.trits.device) if self.perm is None else self.perm.long()
        T = unpack_trits(self.trits, m)
        return TernaryWeight(T, self.alpha.float(), self.mu.float(), order, self.block_size, {}).dequantize()

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        given = {name: getattr(self, name) for name in ("in_features", "out_features", "block_size")}
        return given | {"bias": self.bias is not None, "permuted": self.perm is not None}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings().items())


def perm_dtype(m: int) -> torch.dtype:
    """Of column numbers below m."""
    return torch.int16 if m < 2**15 else torch.int32

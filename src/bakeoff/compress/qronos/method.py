"""Qronos: post-training quantization that corrects what earlier layers have already got wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

from bakeoff.compress._shared.grid import SMALLEST_GROUP, Grid, GridSpec
from bakeoff.compress._shared.quant_linear import QuantLinear
from bakeoff.compress._shared.quantizer import attach, shape_of
from bakeoff.compress._shared.rounding import Damp
from bakeoff.compress._shared.streams import decoder_blocks, layers_of, walk

from .rounding import qronos
from .transforms import Transform, transformed

ENOUGH = 16
"""Calibration tokens per input of the widest layer, below which rounding fits the calibration text."""


class Qronos:
    """Quantize the linear layers of a model after training, with calibration text alone.

    Where GPTQ rounds each layer as if its inputs were exact, Qronos compares the inputs X of the float model with the
    inputs X~ of the model that is quantized so far and minimises ``||X w - X~ q||`` over grid vectors q:

    1. Decoder blocks in their order; layers that read the same input share ``H = mean(x~ x~')``, ``G = mean(x~ x')``.
    2. The grid of each row (or group of columns) is fixed from the original weights.
    3. Columns by descending diag(H); the first is rounded for the whole mismatch, all others are solved for again.
    4. The others are rounded in turn, and each error is spread over the columns that are left.
    5. The layer is replaced by a `QuantLinear` of packed whole numbers and scales.

    O(tokens N^2 + N^3 + n N^2) for a layer of N inputs and n outputs, O(N^2) memory beside two hidden-state streams.

    Parameters
    ----------
    bits : float
        1.58 (ternary), 2, 3, 4, 5, 6 or 8.
    group_size : int, optional
        Columns that share a scale; by default a row shares one.
    symmetric : bool
        Grid around zero, or with a zero point.
    act_bits : int, optional
        Also quantize the inputs of the layers, per token.
    kv_bits : int, optional
        Also quantize keys and values, per token and head.
    act_order : bool
        Columns by descending diag(H).
    damp : float or "sigma"
        Added to the diagonal of H and G, as a share of the mean of diag(H) [ours]; "sigma" is the paper's 1e-6 of the
        largest eigenvalue, which overfits unless there are very many tokens.
    block_size : int
        Columns per lazy update; only speed.
    scale : {"mse", "absmax"}
        See `GridSpec`.
    transform : {"none", "hadamard", "equalize"}
        Rewrite the weights first, without changing what the model computes, so that they round better.
    skip : tuple of str
        Layers whose name ends with one of these stay as they are; embeddings always do. "lm_head" has to be among them:
        quantizing it, tied or not, is not supported.
    dtype : torch.dtype
        In which H and G are gathered; rounding is in float64.

    Notes
    -----
    Source: arXiv 2505.11695 (ICLR 2026); the authors' code is in AMD Brevitas. The default damping, the choice of
    scales and the walk with two streams are our own.

    Examples
    --------
    >>> import torch
    >>> from bakeoff.compress import Qronos
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> x = torch.randn(600, 16)
    >>> y = model.requires_grad_(False)(x)
    >>> quantized = Qronos(bits=4).quantize(model, [x])
    >>> float((quantized(x) - y).norm() / y.norm()) < 0.2
    True
    """

    def __init__(
        self,
        bits: float = 4,
        *,
        group_size: int | None = None,
        symmetric: bool = True,
        act_bits: int | None = None,
        kv_bits: int | None = None,
        act_order: bool = True,
        damp: Damp = 0.01,
        block_size: int = 128,
        scale: Literal["mse", "absmax"] = "mse",
        transform: Transform = "none",
        skip: tuple[str, ...] = ("lm_head",),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.spec = GridSpec(bits, symmetric, group_size, scale)
        for name, value in (("act_bits", act_bits), ("kv_bits", kv_bits)):
            if value is not None and not 2 <= value <= 8:
                raise ValueError(f"{name}={value} is not between 2 and 8")
        if transform not in ("none", "hadamard", "equalize"):
            raise ValueError(f"transform={transform!r} is not one of none, hadamard, equalize")
        self.act_bits, self.kv_bits, self.act_order, self.damp = act_bits, kv_bits, act_order, damp
        self.block_size, self.transform, self.skip, self.dtype = block_size, transform, skip, dtype

    def quantize(
        self,
        model: Any,
        calibration: Iterable[Any],
        *,
        blocks: int | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Any:
        """Quantize a model in place and return it; ``save_pretrained`` then writes the packed weights.

        Parameters
        ----------
        model : nn.Module
            A causal language model of transformers, or any module of one input.
        calibration : iterable
            input_ids (B, T) int64, or dicts with input_ids and perhaps attention_mask; inputs for other modules.
        blocks : int, optional
            Only the first so many decoder blocks.
        progress : callable, optional
            Told (groups done, groups in all, name).

        Raises
        ------
        ValueError
            A model that is quantized already, too few tokens, a group size that a layer cannot have, an lm_head that is
            not skipped, layers that are not supported, or values that are not finite. The model keeps its
            layers then.
        """
        batches = list(calibration)
        check_model(model, self.spec, self.skip)
        check_tokens(model, batches, self.skip, blocks)
        transformed(model, self.transform, batches)
        walk(
            model,
            batches,
            self._layer,
            blocks=blocks,
            act_bits=self.act_bits,
            kv_bits=self.kv_bits,
            skip=self.skip,
            dtype=self.dtype,
            progress=progress,
        )
        if hasattr(model, "config"):
            kept = len(decoder_blocks(model)[1][:blocks])
            attach(model, "grid", kv_bits=self.kv_bits, kv_blocks=kept if self.kv_bits else 0)
        return model

    def _layer(
        self, name: str, W: torch.Tensor, bias: torch.Tensor | None, H: torch.Tensor, G: torch.Tensor | None
    ) -> nn.Module:
        assert G is not None
        grid = self.spec.fit(W)
        return QuantLinear.pack(self.round_layer(W, H, G, grid), grid, bias, act_bits=self.act_bits)

    def round_layer(self, W: torch.Tensor, H: torch.Tensor, G: torch.Tensor, grid: Grid) -> torch.Tensor:
        """The rounded weight of one layer.

        Parameters
        ----------
        W : Tensor (n, N)
        H : Tensor (N, N)
            Mean of x~ x~'; x~ are inputs in the quantized model.
        G : Tensor (N, N)
            Mean of x~ x' over the same tokens; x are inputs in the float model.
        grid : Grid

        Returns
        -------
        Tensor (n, N)
        """
        return qronos(W, H, G, grid, damp=self.damp, act_order=self.act_order, block_size=self.block_size)


def check_model(model: Any, spec: GridSpec, skip: tuple[str, ...]) -> None:
    """A ValueError where a model cannot be quantized, before anything is computed."""
    config = getattr(model, "config", None)
    if quantized := getattr(config, "quantization_config", None):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized.quant_method
        raise ValueError(f"the model is already quantized ({method}); give the original one")
    if config is not None and "lm_head" not in skip:
        if getattr(config, "tie_word_embeddings", False):
            raise ValueError("lm_head shares its weight with the embeddings, which stay as they are; untie it first")
        raise ValueError("lm_head is not quantized by this version; leave it in skip")
    for name, layer in _layers(model, skip).items():
        inputs = shape_of(layer)[1]
        if spec.group_size is not None and not SMALLEST_GROUP <= spec.group_size <= inputs:
            raise ValueError(
                f"{name}: group_size {spec.group_size} is not between {SMALLEST_GROUP} and its {inputs} inputs"
            )


def check_tokens(model: Any, calibration: list[Any], skip: tuple[str, ...], blocks: int | None = None) -> None:
    """A ValueError where there are fewer calibration tokens than inputs, a warning below 16 times as many."""
    tokens = sum(_tokens(batch) for batch in calibration)
    widest = max((shape_of(layer)[1] for layer in _layers(model, skip, blocks).values()), default=1)
    if tokens < widest:
        raise ValueError(
            f"{tokens} calibration tokens cannot determine a {widest}x{widest} covariance; "
            f"give at least {widest} (recommended 128x256)"
        )
    if tokens < ENOUGH * widest:
        warnings.warn(
            f"{tokens} calibration tokens for layers of {widest} inputs: rounding will overfit the calibration text; "
            f"give {ENOUGH * widest} or more",
            stacklevel=3,
        )


def _tokens(batch: Any) -> int:
    if not hasattr(batch, "keys"):
        return int(batch.numel() if not batch.is_floating_point() else batch[..., 0].numel())
    mask = batch.get("attention_mask")
    return int(batch["input_ids"].numel() if mask is None else mask.sum())


def _layers(model: Any, skip: tuple[str, ...], blocks: int | None = None) -> dict[str, nn.Module]:
    return {
        f"{prefix}.{name}" if prefix else name: layer
        for prefix, block in list(zip(*decoder_blocks(model), strict=True))[:blocks]
        for name, layer in layers_of(block, skip).items()
    }

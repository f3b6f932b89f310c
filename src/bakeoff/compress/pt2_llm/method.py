"""PT2-LLM: language models with weights of -1, 0 and 1, from calibration text alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .._shared.quantizer import attach, shape_of
from .._shared.streams import check_supported, decoder_blocks, layers_of, walk
from .blocks import ternarize
from .linear import TernaryLinear, TernaryWeight

SMALLEST_BLOCK = 8


class PT2LLM:
    """Post-training ternarization of the linear layers of a causal language model.

    A weight (n, m) becomes ``alpha T + mu`` with T in {-1, 0, 1} and two floats per row and block of columns: 1.85
    bits a weight and 16 / n for the order of the columns. Decoder layers are ternarized in their order, each from the
    inputs that the layers before it, already ternary, give on the calibration text; per linear layer:

    1. C = X'X of its inputs; layers that read the same input share it.
    2. SSR: of the columns that are left, those closest in cosine to their mean column form the next block.
    3. ATQ: fit the block, by ITF (grid and levels in turn) and AGA (once more the grid, for the outputs).
    4. The block's error goes into the columns that are left (exact block OBS) [paper: GPTQ; the algebra is ours].
    5. The layer is replaced by a `TernaryLinear`.

    Blocks and C are computed in `dtype` whatever the model's dtype is, the inverse of C and the 2x2 systems of AGA in
    float64, scales and offsets stored in float16. O(n m^2) a layer, O(m^2) memory.

    Parameters
    ----------
    block_size : int
        Columns that share scale and offset, at least 8 and at most m (then a row is one block).
    itf, aga, ssr : bool
        The parts of the method, to leave them out. Without all three: ternary weight networks' threshold around the
        row's mean, with error compensation.
    damp : float
        Added to the diagonal of C, as a share of its mean.
    max_iter : int
        Most rounds of ITF [ours].
    skip : tuple of str
        Modules whose name ends with one of these stay as they are; embeddings always do.
    dtype : torch.dtype
        Of blocks and C.

    Notes
    -----
    Source: arXiv 2510.03267 (ICLR 2026). The vectorised AGA that the paper prints (eq. 13) is wrong for correlated
    inputs; this is its eq. 12.

    Examples
    --------
    >>> import torch
    >>> from bakeoff.compress import PT2LLM
    >>> X = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    >>> W = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    >>> ternary = PT2LLM(block_size=16).ternarize(W, X.T @ X)
    >>> sorted(ternary.T.unique().tolist())
    [-1, 0, 1]
    >>> tuple(ternary.alpha.shape), ternary.errors["e_x"] < 0.3
    ((8, 2), True)
    """

    def __init__(
        self,
        block_size: int = 128,
        *,
        itf: bool = True,
        aga: bool = True,
        ssr: bool = True,
        damp: float = 0.01,
        max_iter: int = 50,
        skip: tuple[str, ...] = ("lm_head",),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not damp >= 0 or max_iter < 0:
            raise ValueError(f"damp {damp} and max_iter {max_iter} must not be negative")
        self.block_size, self.itf, self.aga, self.ssr = block_size, itf, aga, ssr
        self.damp, self.max_iter, self.skip, self.dtype = damp, max_iter, skip, dtype

    @torch.no_grad()
    def ternarize(self, W: torch.Tensor, C: torch.Tensor) -> TernaryWeight:
        """The ternary form of one weight.

        Parameters
        ----------
        W : Tensor (n, m)
            Floating point.
        C : Tensor (m, m)
            X'X of the inputs X (tokens, m), or its mean over tokens.

        Returns
        -------
        TernaryWeight

        Raises
        ------
        ValueError
            Weights of whole numbers, a block size below 8 or above m, a C of another shape, values that are not
            finite, or a scale beyond float16.
        """
        self._check_weight(W, tuple(W.shape))
        m = W.shape[1]
        if C.shape != (m, m):
            raise ValueError(f"C has shape {tuple(C.shape)}, a weight of {m} inputs needs ({m}, {m})")
        if not (W.isfinite().all() and C.isfinite().all()):
            raise ValueError("NaN or infinite values in the weights or in C")
        return ternarize(
            W.to(self.dtype),
            C.to(self.dtype),
            block_size=self.block_size,
            itf=self.itf,
            aga=self.aga,
            ssr=self.ssr,
            damp=self.damp,
            max_iter=self.max_iter,
        )

    def quantize(
        self,
        model: nn.Module,
        calibration: Iterable[Any],
        *,
        blocks: int | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> nn.Module:
        """Ternarize a model in place; ``save_pretrained`` then writes the packed form and ``from_pretrained`` reads it.

        Parameters
        ----------
        model : transformers model
            Its linear layers are nn.Linear or Conv1D (transposed); biases stay as they are.
        calibration : iterable
            Token ids (B, T) int64, or dicts of input_ids and attention_mask; the paper takes 128 x 2048 tokens.
        blocks : int, optional
            Only the first so many decoder blocks.
        progress : callable, optional
            Told (groups done, groups in all, name) after each group of layers.

        Returns
        -------
        The model.

        Raises
        ------
        ValueError
            What `ternarize` refuses, with the layer's name; a calibration of fewer tokens than `block_size`;
            activations that are not finite, with the module's name; layers that are not supported. The model is then
            as it was.

        Warns
        -----
        UserWarning
            A calibration of fewer tokens than a layer has inputs: C is singular, and the damping decides.
        """
        batches = list(calibration)
        self.check(model, blocks, _count(batches))
        walk(model, batches, self._replacement, blocks=blocks, paired=False, skip=self.skip, progress=progress)
        attach(model, "ternary")
        return model

    def _replacement(
        self, name: str, W: torch.Tensor, bias: torch.Tensor | None, C: torch.Tensor, _: torch.Tensor | None
    ) -> TernaryLinear:
        try:
            return TernaryLinear.pack(self.ternarize(W, C), bias)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def check(self, model: nn.Module, blocks: int | None, tokens: int) -> None:
        """Refuse or warn as `quantize` does, as far as that is known before the first forward pass.

        Parameters
        ----------
        model : transformers model
        blocks : int, optional
        tokens : int
            Of the calibration.

        Raises
        ------
        ValueError
        """
        if not hasattr(model, "config"):
            raise ValueError(f"{type(model).__name__} is no model of transformers")
        if (config := getattr(model.config, "quantization_config", None)) is not None:
            raise ValueError(f"the model is quantized already ({getattr(config, 'quant_method', config)})")
        if tokens < self.block_size:
            raise ValueError(f"{tokens} calibration tokens are fewer than the block_size {self.block_size}")
        names, found = decoder_blocks(model)
        widest = 0
        for prefix, block in zip(names[:blocks], found[:blocks], strict=True):
            if stored := next((n for n, m in block.named_modules() if hasattr(m, "dequantize")), None):
                raise ValueError(f"{prefix}.{stored} is quantized already")
            check_supported(prefix, block)
            for name, layer in layers_of(block, self.skip).items():
                self._check_weight(layer.get_parameter("weight"), shape_of(layer), f"{prefix}.{name}: ")
                widest = max(widest, shape_of(layer)[1])
        if tokens < widest:
            warnings.warn(
                f"{tokens} calibration tokens cannot determine the inputs of a layer of {widest}: "
                "C is singular, and the damping decides",
                stacklevel=3,
            )

    def _check_weight(self, W: torch.Tensor, shape: tuple[int, ...], where: str = "") -> None:
        """Refuse what has no ternary form; `shape` is (n, m)."""
        if len(shape) != 2:
            raise ValueError(f"{where}a weight has 2 dimensions, this one {len(shape)}")
        if not W.is_floating_point() or W.dtype.itemsize < 2:
            raise ValueError(f"{where}weights of {str(W.dtype).removeprefix('torch.')} are quantized already")
        if not SMALLEST_BLOCK <= self.block_size <= shape[1]:
            raise ValueError(
                f"{where}block_size {self.block_size} is not between {SMALLEST_BLOCK} and the {shape[1]} inputs"
            )


def _count(batches: list[Any]) -> int:
    """Tokens that are not padding."""
    tokens = 0
    for batch in batches:
        fields = batch if hasattr(batch, "keys") else {"input_ids": batch}
        mask = fields.get("attention_mask")
        tokens += fields["input_ids"].numel() if mask is None else int(mask.sum())
    return tokens

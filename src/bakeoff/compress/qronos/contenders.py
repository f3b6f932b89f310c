"""What takes part: Qronos and its rivals on the same grid, tokens, order of columns and damping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bakeoff.compress._shared.grid import Grid
    from bakeoff.compress._shared.rounding import Damp

    from .transforms import Transform

    Rounding = Callable[[torch.Tensor, torch.Tensor, Any, Grid], torch.Tensor]

SHOWN = 16
"""Calibration sequences on which the calibration error is measured."""


@dataclass(frozen=True)
class Data:
    """A float model, text, and how it is to be quantized."""

    model: Any
    tokenizer: Any
    train: torch.Tensor
    windows: torch.Tensor
    few: torch.Tensor
    blocks: int
    bits: float
    symmetric: bool
    group_size: int | None
    act_bits: int | None
    kv_bits: int | None
    transform: Transform
    damp: Damp
    samples: int
    seq_len: int
    exponents: int = 21

    @property
    def spec(self) -> Any:
        """The grid that all contenders use."""
        from bakeoff.compress._shared.grid import GridSpec

        return GridSpec(self.bits, self.symmetric, self.group_size)


@dataclass(frozen=True)
class Quantized:
    """A quantized model."""

    model: Any
    tokenizer: Any
    calibration: torch.Tensor
    rotation: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        """Of the quantized layers."""
        from bakeoff.compress._shared.quantizer import stored_bytes

        return stored_bytes(self.model)

    def save(self, folder: Path) -> None:
        """A checkpoint of packed weights, and in the folder ``dequantized`` one for tools that do not know bakeoff."""
        from bakeoff.compress._shared.quantizer import dequantized

        for target, model in ((folder, self.model), (folder / "dequantized", dequantized(self.model))):
            model.save_pretrained(target)
            self.tokenizer.save_pretrained(target)


def qronos(data: Data, seed: int) -> Quantized:
    """The method as users call it."""
    from .method import Qronos

    model, calibration = _prepared(data, seed)
    quantizer = Qronos(
        data.bits,
        symmetric=data.symmetric,
        group_size=data.group_size,
        act_bits=data.act_bits,
        kv_bits=data.kv_bits,
        transform=data.transform,
        damp=data.damp,
    )
    return _result(data, quantizer.quantize(model, [calibration], blocks=data.blocks), calibration)


def rtn(data: Data, seed: int) -> Quantized:
    """Round to nearest; no calibration."""
    from bakeoff.compress._shared.rounding import rtn as nearest

    return _walked(data, seed, lambda W, H, G, grid: nearest(W, grid), paired=False)


def optq(data: Data, seed: int) -> Quantized:
    """OPTQ with H of the quantized stream."""
    from bakeoff.compress._shared.rounding import optq as rounding

    return _walked(data, seed, lambda W, H, G, grid: rounding(W, H, grid, damp=data.damp), paired=False)


def gptaq(data: Data, seed: int) -> Quantized:
    """GPTAQ with its authors' strength for language models."""
    from .rounding import gptaq as rounding

    return _walked(data, seed, partial(rounding, damp=data.damp))


def gpfq(data: Data, seed: int) -> Quantized:
    """GPFQ; it has no damping."""
    from .rounding import gpfq as rounding

    return _walked(data, seed, rounding)


def awq(data: Data, seed: int) -> Quantized:
    """AWQ; its exponent is searched on the calibration error of each layer."""
    from bakeoff.compress._shared.quant_linear import QuantLinear
    from bakeoff.compress._shared.rounding import awq as rounding

    def layer(name: str, W: torch.Tensor, bias: Any, H: torch.Tensor, G: Any) -> QuantLinear:
        found = rounding(W, H, data.spec, exponents=data.exponents)
        return QuantLinear.pack(found.values, found.grid, bias, input_scale=found.s, act_bits=data.act_bits)

    return _replaced(data, seed, layer, paired=False)


def _walked(data: Data, seed: int, rounding: Rounding, paired: bool = True) -> Quantized:
    from bakeoff.compress._shared.quant_linear import QuantLinear

    def layer(name: str, W: torch.Tensor, bias: Any, H: torch.Tensor, G: Any) -> QuantLinear:
        grid = data.spec.fit(W)
        return QuantLinear.pack(rounding(W, H, G, grid), grid, bias, act_bits=data.act_bits)

    return _replaced(data, seed, layer, paired)


def _replaced(data: Data, seed: int, layer: Any, paired: bool) -> Quantized:
    from bakeoff.compress._shared.quantizer import attach
    from bakeoff.compress._shared.streams import walk

    from .transforms import transformed

    model, calibration = _prepared(data, seed)
    transformed(model, data.transform, [calibration])
    walk(
        model,
        [calibration],
        layer,
        blocks=data.blocks,
        paired=paired,
        act_bits=data.act_bits,
        kv_bits=data.kv_bits,
    )
    attach(model, "grid", kv_bits=data.kv_bits, kv_blocks=data.blocks if data.kv_bits else 0)
    return _result(data, model, calibration)


def _prepared(data: Data, seed: int) -> tuple[Any, torch.Tensor]:
    """A model that shares the float model's tensors, and the calibration sequences of the seed."""
    from bakeoff.compress._shared.streams import clone
    from bakeoff.inputs.language import random_windows

    return clone(data.model), random_windows(data.train, data.samples, data.seq_len, seed)


def _result(data: Data, model: Any, calibration: torch.Tensor) -> Quantized:
    from .transforms import incoherent

    rotation = incoherent(data.model.config.hidden_size) if data.transform == "hadamard" else None
    return Quantized(model, data.tokenizer, calibration[:SHOWN], rotation)


def measured(output: Quantized, data: Data) -> dict[str, Any]:
    """Errors against the float model, on held-out text and on the calibration text."""
    from bakeoff.compress._shared.hidden_error import hidden_err, language_errors

    held_out, fitted = (
        hidden_err(output.model, data.model, windows, data.blocks, output.rotation).numpy()
        for windows in (data.windows, output.calibration)
    )
    more = {name: values.numpy() for name, values in language_errors(output.model, data.model, data.few).items()}
    return {"hidden_err": held_out, "calibration_err": fitted.mean(), **more}


def measured_err(output: Quantized, data: Data) -> float:
    """Geometric mean of the held-out error over windows."""
    from bakeoff.compress._shared.hidden_error import hidden_err

    return float(hidden_err(output.model, data.model, data.windows, data.blocks, output.rotation).log().mean().exp())

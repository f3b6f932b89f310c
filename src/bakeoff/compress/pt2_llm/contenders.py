"""PT2-LLM and its rivals on one model: what the bout and its experiments run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.inputs.language import random_windows

if TYPE_CHECKING:
    import torch

    Made = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Any]
    """From weight (n, m), bias (n,) and mean of x x' (m, m) to the module in its place."""


@dataclass(frozen=True)
class Data:
    """A float model, token ids, and how much is done with them.

    ``train`` (tokens,) and ``test`` (windows, 128) are ids; the first ``blocks`` decoder blocks are quantized from
    ``samples`` sequences of ``seq_len`` tokens; AWQ chooses among ``exponents``; ``parts`` are PT2-LLM's switches.
    """

    model: Any
    tokenizer: Any
    train: torch.Tensor
    test: torch.Tensor
    blocks: int
    block_size: int
    samples: int
    seq_len: int
    exponents: int
    parts: dict[str, bool]


@dataclass(frozen=True)
class Quantized:
    """A model some of whose linear layers are quantized, and the errors ``e_w`` and ``e_x`` of each."""

    model: Any
    tokenizer: Any
    scheme: str
    layers: dict[str, dict[str, float]]

    @property
    def nbytes(self) -> int:
        """Of the quantized layers, as the checkpoint holds them."""
        return sum(len(part) for part in self._files())

    @property
    def bits(self) -> float:
        """Bits a weight of the quantized layers in the checkpoint; scales, order and padding included."""
        modules = [self.model.get_submodule(name) for name in self.layers]
        return 8.0 * self.nbytes / sum(int(m.in_features) * int(m.out_features) for m in modules)

    def _files(self) -> list[bytes]:
        """The tensors of every quantized layer but its bias, as safetensors writes them, without the header."""
        import safetensors.torch

        files = []
        for name in self.layers:
            state = {k: v.contiguous() for k, v in self.model.get_submodule(name).state_dict().items() if k != "bias"}
            raw = safetensors.torch.save(state)
            files.append(raw[8 + int.from_bytes(raw[:8], "little") :])
        return files

    def save(self, folder: Path) -> None:
        """A checkpoint that from_pretrained loads."""
        from .._shared.quantizer import attach

        attach(self.model, self.scheme)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def quantized(data: Data, seed: int, scheme: str, make: Made) -> Quantized:
    """Replace the linear layers of the first blocks, each from the inputs that those before it give."""
    from .._shared.streams import clone, walk
    from .blocks import relative_errors

    model, layers = clone(data.model), {}

    def replace(name: str, W: torch.Tensor, bias: torch.Tensor | None, H: torch.Tensor, _: torch.Tensor | None) -> Any:
        module = make(W, bias, H)
        layers[name] = relative_errors(W, module.dequantize(), H)
        return module

    calibration = random_windows(data.train, data.samples, data.seq_len, seed)
    walk(model, [calibration], replace, blocks=data.blocks, paired=False)
    return Quantized(model, data.tokenizer, scheme, layers)


def pt2_llm(data: Data, seed: int, without: tuple[str, ...] = ()) -> Quantized:
    """The paper's method, without some of the parts ssr, aga and itf."""
    from .linear import TernaryLinear
    from .method import PT2LLM

    itf, aga, ssr = (data.parts[part] and part not in without for part in ("itf", "aga", "ssr"))
    method = PT2LLM(data.block_size, itf=itf, aga=aga, ssr=ssr)
    return quantized(data, seed, "ternary", lambda W, bias, H: TernaryLinear.pack(method.ternarize(W, H), bias))


def optq_ternary(data: Data, seed: int) -> Quantized:
    """OPTQ on {-1, 0, 1} in groups of 64: as many bytes as PT2-LLM."""
    return _optq(data, seed, bits=1.58, symmetric=True, group_size=64)


def optq_2bit(data: Data, seed: int) -> Quantized:
    """OPTQ on four levels with zero points in groups of 128."""
    return _optq(data, seed, bits=2, symmetric=False, group_size=128)


def _optq(data: Data, seed: int, bits: float, symmetric: bool, group_size: int) -> Quantized:
    from .._shared.grid import GridSpec
    from .._shared.quant_linear import QuantLinear
    from .._shared.rounding import optq

    def make(W: torch.Tensor, bias: torch.Tensor | None, H: torch.Tensor) -> Any:
        grid = GridSpec(bits, symmetric, min(group_size, W.shape[1]), "mse").fit(W)
        return QuantLinear.pack(optq(W, H, grid), grid, bias)

    return quantized(data, seed, "grid", make)


def awq_2bit(data: Data, seed: int) -> Quantized:
    """Columns scaled by a power of their inputs' size, chosen among 21 on the calibration text; then to nearest."""
    from .._shared.grid import GridSpec
    from .._shared.quant_linear import QuantLinear
    from .._shared.rounding import awq

    def make(W: torch.Tensor, bias: torch.Tensor | None, H: torch.Tensor) -> Any:
        spec = GridSpec(2, False, min(128, W.shape[1]), "mse")
        values, grid, scale = awq(W, H, spec, exponents=data.exponents)
        return QuantLinear.pack(values, grid, bias, input_scale=scale)

    return quantized(data, seed, "grid", make)


def rtn_2bit(data: Data, seed: int) -> Quantized:
    """Four levels with zero points in groups of 128, scales by squared error, to nearest."""
    from .._shared.grid import GridSpec
    from .._shared.quant_linear import QuantLinear
    from .._shared.rounding import rtn

    def make(W: torch.Tensor, bias: torch.Tensor | None, _: torch.Tensor) -> Any:
        grid = GridSpec(2, False, min(128, W.shape[1]), "mse").fit(W)
        return QuantLinear.pack(rtn(W, grid), grid, bias)

    return quantized(data, seed, "grid", make)


def twn(data: Data, seed: int) -> Quantized:
    """Ternary weight networks: per row alpha T with the threshold .75 mean |w|, alpha the mean |w| above it."""

    def make(W: torch.Tensor, bias: torch.Tensor | None, _: torch.Tensor) -> Any:
        large = W.abs() > 0.75 * W.abs().mean(1, keepdim=True)
        alpha = (W.abs() * large).sum(1) / large.sum(1).clamp(min=1)
        return _scaled_rows(W.sign() * large, alpha, bias)

    return quantized(data, seed, "grid", make)


def absmean(data: Data, seed: int) -> Quantized:
    """One scale a matrix, the mean |w|, and to nearest: how BitNet rounds weights that it trains."""

    def make(W: torch.Tensor, bias: torch.Tensor | None, _: torch.Tensor) -> Any:
        alpha = W.abs().mean()
        return _scaled_rows((W / (alpha if alpha > 0 else 1)).round().clamp(-1, 1), alpha.expand(len(W)), bias)

    return quantized(data, seed, "grid", make)


def _scaled_rows(T: torch.Tensor, alpha: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """The layer of weights alpha T, alpha (n,)."""
    import torch

    from .._shared.grid import Grid, stored
    from .._shared.quant_linear import QuantLinear

    scale = stored(alpha)[:, None]
    grid = Grid(scale, torch.zeros_like(scale), -1, 1, torch.zeros(T.shape[1], dtype=torch.int64))
    return QuantLinear.pack(scale * T, grid, bias)


def measured(output: Quantized, data: Data) -> dict[str, Any]:
    """Errors on new text, per window, and the size; see the bout's METRICS."""
    import numpy as np

    from .._shared.hidden_error import hidden_err, language_errors

    whole = language_errors(output.model, data.model, data.test[:: max(1, len(data.test) // 16)])
    layers = output.layers.values()
    return {
        "hidden_err": hidden_err(output.model, data.model, data.test, data.blocks).numpy(),
        "bits": output.bits,
        **{name: float(values.mean()) for name, values in whole.items()},
        **{name: float(np.mean([errors[name] for errors in layers])) for name in ("e_w", "e_x")},
        "layers": output.layers,
    }

"""The cache of FASA: keys and values, and beside them the dimensions that the prediction reads, transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers.cache_utils import Cache, DynamicLayer

if TYPE_CHECKING:
    from .calibration import FasaCalibration

Variant = Literal["C", "M"]


class Growing:
    """A tensor that grows along one axis; its memory doubles when it is full, so that a step writes and copies little.

    Parameters
    ----------
    axis : int
        Negative.
    host : bool
        Keep it in CPU memory, pinned where the data comes from a GPU.
    """

    def __init__(self, axis: int, host: bool = False) -> None:
        self.axis, self.host = axis, host
        self.memory: torch.Tensor | None = None
        self.length = 0

    @property
    def tensor(self) -> torch.Tensor:
        """What was appended so far, a view."""
        assert self.memory is not None
        return self.memory.narrow(self.axis, 0, self.length)

    def append(self, new: torch.Tensor) -> None:
        """Put `new` behind what is there."""
        end = self.length + new.shape[self.axis]
        if self.memory is None or end > self.memory.shape[self.axis]:
            self._enlarge(new, end)
        assert self.memory is not None
        self.memory.narrow(self.axis, self.length, end - self.length).copy_(new)
        self.length = end

    def _enlarge(self, new: torch.Tensor, end: int) -> None:
        shape = list(new.shape)
        shape[self.axis] = max(2 * self.length, end + 64)
        old = self.tensor if self.memory is not None else None
        pinned = self.host and new.device.type == "cuda"
        self.memory = torch.zeros(shape, dtype=new.dtype, device="cpu" if self.host else new.device, pin_memory=pinned)
        if old is not None:
            self.memory.narrow(self.axis, 0, self.length).copy_(old)

    def change(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Select or repeat rows of the batch."""
        if self.memory is not None:
            self.memory = rows(self.memory)

    def crop(self, count: int) -> None:
        """Forget the last `count`."""
        self.length = max(self.length - count, 0)

    @property
    def nbytes(self) -> int:
        """Bytes in use, without the spare room."""
        return self.tensor.nbytes if self.memory is not None else 0


class FasaLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a layer and, where `dims` is given, a transposed copy of each query head's own dimensions.

    Parameters
    ----------
    dims : LongTensor of shape (H, m), optional
        Dimensions that each query head reads; None keeps no copy.
    variant : {"C", "M"}
        M: keys and values lie in CPU memory, only the copy stays on the device.
    """

    def __init__(self, dims: torch.Tensor | None = None, variant: Variant = "C") -> None:
        super().__init__()
        self.dims, self.host = dims, variant == "M"
        self._keys, self._values, self._dom = Growing(-2, self.host), Growing(-2, self.host), Growing(-1)

    @property
    def dom_keys(self) -> torch.Tensor | None:
        """The copy so far, (B, H, m, t); None where none is kept."""
        return None if self._dom.memory is None else self._dom.tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (B, Hkv, T, d) and return all keys and values; those of a first call as they came."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first = self._keys.length == 0
        self._keys.append(key_states)
        self._values.append(value_states)
        if self.dims is not None:
            self._dom.append(self._dominant(key_states))
        self._show()
        return (key_states, value_states) if first else (self.keys, self.values)

    def _dominant(self, keys: torch.Tensor) -> torch.Tensor:
        assert self.dims is not None
        self.dims = self.dims.to(keys.device)
        heads = torch.arange(len(self.dims), device=keys.device) // (len(self.dims) // keys.shape[1])
        return keys.transpose(-1, -2)[:, heads[:, None], self.dims]

    def _show(self) -> None:
        self.keys, self.values = self._keys.tensor, self._values.tensor

    def _change(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.get_seq_length() > 0:
            for part in (self._keys, self._values, self._dom):
                part.change(rows)
            self._show()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Follow the beams, the copy too."""
        self._change(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        self._change(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows of the batch."""
        self._change(lambda x: x[indices.to(x.device)])

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; a negative number, as in transformers."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of tokens, not {tokens_to_remove}")
        if self.is_initialized:
            for part in (self._keys, self._values, self._dom):
                part.crop(-tokens_to_remove)
            self._show()

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._keys, self._values, self._dom = Growing(-2, self.host), Growing(-2, self.host), Growing(-1)

    def offload(self) -> None:
        """Variant M is how this cache leaves the device; there is nothing more to move."""

    def prefetch(self) -> None:
        """See `offload`."""


class FasaCache(Cache):  # type: ignore[misc]
    """A cache for ``model.generate(..., cache=FasaCache(calibration))``; one for each request.

    Besides keys and values it keeps ``dom_keys`` (B, H, 2 n_tip, capacity), the key dimensions that `Fasa` reads at
    every step: contiguous and transposed, which makes the prediction several times faster [ours]. The dimensions are
    those of query heads, so with G query heads to a key head the copy holds G n_tip / d of the bytes of keys and
    values together (12.5 % for n_tip = 16, d = 128 and no sharing of keys: the paper's 8x of variant M).

    Parameters
    ----------
    calibration : FasaCalibration
    variant : {"C", "M"}, default="C"
        C: everything on the model's device. M: keys and values in CPU memory, the chosen rows are fetched at every
        step, without prefetching; on the CPU it saves nothing.
    full_layers : int, default=0
        First layers without a copy; the number that `Fasa` has.
    include_rest : bool, default=False
        As in `Fasa`.

    Raises
    ------
    ValueError
        An unknown variant.
    """

    def __init__(
        self,
        calibration: FasaCalibration,
        variant: Variant = "C",
        *,
        full_layers: int = 0,
        include_rest: bool = False,
    ) -> None:
        if variant not in ("C", "M"):
            raise ValueError(f"variant must be 'C' or 'M', not {variant!r}")
        dims = calibration.dims(include_rest)
        super().__init__(
            layers=[
                FasaLayer(None if layer < full_layers else dims[layer], "C" if layer < full_layers else variant)
                for layer in range(calibration.rotary.layers)
            ]
        )
        self.variant = variant

    def nbytes(self) -> dict[str, int]:
        """Bytes in use: ``keys_values`` wherever they lie, ``dom_keys``, and ``resident``, on the model's device."""
        kept = [layer._keys.nbytes + layer._values.nbytes for layer in self.layers]
        away = sum(size for size, layer in zip(kept, self.layers, strict=True) if layer.host)
        copies = sum(layer._dom.nbytes for layer in self.layers)
        return {"keys_values": sum(kept), "dom_keys": copies, "resident": sum(kept) - away + copies}

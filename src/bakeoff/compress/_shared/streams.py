"""Walk over a model's decoder blocks with two streams of hidden states: the float model's and the quantized one's.

Linear layers that read the same tensor form a group. For each group in the order of the forward pass both streams are
run up to its input, in chunks of sequences; ``H = mean(x~ x~')`` and ``G = mean(x~ x')`` of the quantized input x~ and
the float input x are gathered, every layer of the group is replaced, and the walk goes on behind it. Only the hidden
states before the present block, H and G are kept.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from .quant_linear import fake_quantize

SUPPORTED = ("torch.nn.Linear", "transformers.pytorch_utils.Conv1D")

Quantize = Callable[[str, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None], nn.Module]
"""(name, weight (n, N) float32, bias, H, G or None) -> the module that takes the layer's place."""


class _StopError(Exception):
    """Not an error: ends a forward pass at the module whose input is wanted."""


class Part(NamedTuple):
    """A stretch of a block from hidden states to hidden states, and the groups of layers in it, by name."""

    run: Callable[[nn.Module, torch.Tensor, dict[str, Any]], torch.Tensor]
    groups: list[list[str]]


class Chunk:
    """Some sequences: their two hidden states, what each block is called with besides, and which tokens count."""

    def __init__(self, start: torch.Tensor, settings: list[dict[str, Any]], kept: torch.Tensor | None) -> None:
        self.real, self.quantized, self.settings, self.kept = start, start, settings, kept


@torch.no_grad()
def walk(
    model: nn.Module,
    calibration: Iterable[Any],
    quantize: Quantize,
    *,
    blocks: int | None = None,
    paired: bool = True,
    act_bits: int | None = None,
    kv_bits: int | None = None,
    skip: tuple[str, ...] = ("lm_head",),
    chunk: int = 16,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Replace the linear layers of the first blocks of a model, in place; no tensor of the model is changed.

    Parameters
    ----------
    model : nn.Module
        A language model of transformers, or any model of one tensor, which then counts as one block.
    calibration : iterable
        input_ids (B, T) int64, or dicts with input_ids and perhaps attention_mask (padded tokens are not counted); for
        other models their input (B, ...).
    quantize : callable
        See `Quantize`; the weight of a Conv1D comes transposed.
    blocks : int, optional
        Only the first so many.
    paired : bool
        Also walk the float stream and gather G.
    act_bits, kv_bits : int, optional
        In the quantized stream the inputs of layers, and keys (rotated) and values, are quantized; the modules that
        `quantize` returns have to see to their own inputs.
    skip : tuple of str
        Layers whose name ends with one of these stay.
    chunk : int
        Sequences at a time.
    dtype : torch.dtype
        Of H and G.
    progress : callable, optional
        Told (groups done, groups in all, name) after each group.

    Raises
    ------
    ValueError
        Layers that are not supported, values that are not finite (with the module's name), sequences longer than the
        model's context, or more blocks than there are. The model is then as it was.
    """
    prefix, found = decoder_blocks(model)
    chosen = found[:blocks]
    if blocks is not None and not 1 <= blocks <= len(found):
        raise ValueError(f"blocks={blocks}, the model has {len(found)}")
    for name, block in zip(prefix, chosen, strict=False):
        check_supported(name, block)
    chunks = _starts(model, chosen, calibration, chunk)
    if kv_bits is not None:
        from .kv_cache import quantize_kv

        quantize_kv(model, chosen, kv_bits)
    replaced: list[tuple[str, nn.Module]] = []
    try:
        for index, (name, block) in enumerate(zip(prefix, chosen, strict=False)):
            walker = _Block(block, name, index, chunks, paired, act_bits, skip, dtype, index + 1 == len(chosen))
            for done, of, at in walker.run(quantize, replaced):
                if progress is not None:
                    progress(index * of + done, len(chosen) * of, at)
    except BaseException:
        for full, layer in replaced:
            model.set_submodule(full, layer)
        raise


class _Block:
    """The walk over one block."""

    def __init__(
        self,
        block: nn.Module,
        name: str,
        index: int,
        chunks: list[Chunk],
        paired: bool,
        act_bits: int | None,
        skip: tuple[str, ...],
        dtype: torch.dtype,
        last: bool,
    ) -> None:
        self.dtype, self.last = dtype, last
        self.block, self.name, self.index, self.chunks, self.act_bits = block, name, index, chunks, act_bits
        self.original = clone(block) if paired else None
        for module in self.original.modules() if self.original is not None else ():
            module.__dict__.pop("kv_bits", None)
        self.parts = _parts(block, chunks[0], index, skip)

    def run(self, quantize: Quantize, replaced: list[tuple[str, nn.Module]]) -> Iterator[tuple[int, int, str]]:
        """Replace the layers; after each group (groups done, groups in all, name)."""
        total, done = sum(len(part.groups) for part in self.parts), 0
        for part in self.parts:
            ahead = not (self.last and part is self.parts[-1])  # nobody reads what comes after the last part
            for group in part.groups:
                H, G = self._gather(part, group[0], ahead and group is part.groups[-1])
                for name in group:
                    layer: Any = self.block.get_submodule(name)
                    full = f"{self.name}.{name}" if self.name else name
                    try:
                        new = quantize(full, weight_of(layer), layer.bias, H, G)
                    except ValueError as error:
                        raise ValueError(f"{full}: {error}") from error
                    self.block.set_submodule(name, new)
                    replaced.append((full, layer))
                done += 1
                yield done, total, f"{self.name}.{group[0]}" if self.name else group[0]
            for chunk in self.chunks if ahead else ():
                settings = chunk.settings[self.index]
                chunk.quantized = part.run(self.block, chunk.quantized, settings)
                if self.original is not None and not part.groups:
                    chunk.real = part.run(self.original, chunk.real, settings)

    def _gather(self, part: Part, name: str, ahead: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """H and G at the input of a layer, as running means over tokens; `ahead`: the float stream walks the part."""
        H: torch.Tensor | None = None
        G: torch.Tensor | None = None
        count = 0
        for chunk in self.chunks:
            noisy, _ = self._input(part, self.block, name, chunk.quantized, chunk)
            if self.act_bits is not None:
                noisy = fake_quantize(noisy, self.act_bits)
            count += len(noisy)
            H = _mean(H, noisy, noisy, count)
            if self.original is not None:
                exact, after = self._input(part, self.original, name, chunk.real, chunk, ahead)
                G = _mean(G, noisy, exact, count)
                chunk.real = chunk.real if after is None else after
        assert H is not None
        return H, G

    def _input(
        self, part: Part, block: nn.Module, name: str, hidden: torch.Tensor, chunk: Chunk, ahead: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What one layer reads, (tokens, N), in a forward pass that ends there, or with `ahead` goes on to its end."""
        seen: list[torch.Tensor] = []
        after = None

        def note(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            seen.append(inputs[0])
            if not ahead:
                raise _StopError

        handle = block.get_submodule(name).register_forward_pre_hook(note)
        try:
            with suppress(_StopError):
                after = part.run(block, hidden, chunk.settings[self.index])
        finally:
            handle.remove()
        x = seen[0] if chunk.kept is None else seen[0][chunk.kept]
        x = x.reshape(-1, x.shape[-1]).to(self.dtype)
        if not x.isfinite().all():
            raise ValueError(f"NaN or infinite activations at the input of {self.name}.{name}")
        return x, after


def _mean(mean: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor, count: int) -> torch.Tensor:
    """Mean of left x right' over `count` tokens, of which these are the last; `mean`, that of the others, is reused."""
    share = len(left) / count
    product = (left.T @ right).mul_(share / len(left))
    return product if mean is None else mean.mul_(1 - share).add_(product)


def clone(model: nn.Module) -> Any:
    """The same modules anew around the very same tensors."""
    return copy.deepcopy(model, {id(t): t for t in chain(model.parameters(), model.buffers())})


def weight_of(layer: Any) -> torch.Tensor:
    """The weight (n, N) in float32; that of a Conv1D is transposed."""
    weight: torch.Tensor = layer.weight.detach()
    return (weight if isinstance(layer, nn.Linear) else weight.T).float()


def layers_of(block: nn.Module, skip: tuple[str, ...] = ()) -> dict[str, nn.Module]:
    """The linear layers of a module by name."""
    found = {name: m for name, m in block.named_modules() if _is_linear(m)}
    return {name: m for name, m in found.items() if not name.endswith(skip)}


def _is_linear(module: nn.Module) -> bool:
    return f"{type(module).__module__}.{type(module).__name__}" in (*SUPPORTED, "torch.nn.modules.linear.Linear")


def decoder_blocks(model: nn.Module) -> tuple[list[str], list[Any]]:
    """Names and modules of the decoder blocks; a model that is none of transformers' is one block."""
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    if count is None:
        return [""], [model]
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return [f"{name}.{i}" for i in range(count)], list(module)
    raise ValueError(f"{type(model).__name__} has no list of {count} decoder blocks")


def check_supported(name: str, block: nn.Module) -> None:
    for inner, module in block.named_modules():
        weights = [p for p in module.parameters(recurse=False) if p.ndim >= 2]
        if weights and not _is_linear(module) and (name or isinstance(module, nn.Linear)):
            raise ValueError(f"{name}.{inner} is a {type(module).__name__}; supported are {' and '.join(SUPPORTED)}")
    if not layers_of(block):
        kinds = sorted({type(m).__name__ for m in block.modules() if not list(m.children())})
        raise ValueError(f"no layer to quantize: found {', '.join(kinds)}; supported are {' and '.join(SUPPORTED)}")


def _attention_half(block: Any, hidden: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    result: torch.Tensor = hidden + block.self_attn(hidden_states=block.input_layernorm(hidden), **settings)[0]
    return result


def _mlp_half(block: Any, hidden: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    result: torch.Tensor = hidden + block.mlp(block.post_attention_layernorm(hidden))
    return result


def _whole(block: Any, hidden: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    found = block(hidden, **settings)
    result: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return result


def _parts(block: nn.Module, chunk: Chunk, index: int, skip: tuple[str, ...]) -> list[Part]:
    """Two halves where they compute what the block does (Llama and its kin), else the block as a whole.

    Halves save time: what lies before the present half is not run again for each of its groups.
    """
    hidden, settings = chunk.real, chunk.settings[index]
    runs: tuple[Callable[..., torch.Tensor], ...] = (_whole,)
    if all(hasattr(block, name) for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")):
        try:
            same = torch.equal(
                _mlp_half(block, _attention_half(block, hidden, settings), settings), _whole(block, hidden, settings)
            )
        except TypeError:
            same = False
        runs = (_attention_half, _mlp_half) if same else runs
    parts = []
    for run in runs:
        groups, hidden = _groups(block, run, hidden, settings, skip)
        parts.append(Part(run, groups))
    missed = set(layers_of(block, skip)) - {name for part in parts for group in part.groups for name in group}
    if missed:
        raise ValueError(f"{min(missed)} is not reached by every token (a mixture of experts?), which is not supported")
    return parts


def _groups(
    block: nn.Module,
    run: Callable[..., torch.Tensor],
    hidden: torch.Tensor,
    settings: dict[str, Any],
    skip: tuple[str, ...],
) -> tuple[list[list[str]], torch.Tensor]:
    """Layers that read the same tensor, in the order of the forward pass; and what the pass gives."""
    read: list[tuple[str, torch.Tensor]] = []
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: read.append((name, inputs[0])))
        for name, layer in layers_of(block, skip).items()
    ]
    try:
        after = run(block, hidden, settings)
    finally:
        for handle in handles:
            handle.remove()
    groups: dict[int, list[str]] = {}
    for name, tensor in read:
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values()), after


# Where the streams start


def _starts(model: nn.Module, blocks: list[nn.Module], calibration: Iterable[Any], size: int) -> list[Chunk]:
    """The hidden states before the first block, and what the model hands to each block."""
    chunks = []
    for batch in calibration:
        fields = dict(batch) if hasattr(batch, "keys") else {"input_ids": batch}
        for start in range(0, len(next(iter(fields.values()))), size):
            part = {name: value[start : start + size] for name, value in fields.items() if name != "labels"}
            chunks.append(_start(model, blocks, part))
    if not chunks:
        raise ValueError("the calibration is empty")
    return chunks


def _start(model: nn.Module, blocks: list[nn.Module], fields: dict[str, torch.Tensor]) -> Chunk:
    ids, mask = fields["input_ids"], fields.get("attention_mask")
    if blocks == [model]:
        return Chunk(ids, [{}], None)
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and ids.shape[1] > context:
        raise ValueError(f"calibration sequences of {ids.shape[1]} tokens, the model's context is {context}")
    seen: list[torch.Tensor] = []
    settings: list[dict[str, Any]] = []
    with _recorded(blocks, seen, settings), suppress(_StopError):
        model(**fields, use_cache=False)
    return Chunk(seen[0], settings, None if mask is None or mask.all() else mask.bool())


@contextmanager
def _recorded(blocks: list[nn.Module], seen: list[torch.Tensor], settings: list[dict[str, Any]]) -> Iterator[None]:
    """Blocks pass hidden states on as they are and note what else they were called with; the last one stops."""

    def record(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        hidden = args[0] if args else kwargs.pop("hidden_states")
        assert isinstance(hidden, torch.Tensor)
        seen.append(hidden)
        names = list(inspect.signature(type(blocks[index]).forward).parameters)[2:]  # after self and hidden_states
        settings.append(dict(zip(names, args[1:], strict=False)) | kwargs)
        if index == len(blocks) - 1:
            raise _StopError
        return hidden

    for index, block in enumerate(blocks):
        block.forward = lambda *args, _i=index, **kwargs: record(_i, args, kwargs)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward

"""Rewrites of a model's weights that leave what it computes unchanged and make them easier to round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from bakeoff.compress._shared.streams import clone, decoder_blocks, walk

Transform = Literal["none", "hadamard", "equalize"]
PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


@torch.no_grad()
def transformed(model: Any, transform: Transform, calibration: Iterable[Any]) -> torch.Tensor | None:
    """Rewrite a model of Llama's build in place; with "hadamard" the residual stream is multiplied by what is returned.

    Weights are replaced, never changed: a clone that shares them is safe.

    Raises
    ------
    ValueError
        A model of another build.
    """
    if transform == "none":
        return None
    _check(model)
    if transform == "hadamard":
        return rotate(model)
    equalize(model, calibration)
    return None


def _check(model: Any) -> None:
    inner = getattr(model, "model", None)
    fits = all(hasattr(inner, name) for name in ("embed_tokens", "norm", "layers"))
    fits = fits and all(hasattr(block, part) for block in decoder_blocks(model)[1] for part in PARTS)
    fits = fits and all(type(block.input_layernorm).__name__.endswith("RMSNorm") for block in decoder_blocks(model)[1])
    names = ("q_norm", "k_norm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    if not fits or any(name.rpartition(".")[2] in names for name, _ in model.named_modules()):
        raise ValueError(f"transforms are for models of Llama's build; {type(model).__name__} is another")


def rotate(model: Any) -> torch.Tensor:
    """Multiply the residual stream by an orthogonal matrix that spreads every direction over all of them.

    Gains of norms go into the layers behind them first, so that a norm commutes with the rotation; a tied lm_head is
    untied for it.
    """
    inner = model.model
    R = incoherent(inner.embed_tokens.weight.shape[1])
    head = model.lm_head
    gain = _take_gain(inner.norm)
    _set(head, head.weight.double() * gain @ R)
    model.config.tie_word_embeddings = False
    _set(inner.embed_tokens, inner.embed_tokens.weight.double() @ R)
    for block in inner.layers:
        for norm, readers, writer in _branches(block):
            gain = _take_gain(norm)
            for layer in readers:
                _set(layer, layer.weight.double() * gain @ R)
            _set(writer, R.T @ writer.weight.double())
            if writer.bias is not None:
                writer.bias = nn.Parameter((R.T @ writer.bias.double()).to(writer.bias.dtype), requires_grad=False)
    return R


def incoherent(n: int) -> torch.Tensor:
    """Orthogonal (n, n) float64: signs, Hadamard's matrix of the power of two in n, a cosine transform of the rest.

    All entries have the size ``n^-1/2`` where n is a power of two. The odd part is [ours].
    """
    odd = n
    H = torch.ones(1, 1, dtype=torch.float64)
    while odd % 2 == 0:
        odd //= 2
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)]) / 2**0.5
    k = torch.arange(odd, dtype=torch.float64)
    cosines = torch.cos(torch.pi / odd * k[:, None] * (k + 0.5)) * (2 / odd) ** 0.5
    cosines[0] /= 2**0.5
    signs = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    return signs[:, None] * torch.kron(cosines.contiguous(), H.contiguous())


def equalize(model: Any, calibration: Iterable[Any]) -> None:
    """Divide the inputs of every group of layers by ``max|x_j|^.5 / max|w_j|^.5`` and multiply their columns by it.

    The divisor goes into the gain of the norm before q, k, v and gate, up; into the rows of up before down; into the
    rows of v before o, where heads that share a value also share it.
    """
    peaks = _peaks(model, calibration)
    for name, block in zip(*decoder_blocks(model), strict=True):
        attention, mlp = block.self_attn, block.mlp
        for norm, readers, _ in _branches(block):
            full = f"{name}.self_attn.q_proj" if norm is block.input_layernorm else f"{name}.mlp.gate_proj"
            s = _divisor(peaks[full], readers)
            norm.weight = nn.Parameter((norm.weight.double() / s).to(norm.weight.dtype), requires_grad=False)
            for layer in readers:
                _set(layer, layer.weight.double() * s)
        s = _divisor(peaks[f"{name}.mlp.down_proj"], [mlp.down_proj])
        _rescale(mlp.up_proj, mlp.down_proj, s, s)
        s = _divisor(peaks[f"{name}.self_attn.o_proj"], [attention.o_proj])
        width = attention.head_dim
        shared = s.view(-1, s.numel() // attention.v_proj.weight.shape[0], width).amax(1)  # (value heads, head_dim)
        repeats = s.numel() // shared.numel()
        _rescale(attention.v_proj, attention.o_proj, shared.flatten(), shared.repeat_interleave(repeats, 0).flatten())


def _rescale(writer: Any, reader: Any, rows: torch.Tensor, columns: torch.Tensor) -> None:
    _set(writer, writer.weight.double() / rows[:, None])
    if writer.bias is not None:
        writer.bias = nn.Parameter((writer.bias.double() / rows).to(writer.bias.dtype), requires_grad=False)
    _set(reader, reader.weight.double() * columns)


def _peaks(model: Any, calibration: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Largest absolute input of every layer, (N,), by the layer's name."""
    found: dict[str, torch.Tensor] = {}
    copy = clone(model)
    handles = [
        layer.register_forward_pre_hook(lambda _, x, name=name: _note(found, name, x[0]))
        for name, layer in copy.named_modules()
        if isinstance(layer, nn.Linear) and not name.endswith("lm_head")
    ]
    walk(copy, calibration, lambda name, W, bias, H, G: copy.get_submodule(name), paired=False)
    for handle in handles:
        handle.remove()
    return found


def _note(found: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> None:
    peak = x.detach().flatten(0, -2).abs().amax(0).double()
    found[name] = torch.maximum(found[name], peak) if name in found else peak


def _divisor(peak: torch.Tensor, readers: list[Any]) -> torch.Tensor:
    """``max|x_j|^.5 / max|w_j|^.5``, 1 for dead columns."""
    largest = torch.stack([layer.weight.double().abs().amax(0) for layer in readers]).amax(0)
    s = (peak / largest).sqrt()
    return torch.where((peak > 0) & (largest > 0), s, torch.ones_like(s))


def _branches(block: Any) -> list[tuple[Any, list[Any], Any]]:
    """The two branches of a block: norm, the layers that read it, the layer that writes back."""
    attention, mlp = block.self_attn, block.mlp
    return [
        (block.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], attention.o_proj),
        (block.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], mlp.down_proj),
    ]


def _take_gain(norm: Any) -> torch.Tensor:
    gain = norm.weight.detach().double()
    norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
    result: torch.Tensor = gain
    return result


def _set(layer: Any, weight: torch.Tensor) -> None:
    layer.weight = nn.Parameter(weight.to(layer.weight.dtype), requires_grad=False)

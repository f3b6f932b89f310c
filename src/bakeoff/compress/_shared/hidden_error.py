"""How far a quantized model is from the float one, per window of held-out text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from .streams import decoder_blocks

WINDOWS_AT_ONCE = 8


@torch.no_grad()
def hidden_err(
    model: Any, original: Any, windows: torch.Tensor, blocks: int, rotation: torch.Tensor | None = None
) -> torch.Tensor:
    """``||h~ - h|| / ||h||`` of the hidden states after some blocks, (windows,) float64.

    Position 0 is left out: its activations, an attention sink, can dominate the norm.

    Parameters
    ----------
    model, original : transformers model
    windows : Tensor (windows, T) int64
    blocks : int
        Hidden states after so many blocks.
    rotation : Tensor (N, N), optional
        The quantized model's residual stream is the float one times this orthogonal matrix.
    """
    found = []
    for part in torch.split(windows, WINDOWS_AT_ONCE):
        h = hidden_states(original, part, blocks)[:, 1:].double()
        noisy = hidden_states(model, part, blocks)[:, 1:].double()
        if rotation is not None:
            noisy = noisy @ rotation.double().T
        found.append((noisy - h).flatten(1).norm(dim=1) / h.flatten(1).norm(dim=1))
    return torch.cat(found)


class _FoundError(Exception):
    """Not an error: ends the forward pass after the wanted block."""


def hidden_states(model: Any, ids: torch.Tensor, blocks: int) -> torch.Tensor:
    """Hidden states (B, T, N) after the first `blocks` blocks."""
    seen: list[torch.Tensor] = []

    def stop(_: Any, __: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)
        raise _FoundError

    handle = decoder_blocks(model)[1][blocks - 1].register_forward_hook(stop)
    try:
        with suppress(_FoundError):
            model(input_ids=ids, use_cache=False)
    finally:
        handle.remove()
    return seen[0]


@torch.no_grad()
def language_errors(model: Any, original: Any, windows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per window (windows,): ``nll`` of the model in nats a token, ``kl`` of it to the float model."""
    nll, kl = [], []
    for part in torch.split(windows, WINDOWS_AT_ONCE // 2):
        theirs = model(input_ids=part, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        ours = original(input_ids=part, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        nll.append(-theirs.gather(2, part[:, 1:, None])[:, :, 0].double().mean(1))
        kl.append((ours.exp() * (ours - theirs)).sum(-1).double().mean(1).clamp(min=0))
    return {"nll": torch.cat(nll), "kl": torch.cat(kl)}

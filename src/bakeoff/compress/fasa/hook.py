"""How an attention of our own reaches the layers of a transformers model, with the cache of the request in hand.

The attention function that transformers calls sees neither the cache nor the request. A hook on the decoder hands an
`Attender` down with the other keyword arguments; nothing is kept on the modules, so requests can share a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from bakeoff.hosts.transformers import register_attention

NAME = "bakeoff_fasa"


class Attender(Protocol):
    """What answers for the attention of all layers in one forward pass."""

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
    ) -> torch.Tensor | None:
        """The output (B, H, Tq, d), or None for full attention."""


def install(model: Any, attender: Callable[[int, Any], Attender]) -> Callable[[], None]:
    """Route the attention of `model` through what ``attender(new tokens, cache or None)`` gives for each forward pass.

    Returns
    -------
    callable
        Undoes it.

    Raises
    ------
    ValueError
        The model is routed already, or its attention cannot be replaced.
    """
    before = model.config._attn_implementation
    if before == NAME:
        raise ValueError(f"the attention of this {type(model).__name__} is replaced already: detach it first")
    register_attention(NAME, _attention)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ValueError(f"the attention of {type(model).__name__} cannot be replaced in this version of transformers")

    def hand_down(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens = next(x for x in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None)
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        return args, {**kwargs, "bakeoff_attender": attender(tokens.shape[1], cache)}

    handle = model.get_decoder().register_forward_pre_hook(hand_down, with_kwargs=True)

    def undo() -> None:
        handle.remove()
        model.set_attn_implementation(before)

    return undo


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    bakeoff_attender: Attender | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    for unknown in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(unknown) is not None:
            raise ValueError(f"{type(module).__name__} changes its scores by {unknown}, which FASA does not know")
    if bakeoff_attender is not None:
        out = bakeoff_attender(module, query, key, value, attention_mask, scaling)
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
    here = query.device  # a cache in host memory hands out keys that lie there
    whole: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key.to(here), value.to(here), attention_mask, scaling=scaling, **kwargs
    )
    return whole

"""Keys and values of attention on a grid of their own, per token and head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bakeoff.hosts.transformers import register_attention

from .quant_linear import fake_quantize

NAME = "bakeoff_kv"


def quantize_kv(model: Any, blocks: list[nn.Module], bits: int) -> None:
    """Quantize keys (after rotation) and values in the attention of these blocks of a model of transformers."""
    register_attention(NAME, attention)
    model.set_attn_implementation(NAME)
    for block in blocks:
        for module in block.modules():
            if hasattr(module, "layer_idx"):
                module.kv_bits = bits  # type: ignore[assignment]


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scaled dot products as of "sdpa"; modules with the attribute ``kv_bits`` quantize what would be cached."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if bits := getattr(module, "kv_bits", None):
        key, value = fake_quantize(key, bits), fake_quantize(value, bits)
    result: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **settings
    )
    return result

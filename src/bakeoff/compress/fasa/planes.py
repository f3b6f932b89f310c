"""The frequency chunks of rotary positions: which dimensions of a head rotate together, and what each adds to a score.

RoPE turns d/2 planes of a head independently, so that a score is a sum over planes, exactly:
alpha(q, k) = sum_i alpha_i with alpha_i the product of q and k within plane i. Small i turn fast, large i slowly.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rotary:
    """How a model rotates its queries and keys.

    ``layout`` "half" pairs dimension i with i + rotary_dim / 2 (Llama, Qwen, Mistral), "interleaved" pairs 2i with
    2i + 1 (GPT-J, GLM, Cohere). Dimensions from ``rotary_dim`` on are not rotated and belong to no plane.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    layout: Layout

    @property
    def planes(self) -> int:
        """Number of planes of a head."""
        return self.rotary_dim // 2

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    def dims(self, planes: torch.Tensor) -> torch.Tensor:
        """Dimensions of `planes` (..., n): first of every plane, then its partner, (..., 2 n)."""
        if self.layout == "half":
            return torch.cat([planes, planes + self.planes], dim=-1)
        return torch.cat([2 * planes, 2 * planes + 1], dim=-1)

    def mismatches(self, other: Rotary) -> list[str]:
        """What differs, as "heads 9, not 8"."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name} {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]


def rotary_of(model: Any, layout: Layout | None = None) -> Rotary:
    """Heads and planes of a transformers model.

    Parameters
    ----------
    model : PreTrainedModel
        With rotary positions, full causal self-attention in every layer, and keys and values per head.
    layout : {"half", "interleaved"}, optional
        By default found out by asking the model's own ``rotate_half``.

    Raises
    ------
    ValueError
        No rotary positions; latent (MLA), cross- or sliding-window attention; a layout that cannot be found out.
    """
    config = model.config.get_text_config(decoder=True)
    check_config(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Rotary(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim(config, head_dim),
        layout=layout or _layout(model),
    )


def check_config(config: Any) -> None:
    """Refuse what FASA cannot speak of; needs no weights.

    Raises
    ------
    ValueError
    """
    name = type(config).__name__
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(f"FASA needs keys per head; {name} has latent attention (MLA)")
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ValueError(f"FASA is for decoders with self-attention alone; {name} has cross-attention")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rotary_dim", None)
    if not rope or getattr(config, "alibi", False):
        raise ValueError(f"FASA needs rotary positions; {name} has none")
    if 0 in (getattr(config, "no_rope_layers", None) or []):
        raise ValueError(f"FASA needs rotary positions; {name} has layers without them")
    windowed = sorted(set(getattr(config, "layer_types", None) or []) - {"full_attention"})
    if windowed or (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)):
        raise ValueError(f"FASA needs full attention in every layer; {name} has {', '.join(windowed) or 'a window'}")


def rotary_dim(config: Any, head_dim: int) -> int:
    """Rotated dimensions of a head: all, or those of a partial rotary embedding."""
    if fixed := getattr(config, "rotary_dim", None):
        return int(fixed)
    rope = getattr(config, "rope_parameters", None) or {}
    share = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return int(head_dim * share)


def _layout(model: Any) -> Layout:
    """Rotating 0, 1, 2, 3 by a quarter turn gives -2, -3, 0, 1 in the one layout and -1, 0, -3, 2 in the other."""
    module = sys.modules[type(model).__module__]
    rotate = getattr(module, "rotate_half", None) or getattr(module, "rotate_every_two", None)
    if rotate is not None:
        turned = rotate(torch.arange(4.0).view(1, 1, 1, 4)).flatten().tolist()
        if turned == [-2, -3, 0, 1]:
            return "half"
        if turned == [-1, 0, -3, 2]:
            return "interleaved"
    raise ValueError(
        f"cannot tell how {type(model).__name__} pairs its dimensions; give layout='half' or 'interleaved'"
    )


def plane_scores(query: torch.Tensor, keys: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """What every plane adds to every score of one head: query (Tq, d), keys (Tk, d), both rotated -> (P, Tq, Tk)."""
    dims = rotary.dims(torch.arange(rotary.planes).unsqueeze(-1)).to(query.device)  # (P, 2)
    return torch.einsum("qpc,tpc->pqt", query[:, dims], keys[:, dims])


def contextual_agreement(scores: torch.Tensor, by_plane: torch.Tensor, k: int) -> torch.Tensor:
    """CA: the share of the top k tokens by the full score that are among the top k by other scores.

    Parameters
    ----------
    scores : Tensor of shape (..., Tq, Tk)
        Full scores; -inf where a key may not be attended to.
    by_plane : Tensor of shape (P, ..., Tq, Tk)
        Scores to be judged, with the same -inf.
    k : int
        Tokens in a top; every query needs as many keys.

    Returns
    -------
    Tensor of shape (P, ..., Tq)
    """
    top = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(k).indices, True)
    chosen = by_plane.topk(k).indices
    return top.expand(by_plane.shape).gather(-1, chosen).float().mean(-1)

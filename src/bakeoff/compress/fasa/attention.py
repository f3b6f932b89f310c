"""The two stages of a step: predict which tokens matter from a few dimensions, attend to those alone.

Shapes: B batch, H query heads, Hkv key heads, G = H / Hkv, t keys, d head size, m dimensions read, n tokens kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention


def top_mask(scores: torch.Tensor, n: int) -> torch.Tensor:
    """Where the n largest of the last axis are, of equal ones the first, of NaN none before a number: bool."""
    floor = _nth_largest(scores, n)
    keep = scores >= floor
    if bool((keep.sum(-1) == n).all()):
        return keep
    if scores.isnan().any():
        return top_mask(scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf), n)
    above, tied = scores > floor, scores == floor
    return above | (tied & (tied.cumsum(-1) <= n - above.sum(-1, keepdim=True)))


def _nth_largest(scores: torch.Tensor, n: int) -> torch.Tensor:
    if scores.device.type == "cpu" and scores.dtype == torch.float32:  # numpy selects about eight times faster
        t = scores.shape[-1]
        return torch.from_numpy(np.partition(scores.detach().numpy(), t - n, axis=-1)[..., t - n, None])
    return scores.topk(n, sorted=False).values.amin(-1, keepdim=True)


def top_positions(scores: torch.Tensor, n: int) -> torch.Tensor:
    """Positions of the n largest of the last axis, ascending; of equal ones the first: scores (..., t) -> (..., n)."""
    mask = top_mask(scores, n)
    if mask.device.type == "cpu":  # numpy finds them four times faster
        flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    else:
        flat = mask.flatten().nonzero()[:, 0]
    return (flat % scores.shape[-1]).view(*scores.shape[:-1], n)


def forced(allowed: torch.Tensor, sink: int, recent: int) -> torch.Tensor:
    """The first `sink` and last `recent` of the keys that a query may attend to, (..., t) bool like `allowed`."""
    rank = allowed.cumsum(-1, dtype=torch.int32)
    return allowed & ((rank <= sink) | (rank > rank[..., -1:] - recent))


def keep_mask(scores: torch.Tensor, allowed: torch.Tensor, n: int, sink: int, recent: int) -> torch.Tensor:
    """Which n keys each query reads: the forced ones, then the best scores: (..., Tq, t) bool.

    Parameters
    ----------
    scores : Tensor of shape (..., Tq, t)
    allowed : bool Tensor that broadcasts to it
        Causal and padding mask.
    n, sink, recent : int
        Keys kept, of which the first `sink` and the last `recent` (at least the current one) are forced.
    """
    ranked = scores.masked_fill(~allowed, -torch.inf).masked_fill(forced(allowed, sink, max(recent, 1)), torch.inf)
    return top_mask(ranked, min(n, scores.shape[-1])) & allowed


def choose(scores: torch.Tensor, valid: torch.Tensor | None, n: int, sink: int, recent: int) -> torch.Tensor:
    """Positions that one query reads, ascending: scores (B, H, t), valid (B, 1, t) or None for all -> (B, H, n)."""
    recent, t = max(recent, 1), scores.shape[-1]
    if valid is not None:
        scores = scores.masked_fill(~valid, -torch.inf).masked_fill(forced(valid, sink, recent), torch.inf)
        return top_positions(scores, n)
    ends = torch.cat([torch.arange(sink), torch.arange(t - recent, t)]).to(scores.device).expand(*scores.shape[:2], -1)
    if n == sink + recent:
        return ends
    middle = top_positions(scores[..., sink : t - recent], n - sink - recent) + sink
    return torch.cat([ends[..., :sink], middle, ends[..., sink:]], dim=-1)


def dimension_query(query: torch.Tensor, dims: torch.Tensor) -> torch.Tensor:
    """The query with all but each head's `dims` (H, m) zeroed: its product with the keys is the partial score."""
    mask = torch.zeros(dims.shape[0], query.shape[-1], dtype=query.dtype, device=query.device).scatter(1, dims, 1)
    return query * mask[:, None]


def grouped_scores(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """q . K for query (B, H, Tq, d) and keys (B, Hkv, t, d) without repeating keys: (B, H, Tq, t)."""
    batch, heads, rows, d = query.shape
    packed = query.reshape(batch, keys.shape[1], heads // keys.shape[1] * rows, d)
    return (packed @ keys.transpose(-1, -2)).view(batch, heads, rows, keys.shape[2])


def attend_to(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    index: torch.Tensor,
    valid: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Exact attention of one query on the rows `index`, which keep their rotation: (B, H, 1, d).

    Parameters
    ----------
    query : Tensor of shape (B, H, 1, d)
    keys, values : Tensor of shape (B, Hkv, t, d)
        May lie on another device than the query: the chosen rows are fetched.
    index : Tensor of shape (B, H, n), or (B, Hkv, n) where the heads of a group read the same rows
    valid : bool Tensor of shape (B, 1, t), optional
        Rows outside of it get no weight.
    scaling : float, optional
        1 / sqrt(d) by default.
    """
    batch, heads = index.shape[:2]
    chosen_keys, chosen_values = (_rows(x, index.to(x.device)).to(query.device) for x in (keys, values))
    mask = None
    if valid is not None:
        mask = valid.expand(batch, heads, -1).gather(-1, index).unsqueeze(2)
    packed = query.reshape(batch, heads, -1, query.shape[-1])
    out = scaled_dot_product_attention(packed, chosen_keys, chosen_values, attn_mask=mask, scale=scaling)
    return out.reshape(batch, query.shape[1], 1, -1)


def _rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows `index` (B, H, n) of x (B, Hkv, t, d), query head h from key head h Hkv / H: (B, H, n, d)."""
    (batch, heads, n), d = index.shape, x.shape[-1]
    owner = (torch.arange(heads, device=x.device) // (heads // x.shape[1]))[:, None]
    row = torch.arange(batch, device=x.device)[:, None, None]
    of_batch, of_head, of_row, of_column = x.stride()
    if (of_row, of_column) != (d, 1) or of_batch % d or of_head % d:
        return x[row, owner, index]
    # all rows in one list, spare room of the memory included: picking from it is several times faster
    count = ((batch - 1) * of_batch + (x.shape[1] - 1) * of_head) // d + x.shape[2]
    listed = x.as_strided((count, d), (d, 1), x.storage_offset())
    at = index + row * (of_batch // d) + owner * (of_head // d)
    return listed.index_select(0, at.flatten()).view(batch, heads, n, d)


def as_allowed(mask: torch.Tensor | None, rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """A mask of transformers, boolean or additive or none for causal, as (B or 1, 1, rows, keys) bool."""
    if mask is None:
        position = torch.arange(keys - rows, keys, device=device)[:, None]
        return (torch.arange(keys, device=device) <= position)[None, None]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2

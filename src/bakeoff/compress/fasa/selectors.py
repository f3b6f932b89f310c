"""Which tokens each contender of the bout reads at a decode step, given what it could know by then.

Every selector gets the same `Seen` of a layer and answers with a mask. All of them keep the same sinks and recents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import avg_pool1d

from .attention import dimension_query, grouped_scores, keep_mask

if TYPE_CHECKING:
    from .calibration import FasaCalibration
    from .planes import Rotary

Selector = Callable[["Seen"], torch.Tensor]


class Seen(NamedTuple):
    """One layer in one forward pass: its last D queries are decode steps, those before belong to the prompt.

    query (B, H, D, d); scores (B, H, D, Tk) unscaled; steps (D, Tk) their causal mask; of the prompt (`prompt` keys)
    asked (B, H, P, d), its queries in this pass; key (B, Hkv, Tk, d). n tokens may be read, `sink` and `recent` of
    them are forced.
    """

    layer: int
    query: torch.Tensor
    asked: torch.Tensor
    key: torch.Tensor
    scores: torch.Tensor
    steps: torch.Tensor
    scaling: float
    prompt: int
    n: int
    sink: int
    recent: int

    def keep(self, scores: torch.Tensor, recent: int | None = None) -> torch.Tensor:
        """The forced tokens and the best by `scores`, which broadcast to (B, H, D, Tk)."""
        recent = self.recent if recent is None else recent
        return keep_mask(scores.expand_as(self.scores), self.steps, self.n, self.sink, recent)

    def prompt_weights(self, rows: int) -> torch.Tensor:
        """Attention of the last `rows` queries of the prompt, which must be in sight: (B, H, rows, prompt)."""
        scores = grouped_scores(self.asked[:, :, -rows:], self.key[:, :, : self.prompt]) * self.scaling
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def everything(seen: Seen) -> torch.Tensor:
    """Full attention."""
    return seen.steps.expand_as(seen.scores)


def oracle(seen: Seen) -> torch.Tensor:
    """The tokens with the largest full score."""
    return seen.keep(seen.scores)


def streaming(seen: Seen) -> torch.Tensor:
    """StreamingLLM: the sinks and the last tokens."""
    return seen.keep(torch.arange(seen.key.shape[2], dtype=torch.float32))


@dataclass
class Planes:
    """FASA: the best by the dominant dimensions of each head, layer -> (H, m)."""

    dims: dict[int, torch.Tensor]

    def __call__(self, seen: Seen) -> torch.Tensor:
        return seen.keep(grouped_scores(dimension_query(seen.query, self.dims[seen.layer]), seen.key))


@dataclass
class SparQ:
    """SparQ: the best by the `r` dimensions in which this query is largest; no mean-value correction."""

    r: int

    def __call__(self, seen: Seen) -> torch.Tensor:
        query = seen.query
        largest = query.abs().topk(self.r).indices
        return seen.keep(
            grouped_scores(torch.zeros_like(query).scatter(-1, largest, query.gather(-1, largest)), seen.key)
        )


@dataclass
class Quest:
    """Quest: tokens of the pages with the largest upper bound sum_i max(q_i min_i, q_i max_i).

    Whole pages, the last of them cut where the budget ends. The page that is being filled has the bounds of the keys
    that it holds by then.
    """

    page: int

    def __call__(self, seen: Seen) -> torch.Tensor:
        group, length = seen.query.shape[1] // seen.key.shape[1], seen.key.shape[2]
        spare = seen.key[:, :, -1:].expand(-1, -1, -length % self.page, -1)
        filled = torch.cat([seen.key, spare], 2)
        pages = filled.view(*filled.shape[:2], -1, self.page, filled.shape[-1])
        query = seen.query
        low, high = pages.amin(3), pages.amax(3)
        bound = grouped_scores(query.clamp(max=0), low) + grouped_scores(query.clamp(min=0), high)
        bound = bound.repeat_interleave(self.page, -1)[..., :length]
        at = torch.arange(length - query.shape[2], length)
        so_far = [
            x.flatten(2, 3)[:, :, at].repeat_interleave(group, 1) for x in (pages.cummin(3)[0], pages.cummax(3)[0])
        ]
        current = (query.clamp(max=0) * so_far[0] + query.clamp(min=0) * so_far[1]).sum(-1, keepdim=True)
        own_page = (torch.arange(length) // self.page)[None] == (at // self.page)[:, None]
        return seen.keep(torch.where(own_page, current, bound))


@dataclass
class SnapKV:
    """SnapKV: the prompt is compressed once, by the attention of its last `window` queries, averaged over neighbours.

    What it dropped stays dropped. The published method then keeps all generated tokens and grows; here, with a budget
    for both, half of it goes to the prompt's tokens (the sinks among them) and half to the last tokens [ours].
    """

    window: int = 32
    pool: int = 7
    votes: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, seen: Seen) -> torch.Tensor:
        if seen.asked.shape[2] > 0:
            weights = seen.prompt_weights(min(self.window, seen.prompt)).sum(2)
            self.votes[seen.layer] = avg_pool1d(weights, self.pool, 1, self.pool // 2, count_include_pad=False)
        votes = self.votes[seen.layer]
        later = votes.new_full((*votes.shape[:2], seen.key.shape[2] - seen.prompt), -1.0)
        return seen.keep(torch.cat([votes, later], -1).unsqueeze(2), max(seen.n // 2, seen.recent))


class PromptSnapKV(SnapKV):
    """SnapKV as published, for a few tokens behind the prompt: these and its window are kept, the rest is voted."""

    def __call__(self, seen: Seen) -> torch.Tensor:
        super().__call__(seen)
        votes = self.votes[seen.layer]
        later = seen.key.shape[2] - seen.prompt
        scores = torch.cat([votes, votes.new_full((*votes.shape[:2], later), -1.0)], -1)
        return seen.keep(scores.unsqueeze(2), later + self.window)


def h2o(seen: Seen) -> torch.Tensor:
    """H2O: half the budget for the last tokens, half for those with the most attention so far, the sinks among them.

    A token that is dropped is gone, and attention is summed over the tokens still kept.
    """
    scores, prompt = seen.scores * seen.scaling, seen.prompt
    total = scores.new_zeros((*scores.shape[:2], 1, scores.shape[-1]))
    total[..., :prompt] = seen.prompt_weights(prompt).sum(2, keepdim=True)
    alive = torch.zeros_like(total, dtype=torch.bool)
    alive[..., :prompt] = True
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for step in range(scores.shape[2]):
        alive[..., prompt + step] = True
        alive = keep_mask(total, alive, seen.n, seen.sink, max(seen.n // 2, seen.recent))
        total += scores[:, :, step : step + 1].masked_fill(~alive, -torch.inf).softmax(-1)
        kept[:, :, step] = alive[:, :, 0]
    return kept


@dataclass
class Randomly:
    """Tokens at random, drawn anew for every head and step."""

    generator: torch.Generator

    def __call__(self, seen: Seen) -> torch.Tensor:
        return seen.keep(torch.rand(seen.scores.shape, generator=self.generator))


def random_calibration(rotary: Rotary, n_tip: int, seed: int) -> FasaCalibration:
    """A calibration in which every head reads planes at random."""
    from .calibration import FasaCalibration

    generator = torch.Generator().manual_seed(seed)
    drawn = {layer: torch.rand(rotary.heads, rotary.planes, generator=generator) for layer in range(rotary.layers)}
    return FasaCalibration(drawn, rotary, n_tip)


def slowest_planes(rotary: Rotary, n_tip: int) -> FasaCalibration:
    """A calibration in which every head reads the planes of lowest frequency."""
    from .calibration import FasaCalibration

    order = torch.arange(float(rotary.planes)).expand(rotary.heads, -1)
    return FasaCalibration(dict.fromkeys(range(rotary.layers), order), rotary, n_tip)

"""Decoding with a budget, simulated in one forward pass: exact for quality, silent on speed.

The rows of a prompt attend to everything. Every later row is a decode step, teacher-forced, that may read the tokens
its selector picks, in every layer and head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .attention import as_allowed, grouped_scores, top_mask
from .hook import install
from .selectors import Seen, Selector


@dataclass(frozen=True)
class Budget:
    """What a decode step may read: n tokens, `sink` first and `recent` last among them; the first layers are dense."""

    n: int
    sink: int = 4
    recent: int = 8
    full_layers: int = 0


@dataclass
class Simulation:
    """An `Attender`: a selector at work, and what it selected in every layer (means per row of the batch)."""

    selector: Selector
    budget: Budget
    prompt: int
    overlap: list[torch.Tensor] = field(default_factory=list)
    mass: list[torch.Tensor] = field(default_factory=list)

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
    ) -> torch.Tensor:
        keys, past = key.shape[2], key.shape[2] - query.shape[2]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        first = min(max(self.prompt - past, 0), query.shape[2])
        asked, query = query[:, :, :first], query[:, :, first:]
        n = keys if module.layer_idx < self.budget.full_layers else self.budget.n
        out = []
        if first:
            causal = as_allowed(None, first, past + first, query.device)
            before, values = key[:, :, : past + first], value[:, :, : past + first]
            out.append(sdpa(asked, before, values, attn_mask=causal, scale=scaling, enable_gqa=True))
        steps = as_allowed(None, query.shape[2], keys, query.device)[0, 0]
        seen = Seen(
            module.layer_idx,
            query,
            asked,
            key,
            grouped_scores(query, key),
            steps,
            scale,
            self.prompt,
            n,
            self.budget.sink,
            self.budget.recent,
        )
        weights = self._weights(seen)
        packed = weights.view(len(weights), key.shape[1], module.num_key_value_groups * query.shape[2], keys)
        out.append((packed @ value).view(query.shape))
        return torch.cat(out, dim=2)

    def _weights(self, seen: Seen) -> torch.Tensor:
        """Attention of the decode rows, zero on what they do not read."""
        scores = seen.scores.masked_fill(~seen.steps, -torch.inf)
        weights = (scores * seen.scaling).softmax(-1)
        keep = self.selector(seen)
        if not len(seen.steps) or seen.n >= scores.shape[-1]:
            return weights
        best = top_mask(scores, seen.n) & seen.steps
        self.overlap.append(((best & keep).sum(-1) / best.sum(-1)).mean((1, 2)))
        weights *= keep
        mass = weights.sum(-1, keepdim=True)
        self.mass.append(mass.mean((1, 2, 3)))
        return weights.div_(mass)


def simulate(
    model: Any, windows: torch.Tensor, prompt: int, selector: Selector, budget: Budget
) -> dict[str, torch.Tensor]:
    """Decode `windows` (W, T + 1) from position `prompt` on; the last token of a window is only a target.

    Returns
    -------
    dict
        ``nll`` in nats, ``overlap`` with the true top n and softmax ``mass`` read: means per window, (W,).
    """
    found = [_decode(model, part[None], prompt, selector, budget) for part in windows]
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def _decode(model: Any, ids: torch.Tensor, prompt: int, selector: Selector, budget: Budget) -> dict[str, torch.Tensor]:
    simulation = Simulation(selector, budget, prompt)
    steps = ids.shape[1] - 1 - prompt
    undo = install(model, lambda tokens, cache: simulation)
    try:
        with torch.no_grad():
            logits = model(ids[:, :-1], use_cache=False, logits_to_keep=steps).logits
    finally:
        undo()
    nll = cross_entropy(logits.flatten(0, 1), ids[:, prompt + 1 :].flatten(), reduction="none")
    result = {"nll": nll.view(len(ids), steps).double().mean(1)}
    for name, per_layer in (("overlap", simulation.overlap), ("mass", simulation.mass)):
        result[name] = torch.stack(per_layer).double().mean(0) if per_layer else torch.ones(len(ids)).double()
    return result

"""FASA: Frequency-Aware Sparse Attention (ICLR 2026, OpenReview FnSgecCEwg) for language models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch.nn.functional import scaled_dot_product_attention

from .attention import as_allowed, attend_to, choose, dimension_query, grouped_scores, keep_mask
from .cache import FasaCache, FasaLayer, Variant
from .calibration import FasaCalibration
from .hook import Attender, install
from .planes import rotary_of

Prefill = Literal["full", "sparse"]
GroupMode = Literal["per_head", "per_group"]


class Fasa:
    """Decoding that reads a few key dimensions to pick the tokens that matter, then attends to those alone, exactly.

    Training-free; no token is lost for good. Attach it to a model and generate as ever: greedy, sampling, beam
    search, batches padded on the left. At each step, in every layer and query head:

    1. (offline, `calibrate_fasa`) The dominant planes of the head: n_tip of its d / 2 rotating pairs of dimensions.
    2. Predict: the score of every cached token from the dominant dimensions alone, S = q[dims] . K[dims].
    3. Choose the n_fac tokens with the largest S, the current one always among them; of equal ones the first.
    4. Attend to the chosen tokens with all dimensions; they keep their rotation and position.

    A step reads 2 n_tip t + 2 n_fac d numbers of a head in place of 2 t d. The first forward pass over a prompt is
    full attention; contexts up to n_fac are full attention too. On a CPU it is slower than full attention on
    contexts below some thousands of tokens, see the report of ``bakeoff run fasa``.

    Parameters
    ----------
    calibration : FasaCalibration
        Of this model.
    n_fac : int, default=256
        Tokens that a head reads at a step.
    keep_sink, keep_recent : int, default=4, 8
        First and last tokens, the current one included, that are always read, within n_fac [ours]; 0 and 0 is the
        paper's text. They take the place of padding on the left.
    prefill : {"full", "sparse"}, default="full"
        "sparse" prunes every query of a prompt as if it were a step of its own, by masking: for measuring, not
        faster. Several new tokens at once (assisted decoding, chunks) count as prefill.
    group_mode : {"per_head", "per_group"}, default="per_head"
        "per_group": query heads that share keys read the same tokens, those with the largest sum of the heads'
        softmax(S) [ours].
    full_layers : int, default=0
        First layers that stay dense [ours].
    variant : {"C", "M"}, default="C"
        What `cache` gives: everything on the device, or keys and values in CPU memory (see `FasaCache`).
    decay : float, default=1.0
        Budget of the first sparse layer over that of the last, falling linearly, with the same total: larger than 1
        gives early layers more, as PyramidKV does.
    include_rest : bool, default=False
        Read the dimensions that a partial rotary embedding leaves alone too [ours].

    Raises
    ------
    ValueError
        n_fac below 1; keep_sink + keep_recent above n_fac; an unknown choice; at `attach`, another model's
        calibration (the differences are listed) or a model that FASA cannot speak of; at a forward pass, a prompt
        beyond the model's longest context, a cache of another calibration, or variant M without its cache.

    References
    ----------
    ICLR 2026, OpenReview FnSgecCEwg, arXiv 2602.03152. No code of the authors is public: this is a reconstruction
    from the paper, and what is marked [ours] is not in it.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from bakeoff.compress import Fasa, calibrate_fasa
    >>> config = LlamaConfig(
    ...     vocab_size=64,
    ...     hidden_size=32,
    ...     intermediate_size=64,
    ...     num_hidden_layers=2,
    ...     num_attention_heads=2,
    ...     num_key_value_heads=1,
    ... )
    >>> model = LlamaForCausalLM(config).eval()
    >>> ids = torch.randint(0, 64, (1, 64), generator=torch.Generator().manual_seed(0))
    >>> with Fasa(calibrate_fasa(model, ids), n_fac=32).attach(model) as fasa:
    ...     cache = fasa.cache()
    ...     out = model.generate(ids, cache=cache, max_new_tokens=8, do_sample=False, eos_token_id=None)
    >>> out.shape, cache.get_seq_length()
    (torch.Size([1, 72]), 71)
    """

    def __init__(
        self,
        calibration: FasaCalibration,
        n_fac: int = 256,
        keep_sink: int = 4,
        keep_recent: int = 8,
        prefill: Prefill = "full",
        group_mode: GroupMode = "per_head",
        full_layers: int = 0,
        variant: Variant = "C",
        *,
        decay: float = 1.0,
        include_rest: bool = False,
    ) -> None:
        check_budget(n_fac, keep_sink, keep_recent)
        for name, value, known in (
            ("prefill", prefill, ("full", "sparse")),
            ("group_mode", group_mode, ("per_head", "per_group")),
            ("variant", variant, ("C", "M")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")
        layers = calibration.rotary.layers
        if not 0 <= full_layers <= layers:
            raise ValueError(f"full_layers is {full_layers}; the model has {layers} layers")
        self.calibration, self.n_fac = calibration, n_fac
        self.keep_sink, self.keep_recent = keep_sink, keep_recent
        self.prefill, self.group_mode, self.variant = prefill, group_mode, variant
        self.full_layers, self.include_rest = full_layers, include_rest
        smallest = keep_sink + max(keep_recent, 1)
        self.budgets = [0] * full_layers + layer_budgets(layers - full_layers, n_fac, decay, smallest)
        self._dims = calibration.dims(include_rest)
        self._undo: Callable[[], None] | None = None

    def attach(self, model: Any) -> Self:
        """Replace the attention of `model`; ``with fasa.attach(model):`` gives it back at the end."""
        if self._undo is not None:
            raise ValueError("attached already: detach first, or use another Fasa")
        if differ := self.calibration.rotary.mismatches(rotary_of(model, self.calibration.rotary.layout)):
            raise ValueError(f"the calibration is of another model: {'; '.join(differ)}")
        longest = model.config.get_text_config(decoder=True).max_position_embeddings
        self._undo = install(model, lambda tokens, cache: self._attender(tokens, cache, longest))
        return self

    def detach(self) -> None:
        """Give the model its own attention back; nothing where it has it."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def cache(self) -> FasaCache:
        """A new cache for one request.

        Any other cache works with variant C too (also a static one), but then a step reads all key dimensions and
        is slower.
        """
        return FasaCache(self.calibration, self.variant, full_layers=self.full_layers, include_rest=self.include_rest)

    def _attender(self, tokens: int, cache: Any, longest: int) -> Attender:
        past = int(cache.get_seq_length()) if cache is not None else 0
        if tokens > 1 and past + tokens > longest:
            raise ValueError(f"a prompt of {past + tokens} tokens; the model's longest context is {longest}")
        if self.variant == "M" and cache is not None and getattr(cache, "variant", None) != "M":
            raise ValueError(
                f"variant M needs its own cache, not a {type(cache).__name__}: generate(cache=fasa.cache())"
            )
        if isinstance(cache, FasaCache) and past == 0:
            self._check_copy(cache)

        def attend(
            module: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            mask: torch.Tensor | None,
            scaling: float | None,
        ) -> torch.Tensor | None:
            layer = module.layer_idx
            if layer < self.full_layers or key.shape[-2] <= self.budgets[layer]:
                return None
            dims = self._dims[layer] = self._dims[layer].to(query.device)
            if query.shape[-2] == 1:
                kept = cache.layers[layer] if isinstance(cache, FasaCache) else None
                return self._step(query, key, value, mask, scaling, dims, kept, self.budgets[layer])
            if self.prefill == "full":
                return None
            return self._masked(query, key, value, mask, scaling, dims, self.budgets[layer])

        return attend

    def _check_copy(self, cache: FasaCache) -> None:
        """The cache must copy the dimensions that are read here: those of others would give wrong scores silently."""
        for layer, dims in zip(cache.layers, self._dims.values(), strict=False):
            if layer.dims is not None and not torch.equal(layer.dims.cpu(), dims.cpu()):
                raise ValueError("the FasaCache is of another calibration: generate(cache=fasa.cache())")

    def _step(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
        dims: torch.Tensor,
        kept: FasaLayer | None,
        budget: int,
    ) -> torch.Tensor:
        valid = None if mask is None else as_allowed(mask, 1, key.shape[-2], query.device)[:, :, 0]
        copy = kept.dom_keys if kept is not None else None
        scores = predict(query, key, dims, copy)  # 2.
        if self.group_mode == "per_group":
            scores = by_group(scores, valid, key.shape[1], scaling)
        index = choose(scores, valid, budget, self.keep_sink, self.keep_recent)  # 3.
        return attend_to(query, key, value, index, valid, scaling)  # 4.

    def _masked(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
        dims: torch.Tensor,
        budget: int,
    ) -> torch.Tensor:
        """Every query of a prompt as a step of its own; the scores are computed in full and masked."""
        key, value = key.to(query.device), value.to(query.device)
        allowed = as_allowed(mask, query.shape[-2], key.shape[-2], query.device)
        scores = grouped_scores(dimension_query(query, dims), key)
        if self.group_mode == "per_group":
            scores = by_group(scores, allowed, key.shape[1], scaling)
        keep = keep_mask(scores, allowed, budget, self.keep_sink, self.keep_recent)
        keep = keep.repeat_interleave(query.shape[1] // keep.shape[1], dim=1)
        return scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=scaling, enable_gqa=True)


def predict(query: torch.Tensor, key: torch.Tensor, dims: torch.Tensor, copy: torch.Tensor | None) -> torch.Tensor:
    """The token importance predictor: partial scores of all cached tokens, (B, H, t).

    Parameters
    ----------
    query : Tensor of shape (B, H, 1, d)
    key : Tensor of shape (B, Hkv, t, d)
        Used where there is no copy.
    dims : LongTensor of shape (H, m)
    copy : Tensor of shape (B, H, m, t), optional
        The dimensions `dims` of the keys, as `FasaCache` keeps them.
    """
    if copy is None:
        return grouped_scores(dimension_query(query, dims), key).squeeze(2)
    few = query.gather(-1, dims[None, :, None].expand(len(query), -1, -1, -1))
    return (few @ copy).squeeze(2)


def by_group(scores: torch.Tensor, allowed: torch.Tensor | None, kv_heads: int, scaling: float | None) -> torch.Tensor:
    """Sum of the softmax of the scores of the heads that share keys: (B, H, ..., t) -> (B, Hkv, ..., t)."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = (scores if scaling is None else scores * scaling).softmax(-1, dtype=torch.float32)
    return weights.view(len(weights), kv_heads, -1, *weights.shape[2:]).sum(2)


def check_budget(n_fac: int, keep_sink: int, keep_recent: int) -> None:
    """Refuse a budget that has no room for what is forced into it.

    Raises
    ------
    ValueError
    """
    if n_fac < 1:
        raise ValueError(f"n_fac is {n_fac}; at least the current token is read")
    if keep_sink < 0 or keep_recent < 0 or keep_sink + max(keep_recent, 1) > n_fac:
        raise ValueError(
            f"keep_sink {keep_sink} and keep_recent {keep_recent} (at least the current token) must fit into "
            f"n_fac {n_fac}"
        )


def layer_budgets(layers: int, n_fac: int, decay: float, smallest: int = 1) -> list[int]:
    """Tokens of each layer: a line from first to last with ratio `decay` and mean n_fac.

    Raises
    ------
    ValueError
        `decay` is not positive, or a layer would get fewer than `smallest` tokens.
    """
    if not decay > 0:
        raise ValueError(f"decay is {decay}; it is the first layer's budget over the last one's")
    last = 2 * n_fac / (1 + decay)
    ends = torch.linspace(decay * last, last, layers, dtype=torch.float64).cumsum(0).round().long().tolist()
    budgets = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if budgets and min(budgets) < smallest:
        raise ValueError(f"with decay {decay} a layer gets {min(budgets)} tokens; {smallest} are always read")
    return budgets

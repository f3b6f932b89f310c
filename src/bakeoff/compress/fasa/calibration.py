"""Offline calibration: which planes of every head point at the tokens that the whole head points at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .hook import install
from .planes import Layout, Rotary, contextual_agreement, plane_scores, rotary_of

FORMAT = "bakeoff-fasa-1"


@dataclass(frozen=True)
class FasaCalibration:
    """The dominant planes of every layer and query head.

    Attributes
    ----------
    ca : dict of int to Tensor of shape (H, P)
        Mean contextual agreement of every plane, by layer.
    rotary : Rotary
        Heads, planes and layout of the model.
    n_tip : int
        Planes that are read.
    meta : dict of str to int
        ``queries``, over which CA is a mean, ``k`` and ``tokens`` of the sample.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from bakeoff.compress import FasaCalibration, calibrate_fasa
    >>> config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    ...                      num_attention_heads=2, num_key_value_heads=1)
    >>> ids = torch.randint(0, 64, (1, 64), generator=torch.Generator().manual_seed(0))
    >>> calibration = calibrate_fasa(LlamaForCausalLM(config).eval(), ids, n_tip=2)
    >>> calibration.dominant[0].shape  # layer 0: two of the eight planes of both heads
    torch.Size([2, 2])
    """

    ca: dict[int, torch.Tensor]
    rotary: Rotary
    n_tip: int
    meta: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.n_tip <= self.rotary.planes:
            raise ValueError(f"n_tip is {self.n_tip}; a head has {self.rotary.planes} planes, so 1 to that many")

    @property
    def dominant(self) -> dict[int, torch.Tensor]:
        """The n_tip planes with the largest CA, ascending: layer -> LongTensor (H, n_tip); of equal ones the first."""
        order = {layer: ca.sort(dim=-1, descending=True, stable=True).indices for layer, ca in self.ca.items()}
        return {layer: planes[:, : self.n_tip].sort(-1).values for layer, planes in order.items()}

    def dims(self, include_rest: bool = False) -> dict[int, torch.Tensor]:
        """Key dimensions that each head reads: layer -> LongTensor (H, 2 n_tip), and the unrotated ones if wanted."""
        rest = torch.arange(self.rotary.rotary_dim, self.rotary.head_dim) if include_rest else torch.empty(0).long()
        chosen = {layer: self.rotary.dims(planes) for layer, planes in self.dominant.items()}
        return {layer: torch.cat([dims, rest.expand(len(dims), -1)], -1) for layer, dims in chosen.items()}

    def with_n_tip(self, n_tip: int) -> FasaCalibration:
        """The same calibration with another number of planes; nothing is measured again."""
        return replace(self, n_tip=n_tip)

    def save(self, path: Path | str) -> Path:
        """Write one safetensors file (into ``fasa.safetensors`` where `path` is a folder) and return its path."""
        from safetensors.torch import save_file

        file = Path(path) / "fasa.safetensors" if Path(path).is_dir() else Path(path)
        numbers = {**asdict(self.rotary), **self.meta, "n_tip": self.n_tip}
        metadata = {"format": FORMAT, **{name: str(value) for name, value in numbers.items()}}
        save_file({f"ca.{layer}": ca.contiguous() for layer, ca in self.ca.items()}, file, metadata)
        return file

    @classmethod
    def load(cls, path: Path | str) -> FasaCalibration:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            Not such a file.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata() or {}
                ca = {int(name.removeprefix("ca.")): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path} is not a calibration of FASA: {error}") from error
        if meta.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is not a calibration of FASA")
        layout: Any = meta.pop("layout")
        numbers = {name: int(value) for name, value in meta.items()}
        shape = {name: numbers.pop(name) for name in ("layers", "heads", "kv_heads", "head_dim", "rotary_dim")}
        rotary = Rotary(**shape, layout=layout)
        found = {(layer, tuple(agreement.shape)) for layer, agreement in ca.items()}
        if found != {(layer, (rotary.heads, rotary.planes)) for layer in range(rotary.layers)}:
            raise ValueError(f"{path} does not hold the layers and heads that it names")
        return cls(dict(sorted(ca.items())), rotary, numbers.pop("n_tip"), numbers)


def calibrate_fasa(
    model: Any,
    input_ids: torch.Tensor,
    *,
    n_tip: int | None = None,
    k: int | None = None,
    stride: int = 16,
    layout: Layout | None = None,
    previous: FasaCalibration | None = None,
) -> FasaCalibration:
    """Measure which planes agree with the whole head on the tokens that matter: one forward pass of the model.

    For every head, the contextual agreement of a plane is the share of the k tokens with the largest full score that
    are also among the k with the largest score within the plane alone, averaged over queries. The n_tip planes with
    the largest mean are the exact maximiser of the paper's objective, which is a sum over planes.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder with rotary positions; left as it was.
    input_ids : LongTensor of shape (B, T)
        Text without padding; one sample of some hundred tokens is enough.
    n_tip : int, optional
        Planes to read at every step; d / 8, a quarter of them, by default.
    k : int, optional
        Tokens in a top; min(256, T / 4) by default.
    stride : int, default=16
        Every so many positions of the last half of the sample are queries; those with fewer than 2 k keys are not.
    layout : {"half", "interleaved"}, optional
        How dimensions are paired, where the model does not tell, see `Rotary`.
    previous : FasaCalibration, optional
        Go on from there: the result is the mean over the queries of both.

    Raises
    ------
    ValueError
        No rotary positions, see `rotary_of`; fewer than 4 k tokens or more than the model's longest context;
        n_tip beyond the planes; another model's `previous`.

    Notes
    -----
    With grouped keys every query head gets planes of its own [ours]: the paper indexes by layer and head.
    """
    rotary = rotary_of(model, layout)
    n_tip = max(rotary.head_dim // 8, 1) if n_tip is None else n_tip
    if not 1 <= n_tip <= rotary.planes:
        raise ValueError(f"n_tip is {n_tip}; a head has {rotary.planes} planes, so 1 to that many")
    if previous is not None and (differ := previous.rotary.mismatches(rotary)):
        raise ValueError(f"`previous` is of another model: {'; '.join(differ)}")
    length = input_ids.shape[-1]
    k = min(256, length // 4) if k is None else k
    if k < 1 or length < 4 * k or stride < 1:
        raise ValueError(f"a calibration text of at least {max(4 * k, 4)} tokens is needed, 4 k; found {length}")
    longest = model.config.get_text_config(decoder=True).max_position_embeddings
    if length > longest:
        raise ValueError(f"a calibration text of {length} tokens; the model's longest context is {longest}")
    agreement = _Agreement(rotary, torch.arange(length // 2, length, stride), k)
    undo = install(model, lambda tokens, cache: agreement)
    try:
        with torch.no_grad():
            model.get_decoder()(input_ids=input_ids.to(model.device), use_cache=False)
    finally:
        undo()
    queries = len(agreement.positions) * len(input_ids)
    ca = agreement.ca
    if previous is not None:
        before = previous.meta["queries"]
        ca = {layer: (before * previous.ca[layer] + queries * ca[layer]) / (before + queries) for layer in ca}
        queries += before
    return FasaCalibration(ca, rotary, n_tip, {"queries": queries, "k": k, "tokens": length, "stride": stride})


class _Agreement:
    """An `Attender` that measures and leaves the attention full."""

    def __init__(self, rotary: Rotary, positions: torch.Tensor, k: int) -> None:
        self.rotary, self.positions, self.k = rotary, positions[positions + 1 >= 2 * k], k
        self.ca: dict[int, torch.Tensor] = {}

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
    ) -> None:
        heads = [self._head(query[:, h], key[:, h // self.rotary.group]) for h in range(self.rotary.heads)]
        self.ca[module.layer_idx] = torch.stack(heads).cpu()

    def _head(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """CA of the planes of one head, mean over samples and queries: (B, T, d) twice -> (P,)."""
        hidden = torch.arange(keys.shape[1]) > self.positions[:, None]
        means = []
        for q, k in zip(query[:, self.positions].float(), keys.float(), strict=True):
            by_plane = plane_scores(q, k, self.rotary).masked_fill(hidden.to(q.device), -torch.inf)
            means.append(contextual_agreement(self._whole(q, k, hidden), by_plane, self.k).mean(-1))
        return torch.stack(means).mean(0)

    @staticmethod
    def _whole(query: torch.Tensor, keys: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return (query @ keys.T).masked_fill(hidden.to(query.device), -torch.inf)

"""What a kernel on permutations compares: features, anchors, descriptors, embedding and their squared distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .features import ENUMERATION, MERGE, Ints, invert, merge_length, pair_length

Floats = NDArray[Any]
Features = Callable[[Ints], NDArray[Any]]
KernelName = Literal["merge", "mallows", "position", "spearman", "kendall"]
Space = Literal["order", "position"]

KERNELS = ("merge", "mallows", "position", "spearman", "kendall")
DESCRIPTORS = ("shift", "split", "motif")
SORTS = {"merge": MERGE, "mallows": ENUMERATION, "kendall": ENUMERATION}
MOTIF_ITEMS = 3
SMALLEST_NOISE = 1e-10
"""Noise relative to the kernel's diagonal; with less, rows evaluated twice make the Gram matrix singular in float64."""


@dataclass(frozen=True)
class FeatureMap:
    """Permutations -> features whose squared distances the kernel is a function of.

    Parameters
    ----------
    n : int
        Number of items, at least 2.
    kernel : {"merge", "mallows", "position", "spearman", "kendall"} or callable
        Base features: comparisons of merge sort; all pairs; one-hot positions (BoTorch's categorical kernel);
        centred ranks; all pairs in a linear kernel; or a function (B, n) -> (B, F) of the user's own.
    space : {"order", "position"}
        Featurise p, or argsort(p).
    anchors : int
        Feature blocks whose kernels are averaged: the first of p itself, the others after relabelling the values by
        a random permutation [ours].
    descriptors : tuple of "shift", "split", "motif"
        Blocks of the paper's first version, appended to the base features, each scaled to a largest norm of 1.
    embedding_dim : int, optional
        Multiply the features by a fixed Gaussian matrix with entries N(0, 1/embedding_dim).
    seed : int
        Of the anchors and the embedding.
    """

    n: int
    kernel: KernelName | Features = "merge"
    space: Space = "order"
    anchors: int = 1
    descriptors: tuple[str, ...] = ()
    embedding_dim: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        merge_length(self.n)
        if not callable(self.kernel) and self.kernel not in KERNELS:
            raise ValueError(f"kernel {self.kernel!r}: expected one of {', '.join(KERNELS)} or a function of features")
        if self.space not in ("order", "position"):
            raise ValueError(f"space {self.space!r}: expected 'order' or 'position'")
        if self.anchors < 1 or (self.embedding_dim is not None and self.embedding_dim < 1):
            raise ValueError("anchors and embedding_dim must be at least 1")
        for name in self.descriptors:
            if name not in DESCRIPTORS:
                raise ValueError(f"descriptor {name!r}: expected one of {', '.join(DESCRIPTORS)}")
        if "motif" in self.descriptors and self.n < MOTIF_ITEMS:
            raise ValueError("the motif descriptor needs at least 3 items")

    @property
    def linear(self) -> bool:
        """Whether the kernel is the inner product (Kendall) and not exp(-l * squared distance)."""
        return self.kernel == "kendall"

    @property
    def length(self) -> int:
        """Number of features of one anchor."""
        return int(self(np.arange(self.n)[None, :]).shape[-1])

    @cached_property
    def norm(self) -> float:
        """Squared norm of the raw features (callables: their number), divided out so that |phi|^2 = 1."""
        if self._normalised or callable(self.kernel):
            return 1.0
        return self._base_norm

    @property
    def _counts_matches(self) -> bool:
        """Whether positions are compared directly, which costs n a pair where one-hot vectors cost n^2."""
        return self.kernel == "position" and not self._normalised

    @property
    def _normalised(self) -> bool:
        return bool(self.descriptors) or self.embedding_dim is not None

    @property
    def _base_norm(self) -> float:
        """Squared norm of the base features before any scaling."""
        n, name = self.n, str(self.kernel)
        return float(SORTS[name].length(n) if name in SORTS else n if name == "position" else n * (n * n - 1) / 3)

    @cached_property
    def _relabellings(self) -> tuple[Ints, ...]:
        rng = np.random.default_rng(self.seed)
        return tuple(rng.permutation(self.n) for _ in range(self.anchors - 1))

    @cached_property
    def _projection(self) -> NDArray[np.float64]:
        """The Gaussian matrix; its rows are as many as the features of one anchor."""
        assert self.embedding_dim is not None
        width = self._anchor_features(np.arange(self.n)[None, :]).shape[1]
        rng = np.random.default_rng((self.seed, 1))
        return rng.normal(0.0, self.embedding_dim**-0.5, size=(width, self.embedding_dim))

    def __call__(self, perms: Ints) -> Floats:
        """Features (A, B, F) of checked permutations (B, n).

        +-1 features are float32, which adds up their products exactly below 2^24 terms; others are float64. The plain
        position kernel keeps the permutations themselves: n matches instead of n^2 one-hot products.
        """
        if self.space == "position":
            perms = invert(perms)
        blocks = [self._anchor_features(p) for p in (perms, *(label[perms] for label in self._relabellings))]
        if self.embedding_dim is not None:
            blocks = [block @ self._projection for block in blocks]
        features: Floats = blocks[0][None] if len(blocks) == 1 else np.stack(blocks)
        return features

    def _anchor_features(self, perms: Ints) -> Floats:
        base = self._base_features(perms)
        if not self._normalised:
            return base
        scale = 1.0 if callable(self.kernel) else self._base_norm**-0.5
        return np.hstack([base.astype(np.float64) * scale, *(_descriptor(name, perms) for name in self.descriptors)])

    def _base_features(self, perms: Ints) -> Floats:
        if callable(self.kernel):
            return _own_features(self.kernel, perms)
        dtype = np.float32 if pair_length(self.n) < 2**24 else np.float64
        if self._counts_matches:
            return perms.astype(np.int16 if self.n < 2**15 else np.int32)
        if self.kernel == "position":
            return np.asarray((perms[:, :, None] == np.arange(self.n)).reshape(len(perms), -1), dtype=dtype)
        if self.kernel == "spearman":
            return (2 * perms - (self.n - 1)).astype(np.float64)
        return SORTS[self.kernel].codes(perms).astype(dtype)

    def products(self, a: Floats, b: Floats) -> NDArray[np.float64]:
        """Inner products (A, B1, B2) of normalised features, in float64."""
        if self._counts_matches:
            products = np.stack([(x[:, None, :] == y).sum(-1) for x, y in zip(a, b, strict=True)])
        else:
            products = np.matmul(a, b.swapaxes(-1, -2))
        return np.asarray(products, dtype=np.float64) / self.norm

    def distances(self, a: Floats, b: Floats) -> NDArray[np.float64]:
        """Squared distances (A, B1, B2) of normalised features, never below 0."""
        squares = self._squared_norms(a)[:, :, None] + self._squared_norms(b)[:, None, :]
        return np.asarray(np.maximum(squares - 2 * self.products(a, b), 0.0))

    def paired_distances(self, phi: Floats, first: Ints, second: Ints) -> NDArray[np.float64]:
        """Squared distances (A, *shape) between rows of ``phi`` (A, U, F) named by two index arrays of one shape."""
        apart = np.asarray(phi[:, first] - phi[:, second], dtype=np.float64)
        return np.asarray((apart**2).sum(-1)) / self.norm

    def _squared_norms(self, a: Floats) -> NDArray[np.float64]:
        """|phi|^2 (A, B) after division by ``norm``; 1 by construction for the plain features of a kernel's name."""
        if not self._normalised and not callable(self.kernel):
            return np.ones(a.shape[:2])
        return np.asarray(np.einsum("abf,abf->ab", a, a))


def _own_features(features: Features, perms: Ints) -> NDArray[np.float64]:
    """A user's features, scaled by the square root of their number."""
    array = np.asarray(features(perms), dtype=np.float64)
    if array.ndim != 2 or len(array) != len(perms) or not array.shape[1] or not np.isfinite(array).all():
        raise ValueError(f"the features have shape {array.shape} or are not finite, expected ({len(perms)}, F)")
    return np.asarray(array / np.sqrt(array.shape[1]))


def _descriptor(name: str, perms: Ints) -> NDArray[np.float64]:
    """One block of the paper's first version, largest norm 1."""
    rows, n = perms.shape
    if name == "split":
        half = n // 2
        return np.where(perms[:, :half] < perms[:, half : 2 * half], -1.0, 1.0) / float(np.sqrt(half))
    if name == "shift":
        bins, count = np.clip(invert(perms) - np.arange(n), -5, 5) + 5, 11
    else:
        a, b, c = perms, np.roll(perms, -1, axis=1), np.roll(perms, -2, axis=1)
        bins, count = 2 * ((a > b).astype(np.int64) + (a > c)) + (b > c), 6
    flat = (bins + count * np.arange(rows)[:, None]).ravel()
    return np.asarray(np.bincount(flat, minlength=rows * count).reshape(rows, count) / n)

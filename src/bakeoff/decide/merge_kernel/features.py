"""Permutations as vectors of comparison outcomes: the features behind the Merge and the Mallows kernel.

NumPy only. Run a fixed comparison sort on a permutation and write down the outcome of every comparison as +-1: the
vector identifies the permutation, and its length is the number of comparisons of the sort.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int8]

MIN_ITEMS = 2


def check_permutations(perms: ArrayLike, n: int) -> Ints:
    """Rows of a permutation of 0..n-1 as int64 of shape (B, n).

    Floats within 1e-6 of integers are accepted, since GPyTorch hands inputs over as floats.

    Raises
    ------
    ValueError
        Wrong shape, a value that is not an integer, or a row that is no permutation (named, with the value).
    """
    array = np.asarray(perms)
    if array.ndim != 2 or array.shape[1] != n:
        raise ValueError(f"permutations of shape {array.shape}, expected (rows, {n})")
    whole = np.rint(array).astype(np.int64) if array.dtype.kind == "f" and np.isfinite(array).all() else array
    if array.dtype.kind not in "iuf" or (array.dtype.kind == "f" and not (np.abs(array - whole) <= 1e-6).all()):
        raise ValueError(
            "permutations must hold whole numbers, which gradient steps and input transforms leave: "
            "use optimize_acqf_permutation, not optimize_acqf, and no Normalize"
        )
    whole = whole.astype(np.int64)
    wrong = np.flatnonzero((np.sort(whole, axis=1) != np.arange(n)).any(axis=1))
    if len(wrong):
        raise ValueError(_why_not(whole[wrong[0]], int(wrong[0])))
    return whole


def _why_not(row: Ints, index: int) -> str:
    """The message for the first row that is no permutation."""
    n = len(row)
    prefix = f"row {index} is not a permutation of 0..{n - 1}"
    if np.array_equal(np.sort(row), np.arange(1, n + 1)):
        return f"{prefix} but of 1..{n}: subtract 1"
    values, counts = np.unique(row, return_counts=True)
    if counts.max() > 1:
        times = "twice" if counts.max() == 2 else f"{counts.max()} times"
        return f"{prefix}: value {values[counts.argmax()]} occurs {times}"
    return f"{prefix}: value {row[(row < 0) | (row >= n)][0]} is out of range"


def merge_length(n: int) -> int:
    """Number of merge features of n items: the worst-case comparisons of merge sort, Theta(n log n)."""
    n = _items(n)
    levels = (n - 1).bit_length()
    return int(n * levels - 2**levels + 1)


def pair_length(n: int) -> int:
    """Number of Mallows features of n items: all pairs, n(n-1)/2."""
    n = _items(n)
    return n * (n - 1) // 2


def _items(n: int) -> int:
    """``n`` as a plain int of at least 2, also from NumPy's integers."""
    if (n := operator.index(n)) < MIN_ITEMS:
        raise ValueError(f"n = {n}: an ordering needs at least 2 items")
    return n


class _Node(NamedTuple):
    """One merge: positions lo..mid-1 with mid..hi-1, at a depth below the root."""

    lo: int
    mid: int
    hi: int
    depth: int


def _nodes(lo: int, hi: int, depth: int = 0) -> Iterator[_Node]:
    """All merges in the order of the output: left subtree, right subtree, node. The left half is the shorter one."""
    if hi - lo >= MIN_ITEMS:
        mid = lo + (hi - lo) // 2
        yield from _nodes(lo, mid, depth + 1)
        yield from _nodes(mid, hi, depth + 1)
        yield _Node(lo, mid, hi, depth)


class _Level(NamedTuple):
    """The merges of one depth; every array has an entry for each of the n columns, of the node that it lies in."""

    block: NDArray[Any]
    is_right: NDArray[Any]
    left_end: NDArray[np.intp]
    right_end: NDArray[np.intp]


@lru_cache(maxsize=64)
def _plan(n: int) -> tuple[tuple[_Level, ...], NDArray[np.intp]]:
    """Levels from the root down, and where each feature is among their symbols laid side by side."""
    nodes, depth, bits = list(_nodes(0, n)), (n - 1).bit_length(), n.bit_length()
    dtype = np.int32 if 2 * bits + 1 < 32 else np.int64
    first = np.tile(np.arange(n), (depth, 1))
    mid, end = first + 1, first + 1
    for node in nodes:
        block = np.s_[node.depth, node.lo : node.hi]
        first[block], mid[block], end[block] = node.lo, node.mid, node.hi
    is_right = np.arange(n) >= mid
    levels = tuple(
        _Level((first[d] << (bits + 1)).astype(dtype), is_right[d].astype(dtype), mid[d] - 1, end[d] - 1)
        for d in range(depth)
    )
    return levels, np.concatenate([node.depth * n + np.arange(node.lo, node.hi - 1) for node in nodes])


def merge_codes(ranks: NDArray[Any]) -> Codes:
    """Merge features (B, m(n)) of ``ranks`` (B, n), ranks 0..n-1. No checks.

    The symbols of a merge are read off its result: the sorted node, each element marked with the half it came from.
    One sort of keys (node, rank, half) does all nodes of a level; the elements that are left when a half has run out
    are those above the smaller of the two halves' largest ranks, which the level below has at its block ends.
    """
    levels, gather = _plan(ranks.shape[1])
    marked = ranks.astype(levels[0].block.dtype) << 1
    below = marked
    symbols = np.empty((len(ranks), len(levels), ranks.shape[1]), dtype=np.bool_)
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        merged = marked + (level.block | level.is_right)
        merged.sort(axis=1)
        merged -= level.block
        ended = np.minimum(below.take(level.left_end, axis=1), below.take(level.right_end, axis=1)) | 1
        np.not_equal(merged & 1, merged > ended, out=symbols[:, depth])  # +1 = from the right; padding is flipped
        below = merged
    return _as_signs(symbols.reshape(len(ranks), len(levels) * ranks.shape[1]).take(gather, axis=1))


def pair_codes(ranks: NDArray[Any]) -> Codes:
    """Mallows features (B, n(n-1)/2) of ``ranks`` (B, n), ranks 0..n-1. No checks.

    Works on the transpose, where item i is compared with all later ones of all rows in one vector operation.
    """
    rows, n = ranks.shape
    items = np.ascontiguousarray(ranks.T, dtype=np.int16 if n < 2**15 else np.int32)
    greater = np.empty((n * (n - 1) // 2, rows), dtype=np.bool_)
    stop = 0
    for i in range(n - 1):
        start, stop = stop, stop + n - 1 - i
        np.greater(items[i], items[i + 1 :], out=greater[start:stop])
    return _as_signs(greater).T


def _as_signs(symbols: NDArray[np.bool_]) -> Codes:
    """False -> -1, True -> +1, in place."""
    codes = symbols.view(np.int8)
    codes *= 2
    codes -= 1
    return codes


def _ranks(perms: ArrayLike) -> Ints:
    """Every row's values replaced by their ranks; raises where values are missing, repeated or not comparable."""
    array = np.asarray(perms)
    if array.ndim != 2 or array.shape[1] < MIN_ITEMS:
        raise ValueError(f"permutations of shape {array.shape}, expected (rows, n) with n >= 2")
    order = np.argsort(array, axis=1)
    ordered = np.take_along_axis(array, order, axis=1)
    bad = np.argwhere(~(ordered[:, :-1] < ordered[:, 1:]))
    if len(bad):
        row, place = bad[0]
        raise ValueError(f"row {row} has no strict order: value {ordered[row, place]} occurs twice or is not a number")
    return invert(order)


def invert(perms: Ints) -> Ints:
    """The inverse of every row, argsort of a permutation of 0..n-1, in linear time."""
    inverse = np.empty_like(perms)
    np.put_along_axis(inverse, perms, np.arange(perms.shape[1])[None, :], axis=1)
    return inverse


@dataclass(frozen=True)
class SortingFeatures:
    """A comparison sort as a feature map: the frame that the Merge and the Mallows kernel are two cases of.

    Parameters
    ----------
    length : callable n -> int
        Number of features.
    codes : callable (B, n) -> (B, length(n)) int8
        The outcomes of the comparisons, of rows that hold the ranks 0..n-1.
    """

    length: Callable[[int], int]
    codes: Callable[[NDArray[Any]], Codes]

    def features(self, perms: ArrayLike) -> Codes:
        """Features (B, length(n)) of rows of any n >= 2 distinct comparable values (B, n)."""
        return self.codes(_ranks(perms))


MERGE = SortingFeatures(merge_length, merge_codes)
ENUMERATION = SortingFeatures(pair_length, pair_codes)


def merge_features(perms: ArrayLike) -> Codes:
    """Comparison outcomes of a top-down merge sort, one row per permutation.

    Features of the left subtree, of the right subtree, then of the merge itself: -1 where the left head is taken
    (smaller), +1 where the right one is. Once a half has run out, every element left in the left half emits +1 and
    every one left in the right half -1, so that the sorted order is all -1 and the reversed one all +1; the last
    symbol of a node is dropped. The code is injective.

    Parameters
    ----------
    perms : array of shape (B, n)
        Any n >= 2 distinct comparable values in a row. Not changed.

    Returns
    -------
    int8 array of shape (B, m(n)), m(n) = ``merge_length(n)``; O(B n log n) after the sort.

    Raises
    ------
    ValueError
        Not two-dimensional, n < 2, or a value that occurs twice in a row.

    Notes
    -----
    Source: the authors' MergeBO (arXiv 2507.13263); the vectorised form is ours and equal to the recursion.

    Examples
    --------
    >>> merge_features([[0, 1, 2, 3], [1, 0, 2, 3]]).tolist()
    [[-1, -1, -1, -1, -1], [1, -1, -1, -1, -1]]
    """
    return MERGE.features(perms)


def mallows_features(perms: ArrayLike) -> Codes:
    """Outcomes of all pairwise comparisons (enumeration sort), one row per permutation.

    Column (i, j), i < j, in the order of ``numpy.triu_indices(n, 1)``, is -1 where p[i] < p[j], else +1. Squared
    distances are four times the number of discordant pairs: the Mallows kernel. (The distance alone can be had in
    O(n log n) by counting inversions; it is the explicit vector that is quadratic.)

    Parameters
    ----------
    perms : array of shape (B, n)
        Any n >= 2 distinct comparable values in a row. Not changed.

    Returns
    -------
    int8 array of shape (B, n(n-1)/2).

    Raises
    ------
    ValueError
        Not two-dimensional, n < 2, or a value that occurs twice in a row.
    """
    return ENUMERATION.features(perms)


def from_merge_features(phi: ArrayLike, n: int) -> Ints:
    """The permutations that have these merge features: the inverse of `merge_features` for permutations of 0..n-1.

    Walks the merges in the order of the features, each with the positions of its halves in ascending order of value;
    the list of the last one is argsort(p). Exact on valid codes; any real vector decodes by its signs (0 as -1),
    since the symbols left when a half is used up are ignored.

    Parameters
    ----------
    phi : array of shape (B, m(n))
    n : int

    Returns
    -------
    int64 array of shape (B, n).

    Raises
    ------
    ValueError
        The width is not m(n).

    Examples
    --------
    >>> from_merge_features([[1, 1, -1, 1, -1]], 4).tolist()
    [[2, 0, 3, 1]]
    """
    take_right = np.asarray(phi) > 0
    if take_right.ndim != 2 or take_right.shape[1] != merge_length(n):
        raise ValueError(f"features of shape {take_right.shape}, expected (rows, {merge_length(n)}) for n = {n}")
    rows = np.arange(len(take_right))
    order = np.tile(np.arange(n), (len(take_right), 1))
    start = 0
    for node in _nodes(0, n):
        symbols = take_right[:, start : start + node.hi - node.lo - 1]
        start += node.hi - node.lo - 1
        left, right = np.full(len(rows), node.lo), np.full(len(rows), node.mid)
        merged = np.empty((len(rows), node.hi - node.lo), dtype=np.int64)
        for step in range(node.hi - node.lo):
            wants = symbols[:, step] if step < symbols.shape[1] else False
            go_right = (left == node.mid) | ((right < node.hi) & wants)
            merged[:, step] = order[rows, np.where(go_right, right, left)]
            left, right = left + ~go_right, right + go_right
        order[:, node.lo : node.hi] = merged
    return invert(order)

"""Search over permutations: the moves, an initial design, the lockstep maximiser and plain local search. NumPy only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features import Ints

Values = NDArray[np.float64]
Budget = tuple[int, int, int]

SWAP, INSERT, REVERSE = range(3)
ENUMERABLE = 8
"""Up to this many items all orderings are listed where a random unseen one is wanted (8! = 40,320)."""


def sources(kind: int, i: NDArray[Any], j: NDArray[Any], n: int) -> Ints:
    """Moves as index arrays (..., n): the position that each place of the moved permutation takes its item from.

    SWAP exchanges i and j; INSERT takes the item at i out and puts it at j; REVERSE turns the stretch between them.
    """
    place = np.arange(n)
    i, j = i[..., None], j[..., None]
    low, high = np.minimum(i, j), np.maximum(i, j)
    if kind == SWAP:
        return np.where(place == i, j, np.where(place == j, i, place))
    inside = (place >= low) & (place <= high)
    if kind == REVERSE:
        return np.where(inside, low + high - place, place)
    return np.where(place == j, i, np.where(inside, place + np.sign(j - i), place))


def neighbours(perms: Ints, count: int, rng: np.random.Generator) -> Ints:
    """``count`` moves of every permutation (S, n), in turn a swap, an insertion and a reversal: (S, count, n).

    i != j are uniform and ordered, so an insertion goes forwards or backwards with even odds.
    """
    starts, n = perms.shape
    i = rng.integers(n, size=(starts, count))
    j = (i + rng.integers(1, n, size=(starts, count))) % n
    source = np.empty((starts, count, n), dtype=np.int64)
    for kind in (SWAP, INSERT, REVERSE):
        source[:, kind::3] = sources(kind, i[:, kind::3], j[:, kind::3], n)
    return np.take_along_axis(perms[:, None, :], source, axis=2)


def key(perm: Ints) -> bytes:
    """A hashable name of one permutation."""
    return np.ascontiguousarray(perm, dtype=np.int64).tobytes()


def initial_design(n: int, count: int, seed: int) -> Ints:
    """``count`` different uniform permutations (all n! where there are fewer), the same for every method."""
    rng = np.random.default_rng(seed)
    rows: dict[bytes, Ints] = {}
    count = min(count, math.factorial(n))
    while len(rows) < count:
        perm = rng.permutation(n)
        rows.setdefault(key(perm), perm)
    return np.array(list(rows.values()))


def random_unseen(n: int, seen: Collection[bytes], rng: np.random.Generator) -> Ints:
    """A uniform permutation that is not among ``seen``; raises ValueError where all n! are."""
    if n > ENUMERABLE:
        while key(perm := rng.permutation(n)) in seen:
            pass
        return perm
    left = [p for p in map(np.array, itertools.permutations(range(n))) if key(p) not in seen]
    if not left:
        raise ValueError(f"all {n}! = {math.factorial(n)} orderings of {n} items are used up")
    return left[rng.integers(len(left))]


def starting_points(n: int, starts: int, incumbents: Ints, rng: np.random.Generator) -> Ints:
    """The best incumbents (given best first) and at least two random permutations (one where ``starts`` is 2)."""
    kept = incumbents[: max(1, starts - 2)]
    return np.vstack([kept, *(rng.permutation(n)[None, :] for _ in range(starts - len(kept)))])


def lockstep_search(
    value: Callable[[Ints], Values], points: Ints, rng: np.random.Generator, moves: int, rounds: int
) -> tuple[Ints, Values]:
    """Maximise ``value`` from several starting points at once, one batch per round, with a fixed number of values.

    A start moves to the best of its moves where that improves on the value that the start itself was found with
    (first round: always).

    Returns
    -------
    All candidates (S * moves * rounds, n), best first, and their values.
    """
    n = points.shape[1]
    current, level = points.copy(), np.full(len(points), -np.inf)
    tried, scores, row = [], [], np.arange(len(points))
    for _ in range(rounds):
        candidates = neighbours(current, moves, rng)
        found = value(candidates.reshape(-1, n))
        tried.append(candidates.reshape(-1, n))
        scores.append(np.where(np.isnan(found), -np.inf, found))
        by_start = scores[-1].reshape(len(points), moves)
        top = by_start.argmax(axis=1)
        better = by_start[row, top] > level
        current[better] = candidates[row, top][better]
        level[better] = by_start[row, top][better]
    perms, values = np.concatenate(tried), np.concatenate(scores)
    order = np.argsort(-values, kind="stable")
    return perms[order], values[order]


def local_search(
    objective: Callable[[Ints], float], design: Ints, evaluations: int, rng: np.random.Generator
) -> tuple[Ints, list[float]]:
    """Minimise by random single moves from the best of a design, accepting whatever is not worse.

    Returns
    -------
    All evaluated permutations (evaluations, n), the design first, and their values.
    """
    perms: list[Ints] = list(design[:evaluations])
    values = [objective(perm) for perm in perms]
    best = int(np.argmin(values))
    current, level = perms[best], values[best]
    for step in range(evaluations - len(perms)):
        candidate = _one_move(current, step % 3, rng)
        value = objective(candidate)
        perms.append(candidate)
        values.append(value)
        if value <= level:
            current, level = candidate, value
    return np.array(perms), values


def _one_move(perm: Ints, kind: int, rng: np.random.Generator) -> Ints:
    n = len(perm)
    i = int(rng.integers(n))
    j = (i + int(rng.integers(1, n))) % n
    return perm[sources(kind, np.array(i), np.array(j), n)]


def check_budget(budget: Sequence[int]) -> Budget:
    """(starts, moves of a start and round, rounds), all at least 1."""
    if len(budget) != 3 or min(budget) < 1:
        raise ValueError(f"budget {tuple(budget)}: expected (starts, neighbours, rounds), each at least 1")
    return int(budget[0]), int(budget[1]), int(budget[2])

"""Moves on permutations, the initial design, the lockstep search and plain local search."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.decide.merge_kernel.search import (
    INSERT,
    REVERSE,
    SWAP,
    initial_design,
    key,
    local_search,
    lockstep_search,
    neighbours,
    random_unseen,
    sources,
    starting_points,
)


def footrule(perm):
    return float(np.abs(np.asarray(perm) - np.arange(len(perm))).sum())


def some_permutations(count, n, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n) for _ in range(count)])


@given(st.integers(2, 12), st.data())
def test_moves_match_list_operations(n, data):
    i = data.draw(st.integers(0, n - 1))
    j = data.draw(st.integers(0, n - 1).filter(lambda value: value != i))
    perm = data.draw(st.permutations(range(n)))
    swapped = list(perm)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    inserted = list(perm)
    inserted.insert(j, inserted.pop(i))
    low, high = sorted((i, j))
    reversed_ = [*perm[:low], *perm[low : high + 1][::-1], *perm[high + 1 :]]
    for kind, expected in ((SWAP, swapped), (INSERT, inserted), (REVERSE, reversed_)):
        assert np.array(perm)[sources(kind, np.array(i), np.array(j), n)].tolist() == expected


def test_neighbours_are_permutations_that_differ_from_their_start():
    starts = some_permutations(5, 9)
    before = starts.copy()
    moved = neighbours(starts, 40, np.random.default_rng(0))
    assert moved.shape == (5, 40, 9)
    assert (np.sort(moved, axis=2) == np.arange(9)).all()
    assert (moved != starts[:, None]).any(axis=2).all()
    assert (starts == before).all()


def test_initial_design_is_different_uniform_and_nested():
    design = initial_design(15, 15, seed=3)
    assert len({key(p) for p in design}) == 15
    assert (initial_design(15, 60, seed=3)[:15] == design).all()
    assert len(initial_design(3, 15, seed=0)) == 6
    assert (initial_design(15, 15, seed=4) != design).any()


def test_random_unseen_is_uniform_over_what_is_left():
    left = [(0, 2, 1), (2, 1, 0)]
    seen = {key(np.array(p)) for p in itertools.permutations(range(3)) if p not in left}
    rng = np.random.default_rng(0)
    drawn = [tuple(random_unseen(3, seen, rng).tolist()) for _ in range(400)]
    assert set(drawn) == set(left)
    assert 150 < drawn.count(left[0]) < 250
    with pytest.raises(ValueError, match="3! = 6"):
        random_unseen(3, {key(np.array(p)) for p in itertools.permutations(range(3))}, rng)


def test_lockstep_search_spends_exactly_its_budget_and_finds_the_optimum():
    batches = []

    def value(perms):
        batches.append(len(perms))
        return -np.abs(perms - np.arange(8)).sum(axis=1).astype(float)

    rng = np.random.default_rng(0)
    points = starting_points(8, 5, some_permutations(4, 8), rng)
    perms, values = lockstep_search(value, points, rng, 40, 12)
    assert batches == [200] * 12
    assert len(perms) == 2400
    assert perms[0].tolist() == list(range(8))
    assert (np.diff(values) <= 0).all()


def test_lockstep_search_survives_nan_values():
    rng = np.random.default_rng(0)
    _, values = lockstep_search(lambda p: np.where(p[:, 0] == 0, np.nan, 1.0), some_permutations(2, 5), rng, 6, 2)
    assert not np.isnan(values).any()
    assert values[0] == 1.0


def test_starting_points_are_the_best_three_and_two_random():
    incumbents = some_permutations(6, 10)
    points = starting_points(10, 5, incumbents, np.random.default_rng(0))
    assert (points[:3] == incumbents[:3]).all()
    assert points.shape == (5, 10)
    assert starting_points(10, 5, incumbents[:0], np.random.default_rng(0)).shape == (5, 10)


def test_local_search_starts_from_the_design_and_improves():
    design = initial_design(10, 15, 0)
    perms, values = local_search(footrule, design, 400, np.random.default_rng(0))
    assert (perms[:15] == design).all()
    assert values == [footrule(p) for p in perms]
    assert min(values) < min(values[:15]) / 2

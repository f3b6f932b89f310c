"""Features of the Merge and the Mallows kernel: right values, the recursion as reference, invariants, bad input."""

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from bakeoff.decide.merge_kernel import feature_map as feature_map_module
from bakeoff.decide.merge_kernel import features as features_module
from bakeoff.decide.merge_kernel.feature_map import FeatureMap
from bakeoff.decide.merge_kernel.features import (
    ENUMERATION,
    MERGE,
    SortingFeatures,
    check_permutations,
    from_merge_features,
    invert,
    mallows_features,
    merge_features,
    merge_length,
    pair_length,
)

LENGTHS = {2: 1, 3: 3, 4: 5, 5: 8, 6: 11, 7: 14, 10: 25, 15: 45, 16: 49, 30: 119, 32: 129, 64: 321, 100: 573}
LENGTHS |= {128: 769, 280: 2009, 1000: 8977}

permutations = st.integers(2, 40).flatmap(lambda n: st.permutations(range(n)))


def recursion(values: list) -> tuple[list, list[int]]:
    """Merge sort as the paper words it, one element at a time."""
    if len(values) < 2:
        return values, []
    mid = len(values) // 2
    (left, left_code), (right, right_code) = recursion(values[:mid]), recursion(values[mid:])
    merged, code, i, j = [], [], 0, 0
    while i < len(left) and j < len(right):
        code.append(-1 if left[i] < right[j] else 1)
        if left[i] < right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    code += [1] * (len(left) - i) + [-1] * (len(right) - j)
    return merged + left[i:] + right[j:], left_code + right_code + code[:-1]


def signs(values: list) -> str:
    return "".join("+" if symbol > 0 else "-" for symbol in merge_features([values])[0])


def everything(n: int) -> np.ndarray:
    return np.array(list(itertools.permutations(range(n))))


@pytest.mark.parametrize(("n", "length"), LENGTHS.items())
def test_merge_length_is_the_worst_case_of_merge_sort(n, length):
    assert merge_length(n) == length == MERGE.length(n)
    assert length >= math.ceil(math.lgamma(n + 1) / math.log(2) - 1e-9)
    assert merge_features([range(n)]).shape == (1, length)


@given(st.integers(3, 5000))
def test_merge_length_obeys_the_recursion(n):
    halves = [merge_length(k) if k > 1 else 0 for k in (n // 2, n - n // 2)]
    assert merge_length(n) == sum(halves) + n - 1


@pytest.mark.parametrize(("n", "pairs"), [(15, 105), (100, 4950), (280, 39060)])
def test_pair_length(n, pairs):
    assert pair_length(n) == pairs == ENUMERATION.length(n)


@pytest.mark.parametrize(("n", "bits"), [(15, 40), (100, 525), (280, 1878)])
def test_information_bound(n, bits):
    assert round(math.lgamma(n + 1) / math.log(2)) == bits <= merge_length(n)


@pytest.mark.parametrize(
    ("perm", "code"),
    [
        ([0, 1, 2, 3], "-----"),
        ([3, 2, 1, 0], "+++++"),
        ([1, 0, 2, 3], "+----"),
        ([0, 2, 1, 3], "---+-"),
        ([2, 0, 3, 1], "++-+-"),
        ([4, 1, 3, 0, 2], "+-+++-++"),
        ([10, 5, 7], "-++"),
        ([0, 1, 2], "---"),
        ([0, 2, 1], "+--"),
        ([1, 0, 2], "-+-"),
        ([1, 2, 0], "++-"),
        ([2, 0, 1], "-++"),
        ([2, 1, 0], "+++"),
    ],
)
def test_right_values(perm, code):
    assert signs(perm) == code


@settings(max_examples=200)
@given(permutations)
def test_features_equal_the_recursion(perm):
    assert merge_features([perm])[0].tolist() == recursion(list(perm))[1]


@pytest.mark.parametrize("n", [64, 100, 129, 280, 1025])
def test_features_equal_the_recursion_for_many_items(n):
    rng = np.random.default_rng(n)
    perms = np.array([rng.permutation(n) for _ in range(5)])
    assert (merge_features(perms) == [recursion(perm.tolist())[1] for perm in perms]).all()


@given(permutations, st.integers(-1000, 1000), st.floats(0.1, 10))
def test_features_see_only_the_order_of_any_distinct_values(perm, shift, factor):
    values = np.array(perm) * factor + shift
    assert (merge_features([values]) == merge_features([perm])).all()
    assert (mallows_features([values]) == mallows_features([perm])).all()


def test_dtype_shape_and_caller_untouched():
    perms = np.array([[2, 0, 3, 1], [3, 2, 1, 0]])
    before = perms.copy()
    for features, length in ((merge_features, 5), (mallows_features, 6)):
        codes = features(perms)
        assert codes.dtype == np.int8
        assert codes.shape == (2, length)
    assert (perms == before).all()


@pytest.mark.parametrize("n", range(2, 8))
def test_no_information_is_lost(n):
    perms = everything(n)
    codes = merge_features(perms)
    assert len(np.unique(codes, axis=0)) == math.factorial(n)
    assert (from_merge_features(codes, n) == perms).all()


def test_no_rows_have_no_features():
    assert merge_features(np.zeros((0, 5))).shape == (0, 8)
    assert mallows_features(np.zeros((0, 5))).shape == (0, 10)


def test_another_sort_fits_the_frame():
    """Adjacent comparisons of the first bubble pass: a length, codes of ranks, and features of any values."""
    first_pass = SortingFeatures(lambda n: n - 1, lambda ranks: np.where(ranks[:, :-1] < ranks[:, 1:], -1, 1))
    assert first_pass.features([[0.5, -2.0, 7.0]]).tolist() == [[1, -1]]
    perms = everything(4)
    own, reference = FeatureMap(4, first_pass.features), np.where(np.diff(perms, axis=1) > 0, -1, 1) / math.sqrt(3)
    assert np.allclose(own.products(own(perms), own(perms))[0], reference @ reference.T)


def test_numpy_integers_are_sizes_and_floats_are_not():
    assert merge_length(np.int64(280)) == 2009
    assert FeatureMap(np.int64(5), "merge").length == 8
    for n in (5.0, "5"):
        with pytest.raises(TypeError):
            merge_length(n)


@settings(max_examples=100)
@given(permutations)
def test_inverse(perm):
    assert from_merge_features(merge_features([perm]), len(perm))[0].tolist() == list(perm)


@given(st.integers(2, 30), st.integers(0, 2**32))
def test_any_real_vector_decodes_to_a_permutation_by_its_signs(n, seed):
    phi = np.random.default_rng(seed).normal(size=(3, merge_length(n)))
    phi[0, 0] = 0.0
    perms = from_merge_features(phi, n)
    check_permutations(perms, n)
    assert (perms == from_merge_features(np.where(phi > 0, 1, -1), n)).all()


@given(st.integers(2, 25), st.integers(0, 2**32))
def test_mallows_distance_counts_discordant_pairs(n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.permutation(n), rng.permutation(n)
    phi = mallows_features([a, b]).astype(int)
    tau = kendalltau(a, b).statistic
    discordant = (1 - tau) * n * (n - 1) / 4
    assert ((phi[0] - phi[1]) ** 2).sum() == pytest.approx(4 * discordant)
    i, j = np.triu_indices(n, 1)
    assert (phi[0] == np.where(a[i] < a[j], -1, 1)).all()


def test_distances_differ_from_mallows():
    a, b = [1, 0, 2], [1, 2, 0]
    assert (np.diff(merge_features([a, b]), axis=0) != 0).sum() == 1
    assert (np.diff(mallows_features([a, b]), axis=0) != 0).sum() == 3


def test_code_is_not_monotone():
    """Moving the largest element left can turn symbols back to -1 (n = 9)."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        perm = rng.permutation(9).tolist()
        place = perm.index(8)
        if (
            place
            and (
                np.array(merge_features([[*perm[: place - 1], 8, perm[place - 1], *perm[place + 1 :]]]))
                < merge_features([perm])
            ).any()
        ):
            return
    pytest.fail("no case found")


@pytest.mark.parametrize(("n", "correlation"), [(8, 0.54), (15, 0.46), (30, 0.39), (60, 0.34), (100, 0.34)])
def test_correlation_with_the_kendall_distance(n, correlation):
    rng = np.random.default_rng(1)
    perms = np.array([rng.permutation(n) for _ in range(300)])
    pairs = np.triu_indices(300, 1)
    merge, mallows = (FeatureMap(n, kernel) for kernel in ("merge", "mallows"))
    distances = [m.distances(m(perms), m(perms))[0][pairs] for m in (merge, mallows)]
    assert np.corrcoef(*distances)[0, 1] == pytest.approx(correlation, abs=0.03)


@given(st.integers(3, 20), st.integers(0, 2**32))
def test_mallows_is_invariant_under_reordering_of_positions(n, seed):
    rng = np.random.default_rng(seed)
    a, b, shuffle = (rng.permutation(n) for _ in range(3))
    mallows = FeatureMap(n, "mallows")
    before = mallows.distances(mallows(a[None]), mallows(b[None]))
    after = mallows.distances(mallows(a[None, shuffle]), mallows(b[None, shuffle]))
    assert after == pytest.approx(before, abs=1e-12)


def test_merge_is_not_invariant_under_reordering_or_relabelling():
    merge, (a, b) = FeatureMap(3, "merge"), np.array([[1, 0, 2], [1, 2, 0]])
    plain = merge.distances(merge(a[None]), merge(b[None]))[0, 0, 0]
    variants = [
        merge.distances(merge(p[None]), merge(q[None]))[0, 0, 0]
        for p, q in [(a[list(s)], b[list(s)]) for s in itertools.permutations(range(3))]
        + [(np.array(s)[a], np.array(s)[b]) for s in itertools.permutations(range(3))]
    ]
    assert max(variants) > plain + 0.5


@pytest.mark.parametrize("kernel", ["merge", "mallows", "position", "spearman", "kendall"])
@pytest.mark.parametrize("n", [2, 3, 7, 20])
def test_features_have_norm_one_and_distances_match_the_definition(kernel, n):
    rng = np.random.default_rng(0)
    perms = np.array([rng.permutation(n) for _ in range(6)])
    feature_map = FeatureMap(n, kernel)
    reference = {
        "position": (perms[:, :, None] == np.arange(n)).reshape(6, -1).astype(float),
        "spearman": perms - perms.mean(1, keepdims=True),
        "merge": merge_features(perms).astype(float),
    }.get(kernel, mallows_features(perms).astype(float))
    reference /= np.linalg.norm(reference, axis=1, keepdims=True)
    phi = feature_map(perms)
    assert np.allclose(feature_map.products(phi, phi)[0], reference @ reference.T, atol=1e-12)
    expected = ((reference[:, None] - reference[None]) ** 2).sum(-1)
    assert np.allclose(feature_map.distances(phi, phi)[0], expected, atol=1e-12)
    assert (np.diag(feature_map.distances(phi, phi)[0]) == 0).all()


def test_space_position_featurises_the_inverse():
    rng = np.random.default_rng(0)
    perms = np.array([rng.permutation(9) for _ in range(4)])
    assert (FeatureMap(9, "merge", space="position")(perms) == FeatureMap(9, "merge")(np.argsort(perms, axis=1))).all()
    assert (invert(invert(perms)) == perms).all()


def test_anchors_relabel_values_and_keep_the_plain_kernel_first():
    perms = everything(4)
    plain, anchored = FeatureMap(4, "merge"), FeatureMap(4, "merge", anchors=3, seed=5)
    assert (anchored(perms)[0] == plain(perms)[0]).all()
    rng = np.random.default_rng(5)
    assert (anchored(perms)[1] == plain(rng.permutation(4)[perms])[0]).all()
    assert (FeatureMap(4, "merge", anchors=3, seed=5)(perms) == anchored(perms)).all()


def test_descriptors():
    perms = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [1, 2, 0, 5, 3, 4]])
    blocks = {
        name: FeatureMap(6, descriptors=(name,))(perms)[0][:, merge_length(6) :] for name in ("shift", "split", "motif")
    }
    shift = np.zeros((3, 11))
    for row, perm in enumerate(perms):
        for value in range(6):
            shift[row, int(np.clip(list(perm).index(value) - value, -5, 5)) + 5] += 1
    assert np.allclose(blocks["shift"], shift / 6)
    assert np.allclose(blocks["split"], np.array([[-1, -1, -1], [1, 1, 1], [-1, -1, -1]]) / math.sqrt(3))
    assert np.allclose(blocks["motif"][0] * 6, [4, 0, 0, 1, 1, 0])  # 4 rising windows, (4 5 0) and (5 0 1)
    for block in blocks.values():
        assert np.linalg.norm(block, axis=1).max() <= 1 + 1e-12


def test_embedding_keeps_distances_in_expectation():
    rng = np.random.default_rng(0)
    perms = np.array([rng.permutation(40) for _ in range(10)])
    pairs = np.triu_indices(10, 1)
    plain = FeatureMap(40, "merge")
    exact = plain.distances(plain(perms), plain(perms))[0][pairs]
    draws = []
    for seed in range(30):
        projected = FeatureMap(40, "merge", embedding_dim=50, seed=seed)
        assert projected.length == 50
        draws.append(projected.distances(projected(perms), projected(perms))[0][pairs])
    assert np.mean(draws, axis=0) == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("features", [merge_features, mallows_features])
@pytest.mark.parametrize("perms", [[[0, 1, 1]], [[0.0, float("nan"), 1.0]], [0, 1, 2], [[0]], np.zeros((2, 0))])
def test_bad_features_input(features, perms):
    with pytest.raises(ValueError, match=r"row 0|shape"):
        features(perms)


@pytest.mark.parametrize(
    ("perms", "message"),
    [
        ([[*range(15)]] * 3 + [[0, 1, 2, 3, 4, 5, 6, 7, 7, 9, 10, 11, 12, 13, 14]],
         r"row 3 is not a permutation of 0\.\.14: value 7 occurs twice"),
        ([[*range(1, 16)]], "subtract 1"),
        ([[*range(14), 99]], "value 99 is out of range"),
        ([[*range(14), 14.001]], "use optimize_acqf_permutation, not optimize_acqf"),
        ([[*range(14), float("nan")]], "whole numbers"),
        ([[*range(14)]], r"expected \(rows, 15\)"),
    ],
)  # fmt: skip
def test_bad_permutations(perms, message):
    with pytest.raises(ValueError, match=message):
        check_permutations(perms, 15)


def test_almost_whole_floats_are_accepted():
    assert check_permutations([[0.0, 2.0 + 1e-7, 1.0]], 3).tolist() == [[0, 2, 1]]


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1}, {"n": 5, "kernel": "nope"}, {"n": 5, "space": "auto"}, {"n": 5, "anchors": 0},
        {"n": 5, "descriptors": ("nope",)}, {"n": 2, "descriptors": ("motif",)}, {"n": 5, "embedding_dim": 0},
    ],
)  # fmt: skip
def test_bad_feature_maps(options):
    with pytest.raises(ValueError, match=r"n = 1|kernel|space|anchors|descriptor"):
        FeatureMap(**options)


def test_wrong_width_of_a_code():
    with pytest.raises(ValueError, match="expected"):
        from_merge_features(np.ones((1, 4)), 4)


@pytest.mark.parametrize("module", [features_module, feature_map_module])
def test_docstrings(module):
    assert doctest.testmod(module).failed == 0

"""The Gaussian process, the acquisition and ask/tell of PermutationBO."""

import doctest
import itertools
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from bakeoff.decide.merge_kernel import bo as bo_module
from bakeoff.decide.merge_kernel.bo import (
    LENGTHSCALES,
    PermutationBO,
    acquisition_values,
    covariance,
    fit,
    log_expected_improvement,
)
from bakeoff.decide.merge_kernel.feature_map import FeatureMap
from bakeoff.decide.merge_kernel.features import mallows_features
from bakeoff.decide.merge_kernel.search import check_budget, initial_design, key

SMALL = (2, 10, 3)


def footrule(perm):
    return float(np.abs(np.asarray(perm) - np.arange(len(perm))).sum())


def some_permutations(count, n, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n) for _ in range(count)])


def told(n=8, count=12, **options):
    optimiser = PermutationBO(n, n_init=count, budget=SMALL, **options)
    perms = optimiser.ask(count)
    optimiser.tell(perms, [footrule(p) for p in perms])
    return optimiser


# Acquisition


@pytest.mark.parametrize("z", [3.0, 0.5, 0.0, -0.5, -1.0, -1.001, -3.0, -5.0, -5.001, -8.0])
def test_log_ei_equals_the_integral(z):
    mean, sd, best = 1.5 * z + 0.7, 1.5, 0.7
    value = quad(lambda y: (y - best) * norm.pdf(y, mean, sd), best, best + 40 * sd, epsabs=0, epsrel=1e-11, limit=500)[
        0
    ]
    assert log_expected_improvement(np.array([mean]), np.array([sd]), best)[0] == pytest.approx(
        math.log(value), abs=1e-7
    )


def test_log_ei_equals_botorch_and_is_finite_and_increasing_far_below():
    torch = pytest.importorskip("torch")
    from botorch.acquisition.analytic import _log_ei_helper

    z = np.concatenate([-np.geomspace(1e-3, 1e6, 400)[::-1], np.linspace(0, 8, 50)])
    ours = log_expected_improvement(z, np.ones_like(z), 0.0)
    assert np.allclose(ours, _log_ei_helper(torch.as_tensor(z)).numpy(), rtol=1e-9, atol=1e-9)
    assert np.isfinite(ours).all()
    assert (np.diff(ours) > 0).all()


def test_other_acquisitions():
    mean, sd = np.array([0.3]), np.array([0.5])
    assert acquisition_values("ucb", mean, sd, 1.0) == pytest.approx(0.3 + 2.576 * 0.5)
    z = (0.3 - 1.0) / 0.5
    assert acquisition_values("ei", mean, sd, 1.0) == pytest.approx(0.5 * (norm.pdf(z) + z * norm.cdf(z)))


# Gaussian process


@pytest.mark.parametrize("kernel", ["merge", "mallows", "position", "spearman", "kendall"])
def test_fit_is_the_best_likelihood_of_the_grid(kernel):
    perms = some_permutations(20, 7)
    targets = np.array([footrule(p) for p in perms])
    targets = (targets - targets.mean()) / targets.std(ddof=1)
    feature_map = FeatureMap(7, kernel)
    phi = feature_map(perms)
    model = fit(feature_map, phi, targets, (1e-4,))
    apart = feature_map.distances(phi, phi)[0][np.triu_indices(20, 1)]
    grid = [1.0] if kernel == "kendall" else LENGTHSCALES / np.median(apart)
    likelihoods = []
    for lengthscale in grid:
        gram = covariance(feature_map, phi, phi, lengthscale) + 1e-4 * np.eye(20)
        scale = targets @ np.linalg.solve(gram, targets) / 20
        likelihoods.append(multivariate_normal(np.zeros(20), scale * gram, allow_singular=False).logpdf(targets))
    assert model.lengthscale == pytest.approx(grid[int(np.argmax(likelihoods))])
    assert model.log_likelihood - 10 - 10 * math.log(2 * math.pi) == pytest.approx(max(likelihoods))


@pytest.mark.parametrize("kernel", ["merge", "kendall"])
def test_posterior_equals_dense_algebra(kernel):
    optimiser = told(kernel=kernel, minimize=True)
    new = some_permutations(5, 8, seed=9)
    mean, variance = optimiser.posterior(new)
    hyper = optimiser.hyperparameters
    perms, y = optimiser._perms, optimiser._y
    feature_map = FeatureMap(8, kernel)

    def k(a, b):
        return hyper["outputscale"] * covariance(feature_map, feature_map(a), feature_map(b), hyper["lengthscale"])

    gram = k(perms, perms) + hyper["outputscale"] * hyper["noise"] * np.eye(len(y))
    weights = np.linalg.solve(gram, k(perms, new)).T
    centre, spread = y.mean(), y.std(ddof=1)
    assert mean == pytest.approx(centre + spread * weights @ ((y - centre) / spread), abs=1e-6)
    expected = np.diag(k(new, new)) - np.einsum("ij,ji->i", weights, k(perms, new))
    assert variance == pytest.approx(spread**2 * expected, abs=1e-6)


def test_gram_of_all_permutations_of_four_is_positive_definite_with_the_closed_form_ends():
    perms = np.array(list(itertools.permutations(range(4))))
    for kernel in ("merge", "mallows"):
        feature_map = FeatureMap(4, kernel)
        phi = feature_map(perms)
        gram = covariance(feature_map, phi, phi, 0.3)
        assert np.linalg.eigvalsh(gram).min() > 1e-6
        assert (np.diag(gram) == 1).all()
        assert gram[0, -1] == pytest.approx(math.exp(-4 * 0.3))


def test_learned_noise_is_chosen_where_the_objective_is_noise():
    perms = some_permutations(40, 9)
    y = np.random.default_rng(1).normal(size=40)
    perms, y = np.vstack([perms, perms[:20]]), np.append(y, np.random.default_rng(2).normal(size=20))
    optimiser = PermutationBO(9, noise="learn")
    optimiser.tell(perms, y)
    assert optimiser.hyperparameters["noise"] == 0.1
    smooth = PermutationBO(9, noise="learn")
    smooth.tell(perms[:40], [footrule(p) for p in perms[:40]])
    assert smooth.hyperparameters["noise"] < 0.1


def test_space_auto_takes_the_more_likely_one():
    perms = some_permutations(40, 8)
    inverse = np.argsort(perms, axis=1)
    for name, seen in (("order", perms), ("position", inverse)):
        optimiser = PermutationBO(8, space="auto")
        optimiser.tell(perms, [float((p[:4] < p[4:]).sum() * 10 + (p[0] < p[1]) + 3 * (p[6] < p[7])) for p in seen])
        both = {s: PermutationBO(8, space=s) for s in ("order", "position")}
        for each in both.values():
            each.tell(perms, optimiser._y)
        likelihood = {s: each._model().log_likelihood for s, each in both.items()}
        assert optimiser.hyperparameters["space"] == max(likelihood, key=likelihood.get)
        assert optimiser.hyperparameters["space"] == name


# Ask and tell


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["merge", "mallows", "position", "spearman", "kendall"]), st.integers(0, 1000))
def test_suggestions_are_new_and_the_same_seed_gives_the_same(kernel, seed):
    runs = []
    for _ in range(2):
        optimiser = PermutationBO(6, kernel=kernel, n_init=5, budget=SMALL, seed=seed)
        perms = []
        for _ in range(10):
            perm = optimiser.ask()
            optimiser.tell(perm, [footrule(perm[0])])
            perms.append(perm[0])
        assert len({key(p) for p in perms}) == 10
        runs.append(np.array(perms))
    assert (runs[0] == runs[1]).all()
    assert (runs[0][:5] == initial_design(6, 5, seed)).all()


def test_beats_random_on_a_smooth_objective():
    gains = []
    for seed in range(3):
        optimiser = PermutationBO(12, n_init=10, seed=seed)
        for _ in range(40):
            perm = optimiser.ask()
            optimiser.tell(perm, [footrule(perm[0])])
        gains.append(min(map(footrule, initial_design(12, 40, seed))) - optimiser.best[1])
    assert min(gains) > 0


def test_maximising_mirrors_minimising():
    low, high = told(seed=2), PermutationBO(8, n_init=12, budget=SMALL, minimize=False, seed=2)
    perms = high.ask(12)
    high.tell(perms, [-footrule(p) for p in perms])
    assert (low.ask() == high.ask()).all()
    assert low.best[1] == -high.best[1]
    assert low.posterior(perms)[0] == pytest.approx(-high.posterior(perms)[0])


def test_batches_hold_different_new_points_and_pending_ones_count_as_liars():
    optimiser = told(count=12)
    batch = optimiser.ask(4)
    assert len({key(p) for p in batch} | {key(p) for p in optimiser._perms}) == 16
    model, targets = optimiser._model(), optimiser._targets()
    liar = model.with_liars(batch, float(targets.max()), targets)
    mean, variance = liar.predict(batch)
    assert mean == pytest.approx(np.full(4, targets.max()), abs=1e-2)
    assert (variance < model.predict(batch)[1]).all()
    assert (liar.lengthscale, liar.outputscale) == (model.lengthscale, model.outputscale)


def test_own_features_kernel_equals_the_built_in_one():
    own, built_in = told(kernel=lambda perms: mallows_features(perms)), told(kernel="mallows")
    assert (own.ask() == built_in.ask()).all()


@pytest.mark.parametrize("options", [
    {"anchors": 3}, {"descriptors": ("shift", "split", "motif")}, {"embedding_dim": 5}, {"space": "position"},
    {"acqf": "ei"}, {"acqf": "ucb"}, {"noise": 1e-2},
])  # fmt: skip
def test_every_option_changes_the_posterior_or_the_suggestion(options):
    plain, other = told(n=10, seed=1), told(n=10, seed=1, **options)
    new = some_permutations(6, 10, seed=5)
    differs = not np.allclose(plain.posterior(new)[0], other.posterior(new)[0], atol=1e-6)
    if "acqf" in options:
        assert not differs  # the same model; ei and logei share their maximum, ucb does not
        suggestions = [(told(n=10, seed=s).ask() == told(n=10, seed=s, **options).ask()).all() for s in range(4)]
        assert all(suggestions) == (options["acqf"] == "ei")
    else:
        assert differs


def test_two_items_work_and_run_out():
    optimiser = PermutationBO(2, n_init=1)
    first = optimiser.ask()
    optimiser.tell(first, [1.0])
    optimiser.tell(optimiser.ask(), [2.0])
    assert optimiser.best[1] == 1.0
    with pytest.raises(ValueError, match=r"only 0 of the 2! = 2"):
        optimiser.ask()


def test_two_items_have_one_feature_and_both_kernels_coincide():
    perms = np.array([[0, 1], [1, 0]])
    phis = [FeatureMap(2, kernel)(perms) for kernel in ("merge", "mallows")]
    assert (phis[0] == phis[1]).all()
    assert phis[0].shape == (1, 2, 1)


def test_equal_values_warn_and_suggest_at_random():
    optimiser = PermutationBO(6, n_init=3)
    optimiser.tell(optimiser.ask(3), [1.0, 1.0, 1.0])
    with pytest.warns(UserWarning, match="all objective values are equal"):
        perm = optimiser.ask()
    assert sorted(perm[0]) == list(range(6))


def test_failed_evaluations_are_dropped_when_asked_to_and_not_suggested_again():
    optimiser = PermutationBO(3, n_init=2, budget=SMALL)
    perms = optimiser.ask(2)
    optimiser.tell(perms, [1.0, float("nan")], drop_failed=True)
    optimiser.tell([[0, 1, 2]], [3.0])
    rest = [tuple(optimiser.ask()[0]) for _ in range(6 - len({*map(tuple, perms), (0, 1, 2)}))]
    assert tuple(perms[1]) not in rest
    assert len(optimiser._y) == 2


@pytest.mark.parametrize("noise", [1e-10, 1e-4, np.float32(1e-3), "learn"])
def test_rows_told_many_times_neither_fail_nor_fill_the_starts(noise, monkeypatch):
    optimiser = PermutationBO(8, n_init=5, noise=noise, budget=SMALL)
    perms = optimiser.ask(5)
    for _ in range(5):
        optimiser.tell(perms, [footrule(p) for p in perms])
    seen = []
    search = bo_module.starting_points
    monkeypatch.setattr(bo_module, "starting_points", lambda *a: seen.append(a[2]) or search(*a))
    assert key(optimiser.ask()[0]) not in {key(p) for p in perms}
    assert len(seen[0]) == len({key(p) for p in seen[0]}) == 5


def test_a_pickled_optimiser_goes_on_where_it_was():
    optimiser = told(seed=3)
    optimiser.ask(2)
    twin = pickle.loads(pickle.dumps(optimiser))
    assert (twin.ask(3) == optimiser.ask(3)).all()
    assert twin.best[1] == optimiser.best[1]


def test_results_may_come_back_late_and_in_part():
    optimiser = PermutationBO(8, n_init=5, budget=SMALL)
    out = optimiser.ask(8)
    optimiser.tell(out[[6, 2, 0]], [footrule(p) for p in out[[6, 2, 0]]])
    more = optimiser.ask(2)
    assert len({key(p) for p in [*out, *more]}) == 10
    optimiser.tell(out[[1, 3, 4, 5, 7]], [footrule(p) for p in out[[1, 3, 4, 5, 7]]])
    assert optimiser.best[1] == min(map(footrule, out))


def test_three_items_are_used_up():
    optimiser = PermutationBO(3, n_init=2, budget=SMALL)
    for _ in range(6):
        perm = optimiser.ask()
        optimiser.tell(perm, [3.0 * perm[0, 0] + perm[0, 1]])
    assert optimiser.best[0].tolist() == [0, 1, 2]


def test_callers_arrays_are_neither_changed_nor_kept():
    optimiser = PermutationBO(5)
    perms, y = some_permutations(4, 5), np.array([3.0, 1.0, 2.0, 5.0])
    before = perms.copy()
    optimiser.tell(perms, y)
    optimiser.ask()
    assert (perms == before).all()
    perms[:] = 0
    assert (optimiser.best[0] == before[1]).all()


@pytest.mark.parametrize(
    ("perms", "y", "message"),
    [
        ([[0, 1, 2, 3]], [1.0, 2.0], "1 permutations but y has shape"),
        ([[0, 1, 2]], [1.0], r"expected \(rows, 4\)"),
        ([[0, 1, 1, 3]], [1.0], "row 0 is not a permutation of 0..3: value 1 occurs twice"),
        ([[1, 2, 3, 4]], [1.0], "subtract 1"),
        ([[0, 1, 2, 3]], [float("nan")], "drop_failed=True"),
        ([[0, 1, 2, 3]], [1e200], r"y\[0\] = 1e\+200 is not finite or beyond 1e\+150"),
    ],
)
def test_bad_tell(perms, y, message):
    with pytest.raises(ValueError, match=message):
        PermutationBO(4).tell(perms, y)


@pytest.mark.parametrize("options", [
    {"n": 1}, {"n": 4, "acqf": "pi"}, {"n": 4, "noise": 0}, {"n": 4, "noise": 1e-16}, {"n": 4, "noise": "guess"},
    {"n": 4, "n_init": 0}, {"n": 4, "budget": (0, 1, 1)}, {"n": 4, "budget": (1, 1)}, {"n": 4, "kernel": "rbf"},
    {"n": 4, "space": "both"},
])  # fmt: skip
def test_bad_construction(options):
    with pytest.raises(ValueError, match=r"n = 1|acqf|noise|n_init|budget|kernel|space"):
        PermutationBO(**options)


def test_more_asked_than_there_are():
    with pytest.raises(ValueError, match="3! = 6"):
        PermutationBO(3).ask(7)
    with pytest.raises(ValueError, match="at least one"):
        PermutationBO(2000).ask(0)
    with pytest.raises(ValueError, match="call tell first"):
        _ = PermutationBO(3).best
    with pytest.raises(ValueError, match="two evaluations"):
        PermutationBO(3).posterior([[0, 1, 2]])
    assert check_budget([5, 40, 12]) == (5, 40, 12)


def test_needs_no_torch():
    code = (
        "from bakeoff.decide import PermutationBO; from bakeoff.decide.merge_kernel import merge_features; import sys;"
        "b = PermutationBO(4, n_init=2); b.tell(b.ask(2), [1., 2.]); b.ask(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_docstring():
    assert doctest.testmod(bo_module).failed == 0

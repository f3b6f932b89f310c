"""Bayesian optimisation over permutations in NumPy and SciPy: a Gaussian process on comparison features."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import erfcx, ndtr

from .feature_map import SMALLEST_NOISE, FeatureMap, Features, Floats, KernelName
from .features import Ints, check_permutations
from .search import check_budget, initial_design, key, lockstep_search, random_unseen, starting_points

Values = NDArray[np.float64]
Acquisition = Literal["logei", "ei", "ucb"]

LENGTHSCALES = np.geomspace(0.03, 10.0, 14)
LEARNED_NOISES = (1e-4, 1e-2, 1e-1)
KAPPA = 2.576
LARGEST_VALUE = 1e150
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SMALLEST_VARIANCE = 1e-12


def log_expected_improvement(mean: Values, sd: Values, best: float) -> Values:
    """log E[max(y - best, 0)], y ~ N(mean, sd^2), without underflow for means far below ``best``.

    log(sd * h(z)), h(z) = pdf(z) + z cdf(z): in the left tail h = pdf(z) (1 + z cdf(z)/pdf(z)) with the Mills ratio
    by erfcx, and its expansion 1/z^2 - 3/z^4 where even that cancels.
    """
    z = np.asarray((mean - best) / sd, dtype=np.float64)
    log_pdf = -0.5 * z**2 - _LOG_SQRT_2PI
    middle = np.clip(z, -1e3, -1.0)
    far = np.minimum(z, -1e3)
    near = np.maximum(z, -1.0)
    log_h = np.select(
        [z > -1.0, z > -1e3],
        [
            np.log(np.exp(-0.5 * near**2 - _LOG_SQRT_2PI) + near * ndtr(near)),
            log_pdf + np.log1p(middle * math.sqrt(math.pi / 2) * erfcx(-middle / math.sqrt(2))),
        ],
        log_pdf - 2 * np.log(-far) + np.log1p(-3 / far**2),
    )
    return np.asarray(log_h + np.log(sd))


def acquisition_values(name: Acquisition, mean: Values, sd: Values, best: float) -> Values:
    """The acquisition to be maximised, of a posterior on the scale on which larger is better."""
    if name == "ucb":
        return mean + KAPPA * sd
    log_ei = log_expected_improvement(mean, sd, best)
    return log_ei if name == "logei" else np.exp(log_ei)


@dataclass(frozen=True)
class Surrogate:
    """A zero-mean Gaussian process with kernel v k and noise v * ``noise``, conditioned on features and targets.

    Parameters
    ----------
    features : array of shape (A, N, F)
    lengthscale : float
        The multiplier l of k = mean over anchors of exp(-l * squared distance); unused by a linear kernel.
    outputscale : float
        v.
    factor, weights : (N, N) lower Cholesky factor of K + noise I, and its solution for the targets.
    log_likelihood : float
        Profile marginal log likelihood, up to a constant that depends on N only.
    """

    map: FeatureMap
    features: Floats
    lengthscale: float
    outputscale: float
    noise: float
    factor: Values
    weights: Values
    log_likelihood: float

    def predict(self, perms: Ints) -> tuple[Values, Values]:
        """Posterior mean and variance (without noise) of the standardised objective."""
        new = self.map(perms)
        cross = covariance(self.map, new, self.features, self.lengthscale)
        half = solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        prior = 1.0
        if self.map.linear:
            prior = np.einsum("abf,abf->b", new, new, dtype=np.float64) / (len(new) * self.map.norm)
        variance = self.outputscale * (prior - np.einsum("nb,nb->b", half, half))
        return cross @ self.weights, np.maximum(variance, _SMALLEST_VARIANCE)

    def with_liars(self, perms: Ints, target: float, targets: Values) -> Surrogate:
        """The same hyperparameters with further rows that are taken to have come out at ``target``."""
        features = np.concatenate([self.features, self.map(perms)], axis=1)
        targets = np.concatenate([targets, np.full(len(perms), target)])
        distances = _similarity(self.map, features, features)
        return _condition(self.map, features, distances, targets, self.lengthscale, self.noise, self.outputscale)


def _similarity(map: FeatureMap, a: Floats, b: Floats) -> Values:
    """What the kernel is a function of: squared distances, or inner products of a linear kernel."""
    return map.products(a, b) if map.linear else map.distances(a, b)


def _kernel(map: FeatureMap, similarity: Values, lengthscale: float) -> Values:
    values = similarity if map.linear else np.exp(-lengthscale * similarity)
    return np.asarray(values.mean(axis=0))


def covariance(map: FeatureMap, a: Floats, b: Floats, lengthscale: float) -> Values:
    """Kernel values (B1, B2) of features (A, B1, F) and (A, B2, F)."""
    return _kernel(map, _similarity(map, a, b), lengthscale)


def _condition(
    map: FeatureMap,
    features: Floats,
    similarity: Values,
    targets: Values,
    lengthscale: float,
    noise: float,
    outputscale: float | None = None,
) -> Surrogate:
    """One Cholesky factor; the outputscale that maximises the likelihood is t' K^-1 t / N."""
    gram = _kernel(map, similarity, lengthscale)
    gram[np.diag_indices_from(gram)] += noise
    factor = np.tril(cho_factor(gram, lower=True, check_finite=False)[0])
    weights = cho_solve((factor, True), targets, check_finite=False)
    best = float(targets @ weights) / len(targets)
    log_likelihood = -0.5 * len(targets) * math.log(best) - float(np.log(np.diag(factor)).sum())
    scale = best if outputscale is None else outputscale
    return Surrogate(map, features, lengthscale, scale, noise, factor, weights, log_likelihood)


def fit(map: FeatureMap, features: Floats, targets: Values, noises: tuple[float, ...]) -> Surrogate:
    """The most likely of 14 lengthscales (times the noises), geometric around 1 / median squared distance."""
    similarity = _similarity(map, features, features)
    scales = np.ones(1)
    if not map.linear:
        apart = similarity.mean(axis=0)[np.triu_indices(len(targets), 1)]
        apart = apart[apart > 0]
        scales = LENGTHSCALES / (np.median(apart) if len(apart) else 1.0)
    models = [_condition(map, features, similarity, targets, float(s), noise) for noise in noises for s in scales]
    return max(models, key=lambda model: model.log_likelihood)


class PermutationBO:
    """Find a good ordering with few evaluations of an expensive black box.

    1. The first ``n_init`` suggestions are different uniform permutations, a function of ``seed`` and n alone.
    2. y is standardised; a zero-mean Gaussian process with the kernel exp(-l |phi(p) - phi(q)|^2) is fitted by the
       best of 14 values of l with the outputscale in closed form [ours]: no optimiser that can fail.
    3. The acquisition is maximised by a lockstep local search with exactly starts * neighbours * rounds values [ours]
       from the best evaluated permutations and two random ones; the best candidate that is new is suggested.
    4. Suggestions still out (asked, not told) count as evaluated at the best y so far (constant liar).

    Parameters
    ----------
    n : int
        Items, at least 2.
    kernel : {"merge", "mallows", "position", "spearman", "kendall"} or callable (B, n) -> (B, F)
    n_init : int, default 15
    acqf : {"logei", "ei", "ucb"}
        ucb with kappa 2.576.
    minimize : bool, default True
    noise : float or "learn"
        Noise variance relative to the outputscale, at least 1e-10; "learn" takes the most likely of 1e-4, 1e-2 and
        1e-1 (noisy objectives).
    budget : (starts, neighbours, rounds), default (5, 40, 12)
    space : {"order", "position", "auto"}
        Featurise p, argsort(p), or at every fit whichever has the higher likelihood [ours].
    anchors : int
        Kernels under random relabellings that are averaged with the plain one [ours].
    descriptors : tuple of {"shift", "split", "motif"}
    embedding_dim : int, optional
        Random projection of the features, for n in the hundreds.
    seed : int

    Notes
    -----
    A suggestion costs 2,400 * (features + length * N) operations, a fit O(N^3): meant for N <= 500. The length is
    n log2 n for merge, n^2 / 2 for Mallows. To evaluate in parallel, ``ask(q)``, map the objective over the rows with
    joblib or Ray, and ``tell`` whatever has come back. An optimiser can be pickled and goes on where it was; a fresh
    one that is told all earlier evaluations has the same model but other random numbers.

    Source: arXiv 2507.13263 and its code for features and kernel; [ours] marks our parts.

    Examples
    --------
    >>> optimiser = PermutationBO(5, n_init=5, budget=(2, 10, 3), seed=0)
    >>> for _ in range(20):
    ...     perm = optimiser.ask()
    ...     optimiser.tell(perm, [abs(perm[0] - range(5)).sum()])
    >>> optimiser.best[0].tolist()
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        n: int,
        *,
        kernel: KernelName | Features = "merge",
        n_init: int = 15,
        acqf: Acquisition = "logei",
        minimize: bool = True,
        noise: float | Literal["learn"] = 1e-4,
        budget: tuple[int, int, int] = (5, 40, 12),
        space: Literal["order", "position", "auto"] = "order",
        anchors: int = 1,
        descriptors: tuple[str, ...] = (),
        embedding_dim: int | None = None,
        seed: int = 0,
    ) -> None:
        if acqf not in ("logei", "ei", "ucb"):
            raise ValueError(f"acqf {acqf!r}: expected 'logei', 'ei' or 'ucb'")
        if noise != "learn" and not (
            isinstance(noise, int | float | np.floating) and SMALLEST_NOISE <= noise < math.inf
        ):
            raise ValueError(f"noise {noise!r}: expected a number of at least {SMALLEST_NOISE:g} or 'learn'")
        if n_init < 1:
            raise ValueError(f"n_init = {n_init}: expected at least 1")
        spaces = ("order", "position") if space == "auto" else (space,)
        self.n, self.n_init, self.acqf, self.minimize = n, n_init, acqf, minimize
        self.budget = check_budget(budget)
        self._maps = [FeatureMap(n, kernel, s, anchors, descriptors, embedding_dim, seed) for s in spaces]  # type: ignore[arg-type]
        self._noises = LEARNED_NOISES if noise == "learn" else (float(noise),)
        self._rng = np.random.default_rng((seed, 1))
        self._design = initial_design(n, n_init, seed)
        self._perms = np.empty((0, n), dtype=np.int64)
        self._y = np.empty(0)
        self._features: list[Floats | None] = [None] * len(self._maps)
        self._pending: dict[bytes, Ints] = {}
        self._seen: set[bytes] = set()
        self._surrogate: Surrogate | None = None

    def ask(self, q: int = 1) -> Ints:
        """``q`` permutations (q, n) to evaluate next, none of them evaluated or asked for before.

        Raises
        ------
        ValueError
            More are asked for than there are orderings left.
        """
        if q < 1:
            raise ValueError(f"q = {q}: ask for at least one permutation")
        left = math.factorial(self.n) - len(self._seen)
        if q > left:
            raise ValueError(f"q = {q}: only {left} of the {self.n}! = {math.factorial(self.n)} orderings are left")
        rows = []
        for _ in range(q):
            perm = self._next()
            self._pending[key(perm)] = perm
            self._seen.add(key(perm))
            rows.append(perm)
        return np.array(rows)

    def tell(self, perms: ArrayLike, y: ArrayLike, *, drop_failed: bool = False) -> None:
        """Report the objective ``y`` (q,) of permutations (q, n), asked for or the user's own.

        Parameters
        ----------
        drop_failed : bool
            Rows whose y is not finite (or beyond 1e150, whose square overflows) are set aside, and not suggested
            again, instead of raising.

        Raises
        ------
        ValueError
            A row is no permutation of 0..n-1, the lengths differ, or y is not finite or beyond 1e150.
        """
        rows = check_permutations(perms, self.n)
        values = np.asarray(y, dtype=np.float64)
        if values.shape != (len(rows),):
            raise ValueError(f"{len(rows)} permutations but y has shape {values.shape}")
        finite = np.abs(values) < LARGEST_VALUE
        if not finite.all() and not drop_failed:
            first = int(np.argmin(finite))
            what = f"y[{first}] = {values[first]} is not finite or beyond {LARGEST_VALUE:g}"
            raise ValueError(f"{what}; pass drop_failed=True to set such rows aside")
        for perm in rows:
            self._pending.pop(key(perm), None)
            self._seen.add(key(perm))
        rows, values = rows[finite], values[finite]
        self._perms, self._y = np.vstack([self._perms, rows]), np.append(self._y, values)
        # Only the new rows are featurised: the features of all earlier ones are kept.
        new = [feature_map(rows) for feature_map in self._maps] if len(rows) else []
        for m, block in enumerate(new):
            old = self._features[m]
            self._features[m] = block if old is None else np.concatenate([old, block], axis=1)
        self._surrogate = None

    @property
    def best(self) -> tuple[Ints, float]:
        """The best evaluated permutation (n,) and its objective."""
        if not len(self._y):
            raise ValueError("nothing was evaluated yet: call tell first")
        index = int(np.argmax(self._signed()))
        return self._perms[index].copy(), float(self._y[index])

    def posterior(self, perms: ArrayLike) -> tuple[Values, Values]:
        """Posterior mean and variance (without noise) of the objective, in its units: two arrays (B,)."""
        mean, variance = self._model().predict(check_permutations(perms, self.n))
        centre, scale = self._standard()
        return (-1.0 if self.minimize else 1.0) * (mean * scale + centre), variance * scale**2

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The fitted lengthscale (multiplier), outputscale, relative noise and space, for standardised y."""
        model = self._model()
        values = {"lengthscale": model.lengthscale, "outputscale": model.outputscale, "noise": model.noise}
        return {**values, "space": model.map.space}

    def _signed(self) -> Values:
        return -self._y if self.minimize else self._y

    def _standard(self) -> tuple[float, float]:
        signed = self._signed()
        return float(signed.mean()), float(signed.std(ddof=1))

    def _targets(self) -> Values:
        centre, scale = self._standard()
        return (self._signed() - centre) / scale

    def _model(self) -> Surrogate:
        if self._surrogate is None:
            if len(self._y) < 2 or np.ptp(self._y) == 0:
                raise ValueError("the model needs two evaluations with different values")
            fits = [
                fit(feature_map, features, self._targets(), self._noises)
                for feature_map, features in zip(self._maps, self._features, strict=True)
                if features is not None
            ]
            self._surrogate = max(fits, key=lambda model: model.log_likelihood)
        return self._surrogate

    def _next(self) -> Ints:
        """One suggestion: from the design, at random where there is nothing to learn from, else by the model."""
        # 1. The design.
        if len(self._y) + len(self._pending) < self.n_init:
            unused = [perm for perm in self._design if key(perm) not in self._seen]
            return unused[0] if unused else random_unseen(self.n, self._seen, self._rng)
        if len(self._y) < 2 or np.ptp(self._y) == 0:
            if len(self._y) >= 2:
                warnings.warn("all objective values are equal: suggesting a random permutation", stacklevel=3)
            return random_unseen(self.n, self._seen, self._rng)
        return self._suggest()

    def _suggest(self) -> Ints:
        # 2. The model, and 4. liars for what is still out.
        model, targets = self._model(), self._targets()
        best = float(targets.max())
        if self._pending:
            model = model.with_liars(np.array(list(self._pending.values())), best, targets)

        def value(perms: Ints) -> Values:
            mean, variance = model.predict(perms)
            return acquisition_values(self.acqf, mean, np.sqrt(variance), best)

        # 3. The search.
        starts, moves, rounds = self.budget
        best_first = self._perms[np.argsort(-targets, kind="stable")]
        incumbents = np.array(list({key(perm): perm for perm in best_first}.values()))  # evaluated twice: one start
        points = starting_points(self.n, starts, incumbents, self._rng)
        candidates, _ = lockstep_search(value, points, self._rng, moves, rounds)
        fresh = (perm for perm in candidates if key(perm) not in self._seen)
        chosen = next(fresh, None)
        return random_unseen(self.n, self._seen, self._rng) if chosen is None else chosen.copy()

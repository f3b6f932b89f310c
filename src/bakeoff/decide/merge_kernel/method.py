"""GPyTorch kernels on permutations, and the optimiser of BoTorch acquisitions that goes with them."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, cast

import numpy as np
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor

from .feature_map import FeatureMap, Floats, KernelName, Space
from .features import MIN_ITEMS, Ints, check_permutations
from .search import check_budget, key, lockstep_search, random_unseen, starting_points

WASTE = 4
"""Distances between distinct rows that may be computed for each one that is wanted, before batches are done singly."""


class _SortingKernel(Kernel):  # type: ignore[misc]
    """exp(-l |phi(p) - phi(q)|^2) with phi the comparisons of a sort; what Merge and Mallows have in common."""

    has_lengthscale = True
    sort: ClassVar[KernelName]

    def __init__(
        self,
        n: int,
        *,
        space: Space = "order",
        anchors: int = 1,
        descriptors: tuple[str, ...] = (),
        embedding_dim: int | None = None,
        seed: int = 0,
        batch_shape: torch.Size | None = None,
        active_dims: tuple[int, ...] | None = None,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
    ) -> None:
        if space not in ("order", "position"):
            raise ValueError(
                f"space {space!r}: expected 'order' or 'position'; PermutationBO can choose (space='auto')"
            )
        super().__init__(
            batch_shape=batch_shape,
            active_dims=active_dims,
            lengthscale_prior=lengthscale_prior,
            lengthscale_constraint=lengthscale_constraint,
        )
        self.feature_map = FeatureMap(n, self.sort, space, anchors, descriptors, embedding_dim, seed)

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any
    ) -> Tensor:
        """Covariance (*batch, N1, N2) of permutations (*batch, N1, n) and (*batch, N2, n), or its diagonal.

        1. Check all rows; featurise each distinct one once (BoTorch repeats the training rows for every candidate of
           a batch, (b, q, n) x (b, N, n)).
        2. Squared distances between distinct rows, gathered into the batch.
        3. exp(-l * distance), averaged over the anchors.

        Raises
        ------
        ValueError
            A row is no permutation of 0..n-1: repeated, 1-based or fractional values, or the wrong width.
        """
        if last_dim_is_batch:
            raise UnsupportedError("a permutation cannot be split into its entries (last_dim_is_batch)")
        squared = torch.as_tensor(_squared_distances(self.feature_map, x1, x2, diag), dtype=x1.dtype, device=x1.device)
        # 3. The kernel.
        multiplier = self.lengthscale.squeeze(-1) if diag else self.lengthscale
        return cast(Tensor, sum(torch.exp(-multiplier * anchor) for anchor in squared) / len(squared))


class MergeKernel(_SortingKernel):
    """Kernel on permutations of n items from the n log n comparisons of merge sort, for GPyTorch and BoTorch.

    k(p, q) = exp(-l |phi(p) - phi(q)|^2), phi = `merge_features` scaled to norm 1, so that squared distances lie in
    [0, 4] and one range of l fits all n. Positive definite, since phi is injective. Not stationary under relabelling
    of the values or reordering of the positions (Mallows is under the latter): see ``anchors`` and ``space``.

    Parameters
    ----------
    n : int
        Items; inputs are (*batch, N, n) permutations of 0..n-1 as floats.
    space : {"order", "position"}
        Featurise p or argsort(p). ("auto" needs a fit to choose by: see `PermutationBO`.)
    anchors : int
        Kernels that are averaged, all but the first under a random relabelling [ours].
    descriptors : tuple of {"shift", "split", "motif"}
        Blocks of the paper's first version, appended.
    embedding_dim : int, optional
        Random Gaussian projection of the features, for n in the hundreds.
    seed : int
        Of anchors and projection.
    batch_shape, active_dims, lengthscale_prior, lengthscale_constraint
        As in `gpytorch.kernels.Kernel`. With ``active_dims`` a product with other kernels takes mixed inputs.

    Notes
    -----
    ``lengthscale`` is the *multiplier* l, as in the authors' code: an RBF lengthscale s is l = 1/(2 s^2). Inputs have
    no gradient (a discrete space): use `optimize_acqf_permutation`, not ``optimize_acqf``. Features are computed on
    the CPU. Source: arXiv 2507.13263 and its code; the scaling is ours.

    Examples
    --------
    >>> import torch
    >>> from bakeoff.decide import MergeKernel
    >>> x = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    >>> kernel = MergeKernel(3)
    >>> kernel.lengthscale = 0.25
    >>> [round(v, 4) for v in kernel(x).to_dense()[0].tolist()]
    [1.0, 0.3679]
    """

    sort = "merge"


class MallowsKernel(_SortingKernel):
    """Kernel on permutations of n items from all n(n-1)/2 comparisons: exp(-4 l * fraction of discordant pairs).

    Parameters, notes and errors as `MergeKernel`, of which this is the case of enumeration sort.
    """

    sort = "mallows"


def _squared_distances(feature_map: FeatureMap, x1: Tensor, x2: Tensor, diag: bool) -> Floats:
    """(A, *batch, N1, N2), or (A, *batch, N) of corresponding rows where ``diag``."""
    # 1. Distinct rows.
    rows = [
        check_permutations(x.detach().cpu().numpy().reshape(-1, x.shape[-1]), feature_map.n)
        for x in ((x1,) if x1 is x2 else (x1, x2))
    ]
    unique, place = _distinct(np.concatenate(rows))
    phi = feature_map(unique)
    first, second = place[: len(rows[0])].reshape(x1.shape[:-1]), place[-len(rows[-1]) :].reshape(x2.shape[:-1])
    if diag:
        return feature_map.paired_distances(phi, *np.broadcast_arrays(first, second))
    # 2. Distances between those that each side uses.
    used1, within1 = np.unique(first, return_inverse=True)
    used2, within2 = np.unique(second, return_inverse=True)
    batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    if len(used1) * len(used2) > WASTE * math.prod(batch) * first.shape[-1] * second.shape[-1]:
        return _batch_by_batch(feature_map, phi, first, second, batch)
    table = feature_map.distances(phi[:, used1], phi[:, used2])
    return table[:, within1.reshape(first.shape)[..., :, None], within2.reshape(second.shape)[..., None, :]]


def _distinct(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows, and for every row which of them it is; rows are compared as one block of bytes."""
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, index, place = np.unique(keys, return_index=True, return_inverse=True)
    return rows[index], place


def _batch_by_batch(feature_map: FeatureMap, phi: Floats, first: Ints, second: Ints, batch: tuple[int, ...]) -> Floats:
    """Where batches share so few rows that the table of all distinct ones would be mostly unused."""
    a = np.broadcast_to(first, (*batch, first.shape[-1])).reshape(-1, first.shape[-1])
    b = np.broadcast_to(second, (*batch, second.shape[-1])).reshape(-1, second.shape[-1])
    blocks = [feature_map.distances(phi[:, i], phi[:, j]) for i, j in zip(a, b, strict=True)]
    return np.stack(blocks, axis=1).reshape(len(phi), *batch, first.shape[-1], second.shape[-1])


def optimize_acqf_permutation(
    acqf: AcquisitionFunction,
    n: int,
    *,
    generator: torch.Generator,
    q: int = 1,
    incumbents: Tensor | None = None,
    budget: tuple[int, int, int] = (5, 40, 12),
    exclude: Tensor | None = None,
) -> Tensor:
    """Maximise any BoTorch acquisition function over the permutations of n items.

    A lockstep local search of swaps, insertions and reversals with exactly starts * neighbours * rounds values, all
    of a round in one call [ours]. Candidates of q > 1 are chosen one after the other, the earlier ones pending.

    Parameters
    ----------
    acqf : AcquisitionFunction
        Called with (b, 1, n).
    n : int
    generator : torch.Generator
        The only source of randomness.
    q : int
    incumbents : (k, n) tensor, optional
        Evaluated permutations, best first: the first starts - 2 are starting points. Without, all starts are random.
    budget : (starts, neighbours, rounds)
    exclude : (k, n) tensor, optional
        Further permutations that must not be suggested; incumbents and pending points never are.

    Returns
    -------
    (q, n) tensor of the incumbents' dtype and device (where these are no floats or absent: the acquisition's).

    Raises
    ------
    UnsupportedError
        q > 1 with an analytic acquisition function, which knows no pending points.
    ValueError
        n < 2, q < 1, a row is no permutation, or fewer than q orderings are left.
    """
    if n < MIN_ITEMS or q < 1:
        raise ValueError(f"n = {n}, q = {q}: expected at least 2 items and 1 candidate")
    if q > 1 and isinstance(acqf, AnalyticAcquisitionFunction):
        raise UnsupportedError("analytic acquisition functions suggest one point: use q=1, or a Monte Carlo one")
    like = incumbents if incumbents is not None and incumbents.is_floating_point() else _floating(acqf)
    best_first = _rows(incumbents, n)
    pending = getattr(acqf, "X_pending", None)
    seen = {key(perm) for known in (best_first, _rows(exclude, n), _rows(pending, n)) for perm in known}
    if math.factorial(n) - len(seen) < q:
        raise ValueError(f"q = {q}: only {math.factorial(n) - len(seen)} of the {n}! orderings are left")
    starts, moves, rounds = check_budget(budget)
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator, device=generator.device)))

    def value(perms: Ints) -> np.ndarray[Any, np.dtype[np.float64]]:
        with torch.no_grad():
            return acqf(torch.as_tensor(perms).to(like).unsqueeze(1)).double().cpu().numpy()  # type: ignore[no-any-return]

    chosen: list[Ints] = []
    try:
        for _ in range(q):
            candidates, _ = lockstep_search(value, starting_points(n, starts, best_first, rng), rng, moves, rounds)
            perm = next((p for p in candidates if key(p) not in seen), None)
            chosen.append(random_unseen(n, seen, rng) if perm is None else perm)
            seen.add(key(chosen[-1]))
            if q > 1:
                taken = torch.as_tensor(np.array(chosen)).to(like)
                acqf.set_X_pending(taken if pending is None else torch.cat([pending, taken]))
    finally:
        if q > 1:
            acqf.set_X_pending(pending)
    return torch.as_tensor(np.array(chosen)).to(like)


def _rows(perms: Tensor | None, n: int) -> Ints:
    """Checked permutations as an array; no rows for None."""
    if perms is None:
        return np.empty((0, n), dtype=np.int64)
    return check_permutations(perms.detach().cpu().numpy().reshape(-1, perms.shape[-1]), n)


def _floating(acqf: AcquisitionFunction) -> Tensor:
    """Any floating-point tensor of the acquisition function, for dtype and device."""
    tensors = itertools.chain(acqf.parameters(), acqf.buffers())
    return next((t for t in tensors if t.is_floating_point()), torch.empty(0, dtype=torch.float64))

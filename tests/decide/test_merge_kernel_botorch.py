"""The kernels inside GPyTorch and BoTorch: batch shapes, dtypes, fitting, posteriors, acquisition optimisation."""

import copy
import doctest
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound, qLogExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from bakeoff.decide import MallowsKernel, MergeKernel, PermutationBO, optimize_acqf_permutation
from bakeoff.decide.merge_kernel import method as method_module
from bakeoff.decide.merge_kernel.bo import covariance
from bakeoff.decide.merge_kernel.feature_map import FeatureMap
from bakeoff.decide.merge_kernel.features import mallows_features, merge_features

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")

KERNELS = {"merge": (MergeKernel, merge_features), "mallows": (MallowsKernel, mallows_features)}
DTYPES = (torch.float32, torch.float64)


def some_permutations(*shape, n=7, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(n) for _ in range(math.prod(shape))]
    return torch.as_tensor(np.array(rows)).reshape(*shape, n).to(dtype)


def by_definition(features, x1, x2, multiplier):
    """exp(-l |phi - phi'|^2), one pair at a time."""
    phi1, phi2 = (torch.as_tensor(features(x.numpy().reshape(-1, x.shape[-1])).astype(float)) for x in (x1, x2))
    squared = ((phi1[:, None] - phi2[None]) ** 2).sum(-1) / phi1.shape[-1]
    return torch.exp(-multiplier * squared)


def objective(x):
    return -(x - torch.arange(x.shape[-1], dtype=x.dtype)).abs().sum(-1, keepdim=True)


def model_on(x, kernel=None, **options):
    y = objective(x)
    covar = ScaleKernel(kernel or MergeKernel(x.shape[-1]))
    return SingleTaskGP(x, (y - y.mean()) / y.std(), covar_module=covar, outcome_transform=None, **options)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_definition(name, dtype):
    make, features = KERNELS[name]
    kernel = make(7).to(dtype)
    kernel.lengthscale = 0.6
    x1, x2 = some_permutations(9, dtype=dtype), some_permutations(4, seed=1, dtype=dtype)
    dense = kernel(x1, x2).to_dense()
    assert dense.dtype == dtype
    assert torch.allclose(
        dense.double(), by_definition(features, x1, x2, 0.6), atol=1e-6 if dtype == DTYPES[0] else 1e-12
    )
    assert (kernel(x1).to_dense().diagonal() == 1).all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("waste", [0, 10**9])
@pytest.mark.parametrize(("shape1", "shape2"), [
    ((6, 1), (6, 12)), ((6, 3), (6, 12)), ((2, 3, 4), (2, 3, 5)), ((4,), (6, 12)), ((6, 2), (12,)), ((1, 2), (5, 3)),
])  # fmt: skip
def test_batch_shapes_equal_a_loop(name, waste, shape1, shape2, monkeypatch):
    monkeypatch.setattr(method_module, "WASTE", waste)
    make, features = KERNELS[name]
    kernel = make(7).double()
    kernel.lengthscale = 0.4
    x1, x2 = some_permutations(*shape1), some_permutations(*shape2, seed=1)
    dense = kernel(x1, x2).to_dense()
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    assert dense.shape == (*batch, shape1[-1], shape2[-1])
    a, b = x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
    for index in itertools.product(*map(range, batch)):
        assert torch.allclose(dense[index], by_definition(features, a[index], b[index], 0.4), atol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_diagonal(shape):
    kernel = MergeKernel(7, anchors=2).double()
    x1, x2 = some_permutations(*shape), some_permutations(*shape, seed=1)
    expected = kernel(x1, x2).to_dense().diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(kernel(x1, x2, diag=True), expected, atol=1e-12)


def test_batched_hyperparameters():
    kernel = MergeKernel(7, batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor([0.1, 0.5, 2.0]).reshape(3, 1, 1)
    x = some_permutations(3, 4)
    dense, diagonal = kernel(x, some_permutations(3, 5, seed=1)).to_dense(), kernel(x, x, diag=True)
    for i, multiplier in enumerate((0.1, 0.5, 2.0)):
        expected = by_definition(merge_features, x[i], some_permutations(3, 5, seed=1)[i], multiplier)
        assert torch.allclose(dense[i], expected, atol=1e-7)
    assert torch.allclose(diagonal, torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("options", [
    {"space": "position"}, {"anchors": 3, "seed": 4}, {"descriptors": ("shift", "split", "motif")},
    {"embedding_dim": 6, "seed": 2},
])  # fmt: skip
def test_options_equal_those_of_the_numpy_side(options):
    kernel = MergeKernel(7, **options).double()
    kernel.lengthscale = 0.7
    x1, x2 = some_permutations(5), some_permutations(6, seed=1)
    feature_map = FeatureMap(7, "merge", **options)
    phi1, phi2 = (feature_map(x.numpy().astype(int)) for x in (x1, x2))
    assert np.allclose(kernel(x1, x2).to_dense().detach(), covariance(feature_map, phi1, phi2, 0.7), atol=1e-9)


def test_closed_forms():
    perms = torch.tensor(list(itertools.permutations(range(4))), dtype=torch.float64)
    for make, _ in KERNELS.values():
        kernel = make(4).double()
        kernel.lengthscale = 0.3
        gram = kernel(perms).to_dense()
        assert torch.linalg.eigvalsh(gram).min() > 1e-6
        assert gram[0, -1].item() == pytest.approx(math.exp(-1.2))
    two = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert torch.equal(MergeKernel(2)(two).to_dense(), MallowsKernel(2)(two).to_dense())


def test_position_kernel_is_botorchs_categorical_kernel():
    categorical = CategoricalKernel().double()
    categorical.lengthscale = 1 / (2 * 0.35)
    x1, x2 = some_permutations(6), some_permutations(5, seed=1)
    feature_map = FeatureMap(7, "position")
    ours = covariance(feature_map, *(feature_map(x.numpy().astype(int)) for x in (x1, x2)), 0.35)
    assert np.allclose(ours, categorical(x1, x2).to_dense().detach(), atol=1e-12)


def test_mixed_inputs_by_a_product_kernel():
    x = torch.cat([some_permutations(10), torch.rand(10, 2, generator=torch.Generator().manual_seed(0)).double()], -1)
    product = (MergeKernel(7, active_dims=tuple(range(7))) * RBFKernel(active_dims=(7, 8))).double()
    parts = MergeKernel(7).double()(x[:, :7]).to_dense() * RBFKernel().double()(x[:, 7:]).to_dense()
    assert torch.allclose(product(x).to_dense(), parts, atol=1e-12)
    model = SingleTaskGP(x, x[:, :1] + x[:, 7:8], covar_module=ScaleKernel(product))
    assert model.posterior(x[:3].unsqueeze(1)).mean.shape == (3, 1, 1)


@pytest.mark.parametrize("name", KERNELS)
def test_posterior_agrees_with_permutation_bo(name):
    x, new = some_permutations(30), some_permutations(8, 3, seed=5)
    y = -objective(x)[:, 0].numpy()
    optimiser = PermutationBO(7, kernel=name)
    optimiser.tell(x.numpy(), y)
    hyper, centre, spread = optimiser.hyperparameters, y.mean(), y.std(ddof=1)
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9))
    model = SingleTaskGP(
        x,
        torch.as_tensor((y - centre) / spread)[:, None],
        covar_module=ScaleKernel(KERNELS[name][0](7)),
        likelihood=likelihood,
        mean_module=ZeroMean(),
        outcome_transform=None,
    ).double()
    model.covar_module.base_kernel.lengthscale = hyper["lengthscale"]
    model.covar_module.outputscale = hyper["outputscale"]
    model.likelihood.noise = hyper["outputscale"] * hyper["noise"]
    posterior = model.posterior(new)
    mean, variance = optimiser.posterior(new.reshape(-1, 7).numpy())
    assert np.allclose(posterior.mean.detach().reshape(-1) * spread + centre, mean, atol=1e-6)
    assert np.allclose(posterior.variance.detach().reshape(-1) * spread**2, variance, atol=1e-6)


def test_fitting_raises_the_likelihood_and_moves_the_multiplier():
    x = some_permutations(40)
    model = model_on(x)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)

    def likelihood():
        model.train()
        return mll(model(x), model.train_targets).item()

    before, multiplier = likelihood(), model.covar_module.base_kernel.lengthscale.item()
    fit_gpytorch_mll(mll)
    assert likelihood() > before + 0.05
    assert model.covar_module.base_kernel.lengthscale.item() != pytest.approx(multiplier, rel=0.05)


def test_copies_and_state():
    kernel = MergeKernel(7, anchors=2, seed=3).double()
    kernel.lengthscale = 0.9
    x = some_permutations(5)
    dense = kernel(x).to_dense()
    fresh = MergeKernel(7, anchors=2, seed=3).double()
    fresh.load_state_dict(kernel.state_dict())
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel)), fresh):
        assert torch.equal(twin(x).to_dense(), dense)


def test_inputs_are_untouched():
    x = some_permutations(5)
    before = x.clone()
    MergeKernel(7).double()(x).to_dense()
    assert torch.equal(x, before)


# Acquisition optimisation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_log_ei_of_five_items_is_maximised_exactly(name, dtype):
    x = some_permutations(8, n=5, dtype=dtype)
    model = model_on(x, KERNELS[name][0](5)).to(dtype)
    acqf = LogExpectedImprovement(model, best_f=model.train_targets.max())
    x = x[model.train_targets.argsort(descending=True)]
    found = optimize_acqf_permutation(acqf, 5, incumbents=x, generator=torch.Generator().manual_seed(0))
    assert found.shape == (1, 5)
    assert found.dtype == dtype
    everything = torch.tensor(list(itertools.permutations(range(5))), dtype=dtype)
    unseen = everything[(everything[:, None] != x[None]).any(-1).all(1)]
    values = acqf(unseen.unsqueeze(1))
    assert acqf(found).item() == pytest.approx(values.max().item(), abs=1e-4)


def test_budget_generator_and_exclusions():
    x = some_permutations(12)
    acqf = UpperConfidenceBound(model_on(x), beta=4.0)
    sizes = []
    acqf.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape)))
    draws = [
        optimize_acqf_permutation(acqf, 7, incumbents=x, generator=torch.Generator().manual_seed(seed), budget=budget)
        for seed, budget in ((0, (5, 40, 12)), (0, (5, 40, 12)), (1, (2, 10, 3)))
    ]
    assert torch.equal(draws[0], draws[1])
    assert sizes == [(200, 1, 7)] * 24 + [(20, 1, 7)] * 3
    again = optimize_acqf_permutation(
        acqf, 7, incumbents=x, exclude=draws[0], generator=torch.Generator().manual_seed(0)
    )
    assert not torch.equal(again, draws[0])
    assert (torch.cat([again, *draws])[:, None] != x[None]).any(-1).all()


def test_q_candidates_are_different_and_pending_points_are_restored():
    x = some_permutations(10)
    pending = some_permutations(2, seed=8)
    acqf = qLogExpectedImprovement(
        model_on(x), best_f=1.0, sampler=SobolQMCNormalSampler(torch.Size([32]), seed=0), X_pending=pending
    )
    generator = torch.Generator().manual_seed(0)
    found = optimize_acqf_permutation(acqf, 7, q=3, incumbents=x, generator=generator, budget=(2, 10, 3))
    assert found.shape == (3, 7)
    assert len(torch.unique(torch.cat([found, pending]), dim=0)) == 5
    assert torch.equal(acqf.X_pending, pending)


def test_suggestions_improve_on_random_search():
    x = some_permutations(10, n=8)
    for step in range(12):
        model = model_on(x)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acqf = LogExpectedImprovement(model, best_f=model.train_targets.max())
        best_first = x[objective(x)[:, 0].argsort(descending=True)]
        generator = torch.Generator().manual_seed(step)
        x = torch.cat(
            [x, optimize_acqf_permutation(acqf, 8, incumbents=best_first, generator=generator, budget=(3, 20, 6))]
        )
    assert objective(x).max() > objective(some_permutations(200, n=8, seed=3)).max() - 2


def test_integer_incumbents_give_candidates_of_the_models_dtype():
    x = some_permutations(10)
    acqf = LogExpectedImprovement(model_on(x), best_f=1.0)
    options = {"generator": torch.Generator().manual_seed(0), "budget": (2, 10, 3)}
    assert optimize_acqf_permutation(acqf, 7, incumbents=x.long(), **options).dtype == torch.float64


def test_refusals():
    x = some_permutations(10)
    acqf = LogExpectedImprovement(model_on(x), best_f=1.0)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(UnsupportedError, match="q=1"):
        optimize_acqf_permutation(acqf, 7, q=2, generator=generator)
    for n, q in ((1, 1), (7, 0)):
        with pytest.raises(ValueError, match="at least 2 items and 1 candidate"):
            optimize_acqf_permutation(acqf, n, q=q, generator=generator)
    everything = torch.tensor(list(itertools.permutations(range(3))), dtype=torch.float64)
    small = LogExpectedImprovement(model_on(everything), best_f=1.0)
    with pytest.raises(ValueError, match="orderings are left"):
        optimize_acqf_permutation(small, 3, exclude=everything, generator=generator)
    with pytest.raises(ValueError, match="use optimize_acqf_permutation, not optimize_acqf"):
        optimize_acqf(acqf, torch.tensor([[0.0] * 7, [6.0] * 7]).double(), q=1, num_restarts=1, raw_samples=2)
    with pytest.raises(ValueError, match="no Normalize"):
        model_on(x, input_transform=Normalize(7)).posterior(x[:2])
    with pytest.raises(UnsupportedError, match="last_dim_is_batch"):
        MergeKernel(7).forward(x, x, last_dim_is_batch=True)


@pytest.mark.parametrize(("x", "message"), [
    ([[0.0, 1.0, 1.0]], "value 1 occurs twice"), ([[1.0, 2.0, 3.0]], "subtract 1"), ([[0.0, 1.0]], "expected"),
])  # fmt: skip
def test_bad_rows(x, message):
    with pytest.raises(ValueError, match=message):
        MergeKernel(3)(torch.tensor(x)).to_dense()


@pytest.mark.parametrize("options", [{"n": 1}, {"n": 4, "space": "auto"}, {"n": 4, "anchors": 0}])
def test_bad_construction(options):
    with pytest.raises(ValueError, match=r"n = 1|PermutationBO can choose|anchors"):
        MergeKernel(**options)


def test_docstrings():
    assert doctest.testmod(method_module).failed == 0

"""Qronos and its rivals as pure functions: a worked example, its definition, closed forms and the authors' own code."""

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.compress import Qronos, qronos_reference
from bakeoff.compress._shared.grid import Grid, GridSpec
from bakeoff.compress._shared.rounding import damping, optq, rtn
from bakeoff.compress.qronos.rounding import gpfq, gptaq, qronos

X = torch.tensor([[-2.0, -2, 1], [0, 0, -1], [-1, 0, 0], [-2, 0, 2]], dtype=torch.float64)
XT = torch.tensor([[-2.0, -2, 1], [-1, 0, -1], [-1, 0, 0], [-2, -1, 2.5]], dtype=torch.float64)
W = torch.tensor([[-0.7, -1.6, 0.9]], dtype=torch.float64)
seeds = st.integers(0, 10_000)
exact = {"damp": 0.0, "act_order": False}


def uniform(low: int, high: int, columns: int, rows: int = 1, step: float = 1.0) -> Grid:
    """Whole multiples of a step, whatever the weights are."""
    scale = torch.full((rows, 1), step, dtype=torch.float64)
    return Grid(scale, torch.zeros_like(scale), low, high, torch.zeros(columns, dtype=torch.int64))


def problem(seed: int, n: int = 3, N: int = 17, tokens: int = 60, noise: float = 0.3) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    x, e, w = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((tokens, N), (tokens, N), (n, N)))
    return x, x + noise * e, w


def loss(w: torch.Tensor, q: torch.Tensor, x: torch.Tensor = X, xt: torch.Tensor = XT) -> float:
    return float((x @ w.T - xt @ q.T).square().sum())


# The worked example, which separates every method


def test_covariances_of_the_example():
    H, G = XT.T @ XT, XT.T @ X
    assert H.tolist() == [[10, 6, -6], [6, 5, -4.5], [-6, -4.5, 8.25]]
    assert G.tolist() == [[9, 4, -5], [6, 4, -4], [-7, -2, 7]]
    argument = (W[0] @ G[0] - W[0, 1:] @ H[0, 1:]) / H[0, 0]
    assert float(argument) == pytest.approx(-0.22)
    rest = torch.linalg.solve(H[1:, 1:], G[1:] @ W[0])
    assert rest.tolist() == pytest.approx([-2.492857, 0.385714], abs=1e-6)


@pytest.mark.parametrize(
    ("method", "q", "error"),
    [
        ("rtn", [-1, -2, 1], 14.04),
        ("optq", [-1, -1, 1], 6.44),
        ("gptaq", [-1, -1, 1], 6.44),
        ("gptaq quarter", [-1, -1, 1], 6.44),
        ("gpfq", [-1, -1, 0], 5.99),
        ("qronos", [0, -2, 1], 2.44),
        ("definition", [0, -2, 1], 2.44),
        ("transposed", [-1, 0, 1], 8.84),
    ],
)
def test_worked_example(method: str, q: list[float], error: float):
    H, G, grid = XT.T @ XT, XT.T @ X, uniform(-2, 1, 3)
    found = {
        "rtn": lambda: rtn(W, grid),
        "optq": lambda: optq(W, H, grid, **exact),
        "gptaq": lambda: gptaq(W, H, G, grid, strength=1.0, **exact),
        "gptaq quarter": lambda: gptaq(W, H, G, grid, **exact),
        "gpfq": lambda: gpfq(W, H, G, grid, act_order=False),
        "qronos": lambda: qronos(W, H, G, grid, **exact),
        "definition": lambda: qronos_reference(X, XT, W, grid),
        "transposed": lambda: qronos(W, H, G.T, grid, **exact),
    }[method]()
    assert found.tolist() == [q]
    assert loss(W, found) == pytest.approx(error, abs=0.005)


def test_qronos_finds_the_best_point_of_the_example():
    points = torch.cartesian_prod(*[torch.arange(-2.0, 2, dtype=torch.float64)] * 3)
    assert loss(W, qronos(W, XT.T @ XT, XT.T @ X, uniform(-2, 1, 3), **exact)) == min(loss(W, p[None]) for p in points)


# Against its definition and against OPTQ


@pytest.mark.parametrize("seed", range(40))
def test_efficient_form_is_the_definition(seed: int):
    x, xt, w = problem(seed)
    grid = GridSpec(2 if seed % 2 else 4, symmetric=bool(seed // 2 % 2)).fit(w)
    assert torch.equal(qronos(w, xt.T @ xt, xt.T @ x, grid, **exact), qronos_reference(x, xt, w, grid))


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("seed", range(10))
def test_without_mismatch_it_is_optq(seed: int, bits: int, act_order: bool):
    x, _, w = problem(seed)
    H, grid = x.T @ x, GridSpec(bits, symmetric=False).fit(w)
    assert torch.equal(qronos(w, H, H, grid, act_order=act_order), optq(w, H, grid, act_order=act_order))


def test_optq_sweep_is_the_optimal_brain_surgeon():
    """Against the textbook form: invert the covariance of the columns that are left, after every column."""
    x, _, w = problem(0)
    H, grid = x.T @ x, GridSpec(3).fit(w)
    left = w.clone()
    for j in range(w.shape[1]):
        inverse = torch.linalg.inv(H[j:, j:])
        error = left[:, j] - grid.round_column(left[:, j], j)
        left[:, j:] -= torch.outer(error, inverse[0] / inverse[0, 0])
    assert torch.allclose(optq(w, H, grid, **exact), left, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(1, 20), st.sampled_from(["qronos", "optq", "gptaq"]))
def test_lazy_blocks_change_nothing(seed: int, block_size: int, method: str):
    x, xt, w = problem(seed)
    H, G, grid = xt.T @ xt, xt.T @ x, GridSpec(3, group_size=8).fit(w)
    call = {
        "qronos": lambda b: qronos(w, H, G, grid, block_size=b),
        "optq": lambda b: optq(w, H, grid, block_size=b),
        "gptaq": lambda b: gptaq(w, H, G, grid, block_size=b),
    }[method]
    assert torch.equal(call(block_size), call(128))


# Limits


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_a_fine_grid_without_mismatch_gives_the_weights(seed: int):
    x, _, w = problem(seed)
    H, grid = x.T @ x, uniform(-(2**20), 2**20, 17, 3, 2.0**-14)
    assert torch.allclose(qronos(w, H, H, grid), w, atol=2.0**-14)


def test_a_fine_grid_with_mismatch_solves_for_the_others_given_the_first():
    x = problem(0, N=40, tokens=500)[0]
    xt, w = 0.5 * x, problem(1, n=2, N=40)[2]
    H, G = xt.T @ xt, xt.T @ x
    found = qronos(w, H, G, uniform(-(2**24), 2**24, 40, 2, 2.0**-18), **exact)
    first = (w @ G[0] - w[:, 1:] @ H[0, 1:]) / H[0, 0]
    rest = torch.linalg.lstsq(xt[:, 1:], x @ w.T - torch.outer(xt[:, 0], first)).solution.T
    assert torch.allclose(found, torch.cat([first[:, None], rest], 1), atol=1e-4)
    assert 0.001 < float((found - 2 * w).norm() / (2 * w).norm()) < 0.1
    basis = torch.linalg.qr(x).Q
    H, G = 0.25 * basis.T @ basis, 0.5 * basis.T @ basis
    assert torch.allclose(qronos(w, H, G, uniform(-(2**24), 2**24, 40, 2, 2.0**-18), **exact), 2 * w, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(seeds, st.sampled_from([2.0, 0.25, 8.0]))
def test_scale_of_the_inputs_does_not_matter(seed: int, c: float):
    x, xt, w = problem(seed)
    H, G, grid = xt.T @ xt, xt.T @ x, GridSpec(3).fit(w)
    assert torch.equal(qronos(w, H, G, grid), qronos(w, c * c * H, c * c * G, grid))


def test_order_of_the_columns_matters_only_without_act_order():
    x, xt, w = problem(0, n=8)
    H, G, grid = xt.T @ xt, xt.T @ x, GridSpec(3, scale="absmax").fit(w)
    perm = torch.randperm(17, generator=torch.Generator().manual_seed(0))
    moved = (w[:, perm], H[perm][:, perm], G[perm][:, perm], grid)
    assert torch.equal(qronos(*moved), qronos(w, H, G, grid)[:, perm])
    assert not torch.equal(qronos(*moved, act_order=False), qronos(w, H, G, grid, act_order=False)[:, perm])


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_the_residual_never_falls_after_the_first_column(seed: int):
    """With q fixed so far and the others solved again, ||Xw - Xt w(t)|| can only rise."""
    x, xt, w = problem(seed, n=1)
    q = qronos(w, xt.T @ xt, xt.T @ x, GridSpec(3).fit(w), **exact)
    residuals = []
    for t in range(1, 18):
        target = x @ w[0] - xt[:, :t] @ q[0, :t]
        solved = torch.linalg.lstsq(xt[:, t:], target[:, None]).solution[:, 0] if t < 17 else torch.zeros(0)
        residuals.append(float((target - xt[:, t:] @ solved.double()).norm()))
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(residuals))


# Damping and dead columns


def test_damping_pulls_towards_the_weights_and_not_to_zero():
    x, xt, w = problem(0)
    grid = uniform(-(2**24), 2**24, 17, 3, 2.0**-18)
    strong = qronos(w, xt.T @ xt, xt.T @ x, grid, damp=1e6, act_order=False)
    assert torch.allclose(strong[:, 1:], w[:, 1:], atol=1e-3)


def test_sigma_damping_is_a_millionth_of_the_largest_eigenvalue():
    x = problem(0)[0]
    H = x.T @ x
    assert damping(H, "sigma") == pytest.approx(1e-6 * float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)
    assert damping(H, 0.01) == pytest.approx(0.01 * float(H.diagonal().mean()))


@pytest.mark.parametrize("method", [qronos, gptaq, gpfq])
def test_dead_columns_become_zero_and_leave_the_others_alone(method):
    x, xt, w = problem(0)
    x[:, 4], xt[:, 4] = 0, 0
    H, G, grid = xt.T @ xt, xt.T @ x, GridSpec(3).fit(w)
    found = method(w, H, G, grid)
    keep = torch.arange(17) != 4
    assert (found[:, 4] == 0).all()
    part = {"damp": 0.01 * 16 / 17} if method is not gpfq else {}  # the mean of the diagonal has a zero in it
    fewer = method(w[:, keep], H[keep][:, keep], G[keep][:, keep], grid.take(keep.nonzero()[:, 0]), **part)
    assert torch.equal(found[:, keep], fewer)
    assert (method(w, 0 * H, 0 * G, grid) == 0).all()


def test_a_singular_covariance_raises_the_damping_and_says_so():
    x, xt, w = problem(0, tokens=5)
    with pytest.warns(UserWarning, match="damping raised"):
        found = qronos(w, xt.T @ xt, xt.T @ x, GridSpec(3).fit(w), damp=0.0)
    assert found.isfinite().all()
    with pytest.raises(ValueError, match="not positive definite"):
        optq(w, _indefinite(), uniform(-1, 1, 17, 3))


def _indefinite() -> torch.Tensor:
    H = torch.eye(17, dtype=torch.float64)
    H[0, 1] = H[1, 0] = 5
    return H


# The authors' code


def test_same_result_as_brevitas():
    """Two layers, 3 bits, frozen scales: every weight, and both errors of the second layer; 8 batches of 50 rows."""
    pytest.importorskip("brevitas")
    import brevitas.nn as qnn
    from brevitas.graph.qronos import Qronos as Theirs
    from brevitas.inject.enum import ScalingImplType
    from brevitas.quant import Int8WeightPerChannelFloat

    class Frozen(Int8WeightPerChannelFloat):
        scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    x = xt = xr = torch.cat([torch.randn(50, 12) for _ in range(8)])
    for index in (0, 2):
        layer = model[index]
        w = layer.weight.detach()
        twin = qnn.QuantLinear(*reversed(w.shape), bias=True, weight_quant=Frozen, weight_bit_width=3)
        twin.weight.data.copy_(w)
        twin.weight_orig = w.clone()
        scale = twin.quant_weight().scale.detach().double()
        grid = Grid(scale, torch.zeros_like(scale), -3, 3, torch.zeros(w.shape[1], dtype=torch.int64))
        H, G = xt.T @ xt / 400, xt.T @ x / 400
        solver = Theirs(twin, "layer", False, 1, True)
        solver.H, solver.G = H[None].clone(), G.T[None].clone()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver.single_layer_update()
            theirs = twin.quant_weight().value.detach()
        ours = qronos(w, H, G, grid, damp="sigma", act_order=False)
        assert torch.equal(grid.codes(ours.double()), grid.codes(theirs.double()))
        y, *others = (z @ v.T + layer.bias.detach() for z, v in ((x, w), (xt, ours), (xr, rtn(w, grid))))
        errors = [float((other - y).norm() / y.norm()) for other in others]
        x, xt, xr = (torch.relu(z) for z in (y, *others))
    assert errors == pytest.approx([0.1964, 0.2654], abs=1e-4)


# The public class


def test_round_layer_follows_its_settings():
    x, xt, w = problem(0)
    H, G = xt.T @ xt, xt.T @ x
    quantizer = Qronos(3, damp="sigma", act_order=False)
    grid = quantizer.spec.fit(w)
    assert torch.equal(quantizer.round_layer(w, H, G, grid), qronos(w, H, G, grid, damp="sigma", act_order=False))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 7}, "bits=7 is not one of"),
        ({"bits": 0}, "bits=0 is not one of"),
        ({"act_bits": 1}, "act_bits=1"),
        ({"kv_bits": 16}, "kv_bits=16"),
        ({"transform": "magr"}, "transform='magr'"),
        ({"scale": "max"}, "scale='max'"),
    ],
)
def test_bad_settings(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Qronos(**settings)

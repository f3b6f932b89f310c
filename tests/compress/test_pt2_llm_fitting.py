"""The ternary fit of a block and the block loop, against closed forms and slow references of their own."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.compress.pt2_llm.blocks import most_alike, relative_errors, ternarize
from bakeoff.compress.pt2_llm.fitting import Fit, aligned, fit_block, refined, started

ROW = torch.tensor([[0.9, -0.1, 0.05, -1.1, 0.4, 1.0, -0.2, 0.65]], dtype=torch.float64)
seeds = st.integers(0, 10_000)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(m: int, tokens: int, seed: int = 0, rank: int | None = None) -> torch.Tensor:
    """X'X of correlated inputs."""
    X = normal(tokens, rank or m, seed=seed) @ normal(rank or m, m, seed=seed + 1)
    return X.T @ X


def e_w(B: torch.Tensor, fit: Fit) -> torch.Tensor:
    return (B - fit.values()).square().sum(1)


def e_x(B: torch.Tensor, fit: Fit, C: torch.Tensor) -> torch.Tensor:
    error = B - fit.values()
    return ((error @ C) * error).sum(1)


# The worked example


def test_start_of_the_worked_row():
    fit = started(ROW)
    assert fit.T.tolist() == [[1, 0, 0, -1, 0, 1, 0, 1]]
    assert fit.mu.item() == pytest.approx(0.2)
    assert fit.alpha.item() == pytest.approx(0.8125)
    assert e_w(ROW, fit).item() == pytest.approx(0.694375)


def test_iterative_fit_of_the_worked_row():
    fit = refined(ROW, started(ROW))
    assert fit.T.tolist() == [[1, 0, 0, -1, 0, 1, 0, 1]]
    assert fit.alpha.item() == pytest.approx(13 / 14)
    assert fit.mu.item() == pytest.approx(-0.45 / 14)
    assert e_w(ROW, fit).item() == pytest.approx(0.317143, abs=1e-6)
    assert fit.rounds == 1


def test_alignment_of_the_worked_row():
    X = torch.randn(8, 20, generator=torch.Generator().manual_seed(0)).double()
    C = X @ X.T
    start = refined(ROW, started(ROW))
    fit = aligned(ROW, C, start)
    assert e_x(ROW, start, C).item() == pytest.approx(5.3495, abs=1e-4)
    assert e_x(ROW, fit, C).item() == pytest.approx(5.3023, abs=1e-4)
    assert fit.alpha.item() == pytest.approx(0.9541, abs=1e-4)
    assert fit.mu.item() == pytest.approx(-0.0266, abs=1e-4)
    assert e_x(ROW, printed_equation_13(ROW, C, start.T), C).item() == pytest.approx(5.4068, abs=1e-4)


def printed_equation_13(B: torch.Tensor, C: torch.Tensor, T: torch.Tensor) -> Fit:
    """The alignment as the paper prints it in vectorised form: elementwise products summed against C 1."""
    t, c = T.double(), C.sum(1)
    d, A, Bv, P, R = c.sum(), (t * t) @ c, t @ c, (t * B) @ c, B @ c
    den = d * A - Bv**2
    return Fit(T, (d * P - Bv * R) / den, (A * R - Bv * P) / den)


def test_printed_equation_holds_for_diagonal_covariances_only():
    B, diagonal = normal(6, 32), torch.diag(normal(32, seed=1).square())
    start = refined(B, started(B))
    torch.testing.assert_close(
        printed_equation_13(B, diagonal, start.T).values(), aligned(B, diagonal, start).values(), rtol=1e-8, atol=1e-10
    )
    C = covariance(32, 400)
    assert (e_x(B, printed_equation_13(B, C, start.T), C) > e_x(B, aligned(B, C, start), C) * (1 + 1e-6)).all()


# Optimality, against least squares and exhaustive search


@given(seeds, st.integers(2, 40), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_no_round_raises_the_weight_error(seed, k, n):
    B = normal(n, k, seed=seed)
    errors = [e_w(B, refined(B, started(B), rounds)) for rounds in range(12)]
    assert all((after <= before + 1e-12).all() for before, after in pairwise(errors))
    assert (errors[0] <= e_w(B, started(B)) + 1e-12).all()


@given(seeds, st.integers(3, 30))
@settings(max_examples=40, deadline=None)
def test_fitted_rows_stand_still(seed, k):
    """No other level for any weight, and no other grid, has a smaller error."""
    B = normal(4, k, seed=seed)
    fit = refined(B, started(B), max_iter=500)
    grid = fit.alpha[:, None, None] * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) + fit.mu[:, None, None]
    best = (B[:, :, None] - grid).abs().min(2).values
    torch.testing.assert_close((B - fit.values()).abs(), best, rtol=1e-9, atol=1e-12)
    for row, t, alpha, mu in zip(B, fit.T, fit.alpha, fit.mu, strict=True):
        design = np.stack([t.double().numpy(), np.ones(k)], 1)
        solution = np.linalg.lstsq(design, row.numpy(), rcond=None)[0]
        assert [alpha.item(), mu.item()] == pytest.approx(solution.tolist(), abs=1e-9)


@given(seeds, st.integers(4, 24))
@settings(max_examples=40, deadline=None)
def test_alignment_is_the_least_squares_grid_of_the_outputs(seed, k):
    B, X = normal(3, k, seed=seed), normal(60, k, seed=seed + 1) @ normal(k, k, seed=seed + 2)
    start = refined(B, started(B))
    fit = aligned(B, X.T @ X, start)
    for row, t, alpha, mu in zip(B, start.T, fit.alpha, fit.mu, strict=True):
        design = (X @ torch.stack([t.double(), torch.ones(k).double()], 1)).numpy()
        solution = np.linalg.lstsq(design, (X @ row).numpy(), rcond=None)[0]
        assert [alpha.item(), mu.item()] == pytest.approx([abs(solution[0]), solution[1]], rel=1e-5, abs=1e-7)


@given(seeds, st.integers(4, 40), st.integers(1, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_alignment_never_raises_the_output_error(seed, k, rank, itf):
    """Also for covariances of low rank, where some rows have no unique grid, and also in float32."""
    B, C = normal(5, k, seed=seed), covariance(k, 50, seed=seed + 1, rank=min(rank, k))
    for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        W = B.to(dtype)
        before = fit_block(W, C.to(dtype), itf=itf, aga=False)
        after = fit_block(W, C.to(dtype), itf=itf, aga=True)
        scale = ((B @ C) * B).sum(1)
        assert (e_x(B, cast(after), C) <= e_x(B, cast(before), C) + slack * scale).all()
        assert (after.alpha >= 0).all()


def cast(fit: Fit) -> Fit:
    return fit._replace(alpha=fit.alpha.double(), mu=fit.mu.double())


def test_levels_are_close_to_the_best_of_all_levels():
    """Alternating descent ends in a local optimum; over 3^7 level vectors of 30 rows it is never far from the best."""
    levels = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 7).double()
    for row in normal(30, 7):
        centred = row - row.mean()
        spread = 7 * levels.square().sum(1) - levels.sum(1) ** 2
        gain = torch.where(spread > 0, 7 * (levels @ centred) ** 2 / spread.clamp(min=1), 0.0)
        best = centred.square().sum() - gain.max()
        found = e_w(row[None], refined(row[None], started(row[None]))).item()
        assert best - 1e-12 <= found <= best + 0.15 * centred.square().sum()


# Invariances and rows without a grid


@pytest.mark.parametrize("scale", [1.0, 7.5])
def test_alignment_to_white_inputs_is_the_iterative_fit(scale):
    B = normal(8, 50)
    start = refined(B, started(B))
    fit = aligned(B, scale * torch.eye(50, dtype=torch.float64), start)
    torch.testing.assert_close(fit.alpha, start.alpha, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fit.mu, start.mu, rtol=1e-10, atol=1e-12)


def test_a_ternary_row_is_returned_exactly():
    T = torch.tensor([[1, 0, -1, 0, 1, -1, 0, 0, 1, -1], [0, 0, 1, -1, 1, 1, -1, 0, -1, 0]])
    B, C = 0.37 * T.double() + 1.25, covariance(10, 30)
    fit = fit_block(B, C)
    assert torch.equal(fit.T.long(), T)
    assert e_w(B, fit).max() < 1e-10
    assert e_x(B, fit, C).max() < 1e-10


@given(seeds, st.floats(-3, 3), st.floats(0.1, 20))
@settings(max_examples=30, deadline=None)
def test_shift_and_scale_move_the_grid_alone(seed, shift, scale):
    B, C = normal(4, 24, seed=seed), covariance(24, 80, seed=seed)
    plain, moved = fit_block(B, C), fit_block(scale * B + shift, C)
    assert torch.equal(plain.T, moved.T)
    torch.testing.assert_close(moved.alpha, scale * plain.alpha, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(moved.mu, scale * plain.mu + shift, rtol=1e-7, atol=1e-8)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_negated_weights_give_the_negated_form(seed):
    W, C = normal(6, 40, seed=seed).float(), covariance(40, 200, seed=seed)
    positive, negative = (ternarize(sign * W, C, block_size=16).dequantize() for sign in (1, -1))
    assert torch.equal(positive, -negative)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_one_value_and_one_outlier(dtype):
    B = torch.tensor([[0.3] * 16, [0.0] * 16, [1000.0] + [0.0] * 15], dtype=dtype)
    for itf in (True, False):
        for aga in (True, False):
            fit = fit_block(B, covariance(16, 40).to(dtype), itf=itf, aga=aga)
            assert fit.values().isfinite().all()
            torch.testing.assert_close(fit.values()[:2], B[:2], rtol=1e-6, atol=1e-7)
            if itf:
                torch.testing.assert_close(fit.values()[2], B[2], rtol=1e-6, atol=1e-3)


def test_rows_of_equal_levels_get_the_weighted_mean():
    B, C = normal(1, 12), covariance(12, 50)
    weighted = (B @ C.sum(1) / C.sum()).item()
    for level in (0, 1, -1):
        fit = aligned(B, C, Fit(torch.full((1, 12), level, dtype=torch.int8), B.mean(1), B.mean(1)))
        assert fit.alpha.item() == 0
        assert fit.mu.item() == pytest.approx(weighted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_that_sum_to_zero_leave_the_grid_alone(dtype):
    """Then 1' C 1 = 0 but for rounding errors, and the offset has no effect on the outputs."""
    for seed in range(40):
        X, B = normal(40, 12, seed=seed), normal(3, 12, seed=seed + 1).to(dtype)
        X = (X - X.mean(1, keepdim=True)).to(dtype)
        start = refined(B, started(B))
        for before in (start, start._replace(T=torch.ones_like(start.T))):
            fit = aligned(B, X.T @ X, before)
            assert torch.equal(fit.mu, start.mu)
            assert torch.equal(fit.alpha, start.alpha if before is start else torch.zeros_like(start.alpha))


# The block loop


def test_one_block_is_the_fit_of_the_whole_matrix():
    W, C = normal(9, 30), covariance(30, 100)
    for damp in (0.01, 1.0):
        made = ternarize(W, C, block_size=30, ssr=False, damp=damp)
        fit = fit_block(W, C)
        assert torch.equal(made.T, fit.T)
        assert torch.equal(made.alpha[:, 0], fit.alpha.half().double())
        assert torch.equal(made.mu[:, 0], fit.mu.half().double())


@pytest.mark.parametrize("aga", [True, False])
def test_white_inputs_need_no_compensation(aga):
    W = normal(7, 50)
    made = ternarize(W, torch.eye(50, dtype=torch.float64), block_size=16, ssr=False, aga=aga)
    parts = [fit_block(W[:, i : i + 16], torch.eye(50)[i : i + 16, i : i + 16], aga=aga) for i in range(0, 50, 16)]
    assert torch.equal(made.T, torch.cat([p.T for p in parts], 1))
    assert torch.equal(made.alpha, torch.stack([p.alpha for p in parts], 1).half().double())


@given(seeds, st.booleans(), st.sampled_from([8, 11, 16]), st.sampled_from([0.01, 0.3]))
@settings(max_examples=25, deadline=None)
def test_compensation_is_the_least_squares_answer_to_all_errors_so_far(seed, ssr, block, damp):
    """A slow reference: before each block the columns that are left are solved for anew, from the original weights."""
    W, C = normal(5, 40, seed=seed), covariance(40, 90, seed=seed + 1)
    H = C + damp * C.diagonal().mean() * torch.eye(40, dtype=torch.float64)
    made = ternarize(W, C, block_size=block, ssr=ssr, damp=damp)
    done, values = [], torch.zeros_like(W)
    for number, start in enumerate(range(0, 40, block)):
        left = [j for j in range(40) if j not in done]
        wanted = H[left] @ W.T - H[left][:, done] @ values[:, done].T
        current = torch.linalg.solve(H[left][:, left], wanted).T
        here = most_alike(current, block) if ssr else torch.arange(min(block, len(left)))
        columns = torch.tensor(left)[here]
        assert made.perm[start : start + block].tolist() == columns.tolist()
        fit = fit_block(current[:, here], C[columns][:, columns])
        assert torch.equal(made.T[:, start : start + block], fit.T)
        torch.testing.assert_close(made.alpha[:, number], fit.alpha, rtol=1e-3, atol=1e-7)
        values[:, columns] = (made.alpha[:, number, None] * made.T[:, start : start + block]) + made.mu[:, number, None]
        done += columns.tolist()
    torch.testing.assert_close(values, made.dequantize(), rtol=0, atol=1e-12)


def test_every_part_lowers_the_output_error_of_correlated_inputs():
    """Means over 8 matrices; single ones may go the other way."""
    modes = {"whole": {}, "no compensation": {"damp": 1e6}} | {f"no {p}": {p: False} for p in ("ssr", "aga", "itf")}
    error = {
        name: np.mean([ternarize(normal(24, 96, seed=s), covariance(96, 300, seed=s, rank=40), block_size=32, **mode)
                       .errors["e_x"] for s in range(8)])
        for name, mode in modes.items()
    }  # fmt: skip
    assert all(error["whole"] < other for name, other in error.items() if name != "whole"), error


def test_errors_are_those_of_the_dequantized_weight():
    W, X = normal(6, 40), normal(200, 40) @ normal(40, 40, seed=1)
    made = ternarize(W, X.T @ X, block_size=16)
    V = made.dequantize()
    assert made.errors["e_w"] == pytest.approx(((W - V).norm() / W.norm()).item() ** 2)
    assert made.errors["e_x"] == pytest.approx(((X @ (W - V).T).norm() / (X @ W.T).norm()).item() ** 2)
    assert relative_errors(W, W, X.T @ X) == {"e_w": 0.0, "e_x": 0.0}
    assert relative_errors(W * 0, W * 0, X.T @ X) == {"e_w": 0.0, "e_x": 0.0}


def test_the_covariance_is_not_changed():
    C = covariance(20, 60)
    before = C.clone()
    ternarize(normal(4, 20), C, block_size=8)
    assert torch.equal(C, before)


@given(seeds, st.integers(8, 60), st.integers(8, 60))
@settings(max_examples=25, deadline=None)
def test_the_order_is_a_permutation_in_ascending_blocks(seed, m, block):
    block = min(block, m)
    made = ternarize(normal(4, m, seed=seed), covariance(m, 200, seed=seed), block_size=block)
    assert made.perm.sort().values.tolist() == list(range(m))
    for part in made.perm.split(block):
        assert part.tolist() == sorted(part.tolist())
    assert made.alpha.shape == made.mu.shape == (4, math.ceil(m / block))


def test_the_first_block_holds_the_larger_of_two_families():
    u = normal(16)
    signs = torch.tensor([1.0, -1.0] * 16 + [1.0] * 4, dtype=torch.float64)
    chosen = most_alike(u[:, None] * signs + 0.01 * normal(16, 36, seed=1), 16)
    assert (signs[chosen] > 0).all()
    assert most_alike(torch.ones(3, 6), 4).tolist() == [0, 1, 2, 3]
    assert most_alike(torch.zeros(3, 6), 4).tolist() == [0, 1, 2, 3]
    zero_column = torch.ones(3, 6)
    zero_column[:, 1] = 0
    assert most_alike(zero_column, 4).tolist() == [0, 2, 3, 4]


def test_dead_columns_get_level_zero_and_change_nothing():
    W, X = normal(5, 30), normal(100, 30) @ normal(30, 30, seed=1)
    X[:, [3, 17]] = 0
    made = ternarize(W, X.T @ X, block_size=10)
    dead = [made.perm.tolist().index(j) for j in (3, 17)]
    assert (made.T[:, dead] == 0).all()
    W2 = W.clone()
    W2[:, [3, 17]] += 100
    again = ternarize(W2, X.T @ X, block_size=10, ssr=False)
    other = ternarize(W, X.T @ X, block_size=10, ssr=False)
    live = [j for j in range(30) if j not in (3, 17)]
    torch.testing.assert_close(again.dequantize()[:, live], other.dequantize()[:, live])
    nothing = ternarize(W, torch.zeros(30, 30, dtype=torch.float64), block_size=10)
    assert nothing.dequantize().isfinite().all()

"""Grids, packing and the packed layer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.compress._shared.grid import BITS, SHRINKS, GridSpec
from bakeoff.compress._shared.packing import pack, packed_width, unpack
from bakeoff.compress._shared.quant_linear import QuantLinear, fake_quantize
from bakeoff.compress._shared.rounding import awq, optq, rtn

seeds = st.integers(0, 10_000)


def weights(n: int = 4, N: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, N, generator=torch.Generator().manual_seed(seed))


# Grids


@pytest.mark.parametrize(
    ("bits", "symmetric", "levels"),
    [(1.58, True, (-1, 1)), (2, True, (-1, 1)), (2, False, (0, 3)), (3, True, (-3, 3)), (8, False, (0, 255))],
)
def test_levels(bits: float, symmetric: bool, levels: tuple[int, int]):
    assert GridSpec(bits, symmetric).levels == levels


def test_absmax_symmetric_scale_by_hand():
    W = torch.tensor([[0.5, -3.0, 1.5, 0.0, 0.1, 0.2, 0.3, 2.0]])
    grid = GridSpec(3, scale="absmax").fit(W)
    assert grid.scale.tolist() == [[1.0]]
    assert grid.round(W).tolist() == [[0, -3, 2, 0, 0, 0, 0, 2]]  # halves to even
    assert grid.codes(W).tolist() == grid.round(W).tolist()


def test_asymmetric_zero_point_by_hand():
    W = torch.tensor([[-1.0, 2.0, 0.0, 0.9, 0.1, 1.2, -0.4, 0.0]])
    grid = GridSpec(2, symmetric=False, scale="absmax").fit(W)
    assert (grid.scale.item(), grid.zero.item()) == (1.0, 1.0)
    assert grid.round(W).tolist() == [[-1, 2, 0, 1, 0, 1, 0, 0]]


def test_mse_scale_is_the_best_of_the_shrunk_ones():
    assert SHRINKS[0] == 1
    assert SHRINKS[-1] == pytest.approx(0.21)
    assert len(SHRINKS) == 80
    W = weights(seed=1)
    for row, scale in zip(W, GridSpec(3).fit(W).scale[:, 0], strict=True):
        errors = []
        for shrink in SHRINKS:
            s = float((row.abs().max() * shrink / 3).half())
            errors.append(sum((max(-3, min(3, round(v / s))) * s - v) ** 2 for v in row.tolist()))
        best = SHRINKS[errors.index(min(errors))]
        assert float(scale) == pytest.approx(float(row.abs().max()) * best / 3, rel=1e-3)


@settings(deadline=None, max_examples=30)
@given(seeds, st.sampled_from(BITS), st.booleans(), st.sampled_from([None, 8, 10, 24]))
def test_rounding_is_nearest_and_idempotent(seed: int, bits: float, symmetric: bool, group_size: int | None):
    W = weights(seed=seed)
    grid = GridSpec(bits, symmetric, group_size).fit(W)
    R = grid.round(W)
    assert torch.equal(grid.round(R), R)
    codes = torch.arange(grid.low, grid.high + 1.0)
    levels = (codes - grid.zero[:, grid.group, None]) * grid.scale[:, grid.group, None]
    nearest = (levels - W[:, :, None]).abs().amin(2)
    assert torch.allclose((R - W).abs(), nearest, atol=1e-6)
    assert torch.equal(torch.stack([grid.round_column(W[:, j], j) for j in range(24)], 1), R)
    assert torch.equal(grid.scale.half().float(), grid.scale)


def test_last_group_may_be_shorter():
    grid = GridSpec(4, group_size=10).fit(weights())
    assert grid.group.tolist() == [0] * 10 + [1] * 10 + [2] * 4


def test_zero_constant_and_tiny_rows_are_harmless():
    W = torch.stack([torch.zeros(8), torch.full((8,), 0.3), torch.full((8,), -1e-9), torch.full((8,), 5.0)])
    for symmetric in (True, False):
        R = GridSpec(4, symmetric).fit(W).round(W)
        assert R.isfinite().all()
        assert torch.allclose(R, W, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("size", "N"), [(7, 24), (25, 24), (0, 24)])
def test_bad_group_size_names_both_numbers(size: int, N: int):
    with pytest.raises(ValueError, match=f"group_size {size} .* {N} inputs"):
        GridSpec(4, group_size=size).fit(weights(N=N))


def test_scale_beyond_float16_names_the_row():
    with pytest.raises(ValueError, match="row 1: the scale"):
        GridSpec(2).fit(torch.stack([torch.ones(8), torch.full((8,), 1e6)]))


# Packing


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from([2, 3, 4, 7, 8, 15, 16, 31, 64, 255, 256]), st.integers(1, 40))
def test_packing_round_trip(seed: int, levels: int, columns: int):
    codes = torch.randint(0, levels, (3, columns), generator=torch.Generator().manual_seed(seed))
    packed = pack(codes, levels)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, packed_width(columns, levels))
    assert torch.equal(unpack(packed, columns, levels).long(), codes)


def test_packed_sizes():
    assert packed_width(40, 3) == 8  # 1.6 bits
    assert packed_width(40, 4) == 10
    assert packed_width(40, 7) == packed_width(40, 8) == 15
    assert packed_width(40, 256) == 40
    assert pack(torch.tensor([[2, 1, 0, 2, 2]]), 3).tolist() == [[221]]


# The layer


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [None, 10])
def test_layer_holds_exactly_what_was_rounded(bits: float, symmetric: bool, group_size: int | None):
    W, x, bias = weights(), weights(5, 24, 2), weights(1, 4, 3)[0]
    H = weights(100, 24, 4).T @ weights(100, 24, 4)
    grid = GridSpec(bits, symmetric, group_size).fit(W)
    values = optq(W, H, grid)
    layer = QuantLinear.pack(values, grid, bias)
    assert torch.equal(layer.dequantize(), values)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, values, bias))
    again = QuantLinear(**layer.settings())
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_bytes_of_a_layer():
    W = weights(64, 256)
    layer = QuantLinear.pack(rtn(W, grid := GridSpec(2, False, 128).fit(W)), grid)
    bits = 8 * sum(b.numel() * b.element_size() for b in layer.buffers()) / W.numel()
    assert bits == pytest.approx(2 + 18 * 2 / 256)


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(2, 8))
def test_activations_keep_their_ends_and_stay_within_half_a_step(seed: int, bits: int):
    x = weights(3, 16, seed)
    q = fake_quantize(x, bits)
    step = (x.amax(1) - x.amin(1)) / (2**bits - 1)
    assert ((q - x).abs() <= step[:, None] * 0.5001).all()
    assert torch.allclose(q.amin(1), x.amin(1))
    assert torch.allclose(q.amax(1), x.amax(1), atol=1e-5)
    assert all(len(row.unique()) <= 2**bits for row in q)
    assert torch.equal(fake_quantize(torch.full((2, 5), 0.7), bits), torch.full((2, 5), 0.7))


# AWQ


def test_awq_without_exponents_is_round_to_nearest():
    W, spec = weights(), GridSpec(3)
    H = torch.diag(torch.arange(1.0, 25))
    found = awq(W, H, spec, exponents=1)
    assert torch.equal(found.s, torch.ones(24))
    assert torch.equal(found.values, rtn(W, spec.fit(W)))


def test_awq_helps_where_inputs_differ_in_strength():
    W, spec = weights(16, 32), GridSpec(3)
    H = torch.diag(torch.logspace(-2, 2, 32))
    found = awq(W, H, spec)
    error = lambda V: float(((V - W) @ H * (V - W)).sum())  # noqa: E731
    tried = []
    for a in [i / 20 for i in range(21)]:
        s = H.diagonal().sqrt() ** a
        s = (s / math.sqrt(s.max() * s.min())).half().float()
        tried.append(error(spec.fit(W * s).round(W * s) / s))
    assert error(found.values / found.s) == pytest.approx(min(tried), rel=1e-5)
    assert min(tried) < 0.8 * error(rtn(W, spec.fit(W)))
    layer = QuantLinear.pack(found.values, found.grid, input_scale=found.s)
    assert torch.allclose(layer.dequantize(), found.values / found.s)

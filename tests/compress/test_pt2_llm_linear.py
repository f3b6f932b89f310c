"""The stored form: five trits a byte, and products that equal those of the dense weight."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bakeoff.compress.pt2_llm import linear
from bakeoff.compress.pt2_llm.linear import TernaryLinear, TernaryWeight, pack_trits, unpack_trits

seeds = st.integers(0, 10_000)


def drawn(n: int, m: int, block: int, seed: int = 0, moved: bool = True) -> TernaryWeight:
    g = torch.Generator().manual_seed(seed)
    blocks = math.ceil(m / block)
    T = torch.randint(-1, 2, (n, m), generator=g, dtype=torch.int8)
    alpha, mu = torch.rand(n, blocks, generator=g).half().float(), torch.randn(n, blocks, generator=g).half().float()
    perm = torch.randperm(m, generator=g) if moved else torch.arange(m)
    return TernaryWeight(T, alpha, mu, perm, block, {})


def slow_dense(weight: TernaryWeight) -> torch.Tensor:
    """Entry by entry."""
    n, m = weight.T.shape
    dense = torch.zeros(n, m)
    for i in range(n):
        for j in range(m):
            b = j // weight.block_size
            dense[i, weight.perm[j]] = weight.alpha[i, b] * weight.T[i, j] + weight.mu[i, b]
    return dense


def test_five_trits_of_the_worked_byte():
    packed = pack_trits(torch.tensor([[1, 0, -1, 1, 1]], dtype=torch.int8))
    assert packed.tolist() == [[221]]
    assert packed.dtype == torch.uint8


@given(seeds, st.integers(1, 6), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_bytes_are_base_three_numbers_and_unpack_to_the_trits(seed, n, m):
    T = torch.randint(-1, 2, (n, m), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    packed = pack_trits(T)
    rows = [[int(t) + 1 for t in row] + [1] * (-m % 5) for row in T.tolist()]
    wanted = [[sum(d * 3**i for i, d in enumerate(row[j : j + 5])) for j in range(0, len(row), 5)] for row in rows]
    assert [[b % 3**k for b, k in zip(row, last(m), strict=True)] for row in packed.tolist()] == [
        [b % 3**k for b, k in zip(row, last(m), strict=True)] for row in wanted
    ]
    assert torch.equal(unpack_trits(packed, m), T)
    assert unpack_trits(packed, m).dtype == torch.int8


def last(m: int) -> list[int]:
    """Digits in use of every byte of a row."""
    return [min(5, m - j) for j in range(0, m, 5)]


@given(seeds, st.integers(1, 9), st.integers(8, 70), st.integers(8, 70), st.booleans())
@settings(max_examples=40, deadline=None)
def test_products_are_those_of_the_dense_weight(seed, n, m, block, moved):
    weight = drawn(n, m, min(block, m), seed, moved)
    dense = slow_dense(weight)
    torch.testing.assert_close(weight.dequantize(), dense, rtol=0, atol=0)
    bias = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    layer = TernaryLinear.pack(weight, bias)
    assert torch.equal(layer.dequantize(), dense)
    for tokens in (0, 1, 3, 30):
        x = torch.randn(tokens, m, generator=torch.Generator().manual_seed(tokens))
        torch.testing.assert_close(layer(x), x @ dense.T + bias, rtol=1e-4, atol=1e-4)


def test_large_layers_are_decoded_some_rows_at_a_time(monkeypatch):
    layer, x = TernaryLinear.pack(drawn(11, 50, 16)), torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    whole = layer(x)
    monkeypatch.setattr(linear, "DECODED_AT_ONCE", 120)
    assert [len(layer.trits[part]) for part in layer._parts()] == [2, 2, 2, 2, 2, 1]
    torch.testing.assert_close(layer(x), whole, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(linear, "DECODED_AT_ONCE", 1)
    torch.testing.assert_close(layer(x), whole, rtol=1e-5, atol=1e-5)


def test_inputs_of_any_shape_and_dtype():
    weight = drawn(6, 33, 8)
    layer, dense = TernaryLinear.pack(weight), slow_dense(weight)
    x = torch.randn(2, 3, 5, 33, generator=torch.Generator().manual_seed(0))
    assert layer(x).shape == (2, 3, 5, 6)
    assert layer(x[0, 0, 0]).shape == (6,)
    torch.testing.assert_close(layer(x), x @ dense.T, rtol=1e-4, atol=1e-4)
    half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), x.bfloat16().float() @ dense.T, rtol=1e-2, atol=1e-2)


def test_the_result_does_not_depend_on_how_tokens_are_batched():
    layer = TernaryLinear.pack(drawn(12, 100, 32))
    x = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(one_by_one, layer(x), rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_inputs():
    layer, x = TernaryLinear.pack(drawn(6, 33, 8)), torch.ones(4, 33, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand(4, 33), rtol=1e-4, atol=1e-4)


def test_size_of_the_file_is_the_effective_bits(tmp_path):
    """ceil(m/5) 8 + 32 ceil(m/k) + 16 m/n bits a row of m weights, scales, order and padding included."""
    n, m, k = 576, 1536, 128
    save_file(TernaryLinear.pack(drawn(n, m, k)).state_dict(), tmp_path / "layer.safetensors")
    header = 400
    bits = 8 * ((tmp_path / "layer.safetensors").stat().st_size - header) / (n * m)
    assert bits == pytest.approx(math.ceil(m / 5) * 8 / m + 32 * math.ceil(m / k) / m + 16 / n, abs=0.01)
    assert bits < 1.9


def test_state_survives_a_file(tmp_path):
    layer = TernaryLinear.pack(drawn(7, 50, 16), torch.ones(7))
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = TernaryLinear(50, 7, 16, bias=True)
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    x = torch.randn(3, 50)
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_columns_in_their_own_order_store_no_order():
    layer = TernaryLinear.pack(drawn(7, 50, 16, moved=False))
    assert layer.perm is None
    assert "perm" not in layer.state_dict()
    assert TernaryLinear.pack(drawn(4, 2**15, 2**15)).perm.dtype == torch.int32
    assert TernaryLinear.pack(drawn(4, 2**15 - 1, 2**15)).perm.dtype == torch.int16

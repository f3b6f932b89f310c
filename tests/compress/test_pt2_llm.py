"""PT2LLM on matrices: what it refuses, and what its numbers mean."""

import pytest
import torch

from bakeoff.compress import PT2LLM, TernaryLinear


def drawn(n: int = 6, m: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(300, m, generator=g) @ torch.randn(m, m, generator=g)
    return torch.randn(n, m, generator=g), X.T @ X


def test_packed_layer_computes_what_the_ternary_weight_says():
    W, C = drawn()
    made = PT2LLM(block_size=12).ternarize(W, C)
    layer = TernaryLinear.pack(made)
    assert torch.equal(layer.dequantize(), made.dequantize())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_precision_are_computed_in_float32(dtype):
    W, C = drawn()
    made = PT2LLM(block_size=16).ternarize(W.to(dtype), C)
    again = PT2LLM(block_size=16).ternarize(W.to(dtype).float(), C)
    assert torch.equal(made.T, again.T)
    assert made.alpha.dtype == torch.float32


def test_parameters_and_inputs_that_require_gradients():
    _, C = drawn()
    layer = torch.nn.Linear(32, 6)
    made = PT2LLM(block_size=16).ternarize(layer.weight, C.requires_grad_())
    assert not made.alpha.requires_grad
    again = PT2LLM(block_size=16).ternarize(layer.weight.detach(), C.detach())
    assert torch.equal(made.dequantize(), again.dequantize())


def test_double_precision_changes_almost_nothing():
    W, C = drawn(16, 64)
    single, double = (PT2LLM(block_size=16, dtype=d).ternarize(W, C) for d in (torch.float32, torch.float64))
    assert single.errors["e_x"] == pytest.approx(double.errors["e_x"], rel=0.02)


@pytest.mark.parametrize(
    ("options", "weight", "told"),
    [
        ({"block_size": 7}, torch.zeros(4, 32), "7 is not between 8 and the 32 inputs"),
        ({"block_size": 33}, torch.zeros(4, 32), "33 is not between 8 and the 32 inputs"),
        ({"block_size": 16}, torch.zeros(4, 32, dtype=torch.int8), "int8 are quantized already"),
        ({"block_size": 16}, torch.zeros(4, 32).to(torch.float8_e4m3fn), "float8_e4m3fn are quantized already"),
        ({"block_size": 16}, torch.zeros(4, 4, 2), "3"),
        ({"block_size": 16}, torch.full((4, 32), torch.nan), "NaN"),
        ({"block_size": 16}, torch.zeros(4, 30), r"\(30, 30\)"),
    ],
)
def test_wrong_weights_are_refused(options, weight, told):
    with pytest.raises(ValueError, match=told):
        PT2LLM(**options).ternarize(weight, drawn()[1])


def test_a_block_of_all_columns_is_allowed():
    W, C = drawn()
    assert PT2LLM(block_size=32).ternarize(W, C).alpha.shape == (6, 1)


def test_scales_beyond_float16_name_the_row():
    W, C = drawn()
    W[3] *= 1e6
    with pytest.raises(ValueError, match=r"row 3: the (scale|offset) .* is beyond float16 \(65504\)"):
        PT2LLM(block_size=16).ternarize(W, C)


def test_all_parts_can_be_left_out():
    W, C = drawn()
    plain = PT2LLM(block_size=32, itf=False, aga=False, ssr=False).ternarize(W, C)
    mu = W.mean(1, keepdim=True)
    threshold = 0.75 * (W - mu).abs().mean(1, keepdim=True)
    T = torch.sign(W - mu) * ((W - mu).abs() > threshold)
    assert torch.equal(plain.T.float(), T)
    alpha = ((W - mu) * T).sum(1) / T.abs().sum(1)
    torch.testing.assert_close(plain.alpha[:, 0], alpha, rtol=1e-3, atol=0)
    assert plain.errors["rounds"] == 0


@pytest.mark.parametrize("options", [{"damp": -0.1}, {"max_iter": -1}, {"damp": float("nan")}])
def test_wrong_settings_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        PT2LLM(**options)

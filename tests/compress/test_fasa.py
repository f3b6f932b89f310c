"""FASA's arithmetic against hand-worked numbers, plain loops and closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.compress.fasa.attention import attend_to, choose, dimension_query, forced, grouped_scores, keep_mask
from bakeoff.compress.fasa.attention import top_positions as top
from bakeoff.compress.fasa.cost import bytes_read, speedup
from bakeoff.compress.fasa.method import by_group, layer_budgets, predict
from bakeoff.compress.fasa.planes import Rotary, contextual_agreement, plane_scores

FOUR = Rotary(1, 1, 1, 4, 4, "half")
Q = torch.tensor([[1, 2, 0.5, -1]])
K = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 1], [2, 0, 0, 1], [0, -1, 1, 0]])
V = torch.tensor([1.0, 2, 3, 4])[:, None]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention_in_loops(q, keys, values, rows, scale):
    """Softmax attention of one query on the given rows, without tensors."""
    scores = [sum(float(a) * float(b) for a, b in zip(q, keys[j], strict=True)) * scale for j in rows]
    weights = [math.exp(s - max(scores)) for s in scores]
    total = sum(weights)
    return [
        sum(w * float(values[j][c]) for w, j in zip(weights, rows, strict=True)) / total for c in range(len(values[0]))
    ]


# ---- the worked example


def test_example_scores_by_plane():
    by_plane = plane_scores(Q, K, FOUR)[:, 0]
    torch.testing.assert_close(by_plane, torch.tensor([[1.5, 0, 2, 0.5], [0, 3, -1, -2]]))
    torch.testing.assert_close(by_plane.sum(0), torch.tensor([1.5, 3, 1, -1.5]))


def test_example_agreement_and_choice():
    by_plane = plane_scores(Q, K, FOUR)
    assert contextual_agreement(Q @ K.T, by_plane, 2).flatten().tolist() == [0.5, 1.0]
    assert top(Q @ K.T, 2).tolist() == [[0, 1]]
    assert top(by_plane[1], 2).tolist() == [[0, 1]]  # I_dom = {1}


def test_example_interleaved_reading_is_another():
    by_plane = plane_scores(Q, K, Rotary(1, 1, 1, 4, 4, "interleaved"))
    assert contextual_agreement(Q @ K.T, by_plane, 2).flatten().tolist() == [0.5, 0.5]
    assert top(by_plane[0], 2).tolist() != [[0, 1]]


def test_example_output():
    few = attend_to(Q[None, None], K[None, None], V[None, None], torch.tensor([[[0, 1]]]), None, None)
    assert few.item() == pytest.approx(1.679179, abs=1e-6)
    every = attend_to(Q[None, None], K[None, None], V[None, None], torch.arange(4)[None, None], None, None)
    assert every.item() == pytest.approx(2.054641, abs=1e-6)


# ---- identities


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@given(seed=st.integers(0, 10_000), planes=st.integers(1, 32))
@settings(max_examples=25, deadline=None)
def test_planes_add_up_to_the_score(layout, seed, planes):
    d = 2 * planes
    q, keys = normal(3, d, seed=seed), normal(7, d, seed=seed + 1)
    total = plane_scores(q, keys, Rotary(1, 1, 1, d, d, layout)).sum(0)
    torch.testing.assert_close(total, q @ keys.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_plane_sees_only_the_distance_of_positions(layout):
    """Rotating query and key by the same angle in every plane changes no plane's score: the layout is the right one."""
    from transformers.models.glm.modeling_glm import rotate_half as interleaved
    from transformers.models.llama.modeling_llama import rotate_half as half

    rotary, angle = Rotary(1, 1, 1, 8, 8, layout), torch.tensor([0.3, 1.1, 2.5, 0.01])
    full = angle.repeat(2) if layout == "half" else angle.repeat_interleave(2)
    turn = half if layout == "half" else interleaved
    q, k = normal(2, 8), normal(5, 8, seed=1)
    before = plane_scores(q, k, rotary)
    after = plane_scores(q * full.cos() + turn(q) * full.sin(), k * full.cos() + turn(k) * full.sin(), rotary)
    torch.testing.assert_close(before, after, atol=1e-5, rtol=1e-5)


def test_all_planes_agree_fully_and_random_tokens_by_chance():
    q, keys = normal(50, 16), normal(200, 16, seed=1)
    scores = q @ keys.T
    assert contextual_agreement(scores, scores[None], 20).mean() == 1
    chance = contextual_agreement(scores, normal(40, 50, 200, seed=2), 20)
    assert chance.mean().item() == pytest.approx(20 / 200, abs=0.005)
    assert chance.min() >= 0
    assert chance.max() <= 1


def test_agreement_grows_with_the_number_of_planes_on_average():
    q, keys = normal(100, 32), normal(300, 32, seed=1)
    by_plane = plane_scores(q, keys, Rotary(1, 1, 1, 32, 32, "half"))
    ca = [contextual_agreement(q @ keys.T, by_plane[None, :n].sum(1), 30).mean() for n in (1, 2, 4, 8, 16)]
    assert ca == sorted(ca)
    assert ca[-1] == 1


# ---- the choice


@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    n=st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_of_equal_scores_the_first_positions(scores, n):
    n = min(n, len(scores))
    expected = sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:n])
    assert top(torch.tensor([scores], dtype=torch.float32), n).tolist() == [expected]


@given(
    data=st.data(),
    t=st.integers(2, 40),
    seed=st.integers(0, 1000),
    padded=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_choice_against_a_plain_one(data, t, seed, padded):
    n = data.draw(st.integers(1, t - 1))
    sink = data.draw(st.integers(0, n - 1))
    recent = data.draw(st.integers(0, n - sink))
    pad = data.draw(st.integers(0, t - 1)) if padded else 0
    scores = normal(1, 1, t, seed=seed).round(decimals=0)  # with ties
    valid = (torch.arange(t) >= pad)[None, None] if padded else None
    index = choose(scores, valid, n, sink, recent)[0, 0].tolist()
    real = list(range(pad, t))
    must = set(real[:sink]) | set(real[-max(recent, 1) :])
    rest = sorted((j for j in real if j not in must), key=lambda j: (-scores[0, 0, j].item(), j))
    expected = sorted(must | set(rest[: n - len(must)])) if len(real) > n else real
    assert [j for j in index if j >= pad] == expected
    assert index == sorted(set(index))
    assert len(index) == n


def test_the_mask_of_a_prompt_is_the_choice_of_each_of_its_queries():
    scores, allowed = normal(2, 3, 20, 20), torch.ones(20, 20).tril().bool()[None, None]
    keep = keep_mask(scores, allowed, 6, 2, 2)
    for row in range(7, 20):
        index = choose(scores[:, :, row, : row + 1], None, 6, 2, 2)
        found = [keep[b, h, row].nonzero().flatten().tolist() for b in range(2) for h in range(3)]
        assert found == index.flatten(0, 1).tolist()
    assert (keep.sum(-1) == torch.arange(1, 21).clamp(max=6)).all()


def test_forced_tokens_follow_the_padding():
    allowed = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]]).bool()
    assert forced(allowed, 1, 2).nonzero()[:, 1].tolist() == [2, 5, 6]


def test_not_a_number_comes_last():
    scores = torch.tensor([[math.nan, 1.0, math.nan, -math.inf, 2.0]])
    assert top(scores, 2).tolist() == [[1, 4]]
    assert top(scores.fill_(math.nan), 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_choice_in_every_precision(dtype):
    scores = normal(3, 2, 50).to(dtype)
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[..., :7].sort(-1).values
    assert torch.equal(top(scores, 7), expected)


# ---- attention


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_on_chosen_rows_against_plain_loops(kv_heads):
    q, keys, values = normal(2, 4, 1, 8), normal(2, kv_heads, 12, 8, seed=1), normal(2, kv_heads, 12, 8, seed=2)
    index = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(i))[:5] for i in range(8)])
    index = index.view(2, 4, 5).sort(-1).values
    out = attend_to(q, keys, values, index, None, 0.5)
    for b in range(2):
        for h in range(4):
            kv = h // (4 // kv_heads)
            expected = attention_in_loops(q[b, h, 0], keys[b, kv], values[b, kv], index[b, h].tolist(), 0.5)
            torch.testing.assert_close(out[b, h, 0], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_rows_come_from_any_memory_layout():
    whole = normal(2, 3, 40, 8)
    index = torch.stack([torch.arange(5), torch.arange(3, 8)]).repeat(3, 1).view(1, 6, 5).expand(2, -1, -1)
    q = normal(2, 6, 1, 8, seed=3)
    expected = attend_to(q, whole[:, :, 7:20].contiguous(), whole[:, :, 7:20].contiguous(), index, None, None)
    strided = whole.transpose(1, 2).contiguous().transpose(1, 2)  # as a projection leaves it
    for x in (whole[:, :, 7:20], strided[:, :, 7:20]):
        torch.testing.assert_close(attend_to(q, x, x, index, None, None), expected)


def test_rows_that_are_padding_get_no_weight():
    q, keys, values = normal(1, 1, 1, 4), normal(1, 1, 6, 4, seed=1), normal(1, 1, 6, 4, seed=2)
    valid = torch.tensor([[[False, False, True, True, True, True]]])
    out = attend_to(q, keys, values, torch.tensor([[[0, 1, 2, 5]]]), valid, None)
    expected = attention_in_loops(q[0, 0, 0], keys[0, 0], values[0, 0], [2, 5], 0.5)
    torch.testing.assert_close(out[0, 0, 0], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_prediction_with_and_without_the_copy_is_the_sum_over_the_dominant_planes():
    rotary = Rotary(1, 4, 2, 8, 8, "half")
    q, keys = normal(2, 4, 1, 8), normal(2, 2, 9, 8, seed=1)
    planes = torch.tensor([[0, 1], [2, 3], [0, 3], [1, 2]])  # other planes for heads that share keys
    dims = rotary.dims(planes)
    copy = torch.stack([keys[:, h // 2][..., dims[h]].transpose(-1, -2) for h in range(4)], dim=1)
    expected = torch.stack(
        [
            torch.stack([plane_scores(q[b, h], keys[b, h // 2], rotary)[planes[h]].sum(0)[0] for h in range(4)])
            for b in range(2)
        ]
    )
    torch.testing.assert_close(predict(q, keys, dims, None), expected)
    torch.testing.assert_close(predict(q, keys, dims, copy), expected)


def test_all_planes_give_the_full_score():
    q, keys = normal(1, 2, 3, 8), normal(1, 2, 9, 8, seed=1)
    dims = Rotary(1, 2, 2, 8, 8, "half").dims(torch.arange(4).expand(2, -1))
    torch.testing.assert_close(grouped_scores(dimension_query(q, dims), keys), q @ keys.transpose(-1, -2))


def test_scores_of_a_group_are_the_sum_of_the_softmax_of_its_heads():
    scores, valid = normal(1, 4, 6), torch.tensor([[[False, True, True, True, True, True]]])
    summed = by_group(scores, valid, 2, 0.5)
    by_hand = (scores[0, :, 1:] * 0.5).softmax(-1)
    torch.testing.assert_close(summed[0, :, 1:], torch.stack([by_hand[:2].sum(0), by_hand[2:].sum(0)]))
    assert (summed[0, :, 0] == 0).all()


# ---- budgets and formulas


@given(layers=st.integers(1, 40), n_fac=st.integers(64, 512), decay=st.floats(0.5, 4))
@settings(max_examples=50, deadline=None)
def test_layer_budgets_keep_the_total_and_fall(layers, n_fac, decay):
    budgets = layer_budgets(layers, n_fac, decay)
    assert abs(sum(budgets) - layers * n_fac) <= 1 or layers == 1
    if decay > 1:
        assert all(a >= b - 1 for a, b in pairwise(budgets))
    if decay == 1:
        assert set(budgets) == {n_fac}


def test_formulas_of_the_paper():
    assert speedup(128, 16, 256, 32768) == pytest.approx(7.53, abs=0.005)
    assert speedup(64, 8, 64, 512) == pytest.approx(4.0)
    assert bytes_read(128, 16, 256, 32768) == pytest.approx(0.1328, abs=5e-5)

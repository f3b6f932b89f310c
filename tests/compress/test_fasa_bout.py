"""The bout of FASA: its rivals against plain loops, its simulation against real decoding, its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from bakeoff.arena.types import Run
from bakeoff.compress import Fasa, calibrate_fasa
from bakeoff.compress.fasa import bout
from bakeoff.compress.fasa.attention import as_allowed, grouped_scores
from bakeoff.compress.fasa.cost import Step, crossover
from bakeoff.compress.fasa.experiments import common_planes
from bakeoff.compress.fasa.figures import crossing
from bakeoff.compress.fasa.selectors import (
    Planes,
    Quest,
    Randomly,
    Seen,
    SnapKV,
    SparQ,
    everything,
    h2o,
    oracle,
    random_calibration,
    streaming,
)
from bakeoff.compress.fasa.simulate import Budget, simulate

PROMPT, T, HEADS, KV, D = 12, 30, 4, 2, 8


@pytest.fixture
def seen() -> Seen:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, h, T, D, generator=generator) for h in (HEADS, KV))
    late = query[:, :, PROMPT:]
    steps = as_allowed(None, T - PROMPT, T, late.device)[0, 0]
    return Seen(0, late, query[:, :, :PROMPT], key, grouped_scores(late, key), steps, D**-0.5, PROMPT, 9, 1, 2)


def by_hand(seen: Seen, score, recent: int = 2) -> torch.Tensor:
    """Forced tokens and the best of score(head, row, column), row counted from the start of the window."""
    keep = torch.zeros_like(seen.scores, dtype=torch.bool)
    for h in range(HEADS):
        for row in range(PROMPT, T):
            columns = list(range(row + 1))
            must = set(columns[: seen.sink]) | set(columns[-recent:])
            rest = sorted((j for j in columns if j not in must), key=lambda j: (-float(score(h, row, j)), j))
            keep[0, h, row - PROMPT, sorted(must | set(rest[: seen.n - len(must)]))] = True
    return keep


def test_oracle_streaming_and_everything(seen: Seen):
    assert torch.equal(oracle(seen), by_hand(seen, lambda h, row, j: seen.scores[0, h, row - PROMPT, j]))
    assert torch.equal(streaming(seen), by_hand(seen, lambda h, row, j: j))
    assert torch.equal(everything(seen)[0, 0], seen.steps)


def test_sparq(seen: Seen):
    def score(h, row, j):
        q = seen.query[0, h, row - PROMPT]
        largest = sorted(range(D), key=lambda i: -abs(q[i]))[:3]
        return sum(q[i] * seen.key[0, h // 2, j, i] for i in largest)

    assert torch.equal(SparQ(3)(seen), by_hand(seen, score))


@pytest.mark.parametrize("page", [3, 4])
def test_quest(seen: Seen, page: int):
    def score(h, row, j):
        start = j // page * page
        keys = seen.key[0, h // 2, start : min(start + page, row + 1)]
        q = seen.query[0, h, row - PROMPT]
        return round(sum(max(q[i] * keys[:, i].min(), q[i] * keys[:, i].max()).item() for i in range(D)), 4)

    assert (Quest(page)(seen) == by_hand(seen, score)).float().mean() > 0.995  # sums in another order may tie


def test_snapkv_chooses_once_and_forgets(seen: Seen):
    method = SnapKV(window=4, pool=3)
    keep = method(seen)
    votes = torch.zeros(HEADS, PROMPT)
    for h in range(HEADS):
        for row in range(PROMPT - 4, PROMPT):
            scores = seen.key[0, h // 2, : row + 1] @ seen.asked[0, h, row] * seen.scaling
            votes[h, : row + 1] += scores.softmax(0)
    smooth = [[votes[h, max(j - 1, 0) : j + 2].mean().item() for j in range(PROMPT)] for h in range(HEADS)]
    assert torch.equal(keep, by_hand(seen, lambda h, row, j: smooth[h][j] if j < PROMPT else -1, recent=4))
    later = seen._replace(asked=seen.asked[:, :, :0])
    assert torch.equal(method(later), keep)


def test_h2o_drops_for_good(seen: Seen):
    keep = h2o(seen)
    for h in range(HEADS):
        total = [0.0] * T
        for row in range(PROMPT):
            scores = seen.key[0, h // 2, : row + 1] @ seen.asked[0, h, row] * seen.scaling
            for j, weight in enumerate(scores.softmax(0).tolist()):
                total[j] += weight
        alive = list(range(PROMPT))
        for row in range(PROMPT, T):
            alive.append(row)
            must = set(alive[:1]) | set(alive[-4:])
            rest = sorted((j for j in alive if j not in must), key=lambda j: -total[j])
            alive = sorted(must | set(rest[: 9 - len(must)]))
            assert keep[0, h, row - PROMPT].nonzero().flatten().tolist() == alive
            weights = (seen.scores[0, h, row - PROMPT, alive] * seen.scaling).softmax(0).tolist()
            for j, weight in zip(alive, weights, strict=True):
                total[j] += weight


def test_random_tokens_and_planes(seen: Seen):
    keep = Randomly(torch.Generator().manual_seed(0))(seen)
    assert (keep.sum(-1) == 9).all()
    assert keep[..., 0].all()
    assert not torch.equal(keep, Randomly(torch.Generator().manual_seed(1))(seen))


@pytest.mark.parametrize("selector", [oracle, streaming, SparQ(2), Quest(4), h2o])
def test_every_budget_is_equal_and_causal(seen: Seen, selector):
    keep = selector(seen)
    assert (keep.sum(-1) == seen.n).all()
    assert not (keep & ~seen.steps).any()


# ---- the simulation


def test_simulation_is_what_decoding_with_the_library_gives():
    config = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3)  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    windows = torch.randint(0, 96, (2, 41), generator=torch.Generator().manual_seed(1))
    calibration = calibrate_fasa(model, torch.randint(0, 96, (1, 128), generator=torch.Generator().manual_seed(2)))
    found = simulate(model, windows, 20, Planes(calibration.dims()), Budget(10, 2, 3))
    with Fasa(calibration, 10, 2, 3).attach(model) as fasa:
        cache = fasa.cache()
        model(windows[:, :20], cache=cache)
        steps = [model(windows[:, i : i + 1], cache=cache).logits[:, 0] for i in range(20, 40)]
    nll = [cross_entropy(torch.stack(steps, 1)[b], windows[b, 21:]).item() for b in range(2)]
    np.testing.assert_allclose(found["nll"], nll, rtol=1e-4)
    full = simulate(model, windows, 20, everything, Budget(10, 2, 3))
    logits = model(windows[:, :-1]).logits[:, 20:]
    expected = [cross_entropy(logits[b], windows[b, 21:]).item() for b in range(2)]
    np.testing.assert_allclose(full["nll"], expected, rtol=1e-5)
    assert (full["overlap"] == 1).all()
    np.testing.assert_allclose(full["mass"], 1, rtol=1e-6)
    dense = simulate(model, windows, 20, streaming, Budget(10, 2, 3, full_layers=3))
    np.testing.assert_allclose(dense["nll"], expected, rtol=1e-5)


def test_tiny_model_ranks_the_contenders():
    data = bout.load(quick=True)
    outcome = {c.name: c.call(data, 0) for c in bout.contenders(data) if c.name in ("fasa", "full", "random")}
    for share in (
        "overlap",
        "mass",
    ):  # beyond the 128 tokens it was trained on, the tiny model's likelihood ranks nobody
        full, fasa, random = (getattr(outcome[name], share).mean() for name in ("full", "fasa", "random"))
        assert full > 0.999
        assert full > fasa > random + 0.1
    scores = bout.score(outcome["fasa"], data)
    assert scores["key_read"] == 0.25
    assert set(scores["by_budget"]) == {"16", "32", "128"}
    assert np.shape(scores["ca_by_layer"]) == (4, 16)
    assert len(scores["decode"]["t"]) == len(scores["decode"]["fasa"]) == 3


def test_calibrations_in_common():
    data = bout.load(quick=True)
    a, b = (random_calibration(data.rotary, 4, seed) for seed in (0, 1))
    assert common_planes(a, a) == 1
    assert 0 < common_planes(a, b) < 0.6


# ---- crossing point and figures


def test_crossing_point():
    steps = [Step(512, 1, 2, 0), Step(1024, 2, 1.9, 0), Step(2048, 3, 4, 0), Step(4096, 5, 4, 0), Step(8192, 9, 5, 0)]
    assert crossover(steps) == 4096
    assert crossover(steps[:3]) is None
    assert crossover(steps[3:]) == 4096
    for chosen in (steps, steps[:3], steps[3:]):
        columns = {name: [getattr(step, name) for step in chosen] for name in ("t", "full", "fasa")}
        assert crossing(columns) == crossover(chosen)


def test_figures(tmp_path):
    decode = {"t": [512, 1024, 2048], "full": [0.1, 0.2, 0.5], "fasa": [0.3, 0.3, 0.4], "predict": [0.1] * 3}
    details = {"decode": decode, "by_budget": {"16": 3.0, "32": 2.8}, "ca_random": 0.3}
    details |= {"ca_by_layer": [[0.2, 0.5]] * 3, "ca_middle": [[0.2, 0.5]] * 2}
    run = Run("", "fasa", "fasa", 0, {}, "", "", status="ok", details=details)
    told = bout.figures([run], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(told) == {"decode-time.svg", "budget.svg", "agreement.svg"}
    assert "cheaper from 2,048 tokens on, slower below" in told["decode-time.svg"]
    assert bout.figures([], tmp_path) == {}


def test_benchmark_prints_the_crossing_point():
    script = Path(__file__).parents[2] / "benchmarks" / "bench_fasa.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick"], capture_output=True, text=True, check=True, timeout=120
    )
    assert "slower" in done.stdout
    assert "decode attention / SDPA, t = 16,384" in done.stdout

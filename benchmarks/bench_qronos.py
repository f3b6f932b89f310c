"""Cost of Qronos as ratios of one run: ``python benchmarks/bench_qronos.py``; SmolLM2-135M, one thread."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bakeoff.compress import Qronos
from bakeoff.compress._shared.grid import GridSpec
from bakeoff.compress._shared.quant_linear import QuantLinear
from bakeoff.compress._shared.rounding import optq
from bakeoff.compress._shared.streams import clone, walk
from bakeoff.compress.qronos.experiments import speed
from bakeoff.compress.qronos.rounding import qronos
from bakeoff.inputs.language import default_text, load_model, random_windows, split_tokens


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds: a busy machine changes them little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def told(what: str, value: float, relation: str, target: float) -> None:
    met = value >= target if relation == ">=" else value <= target
    print(f"{what:80s} {value:8.3f}   {relation} {target:<6g} {'met' if met else 'missed'}", flush=True)


def against_optq() -> None:
    """The first block of SmolLM2 in 3 bits, 32,768 tokens; OPTQ walks one stream and needs no G."""
    lm = load_model(None)
    calibration = random_windows(split_tokens(lm.tokenizer, default_text())[0], 128, 256, 0)

    def rival(name: str, W: torch.Tensor, bias: Any, H: torch.Tensor, G: Any) -> QuantLinear:
        grid = GridSpec(3).fit(W)
        return QuantLinear.pack(optq(W, H, grid), grid, bias)

    ours = seconds(lambda: Qronos(3).quantize(clone(lm.model), [calibration], blocks=1))
    theirs = seconds(lambda: walk(clone(lm.model), [calibration], rival, blocks=1, paired=False))
    told("time of a block of SmolLM2 / own OPTQ", ours / theirs, "<=", 1.6)


def against_brevitas(N: int = 576) -> None:
    """Rounding alone: the same weight, H and G, 3 bits, frozen scales, without reordering."""
    if importlib.util.find_spec("brevitas") is None:
        print("time / Brevitas' Qronos: not measured, it needs `pip install brevitas`")
        return
    import brevitas.nn as qnn
    from brevitas.graph.qronos import Qronos as Theirs
    from brevitas.inject.enum import ScalingImplType
    from brevitas.quant import Int8WeightPerChannelFloat

    class Frozen(Int8WeightPerChannelFloat):
        scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS

    draw = torch.Generator().manual_seed(0)
    X, E = (torch.randn(4 * N, N, generator=draw) for _ in range(2))
    Xt, W = X + 0.1 * E, torch.randn(N, N, generator=draw)
    H, G = Xt.T @ Xt / len(X), Xt.T @ X / len(X)
    twin = qnn.QuantLinear(N, N, bias=False, weight_quant=Frozen, weight_bit_width=3)
    twin.weight.data.copy_(W)
    twin.weight_orig = W.clone()
    twin.quant_weight()
    solver = Theirs(twin, "layer", False, 1, True)
    solver.H, solver.G = H[None].clone(), G.T[None].clone()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = seconds(solver.single_layer_update)
    grid = GridSpec(3, scale="absmax").fit(W)
    ours = min(seconds(lambda: qronos(W, H, G, grid, damp="sigma", act_order=False)) for _ in range(3))
    told(f"time to round a {N} x {N} layer / Brevitas' Qronos", ours / theirs, "<=", 0.5)


def memory() -> None:
    """Peak above the model, in a process of its own: a block of SmolLM2, 32,768 tokens."""
    code = """
import torch
from bakeoff.compress import Qronos
from bakeoff.compress._shared.streams import clone
from bakeoff.inputs.language import load_model, random_windows
def kb(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
torch.set_num_threads(1)
model = load_model(None).model
tokens = random_windows(torch.arange(40000), 128, 256, 0)
model(input_ids=tokens[:1, :8])
sum(p.sum() for p in model.parameters())  # read all of the file
before = kb("VmRSS")
Qronos(3).quantize(clone(model), [tokens], blocks=1)
print(kb("VmHWM") - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak = 1024 * int(done.stdout)
    streams = 2 * 4 * 32768 * 576
    told("peak memory of a block of SmolLM2 / (3 x 4 N^2 bytes + streams)", peak / (12 * 1536**2 + streams), "<=", 1)


def main() -> None:
    torch.set_num_threads(1)
    against_brevitas()
    told("definition / efficient form: one row, N = 256, 2,048 tokens", speed(0)["times_faster"], ">=", 10)
    against_optq()
    memory()


if __name__ == "__main__":
    main()

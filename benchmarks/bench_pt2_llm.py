"""Cost of PT2-LLM as ratios of one run: ``python benchmarks/bench_pt2_llm.py``; SmolLM2-135M, one thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bakeoff.compress._shared.grid import GridSpec
from bakeoff.compress._shared.rounding import optq
from bakeoff.compress.pt2_llm.blocks import ternarize
from bakeoff.compress.pt2_llm.experiments import LAYERS, Layer, model_layers, speed
from bakeoff.compress.pt2_llm.fitting import refined, started


def seconds(call: Callable[[], Any], times: int = 3) -> float:
    """CPU seconds, the least of some calls: a busy machine changes them little."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def told(what: str, value: float, relation: str, target: float) -> None:
    met = value >= target if relation == ">=" else value <= target
    print(f"{what:80s} {value:8.3f}   {relation} {target:<6g} {'met' if met else 'missed'}", flush=True)


def against_optq(layers: list[Layer]) -> None:
    """Whole layers, and 2-bit OPTQ in groups of 128 on the same weights and statistics, grids included."""
    spec = GridSpec(2, symmetric=False, group_size=128, scale="mse")
    ours = theirs = fitting = 0.0
    for name, (W, C) in zip(LAYERS, layers, strict=True):
        whole, rival = seconds(partial(ternarize, W, C)), seconds(partial(rounded, W, C, spec))
        part = seconds(partial(fitted, W))
        print(f"  {name:32s} PT2-LLM {whole:.3f} s, of which ITF {part:.3f} s; OPTQ {rival:.3f} s", flush=True)
        ours, theirs, fitting = ours + whole, theirs + rival, fitting + part
    told("time of eight layers / 2-bit OPTQ", ours / theirs, "<=", 1.5)
    told("share of ITF in that time", fitting / ours, "<=", 0.25)


def rounded(W: torch.Tensor, C: torch.Tensor, spec: GridSpec) -> torch.Tensor:
    return optq(W, C, spec.fit(W))


def fitted(W: torch.Tensor) -> None:
    """ITF of all blocks, in their plain order, start included."""
    for begin in range(0, W.shape[1], 128):
        block = W[:, begin : begin + 128]
        refined(block, started(block))


def memory(n: int = 1024, m: int = 4096) -> None:
    """Peak above what was there before, in a process of its own."""
    code = f"""
import torch
from bakeoff.compress.pt2_llm.blocks import ternarize
def kb(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
torch.set_num_threads(1)
ternarize(torch.randn(64, 256), torch.eye(256))
W, X = torch.randn({n}, {m}), torch.randn({m} // 2, {m})
C = X.T @ X
del X
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
before = kb("VmRSS")
ternarize(W, C)
print(kb("VmHWM") - before)
"""
    peak = 1024 * int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    told(f"peak memory, {n} x {m} / (3 m^2 float64 + 3 copies of W)", peak / (3 * 8 * m * m + 3 * 4 * n * m), "<=", 1)


def forward() -> None:
    """For information: no speed is promised on a CPU."""
    for name, ratio in speed(0).items():
        print(f"  for information: {name}, time of the packed form / dense float32: {ratio:.1f}")


def main() -> None:
    torch.set_num_threads(1)
    against_optq(model_layers(0))
    memory()
    forward()


if __name__ == "__main__":
    main()

"""Cost of AMiD as ratios of one run: ``python benchmarks/bench_amid.py``."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

POSITIONS, VOCABULARY, CHUNK = 512, 49_152, 8


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds: a busy machine changes them little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> float:
    """Median over rounds in which both run one after the other."""
    ours(), theirs()
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(rounds))


def told(what: str, value: float, relation: str, target: float) -> None:
    met = value >= target if relation == ">=" else value <= target
    print(f"{what:90s} {value:8.3f}   {relation} {target:<6g} {'met' if met else 'missed'}", flush=True)


def random_logits(seed: int) -> Any:
    import torch

    return 3 * torch.randn(POSITIONS, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def loss() -> None:
    """Forward and backward on the same logits against a plain forward KL."""
    from bakeoff.compress import amid_loss
    from bakeoff.compress.amid.rivals import forward_kl

    student, teacher = random_logits(0).requires_grad_(), random_logits(1)
    plain = forward_kl()

    def ours(**options: Any) -> None:
        student.grad = None
        amid_loss(student, teacher, **options).backward()

    def theirs() -> None:
        student.grad = None
        plain(student, teacher, None, 0.0).backward()

    name = f"loss, {POSITIONS} x {VOCABULARY:,}: time / forward KL"
    told(f"{name}, defaults", ratio(ours, theirs, 7), "<=", 2.5)
    for options in ({"alpha": -1}, {"alpha": 1}, {"divergence": "ab"}, {"chunk": CHUNK}):
        print(f"  for information, {options}: {ratio(lambda o=options: ours(**o), theirs, 3):.2f}")


def memory() -> None:
    """Peak memory above the two logits, in a process of its own for each way.

    glibc keeps freed blocks of this size in its heap, in pieces; with a fixed threshold they go back at once, and the
    peak is what is needed at a time. Without it the same run is shown for information.
    """
    for chunk, fixed, what in ((CHUNK, True, ""), (CHUNK, False, "glibc's own threshold"), (None, True, "no chunks")):
        command = [sys.executable, __file__, "--peak", str(chunk)]
        env = dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536") if fixed else None
        peak = float(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)
        if what:
            print(f"  for information, {what}: {peak:.2f}")
        else:
            told(f"peak memory above the logits / student logits, chunk={chunk}", peak, "<=", 1.3)


def peak_of(chunk: int | None) -> float:
    """Of forward and backward, over the size of the student's logits in float32."""
    import torch

    from bakeoff.compress import amid_loss

    small = random_logits(2)[:8].clone().requires_grad_()
    amid_loss(small, small.detach(), chunk=4).backward()  # what is loaded once
    student, teacher = random_logits(0).requires_grad_(), random_logits(1)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = kilobytes("VmRSS")
    (_,) = torch.autograd.grad(amid_loss(student, teacher, chunk=chunk), student)  # .grad could be a second copy
    return (kilobytes("VmHWM") - before) * 1024 / (student.numel() * 4)


def kilobytes(line: str) -> int:
    """Of this process, now (VmRSS) or at most (VmHWM)."""
    text = Path("/proc/self/status").read_text()
    return int(next(found.split()[1] for found in text.splitlines() if found.startswith(line)))


def step() -> None:
    """A training step of the bout's student, teacher included, against one with forward KL."""
    import torch

    from bakeoff.compress.amid.bout import load
    from bakeoff.compress.amid.rivals import Loss, amid, forward_kl
    from bakeoff.compress.amid.training import teacher_logits, train, training_batches, untrained

    data = load(steps=10)
    batches = training_batches(data, 0)

    def steps(loss: Loss) -> Callable[[], Any]:
        def once() -> None:
            logits = teacher_logits(data, batches)
            train(untrained(data, 0), loss, 3e-3, batches, logits, data.vocabulary)

        return once

    torch.manual_seed(0)
    found = ratio(steps(amid(0.5, 0.1, "kl")), steps(forward_kl()), 9)
    told("training step, 8 x 64 tokens, V = 1,024, student 0.1 M, teacher 0.9 M: time / forward KL", found, "<=", 1.15)


def main() -> None:
    warnings.simplefilter("ignore")
    if "--peak" in sys.argv:
        word = sys.argv[-1]
        print(peak_of(None if word == "None" else int(word)))
        return
    for part in (loss, memory, step):
        part()


if __name__ == "__main__":
    main()

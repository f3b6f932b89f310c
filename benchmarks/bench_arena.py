"""What the arena costs: wall milliseconds per run beyond a bare forked process, and the start-up of the command.

Run: python benchmarks/bench_arena.py
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bakeoff.arena import contest, runner
from bakeoff.arena.types import Settings
from bakeoff.catalog import read_card

RUNS = 200


def bare_process_ms() -> float:
    """Milliseconds to start and reap one process of the same fork server that does nothing."""
    context = multiprocessing.get_context("forkserver")
    start = time.perf_counter()
    for _ in range(RUNS):
        process = context.Process(target=time.sleep, args=(0,))
        with runner._starting():  # else this script is imported in every process
            process.start()
        process.join()
    return (time.perf_counter() - start) / RUNS * 1000


def run_ms() -> float:
    """Milliseconds per run of a bout whose contenders do next to nothing, one at a time, journal included."""
    plugin = Path(__file__).parents[1] / "tests" / "plugin"
    sys.path.insert(0, str(plugin))
    card = read_card(plugin / "toy_methods" / "toy" / "card.toml", "toy_methods.toy")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(seeds=2, jobs=1, out=Path(folder) / "warm")
        contest.hold(card, {}, settings, command="")
        settings = Settings(seeds=RUNS // 4, jobs=1, out=Path(folder) / "timed")
        seconds = []
        for _ in range(2):  # the second time all runs are there: what remains is the report
            start = time.perf_counter()
            contest.hold(card, {}, settings, command="")
            seconds.append(time.perf_counter() - start)
        return (seconds[0] - seconds[1]) / RUNS * 1000


def command_cpu_s(*words: str) -> float:
    """User CPU seconds of a Python process, the least of five."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return min(seconds)


def main() -> None:
    """Print each figure beside its target."""
    whole, bare = run_ms(), bare_process_ms()
    overhead = whole - bare
    print(f"a run: {whole:.1f} ms, a bare process: {bare:.1f} ms, ratio {whole / bare:.1f}")
    print(f"overhead per run: {overhead:.1f} ms; target < 30: {'met' if overhead < 30 else 'missed'}")
    for words in (("list",), ("--help",)):
        seconds = command_cpu_s("-m", "bakeoff.cli", *words)
        plain = command_cpu_s("-c", "pass")
        verdict = "met" if seconds <= 0.3 else "missed"
        print(f"bakeoff {words[0]}: {seconds:.2f} s user CPU ({seconds / plain:.0f}x python); target <= 0.3: {verdict}")


if __name__ == "__main__":
    main()

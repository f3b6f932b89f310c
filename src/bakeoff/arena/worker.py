"""What happens inside the process of one run: seed, load, run, score, measure."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from bakeoff.arena.types import Contender, Run, Task

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
STOPS = (signal.SIGINT, signal.SIGTERM)
"""What ends a bake-off; a run answers to them once it leads a process group of its own."""


def main(task: Task, result: Connection, log: Connection, life: Connection) -> None:
    """Entry of the process: perform the task and send its record; never returns."""
    os.setsid()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    log.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    faulthandler.enable(file=2, all_threads=False)
    _die_with_driver(life)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    me, run = os.getpid(), perform(task)
    if os.getpid() != me:  # a process that the contender forked came back with it
        os._exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    result.send_bytes(json.dumps(run.to_json(), allow_nan=False).encode())
    while True:  # the driver kills it: until then its descendants can be found, those that left the group too
        signal.pause()


def _die_with_driver(life: Connection) -> None:
    """When the driver is gone, so is this process group, even when the driver was killed."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only; covers a worker stuck in native code
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            life.recv_bytes()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def perform(task: Task) -> Run:
    """Execute one task in this process and return its record; errors end up in the record."""
    run = Run(**vars(task.run))
    try:
        bout = importlib.import_module(task.bout)
        run.environment = environment(task.hosts)
        if run.contender.startswith("claim:"):
            _perform_claim(bout, run)
        else:
            _perform_contender(bout, task, run)
    except MemoryError as error:
        run.status, run.error = "oom", f"MemoryError: {error}"
    except Exception as error:
        traceback.print_exc()
        run.status = "oom" if "not enough memory" in str(error) else "failed"
        run.error = f"{type(error).__name__}: {error}"
    return run


def _perform_claim(bout: ModuleType, run: Run) -> None:
    check = getattr(bout, run.contender.removeprefix("claim:"))
    seed_everything(run.seed)
    meter = Meter()
    raw = check(run.seed)
    run.cost = meter.stop()
    _record_scores(run, raw, set(raw))


def _perform_contender(bout: ModuleType, task: Task, run: Run) -> None:
    data = bout.load(**task.options)
    if task.guest:
        contender: Contender = cloudpickle.loads(task.guest)
    else:
        contender = next(c for c in bout.contenders(data) if c.name == run.contender)
    assert contender.call is not None
    seed_everything(run.seed)
    meter = Meter()
    output = contender.call(data, run.seed)
    run.cost = meter.stop()
    _measure_artefact(output, task, run)
    _record_scores(run, bout.score(output, data), {m.name for m in bout.METRICS})


def seed_everything(seed: int) -> None:
    """Seed the global generators, for host libraries that draw from them; methods use their own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


class Meter:
    """Wall and CPU seconds, and peak memory above what was in use at the start."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        self._memory = _memory_kb("VmRSS")
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Costs since the start: wall_s, cpu_s (children included), peak_mb."""
        wall, cpu = time.perf_counter() - self._wall, _cpu_seconds() - self._cpu
        return {"wall_s": wall, "cpu_s": cpu, "peak_mb": max(0.0, (_memory_kb("VmHWM") - self._memory) / 1024)}


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _memory_kb(field: str) -> float:
    # ru_maxrss would include the parent that this process was forked from; it is the fallback where /proc is missing
    try:
        with open("/proc/self/status") as file:
            return next(float(line.split()[1]) for line in file if line.startswith(field))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1024 if sys.platform == "darwin" else peak


def _measure_artefact(output: Any, task: Task, run: Run) -> None:
    """Size of the output, and the output itself where it is to be kept."""
    calls, size = getattr(output, "model_calls", None), getattr(output, "nbytes", None)
    if calls is not None:
        run.cost["model_calls"] = float(calls)
    if not hasattr(output, "save"):
        return
    if task.keep or size is None:
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            output.save(Path(scratch))
            size = sum(p.stat().st_size for p in Path(scratch).rglob("*") if p.is_file())
            if task.keep:
                shutil.rmtree(task.keep, ignore_errors=True)
                shutil.copytree(scratch, task.keep)
    run.cost["artefact_bytes"] = float(size)


def _record_scores(run: Run, raw: dict[str, Any], metrics: set[str]) -> None:
    """Sort a bout's scores into means, per-example lists and details; a value that is not finite is divergence."""
    for name, value in raw.items():
        if name not in metrics:
            run.details[name] = _plain(value)
        elif value is not None:  # None: the metric does not apply to this contender
            array = np.asarray(value, dtype=float)
            run.scores[name] = float(array.mean())
            if array.ndim:
                run.examples[name] = array.tolist()
    bad = [name for name, value in run.scores.items() if not math.isfinite(value)]
    if bad:
        run.status, run.error = "diverged", f"not finite: {', '.join(sorted(bad))}"
        run.scores, run.examples = {}, {}
    else:
        run.status = "ok"


def _plain(value: Any) -> Any:
    """Arrays to lists, numbers that are not finite to None: strict JSON."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def environment(hosts: tuple[str, ...]) -> dict[str, str]:
    """Versions and hardware from a fixed list; the process environment is never recorded."""
    found = {"python": sys.version.split()[0], "system": f"{os.uname().sysname} {os.uname().machine}"}
    found |= {"cpu": _cpu_name(), "cores": str(os.cpu_count()), "threads": os.environ.get("OMP_NUM_THREADS", "default")}
    for name in ("bakeoff", "numpy", *hosts):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    return "unknown"

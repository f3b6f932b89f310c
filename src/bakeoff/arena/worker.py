"""What happens inside the process of one run: seed, load, run, score, measure."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
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
from collections.abc import Callable
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import numpy.random  # numpy loads it late: here that is once in the fork server, not in every run

from bakeoff.arena.types import Run, Task, to_json

_PR_SET_CHILD_SUBREAPER = 36
STOPS = (signal.SIGINT, signal.SIGTERM)
"""What ends a bake-off; a run answers to them once it leads a process group of its own."""


def main(task: Task, result: Connection, log: Connection, life: Connection) -> None:
    """Entry of the process: guard a child that performs the task and sends its record; never returns."""
    os.setsid()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    log.close()
    for stop in STOPS:
        signal.signal(stop, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    with contextlib.suppress(OSError, AttributeError):  # Linux: orphans of the run stay below this process
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if child := os.fork():
        result.close()
        _guard(child, life)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    faulthandler.enable(file=2, all_threads=False)
    me, run = os.getpid(), perform(task)
    if os.getpid() != me:  # a process that the contender forked came back with it
        os._exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    result.send_bytes(json.dumps(to_json(run), allow_nan=False).encode())
    while True:  # the driver ends it: a contender's own exit handlers and threads have no say any more
        signal.pause()


def _guard(child: int, life: Connection) -> NoReturn:
    """Outlive the run, which may be stuck in native code; end all that it started, then end the way it did.

    The run ends when `life` does: only the driver holds its other end, so that it need not be alive to end it.
    """

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            life.recv_bytes()
        os.kill(child, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ChildProcessError):  # none left; whoever loses a parent on the way becomes our child
        while True:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def descendants(pid: int) -> list[int]:
    """Children, children's children and so on; nothing where /proc is missing."""
    found = [pid]
    for parent in found:  # grows on the way
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found[1:]


def perform(task: Task) -> Run:
    """Execute one task in this process and return its record; errors end up in the record."""
    run = Run(**vars(task.run))
    try:
        bout = importlib.import_module(task.bout)
        run.environment = run.environment or environment(task.hosts)
        if run.contender.startswith("claim:"):
            raw = _measured(run, getattr(bout, run.contender.removeprefix("claim:")), run.seed)
            _record_scores(run, raw, set(raw))
        else:
            _perform_contender(bout, task, run)
    except MemoryError as error:
        run.status, run.error = "oom", f"MemoryError: {error}"
    except Exception as error:
        traceback.print_exc()
        run.status = "oom" if "not enough memory" in str(error) else "failed"
        run.error = f"{type(error).__name__}: {error}"
    return run


def _perform_contender(bout: ModuleType, task: Task, run: Run) -> None:
    data = bout.load(**task.options)
    offered = [cloudpickle.loads(task.guest)] if task.guest else bout.contenders(data)
    call = next(contender.call for contender in offered if task.guest or contender.name == run.contender)
    output = _measured(run, call, data, run.seed)
    _measure_artefact(output, task, run)
    _record_scores(run, bout.score(output, data), {m.name for m in bout.METRICS})


def _measured(run: Run, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a seeded call returns; its seconds, wall and CPU (children included), and its peak memory go into `run`."""
    seed_everything(run.seed)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    memory, cpu, wall = _memory_kb("VmRSS"), _cpu_seconds(), time.perf_counter()
    output = call(*arguments)
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    run.cost = {"wall_s": wall, "cpu_s": cpu, "peak_mb": max(0.0, (_memory_kb("VmHWM") - memory) / 1024)}
    return output


def seed_everything(seed: int) -> None:
    """Seed the global generators, for host libraries that draw from them; methods use their own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _memory_kb(field: str) -> float:
    try:
        with open("/proc/self/status") as file:
            return next(float(line.split()[1]) for line in file if line.startswith(field))
    except OSError:  # no /proc; ru_maxrss would include the parent that this process was forked from
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1024 if sys.platform == "darwin" else peak


def _measure_artefact(output: Any, task: Task, run: Run) -> None:
    """Size of the output, and the output itself where it is to be kept."""
    if (calls := getattr(output, "model_calls", None)) is not None:
        run.cost["model_calls"] = float(calls)
    if not hasattr(output, "save"):
        return
    size = getattr(output, "nbytes", None)
    if task.keep or size is None:
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            output.save(Path(scratch))
            if size is None:
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
    run.status = "ok"
    if bad := sorted(name for name, value in run.scores.items() if not math.isfinite(value)):
        run.status, run.error, run.scores, run.examples = "diverged", f"not finite: {', '.join(bad)}", {}, {}


def _plain(value: Any) -> Any:
    """Arrays to lists, numbers that are not finite to None: strict JSON."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def environment(hosts: tuple[str, ...]) -> dict[str, str]:
    """Versions and hardware from a fixed list; the process environment is never recorded. Looked up once a process."""
    found = {"python": sys.version.split()[0], "system": f"{os.uname().sysname} {os.uname().machine}", "cpu": "unknown"}
    found |= {"cores": str(os.cpu_count()), "threads": os.environ.get("OMP_NUM_THREADS", "default")}
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        found["cpu"] = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    for name in ("bakeoff", "numpy", *hosts):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

"""One process per run on this machine: limits, isolation, progress.

Every run is forked from a server that has imported the host library already, leads a process group of its own, and
writes what it prints into a pipe that the driver reads. However a run ends, its whole group is killed and the driver
goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

from bakeoff.arena import worker
from bakeoff.arena.types import Run, Settings, Task, from_json

_TAIL_BYTES, _TAIL_LINES, _READS, _PAGE = 65536, 20, 64, os.sysconf("SC_PAGE_SIZE")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


OnDone = Callable[[Run], None]


def run_local(tasks: Iterable[Task], on_done: OnDone, settings: Settings, preload: tuple[str, ...] = ()) -> None:
    """Execute tasks, so many at a time as the settings say, and hand each finished record to `on_done`.

    On any exception, KeyboardInterrupt included, every process is killed before it goes on its way.
    """
    jobs, queue = settings.jobs or 1, iter(tasks)
    memory = settings.memory * 2**30 if settings.memory else 0.8 * os.sysconf("SC_PHYS_PAGES") * _PAGE / jobs
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__, *preload])
    active: list[_Child] = []
    with _one_thread_each():
        try:
            while True:
                while len(active) < jobs and (task := next(queue, None)):
                    with _starting():
                        active.append(_Child(context, task, settings.timeout, memory))
                if not active:
                    return
                wait([c for child in active for c in child.waitables()], timeout=0.1)
                for child in [child for child in active if child.poll()]:
                    active.remove(child)
                    on_done(child.finish())
        finally:
            for child in active:
                child.kill()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Fork runs with one thread for each numerical library, so that scores do not depend on how many run at a time."""
    before = {name: os.environ[name] for name in _THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name in _THREADS:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Hide the main module from a process that starts, or it would run there again; put Ctrl-C off until it is ours."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    resource_tracker.ensure_running()  # its start would unblock the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, worker.STOPS)  # the fork server and its children inherit it
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """A run in its process."""

    def __init__(self, context: Any, task: Task, timeout: float, memory: float) -> None:
        run = replace(task.run, environment=worker.environment(task.hosts))  # here, once: a look-up takes milliseconds
        self.task = task = replace(task, run=run)
        self.timeout, self.memory = timeout, memory
        self.result, result_end = context.Pipe(duplex=False)
        self.log, log_end = context.Pipe(duplex=False)
        life_end, self.life = context.Pipe(duplex=False)
        self.process = context.Process(target=worker.main, args=(task, result_end, log_end, life_end), daemon=False)
        self.process.start()
        for end in (result_end, log_end, life_end):
            end.close()
        os.set_blocking(self.log.fileno(), False)
        self.start, self.next_look, self.tail = time.monotonic(), 0.0, bytearray()
        self.run: Run | None = None

    def waitables(self) -> list[Any]:
        return [self.result, self.process.sentinel, *([] if self.log.closed else [self.log])]

    def poll(self) -> bool:
        """Look after the run; True once it has ended, one way or the other."""
        self._read_log()
        if self.result.poll():
            with contextlib.suppress(EOFError, OSError, ValueError):
                self.run = from_json(Run, json.loads(self.result.recv_bytes()))
            self.run = self.run or self._ended("failed", self._exit_reason())
        elif not self.process.is_alive():
            self.run = self._ended("failed", self._exit_reason())
        elif time.monotonic() > self.start + self.timeout:
            self.run = self._ended("timeout", f"Timeout: longer than {self.timeout:g} s")
        elif self._memory_in_use() > self.memory:
            self.run = self._ended("oom", f"OutOfMemory: more than {self.memory / 2**30:.3g} GB")
        return self.run is not None

    def finish(self) -> Run:
        """Kill what is left of the run and return its record."""
        self.kill()
        assert self.run is not None
        peak = self.run.cost.get("peak_mb", 0.0) * 2**20
        if self.run.status == "ok" and peak > self.memory:  # a peak between two looks
            self.run = self._ended("oom", f"OutOfMemory: more than {self.memory / 2**30:.3g} GB")
        if self.run.error and self.run.status != "diverged":
            lines = self.tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
            self.run.error = "\n".join([self.run.error, *lines])
        return self.run

    def kill(self) -> None:
        """End the run and all that it started: its guard does, or else, in case of need, we do."""
        self.life.close()
        self.process.join(2.0)
        family = [self.process.pid, *worker.descendants(self.process.pid)] if self.process.is_alive() else []
        for end, pid in [(os.killpg, self.process.pid), *((os.kill, pid) for pid in family)]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)
        self.process.join()
        self._read_log()
        for connection in (self.result, self.log):
            connection.close()
        self.process.close()

    def _read_log(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS):  # bounded: a run that prints without end must not keep the driver here
                if self.log.closed or not (chunk := os.read(self.log.fileno(), _TAIL_BYTES)):
                    self.log.close()
                    return
                self.tail += chunk
                del self.tail[:-_TAIL_BYTES]

    def _exit_reason(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"Killed: the process died by {signal.Signals(-code).name}"
        return f"Exited: the process ended with code {code} before it had a result"

    def _ended(self, status: Any, error: str) -> Run:
        return replace(self.task.run, status=status, error=error, cost={"wall_s": time.monotonic() - self.start})

    def _memory_in_use(self) -> float:
        now = time.monotonic()
        if now < self.next_look:
            return 0.0
        self.next_look = now + 0.1
        return sum(map(_resident, worker.descendants(self.process.pid)))


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0.0

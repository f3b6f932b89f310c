"""Where runs are executed: processes of this machine, or a Ray cluster. Any other scheduler: ``--shard i/n``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from bakeoff.arena.runner import Limits, OnDone, run_local
from bakeoff.arena.types import MissingExtraError, Run, Task

Engine = Literal["local", "ray"]


def execute(
    tasks: Iterable[Task],
    on_done: OnDone,
    *,
    engine: Engine = "local",
    address: str | None = None,
    jobs: int = 1,
    limits: Limits | None = None,
    preload: tuple[str, ...] = (),
) -> None:
    """Execute tasks with the named engine; see `bakeoff.arena.runner.run_local`."""
    if engine == "local":
        run_local(tasks, on_done, jobs=jobs, limits=limits, preload=preload)
    else:
        _run_ray(tasks, on_done, address, jobs, limits or Limits(), preload)


def _run_ray(
    tasks: Iterable[Task],
    on_done: OnDone,
    address: str | None,
    jobs: int,
    limits: Limits,
    preload: tuple[str, ...],
) -> None:
    """A run is a Ray task; on its node it gets a process of its own, so that all limits hold there too."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("Ray is not installed", "--engine ray", "pip install 'bakeoff[ray]'") from None
    where = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
    ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    remote = ray.remote(num_cpus=1, max_retries=0)(_on_node)
    waiting = {}
    try:
        for task in tasks:
            waiting[remote.remote(task, limits, preload)] = task
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=1.0)
            for handle in done:
                task = waiting.pop(handle)
                try:
                    run = ray.get(handle)
                except ray.exceptions.RayError as error:
                    lost = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    run = replace(task.run, status="failed", error=lost)
                on_done(run)
    finally:
        for handle in waiting:
            ray.cancel(handle, force=True)
        if not address:
            ray.shutdown()


def _on_node(task: Task, limits: Limits, preload: tuple[str, ...]) -> Run:
    records: list[Run] = []
    run_local([task], records.append, limits=limits, preload=preload)
    return records[0]

"""Where runs are executed: processes of this machine, or a Ray cluster. Any other scheduler: ``--shard i/n``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bakeoff.arena.runner import OnDone, run_local
from bakeoff.arena.types import InputError, MissingExtraError, Run, Settings, Task


def execute(tasks: Iterable[Task], on_done: OnDone, settings: Settings, preload: tuple[str, ...] = ()) -> None:
    """Execute tasks with the engine of the settings; see `bakeoff.arena.runner.run_local`."""
    if settings.engine == "local":
        return run_local(tasks, on_done, settings, preload)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if settings.address:
        _reach(settings.address)
    try:
        import ray
    except ImportError:
        raise MissingExtraError("Ray is not installed", "--engine ray", "pip install 'bakeoff[ray]'") from None
    here = {"num_cpus": settings.jobs or 1, "include_dashboard": False}
    where = {"address": settings.address} if settings.address else here
    ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    remote = ray.remote(num_cpus=1, max_retries=0)(_on_node)
    waiting: dict[Any, Task] = {}
    try:
        waiting.update((remote.remote(task, settings, preload), task) for task in tasks)
        while waiting:
            for handle in ray.wait(list(waiting), timeout=1.0)[0]:
                task = waiting.pop(handle)
                try:
                    run = ray.get(handle)
                except ray.exceptions.RayError as error:
                    reason = str(error).partition("\n")[0]
                    run = replace(task.run, status="failed", error=f"{type(error).__name__}: {reason}")
                on_done(run)
    finally:
        for handle in waiting:
            ray.cancel(handle, force=True)
        if not settings.address:
            ray.shutdown()


def _reach(address: str) -> None:
    """An InputError at once where nothing listens; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise InputError(
                f"{address} does not answer ({error})", "--address", "give HOST:PORT of a cluster"
            ) from error


def _on_node(task: Task, settings: Settings, preload: tuple[str, ...]) -> Run:
    """A Ray task: on its node the run gets a process of its own, so that all limits hold there too."""
    records: list[Run] = []
    here = replace(settings, jobs=os.cpu_count())  # for its share of the node's memory
    run_local([task], records.append, here, preload)
    return records[0]

"""The command line as its users meet it: a process of its own, in an empty folder, with the plug-in of the tests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bakeoff import catalog
from bakeoff.arena.types import Card

PLUGIN = Path(__file__).parent / "plugin"


def _quiet_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS")}
    return {**kept, "OMP_NUM_THREADS": "1"}


@dataclass
class Cli:
    """Starts processes in `cwd`; every one of them, and all that they start, carries a mark of this test."""

    cwd: Path
    plugin: Path = PLUGIN
    mark: str = field(default_factory=lambda: f"bakeoff-test-{uuid.uuid4().hex}")

    @property
    def log(self) -> Path:
        """File with a line per call of a contender."""
        return self.cwd / f"{self.mark}.log"

    def popen(self, command: list[str], **kwargs: Any) -> subprocess.Popen[str]:
        """Start any command with the plug-in on its path."""
        mine = {"PYTHONPATH": str(self.plugin), "BAKEOFF_TEST_MARK": self.mark, "TOY_LOG": str(self.log)}
        environment = {**_quiet_environment(), **mine, **kwargs.pop("env", {})}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        pipes |= {"preexec_fn": _heed_interrupts, "text": True, "errors": "replace"}
        return subprocess.Popen(command, **{"cwd": self.cwd, "env": environment, **pipes, **kwargs})

    def start(self, *arguments: str | Path, **kwargs: Any) -> subprocess.Popen[str]:
        """Start bakeoff."""
        return self.popen([str(Path(sys.executable).with_name("bakeoff")), *map(str, arguments)], **kwargs)

    def __call__(self, *arguments: str | Path, timeout: float = 60, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run bakeoff to its end."""
        return self._finish(self.start(*arguments, **kwargs), timeout)

    def python(self, script: str, *arguments: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        timeout = kwargs.pop("timeout", 60)
        return self._finish(self.popen([sys.executable, "-c", script, *map(str, arguments)], **kwargs), timeout)

    @staticmethod
    def _finish(process: subprocess.Popen[str], timeout: float) -> subprocess.CompletedProcess[str]:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self) -> list[str]:
        """What was called so far: "contender seed"."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def alive(self) -> list[int]:
        """Processes of this test that still run, found by their mark; a zombie has ended."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _marked(pid, self.mark.encode())]


def _heed_interrupts() -> None:
    """A shell lets its background jobs ignore Ctrl-C, and their children inherit that: a terminal's do not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _marked(pid: int, mark: bytes) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    """The plug-in's method, in this process."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    catalog.cards.cache_clear()
    yield catalog.find("toy")
    catalog.cards.cache_clear()


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait until a condition holds."""

    def wait(condition: Callable[[], Any], seconds: float, what: str = "") -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
            time.sleep(0.01)

    return wait


@pytest.fixture
def records() -> Callable[[Path], list[dict[str, Any]]]:
    """Reads a journal without any code of bakeoff: complete lines that are valid JSON."""

    def not_json(name: str) -> None:
        raise AssertionError(f"{name} in a journal")

    def read(folder: Path) -> list[dict[str, Any]]:
        lines = [
            line for path in sorted((folder / "runs").glob("*.jsonl")) for line in path.read_bytes().split(b"\n")[:-1]
        ]
        return [json.loads(line, parse_constant=not_json)["run"] for line in lines]

    return read


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20260731)

"""What a waiting user sees: bars with the time left, or a line now and then where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bakeoff.arena.types import Run, Task

_QUIET_SECONDS = 10.0


class Progress:
    """Shows on stderr how many runs are done."""

    def __init__(self, title: str, tasks: Sequence[Task], done: Iterable[Run]) -> None:
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[bad]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        finished = list(done)
        self._total, self._before = len(tasks), len(finished)
        self._count, self._bad = self._before, {"": 0}
        self._start = self._said = time.monotonic()
        self._rows = {"": self._bars.add_task(title, total=self._total, completed=self._before, bad="")}
        for task in tasks:
            name = task.run.contender
            if name not in self._rows:
                total = sum(t.run.contender == name for t in tasks)
                old = sum(run.contender == name for run in finished)
                self._rows[name] = self._bars.add_task(f"  {name}", total=total, completed=old, bad="")
                self._bad[name] = 0
        if finished:
            self._console.print(f"{len(finished)} of {self._total} runs are there already", highlight=False)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def done(self, run: Run) -> None:
        """Count one finished run."""
        self._count += 1
        for row in ("", run.contender):
            self._bad[row] += run.status != "ok"
            self._bars.update(self._rows[row], advance=1, bad=f"{self._bad[row]} failed" if self._bad[row] else "")
        now = time.monotonic()
        if self._bars.disable and (now - self._said > _QUIET_SECONDS or self._count == self._total):
            self._said = now
            left = (now - self._start) / (self._count - self._before) * (self._total - self._count)
            bad = f", {self._bad['']} failed" if self._bad[""] else ""
            self._console.print(f"{self._count}/{self._total} runs done{bad}, about {left:.0f} s left", highlight=False)

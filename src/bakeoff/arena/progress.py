"""What a waiting user sees: bars with the time left, or a line now and then where there is no terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bakeoff.arena.types import Run, Task

_QUIET_SECONDS = 10.0


class Progress(Bars):
    """Shows on stderr how many runs are done."""

    def __init__(self, title: str, tasks: Sequence[Task], done: Iterable[Run]) -> None:
        console, bad = Console(stderr=True), TextColumn("[red]{task.fields[bad]}")
        columns = [TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), bad, TimeElapsedColumn()]
        columns.append(TimeRemainingColumn(elapsed_when_finished=True))
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        planned, finished = Counter(t.run.contender for t in tasks), Counter(run.contender for run in done)
        self._total, self._before, self._failed = len(tasks), finished.total(), Counter[str]()
        self._count, self._start = self._before, time.monotonic()
        self._said = self._start
        self._rows = {"": self.add_task(title, total=self._total, completed=self._before, bad="")}
        for name, total in planned.items():
            self._rows[name] = self.add_task(f"  {name}", total=total, completed=finished[name], bad="")
        if finished:
            console.print(f"{self._before} of {self._total} runs are there already", highlight=False)

    def done(self, run: Run) -> None:
        """Count one finished run."""
        self._count += 1
        for row in ("", run.contender):
            self._failed[row] += run.status != "ok"
            self.update(self._rows[row], advance=1, bad=f"{self._failed[row]} failed" if self._failed[row] else "")
        now = time.monotonic()
        if self.disable and (now - self._said > _QUIET_SECONDS or self._count == self._total):
            self._said = now
            left = (now - self._start) / (self._count - self._before) * (self._total - self._count)
            bad = f", {self._failed['']} failed" if self._failed[""] else ""
            self.console.print(f"{self._count}/{self._total} runs done{bad}, about {left:.0f} s left", highlight=False)

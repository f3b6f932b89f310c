"""What a waiting user sees: a bar with the time left, or a line now and then where there is no terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bakeoff.arena.types import Run

_QUIET_SECONDS = 10.0


class Progress(Bars):
    """Shows on stderr how many runs of `total` are done; `before` are there already, `failed` of these not ok."""

    def __init__(self, title: str, total: int, before: int, failed: int) -> None:
        console, bad = Console(stderr=True), TextColumn("[red]{task.fields[bad]}")
        columns = [TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), bad, TimeElapsedColumn()]
        columns.append(TimeRemainingColumn(elapsed_when_finished=True))
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._row = self.add_task(title, total=total, completed=before, bad="")
        self._total, self._before, self._count, self._failed = total, before, before, 0
        self._start = self._said = time.monotonic()
        if before:
            again = f", {failed} of them not ok: --retry-failed runs these again" if failed else ""
            console.print(f"{before} of {total} runs are there already{again}", highlight=False)

    def done(self, run: Run) -> None:
        """Count one finished run."""
        self._count, self._failed, now = self._count + 1, self._failed + (run.status != "ok"), time.monotonic()
        bad = f", {self._failed} failed" if self._failed else ""
        self.update(self._row, advance=1, bad=bad.removeprefix(", "))
        if self.disable and (now - self._said > _QUIET_SECONDS or self._count == self._total):
            self._said = now
            left = (now - self._start) / (self._count - self._before) * (self._total - self._count)
            self.console.print(f"{self._count}/{self._total} runs done{bad}, about {left:.0f} s left", highlight=False)

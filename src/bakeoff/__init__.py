"""Recent methods as drop-in components, each run next to its rivals on your own input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.arena.report import Report
    from bakeoff.arena.types import Contender

__version__ = "0.1.0"


def compare(method: str, *, extra: Sequence[Contender] = (), **options: Any) -> Report:
    """Run a method next to its rivals; what ``bakeoff run`` does, from Python.

    Parameters
    ----------
    method : str
        Slug of the method, e.g. ``"fdfi"``.
    extra : sequence of Contender
        Contenders of your own.
    **options
        The settings of `bakeoff.arena.types.Settings` (seeds, jobs, out ...) and the method's own options, by the
        names that ``bakeoff run METHOD --help`` shows.

    Returns
    -------
    Report
        Printed, it is the table; its figures and the HTML page lie in the results folder.

    Raises
    ------
    bakeoff.arena.types.InputError
        An option or the input is wrong; the message says what, where, and how to mend it.
    KeyboardInterrupt
        Interrupted; the same call again continues.
    """
    import inspect
    from pathlib import Path

    from bakeoff import catalog
    from bakeoff.arena import contest
    from bakeoff.arena.types import Settings

    shared = inspect.signature(Settings).parameters
    chosen: dict[str, Any] = {k: Path(v) if k == "out" else v for k, v in options.items() if k in shared}
    own = {k: v for k, v in options.items() if k not in shared}
    options |= {"extra": [getattr(c, "name", c) for c in extra]} if extra else {}
    command = f"bakeoff.compare({', '.join([repr(method), *(f'{k}={v!r}' for k, v in options.items())])})"
    report = contest.hold(catalog.find(method), own, Settings(**chosen), command=command, guests=extra)
    if report.page is None:
        raise KeyboardInterrupt(f"{method}: interrupted; the same call continues")
    return report

"""Holds a bake-off from plan to report: runs what is missing, keeps what is there, writes the report."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bakeoff.arena import engines, plan, store
from bakeoff.arena.progress import Progress
from bakeoff.arena.report import Report
from bakeoff.arena.types import Bout, Card, Contender, InputError, Run, Settings, Task


def hold(
    card: Card, options: Mapping[str, Any], settings: Settings, *, command: str, guests: Sequence[Contender] = ()
) -> Report:
    """Run the missing runs of a bake-off and report on all of them; InputError where the user can mend something.

    KeyboardInterrupt ends it with a report of what is finished that has no page; nothing that was finished is lost.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folder = (settings.out or Path(f"bakeoff-{card.slug}")).absolute()
    settings = replace(settings, out=folder, jobs=settings.jobs or cores)
    planned = plan.make(card, options, settings, command=command, guests=guests)
    tasks = plan.shard(planned.tasks, settings.shard) if settings.shard else planned.tasks
    store.open_folder(folder, card.slug)
    with store.locked(folder, settings.shard):
        bout = store.write_bout(folder, planned.bout)
        runs, interrupted, problems = _run(folder, card, tasks, settings)
        bout = replace(bout, notes=(*bout.notes, *problems))
        if interrupted:
            return Report.build(bout, runs)
        return publish(folder, bout, plan.select(bout, runs), card)


def _run(folder: Path, card: Card, tasks: Sequence[Task], settings: Settings) -> tuple[list[Run], bool, list[str]]:
    """Execute what the journal lacks; returns the records of the tasks, and whether it was interrupted."""
    stored, problems = store.read_runs(folder)
    final = {r.key: r for r in stored if r.status == "ok" or not settings.retry_failed}
    done = {t.run.key: final[t.run.key] for t in tasks if t.run.key in final and _kept(t.keep, final[t.run.key])}
    todo = [task for task in tasks if task.run.key not in done]
    journal, progress = (
        store.Journal(folder),
        Progress(card.slug, len(tasks), len(done), sum(run.status != "ok" for run in done.values())),
    )

    def record(run: Run) -> None:
        done[run.key] = journal.append(run)
        progress.done(run)

    interrupted = False
    with progress:
        try:
            engines.execute(todo, record, settings, card.preload)
        except KeyboardInterrupt:
            interrupted = True
            for task in todo:
                done.setdefault(task.run.key, task.run)  # its status is "interrupted"; not journaled
        finally:
            journal.close()
    return list(done.values()), interrupted, problems


def _kept(folder: str, run: Run) -> bool:
    """Whether the output is there, where one is wanted and the run makes one that can be kept."""
    return not folder or "artefact_bytes" not in run.cost or Path(folder).is_dir()


def publish(folder: Path, bout: Bout, runs: list[Run], card: Card | None) -> Report:
    """Write table, figures and report of some runs into a folder."""
    store.write_csv(folder, runs)
    figures, notes = _figures(folder, runs, card)
    report = replace(Report.build(replace(bout, notes=(*bout.notes, *notes)), runs), figures=figures)
    return replace(report, page=report.save(folder))


def _figures(folder: Path, runs: list[Run], card: Card | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The bout's own figures; a report without them beats no report."""
    good = [run for run in runs if run.status == "ok"]
    try:
        draw = getattr(importlib.import_module(f"{card.package}.bout"), "figures", None) if card and good else None
        if draw is None:
            return {}, ()
        (folder / "figures").mkdir(exist_ok=True)
        return draw(good, folder / "figures"), ()
    except Exception as error:
        print(f"figures left out: {type(error).__name__}: {error}", file=sys.stderr)
        return {}, (f"the bout's own figures could not be drawn: {type(error).__name__}: {error}",)


def rebuild(folders: Sequence[Path], out: Path | None, cards: Mapping[str, Card]) -> Report:
    """Put the parts of a bake-off together and write its report anew; runs nothing."""
    bout = plan.merge([store.read_bout(folder) for folder in folders])
    stored = [store.read_runs(folder) for folder in folders]
    runs = plan.select(bout, [run for found, _ in stored for run in found])
    problems = [problem for _, bad in stored for problem in bad]
    best = {run.key: run for run in sorted(runs, key=lambda run: run.status == "ok")}
    target = (out or folders[0]).absolute()
    store.open_folder(target, bout.method)
    with store.locked(target):
        there = {run.key: run.status for run in store.read_runs(target)[0]}
        journal = store.Journal(target)
        for run in (run for run in best.values() if there.get(run.key) not in ("ok", run.status)):
            journal.append(run)
        journal.close()
        store.write_bout(target, bout)
        bout = replace(bout, notes=(*bout.notes, *problems))
        return publish(target, bout, list(best.values()), cards.get(bout.method))


def write_board(folders: Sequence[Path], out: Path) -> Path:
    """One page of all these bake-offs, each linked to a copy of its report beside the page."""
    from bakeoff.arena.report import board

    if not folders:
        raise InputError("no results folder given", "board", "bakeoff board DIR [DIR ...]")
    reports, links = [], []
    for folder in folders:
        bout = store.read_bout(folder)
        report = Report.build(bout, plan.select(bout, store.read_runs(folder)[0]))
        reports.append(replace(report, figures=store.read_figures(folder)))
        again = sum(other.bout.method == bout.method for other in reports) - 1
        links.append(f"{bout.method}-{again + 1}.html" if again else f"{bout.method}.html")
        store.write_atomic(out / links[-1], reports[-1].to_html(folder))
    store.write_atomic(out / "index.html", board(reports, links))
    return out / "index.html"

"""The command line: argument parsing and printing only."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import sys
import traceback
from importlib import import_module
from itertools import groupby
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from bakeoff import __version__, catalog
from bakeoff.arena.types import InputError, MissingExtraError, Settings

_ABOUT = "Recent methods next to the rivals you would otherwise pick, on your own input."
app = App(
    "bakeoff", help=_ABOUT, version=__version__, help_format="plaintext", default_parameter=Parameter(negative="")
)

_INPUT, _HOW = Group("Input and method", sort_key=1), Group("How to run", sort_key=2)


@app.command(name="list")
def list_methods() -> int:
    """Show all methods: room, name and one-line job."""
    for room, cards in groupby(catalog.cards().values(), key=lambda card: card.room):
        print(room)
        for card in cards:
            print(f"  {card.slug:18} {card.job}")
    return 0


@app.command
def show(slug: str) -> int:
    """Show a method: paper, contenders, metrics, claims, limits and how to use it.

    Parameters
    ----------
    slug : str
        Name of the method, as `bakeoff list` shows it.
    """
    from bakeoff.arena.plan import extra_of

    card = catalog.find(slug)
    with extra_of(card):
        bout = import_module(f"{card.package}.bout")
        contenders = bout.contenders(bout.load(quick=True))
    print(f"{card.slug}: {card.title}\n{card.paper}; room {card.room}\n\n{card.job}\n")
    print(f"Scale: {card.scale}\nDefault bout: {card.seeds} seeds, about {card.seconds} s on 2 cores")
    print(*(f"Limit: {limit}" for limit in card.limits), "\nMetrics", sep="\n")
    for m in bout.METRICS:
        print(f"  {m.name} ({m.better} is better{f', primary, margin {m.margin:g}' if m.primary else ''})")
    print("Claims of the paper, as they are tested here")
    for claim in bout.CLAIMS:
        print(f"  {claim.text} [{claim.paper_figure}]\n    {claim.expect}")
    print("Contenders")
    for c in contenders:
        print(f"  {c.name:22} {c.role:6} {c.why}{' (optional)' if c.optional else ''}")
    print(f"\nOptions: bakeoff run {slug} --help")
    print(f"Use it:  from {card.package.rpartition('.')[0]} import {', '.join(card.exports)}")
    return 0


@app.command(name="run")
def run_usage() -> int:
    """Run a method next to its rivals: `bakeoff run METHOD [options]`; `bakeoff run METHOD --help` shows them."""
    print("Usage: bakeoff run METHOD [options]    (bakeoff run METHOD --help shows the options)\n")
    list_methods()
    return 2


def _run(slug: str, tokens: list[str]) -> int:
    """Build the command of one method from the signature of its `load` and from the shared settings, and call it."""
    from bakeoff.arena import contest, plan

    card = catalog.find(slug)
    with plan.extra_of(card):
        load = import_module(f"{card.package}.bout").load
    shared = set(inspect.signature(Settings).parameters)

    def command(**values: Any) -> int:
        as_json, _ = values.pop("json", False), values.pop("verbose", False)
        settings = Settings(**{name: values.pop(name) for name in shared & values.keys()})
        line = shlex.join(["bakeoff", "run", slug, *tokens])
        return _finish(contest.hold(card, values, settings, command=line), line, as_json)

    options = [*_documented(load, _INPUT), *_documented(Settings, _HOW), *_switches()]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    title = f"{card.job}\n\n{card.title} ({card.paper})."
    runner = App(name=f"bakeoff run {slug}", help=title, help_format="plaintext", version_flags=[])
    runner.default(command)
    return _call(runner, tokens)


def _documented(owner: Any, group: Group) -> list[inspect.Parameter]:
    """The owner's parameters as options: help from its docstring, one comma-separated value for a list of names."""
    import docstring_parser

    texts = {p.arg_name: " ".join((p.description or "").split()) for p in docstring_parser.parse(owner.__doc__).params}
    made = []
    for p in inspect.signature(owner, eval_str=True).parameters.values():
        words: dict[str, Any] = {"help": texts.get(p.name), "group": group, "negative": "", "show": p.name != "quick"}
        words |= {"alias": "-j"} if p.name == "jobs" else {}
        words |= {"converter": _split, "n_tokens": 1} if p.name == "contenders" else {}
        words |= {"allow_leading_hyphen": True} if p.annotation in (str, str | None) else {}  # --alphas -1,0
        made.append(p.replace(kind=p.KEYWORD_ONLY, annotation=Annotated[p.annotation, Parameter(**words)]))
    return made


def _switches() -> list[inspect.Parameter]:
    texts = {"json": "Print the report as JSON.", "verbose": "Show the traceback of an error."}
    kinds = {n: Annotated[bool, Parameter(help=text, group=_HOW, negative="")] for n, text in texts.items()}
    return [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kinds[n]) for n in texts]


def _split(kind: Any, tokens: Any) -> list[str]:
    names = [part.strip() for token in tokens for part in token.value.split(",") if part.strip()]
    if not names:
        raise InputError("no name given", "--contenders", "write NAME,NAME")
    return names


def _finish(report: Any, line: str, as_json: bool) -> int:
    """Print what came out and choose the exit code."""
    print(dumps(report.to_json(), indent=1, allow_nan=False) if as_json else report.table())
    if report.page is None:
        for stop in (signal.SIGINT, signal.SIGTERM):  # a second one has nothing left to interrupt
            signal.signal(stop, signal.SIG_IGN)
        print(f"\nInterrupted; what is finished is kept. Go on with:\n  {line}", file=sys.stderr)
        return 130
    print(f"Report: {report.page}", file=sys.stderr if as_json else sys.stdout)
    return 3 if any(run.status != "ok" for run in report.runs) else 0


@app.command
def report(*folders: Path, out: Path | None = None, json: bool = False) -> int:
    """Write the report of stored results anew, merging the shards of one bake-off; runs nothing.

    Parameters
    ----------
    folders : Path
        Results folders.
    out : Path
        Where to write, the first folder by default.
    json : bool
        Print the report as JSON.
    """
    from bakeoff.arena.contest import rebuild

    if not folders:
        raise InputError("no results folder given", "report", "bakeoff report DIR [DIR ...]")
    return _finish(rebuild(folders, out, catalog.cards()), "", json)


@app.command
def board(*folders: Path, out: Path = Path("site")) -> int:
    """Make one static page of many reports: every method, its verdicts and claims.

    Parameters
    ----------
    folders : Path
        Results folders; their reports are linked.
    out : Path
        Folder for the page.
    """
    from bakeoff.arena.contest import write_board

    print(write_board(folders, out))
    return 0


@app.command
def new(name: str, *, root: Path | None = None) -> int:
    """Write the files of a new method with failing tests.

    Parameters
    ----------
    name : str
        ROOM/NAME, e.g. decide/example.
    root : Path
        The checkout; the current folder by default.
    """
    from bakeoff.scaffold import write

    for path in write(name, root or Path.cwd()):
        print(path)
    return 0


def _call(runner: App, tokens: list[str]) -> int:
    code = runner(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    return code if isinstance(code, int) else 0


def main() -> None:
    """Exit with 0 all ok, 2 bad input or usage, 3 some runs failed, 4 a missing extra, 130 interrupted, 1 our bug."""
    tokens = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    try:
        method = tokens[1] if tokens[:1] == ["run"] and len(tokens) > 1 and not tokens[1].startswith("-") else None
        code = _run(method, tokens[2:]) if method else _call(app, tokens)
    except (InputError, CycloptsError) as error:
        if "--verbose" in tokens:
            traceback.print_exc()
        print("bakeoff:", " ".join(str(error).split()), file=sys.stderr)
        code = 4 if isinstance(error, MissingExtraError) else 2
    except KeyboardInterrupt:
        print(f"\nInterrupted. Go on with:\n  {shlex.join(['bakeoff', *tokens])}", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of our output went away: as if by SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)


if __name__ == "__main__":
    main()

"""From a method and what the user asked for to an ordered list of runs with fingerprints; shards; merging."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from bakeoff.arena import fingerprint
from bakeoff.arena.types import Bout, Card, Claim, Contender, InputError, MissingExtraError, Run, Settings, Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,59}")


@dataclass(frozen=True)
class Plan:
    """What is to be run, in order: seed by seed, so that what is finished early can be compared already."""

    bout: Bout
    tasks: tuple[Task, ...]


def make(
    card: Card, options: Mapping[str, Any], settings: Settings, *, command: str, guests: Sequence[Contender] = ()
) -> Plan:
    """Load the input once, which finds the user's mistakes (InputError) before any run, and lay out the runs."""
    seeds = card.seeds if settings.seeds is None else settings.seeds
    if wrong := [k for k, v in options.items() if isinstance(v, float) and not math.isfinite(v)]:
        raise InputError(f"{options[wrong[0]]} is not a number", f"--{wrong[0].replace('_', '-')}", "give a number")
    module, data = _load(card, options)
    guests = [*map(checked, guests), *map(guest, settings.rival)]
    known = [*module.contenders(data), *guests]
    _check_names([c.name for c in known])
    chosen, absent = _choose(known, settings.contenders, {g.name for g in guests}, card)
    full = {name: options.get(name, p.default) for name, p in inspect.signature(module.load).parameters.items()}
    bout = Bout(
        method=card.slug,
        title=card.title,
        paper=card.paper,
        job=card.job,
        use=f"from {card.package.rpartition('.')[0]} import {card.exports[0]}",
        scale=card.scale,
        metrics=module.METRICS,
        claims=module.CLAIMS,
        contenders=tuple(chosen),
        seeds=tuple(range(seeds)),
        options={k: str(v) if isinstance(v, Path) else v for k, v in full.items()},
        command=command,
        input_hash=fingerprint.of_input(full),
        codes=_codes(card, module, chosen, settings.claims),
        overlap=module.overlap(data) if hasattr(module, "overlap") else 0.0,
        jobs=settings.jobs or 1,
        absent=absent,
        notes=tuple(getattr(data, "notes", ())),
    )
    blobs = {own.name: _pickled(own) for own in guests}
    keep = settings.out if settings.keep else None
    tasks = [_task(bout, card, options, c.name, seed, blobs, keep) for seed in bout.seeds for c in chosen]
    if settings.claims:
        tasks += [_task(bout, card, options, name, s, {}, None) for name, n in _checks(bout.claims) for s in range(n)]
    return Plan(bout, tuple(tasks))


@contextmanager
def extra_of(card: Card) -> Iterator[None]:
    """A package that is not installed is told with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        how = f"pip install 'bakeoff[{card.extra}]'"
        raise MissingExtraError(f"needs the package {error.name!r}", card.slug, how) from error


def _load(card: Card, options: Mapping[str, Any]) -> tuple[ModuleType, Any]:
    with extra_of(card):
        module = importlib.import_module(f"{card.package}.bout")
        if unknown := set(options) - set(inspect.signature(module.load).parameters):
            raise InputError(f"no option {min(unknown)!r}", card.slug, f"see `bakeoff run {card.slug} --help`")
        data = module.load(**options)
        paper = next(c for c in module.contenders(data) if c.role == "paper")
        for need in paper.needs:
            if _lacks(need):
                raise ModuleNotFoundError(name=need)
    return module, data


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two contenders are called {name!r}", "--rival", "give yours another name")
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a contender", "--rival", "use letters, digits, space and . _ + -")


def _choose(
    known: Sequence[Contender], names: Sequence[str], guests: set[str], card: Card
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that take part, and why the others do not."""
    if wrong := set(names) - {c.name for c in known}:
        there = ", ".join(c.name for c in known)
        raise InputError(f"no contender {min(wrong)!r}", "--contenders", f"choose from: {there}")
    # The paper's is what all others are compared with; a guest was named by --rival already.
    always = {c.name for c in known if c.role == "paper"} | guests
    wanted = [c for c in known if c.name in always or (c.name in names if names else not c.optional)]
    lacking = {c.name: ", ".join(filter(_lacks, c.needs)) for c in wanted}
    how = f"pip install 'bakeoff[{card.extra},rivals]'"
    absent = {name: f"needs {needs}: {how}" for name, needs in lacking.items() if needs}
    return [c for c in wanted if c.name not in absent], absent


def _codes(card: Card, module: ModuleType, chosen: Sequence[Contender], claims: bool) -> dict[str, str]:
    """Hash of the code of every contender and check."""
    shared = (module.load, module.score)
    used: dict[str, tuple[Any, ...]] = {c.name: (c.call, *shared) for c in chosen}
    if claims:
        used |= {f"claim:{c.check}": (getattr(module, c.check),) for c in module.CLAIMS if c.check}
    return {name: fingerprint.of_code(*functions, hosts=card.hosts) for name, functions in used.items()}


def _checks(claims: Sequence[Claim]) -> list[tuple[str, int]]:
    """The stand-alone experiments of the claims, each with its number of seeds."""
    names = dict.fromkeys(claim.check for claim in claims if claim.check)
    return [(f"claim:{name}", max(c.seeds for c in claims if c.check == name)) for name in names]


def _task(
    bout: Bout, card: Card, options: Mapping[str, Any], name: str, seed: int, blobs: dict[str, bytes], keep: Path | None
) -> Task:
    hashes = _input_hash(bout, name), bout.codes[name]
    run = Run(key(bout, name, seed), bout.method, name, seed, bout.options, *hashes)
    folder = keep / "artefacts" / name.replace(" ", "_") / f"seed-{seed}" if keep else ""
    return Task(run, f"{card.package}.bout", dict(options), blobs.get(name, b""), str(folder), card.hosts)


def _input_hash(bout: Bout, name: str) -> str:
    return "none" if name.startswith("claim:") else bout.input_hash  # a check brings its own input


def key(bout: Bout, name: str, seed: int) -> str:
    """The key of a run: all that its result depends on."""
    return fingerprint.digest(bout.method, name, seed, _input_hash(bout, name), bout.codes[name])


def shard(tasks: Sequence[Task], part: str) -> tuple[Task, ...]:
    """The tasks of part ``i/n``, told apart by their keys; all parts together are all tasks."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", part)
    i, n = (int(g) for g in match.groups()) if match else (0, 0)
    if not 1 <= i <= n:
        raise InputError(f"{part!r} is not a shard", "--shard", "write i/n, e.g. 1/4 to 4/4")
    return tuple(task for task in tasks if int(task.run.key, 16) % n == i - 1)


def select(bout: Bout, runs: Sequence[Run]) -> list[Run]:
    """The runs that belong to this bout: its input, the present code of its contenders, its seeds."""
    seeds = {c.name: bout.seeds for c in bout.contenders} | {name: range(n) for name, n in _checks(bout.claims)}
    ours = [run for run in runs if run.contender in bout.codes and run.seed in seeds.get(run.contender, ())]
    return [run for run in ours if run.key == key(bout, run.contender, run.seed)]


def merge(bouts: Sequence[Bout]) -> Bout:
    """One bout out of the parts that ran elsewhere; InputError where method, input or a contender's code differ."""
    first = bouts[0]
    seeds: set[int] = set()
    contenders: dict[str, Contender] = {}
    codes: dict[str, str] = {}
    absent = {name: why for bout in bouts for name, why in bout.absent.items()}
    for bout in bouts:
        if (bout.method, bout.input_hash) != (first.method, first.input_hash):
            raise InputError("the folders hold different bouts or inputs", "report", "give folders of one bout only")
        for name, code in bout.codes.items():
            if codes.setdefault(name, code) != code:
                what = f"{name!r} ran with different code or library versions"
                raise InputError(what, "report", "run its parts again with one version")
        contenders.update({c.name: c for c in bout.contenders})
        seeds |= set(bout.seeds)
    absent = {name: why for name, why in absent.items() if name not in contenders}
    command = re.sub(r" --shard[= ]\S+", "", first.command) if len(bouts) > 1 else first.command
    present = tuple(contenders.values())
    return replace(first, seeds=tuple(sorted(seeds)), contenders=present, codes=codes, absent=absent, command=command)


def guest(text: str) -> Contender:
    """A contender of the user's own from ``module:object``: a Contender, or a function (data, seed) -> output."""
    module, colon, attribute = text.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if colon else "no colon"
        raise InputError(f"cannot import {text!r} ({reason})", "--rival", "write module:object") from error
    return checked(found if isinstance(found, Contender) else Contender(attribute, "rival", found, f"your own: {text}"))


def checked(given: Any) -> Contender:
    """A contender, or a function, from outside; InputError where it cannot take part."""
    own = given if isinstance(given, Contender) else None
    found = own or Contender(getattr(given, "__name__", repr(given)), "rival", given, "your own")
    texts = isinstance(found.name, str) and isinstance(found.why, str) and all(isinstance(n, str) for n in found.needs)
    if not callable(found.call) or not texts or found.role not in ("rival", "floor"):
        how = 'it needs a name, the role "rival" or "floor", and a function (data, seed) -> output'
        raise InputError(f"{found.name!r} cannot take part", "--rival", how)
    return found


def _pickled(own: Contender) -> bytes:
    try:
        return bytes(cloudpickle.dumps(own))
    except Exception as error:  # whatever an object that it holds raises
        what = f"{own.name!r} cannot be sent to another process ({type(error).__name__}: {error})"
        raise InputError(what, "--rival", "let it make what it needs when it is called") from error


def _lacks(module: str) -> bool:
    try:
        return find_spec(module) is None
    except (ImportError, ValueError):  # its parent is missing
        return True

"""The words of a bake-off: what a bout declares and what a run leaves behind. Data only, no behaviour."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

SCHEMA = 1
"""Version of the records on disk; a reader of schema N also reads every older one."""

_hints = functools.cache(get_type_hints)

Status = Literal["ok", "failed", "timeout", "oom", "diverged", "interrupted"]
Role = Literal["paper", "rival", "floor"]


class InputError(Exception):
    """Something that the user can mend, told in one line: what is wrong, where, and how to mend it."""

    def __init__(self, what: str, where: str = "", how: str = "") -> None:
        self.how = how
        super().__init__(": ".join(part for part in (where, what) if part) + (f"; {how}" if how else ""))


class MissingExtraError(InputError):
    """The method needs packages that are not installed (exit code 4)."""


@dataclass(frozen=True)
class Card:
    """A method as its ``card.toml`` describes it; reading it imports nothing of the method.

    ``job`` is one line; ``package`` the method's package; ``exports`` its public names; ``extra`` installs what it
    needs; the versions of the distributions in ``hosts`` belong to a run's code fingerprint; the fork server imports
    ``preload``, so that a run starts in milliseconds; ``seconds`` is the wall time of the default bout on 2 cores;
    ``scale`` says what CPU scale means for it; ``skip`` names conformance checks that cannot hold, with the reason.
    """

    slug: str
    title: str
    paper: str
    job: str
    room: str
    package: str
    exports: tuple[str, ...]
    extra: str
    hosts: tuple[str, ...]
    seconds: int
    scale: str
    preload: tuple[str, ...] = ()
    seeds: int = 8
    limits: tuple[str, ...] = ()
    skip: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """One column of scores. Exactly one metric of a bout is primary, and only it gets verdicts.

    ``margin`` is the smallest difference that matters to a user, in the metric's unit (for ``scale="log"`` relative:
    0.05 is 5 %), fixed before the run. Values outside ``bounds`` are a bug of the bout. ``scale="log"`` is for times
    and losses: differences are taken between logarithms and shown as ratios.
    """

    name: str
    better: Literal["higher", "lower"]
    unit: str = ""
    primary: bool = False
    margin: float = 0.0
    bounds: tuple[float, float] = (-math.inf, math.inf)
    scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class Contender:
    """One participant.

    Exactly one has the role "paper"; a "floor" is random, identity or doing nothing. ``call(data, seed)`` gives the
    output; ``why`` says in a line who would pick it; without the modules in ``needs`` it is listed as not applicable;
    an ``optional`` one runs only when named by ``--contenders``.
    """

    name: str
    role: Role
    call: Callable[[Any, int], Any] | None = field(default=None, compare=False, repr=False)
    why: str = ""
    needs: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Claim:
    """What the paper says, and the number that must come out here.

    With ``rival``, it is read off the bout's runs: ``contender`` must beat ``rival`` on ``metric`` by at least
    ``margin`` (negative: may be worse by that much), in the metric's better direction. With ``check``, it is read off
    a stand-alone experiment, a function ``check(seed) -> {metric: value}`` of the bout module that runs ``seeds``
    times in processes of its own when ``--claims`` is given: the value must be at least ``margin``
    (``better="higher"``) or at most ``margin`` (``"lower"``).

    ``text`` is the paper's claim, ``paper_figure`` where it stands, ``expect`` what must come out here and at which
    scale. A claim "by design" holds by construction and gives no evidence for the paper; for one that is "not
    decidable here", ``command`` would decide it.
    """

    text: str
    expect: str
    paper_figure: str
    metric: str = ""
    contender: str = ""
    rival: str = ""
    margin: float = 0.0
    check: str = ""
    better: Literal["higher", "lower"] = "higher"
    seeds: int = 1
    status: Literal["measured", "by design", "not decidable here"] = "measured"
    command: str = ""


@dataclass(frozen=True)
class Bout:
    """All that a report needs to know of a bout besides its runs; stored as ``bout.json``.

    ``use`` is the import line of the method, ``scale`` what CPU scale means for it. ``input_hash`` covers the options
    and the contents of the files that they name, ``codes`` the code of each contender (runs of older code are left out
    of the report). ``overlap`` is the number of test rows per training row where every seed redraws an overlapping
    split of one table (Nadeau-Bengio), 0 where seeds draw fresh data or share fixed examples. ``absent`` names the
    contenders that do not apply here, with the reason.
    """

    method: str
    title: str
    paper: str
    job: str
    use: str
    scale: str
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any]
    command: str
    input_hash: str = ""
    codes: dict[str, str] = field(default_factory=dict)
    overlap: float = 0.0
    jobs: int = 1
    absent: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def primary(self) -> Metric:
        """The one metric that gets verdicts."""
        return next(m for m in self.metrics if m.primary)

    @property
    def paper_contender(self) -> Contender:
        """The method that all others are compared with."""
        return next(c for c in self.contenders if c.role == "paper")


@dataclass(frozen=True)
class Settings:
    """How a bake-off is run; what it runs on are the method's own options.

    Parameters
    ----------
    seeds : int
        Repetitions of every contender; the card's number (mostly 8) by default. Intervals need 5.
    contenders : tuple of str
        Only these, comma-separated; the paper's is always there. Also the way to add an optional one.
    jobs : int
        Runs at a time, each with one thread; by default one per core.
    engine : {"local", "ray"}
        Processes of this machine, or tasks of a Ray cluster.
    address : str
        Of the Ray cluster; without it Ray is started on this machine.
    timeout : float
        Seconds that one run may take.
    memory : float
        GB that one run may use; by default four fifths of the machine's memory, shared by the jobs.
    shard : str
        Run only part i/n of the runs (1/4 ... 4/4), for any scheduler; `bakeoff report` puts the parts together.
    out : Path
        Results folder, bakeoff-METHOD by default; the same command again continues there.
    keep : bool
        Keep what the contenders made, in the results folder.
    claims : bool
        Also run the stand-alone experiments that test the paper's claims.
    retry_failed : bool
        Run again what failed, timed out or ran out of memory.
    rival : tuple of str
        A contender of your own as module:object, a function (data, seed) -> output; may be repeated.
    """

    seeds: int | None = None
    contenders: tuple[str, ...] = ()
    jobs: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    timeout: float = 3600.0
    memory: float | None = None
    shard: str | None = None
    out: Path | None = None
    keep: bool = False
    claims: bool = False
    retry_failed: bool = False
    rival: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("contenders", "rival"):  # from Python one name may stand alone
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, (value,))
        whole = {"seeds": 10_000, "jobs": 10_000}
        for name, most in {**whole, "timeout": 1e9, "memory": 1e9}.items():
            value = getattr(self, name)
            kind = int if name in whole else (int, float)
            if value is not None and not (isinstance(value, kind) and 0 < value <= most):
                what = "a whole number" if name in whole else "a number"
                raise InputError(f"{value!r} is out of range", f"--{name}", f"give {what} above 0, at most {most:g}")
        if self.engine not in ("local", "ray"):
            raise InputError(f"no engine {self.engine!r}", "--engine", "choose local or ray")
        if self.address and self.engine != "ray":
            raise InputError("it is the address of a Ray cluster", "--address", "add --engine ray")


@dataclass(frozen=True)
class Task:
    """A run to be executed: its record-to-be and what its process needs.

    ``bout`` is the module with ``load``, ``contenders`` and ``score``; ``options`` go to ``load``; ``guest`` is a
    contender of the user's own, pickled by value; ``keep`` is a folder for the output, empty to drop it; the versions
    of ``hosts`` go into the record.
    """

    run: Run
    bout: str
    options: dict[str, Any]
    guest: bytes = b""
    keep: str = ""
    hosts: tuple[str, ...] = ()


@dataclass
class Run:
    """One record: what one contender did with one seed. A pure function of its key.

    ``contender`` is a contender's name, or ``claim:NAME`` for the stand-alone experiment NAME of a claim. ``scores``
    holds a number per metric (the mean where the bout scores examples), ``examples`` the per-example scores where it
    does, ``details`` what ``score`` returned beyond the metrics, for the bout's own figures. ``cost`` has wall_s,
    cpu_s, peak_mb (above the baseline after loading), and where known artefact_bytes and model_calls. ``error`` is
    class, message and the last 20 lines that the run printed. ``environment`` is versions, platform and threads, from
    a fixed list and never the process environment. A run whose score is not finite has "diverged".
    """

    key: str
    method: str
    contender: str
    seed: int
    options: dict[str, Any]
    input_hash: str
    code_hash: str
    status: Status = "interrupted"
    scores: dict[str, float] = field(default_factory=dict)
    examples: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    error: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def to_json(value: Any) -> Any:
    """Plain data of a record or a bout; a contender's call is left out, an infinite bound becomes text."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.name != "call"}
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def from_json(hint: Any, data: Any) -> Any:
    """Read back what `to_json` wrote, as the type that a field is declared with; ValueError or TypeError otherwise."""
    kind, of = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(data, dict):
        hints = _hints(hint)
        return hint(**{k: from_json(hints.get(k, Any), v) for k, v in data.items()})
    if kind is dict and isinstance(data, dict):
        return {from_json(of[0], k): from_json(of[1], v) for k, v in data.items()}
    if kind in (list, tuple) and isinstance(data, list) and (kind is list or len(data) == len(of) or of[1] is ...):
        return kind(from_json(of[0], v) for v in data)
    if hint is float and data in ("inf", "-inf"):
        return float(data)
    if kind is Literal:
        fits = isinstance(data, str) and data in of
    elif hint in (int, float):
        fits = (type(data) is int and abs(data) < 2**63) or (hint is float and type(data) is float)
    else:
        fits = hint is Any or (isinstance(hint, type) and isinstance(data, hint))
    if not fits:
        raise ValueError(f"{data!r:.50} is not {hint}")
    return data

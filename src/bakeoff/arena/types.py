"""The words of a bake-off: what a bout declares and what a run leaves behind. Data only, no behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Version of the records on disk; a reader of schema N also reads every older one."""

Status = Literal["ok", "failed", "timeout", "oom", "diverged", "interrupted"]
Role = Literal["paper", "rival", "floor"]


class InputError(Exception):
    """Something that the user can mend, told in one line.

    Parameters
    ----------
    what : str
        What is wrong, e.g. ``"column 'age' has 3 missing values"``.
    where : str
        The option or file that it was found in.
    how : str
        How to mend it.
    """

    def __init__(self, what: str, where: str = "", how: str = "") -> None:
        self.what, self.where, self.how = what, where, how
        super().__init__(": ".join(part for part in (where, what) if part) + (f"; {how}" if how else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return InputError, (self.what, self.where, self.how)


class MissingExtraError(InputError):
    """The method needs packages that are not installed (exit code 4)."""


@dataclass(frozen=True)
class Card:
    """A method as its ``card.toml`` describes it; reading it imports nothing of the method.

    Parameters
    ----------
    slug, title, paper, job, room : str
        ``job`` is one line; ``paper`` names venue and identifier.
    package : str
        The method's package, e.g. ``bakeoff.explain.fdfi``.
    exports : tuple of str
        Public names, importable from the room.
    extra : str
        The extra that installs what the method needs.
    hosts : tuple of str
        Distributions whose versions belong to a run's code fingerprint.
    preload : tuple of str
        Modules that the fork server imports once, so that a run starts in milliseconds.
    seconds : int
        Wall time of the default bout on 2 cores.
    seeds : int
    scale : str
        What CPU scale means for this bout.
    limits : tuple of str
    skip : dict of str to str
        Conformance checks that cannot hold, with the reason.
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
    """One column of scores.

    Parameters
    ----------
    name : str
    better : {"higher", "lower"}
    unit : str
    primary : bool
        Exactly one metric of a bout is primary; only it gets verdicts.
    margin : float
        The smallest difference that matters to a user, in the metric's unit
        (for ``scale="log"``: relative, 0.05 is 5 %). Fixed before the run.
    bounds : (float, float)
        Values outside are a bug of the bout.
    scale : {"linear", "log"}
        "log" for times and losses: differences are taken between logarithms and shown as ratios.
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

    Parameters
    ----------
    name : str
    role : {"paper", "rival", "floor"}
        Exactly one contender is the paper's; a floor is random, identity or doing nothing.
    call : callable (data, seed) -> output
        A module-level function, or a ``functools.partial`` of one.
    why : str
        Who would pick it, in a line.
    needs : tuple of str
        Modules that must be importable; where one is not, the contender is listed as not applicable.
    optional : bool
        Runs only when named by ``--contenders``.
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

    Two kinds. With ``rival``, the claim is read off the bout's runs: ``contender`` must beat ``rival`` on
    ``metric`` by at least ``margin`` (negative: may be worse by that much), in the metric's better direction.
    With ``check``, it is read off a stand-alone experiment of the bout: a function ``check(seed) -> {metric: value}``
    that runs in a process of its own, ``seeds`` times, when ``--claims`` is given; the value must be at least
    ``margin`` (``better="higher"``) or at most ``margin`` (``"lower"``).

    Parameters
    ----------
    text : str
        The paper's claim.
    expect : str
        What must come out here, in words, with the scale at which it is tested.
    paper_figure : str
        Where the paper makes it: abstract, a figure, a table.
    metric : str
    contender, rival : str
    margin : float
    check : str
        Name of a function in the bout module.
    better : {"higher", "lower"}
        Direction of ``check``'s value.
    seeds : int
        How often ``check`` runs.
    status : str
        "measured"; "by design" (holds by construction, no evidence for the paper); "not decidable here".
    command : str
        For "not decidable here": the command that would decide it.
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

    Parameters
    ----------
    input_hash : str
        Of the options and the contents of the files that they name.
    codes : dict of str to str
        Per contender, the hash of its code; runs of older code are left out of the report.
    overlap : float
        Test rows per training row where every seed redraws an overlapping split of one table
        (Nadeau-Bengio); 0 where seeds draw fresh data.
    absent : dict of str to str
        Contenders that do not apply here, with the reason.
    scale : str
        One line on what CPU scale means for this bout.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data; calls are left out, infinite bounds become None."""
        data = asdict(self)
        for contender in data["contenders"]:
            del contender["call"]
        for metric in data["metrics"]:
            metric["bounds"] = [b if math.isfinite(b) else None for b in metric["bounds"]]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Bout:
        """Read back what `to_json` wrote; unknown keys of newer versions are an error."""
        data = dict(data)
        data["metrics"] = tuple(Metric(**{**m, "bounds": _bounds(m["bounds"])}) for m in data["metrics"])
        data["claims"] = tuple(Claim(**c) for c in data["claims"])
        data["contenders"] = tuple(Contender(**{**c, "needs": tuple(c["needs"])}) for c in data["contenders"])
        data["seeds"], data["notes"] = tuple(data["seeds"]), tuple(data["notes"])
        return cls(**data)


def _bounds(pair: list[float | None]) -> tuple[float, float]:
    low, high = pair
    return (-math.inf if low is None else low, math.inf if high is None else high)


@dataclass(frozen=True)
class Task:
    """A run to be executed: its record-to-be and what its process needs.

    Parameters
    ----------
    run : Run
    bout : str
        Module that holds ``load``, ``contenders`` and ``score``.
    options : dict
        Arguments of ``load``, as the user gave them.
    guest : bytes
        A contender of the user's own, pickled by value; empty for the bout's own.
    keep : str
        Folder for the output; empty to drop it.
    hosts : tuple of str
        Distributions whose versions go into the record.
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

    Parameters
    ----------
    key : str
        Hash of method, contender, seed, options, input and code.
    contender : str
        A contender's name, or ``claim:NAME`` for the stand-alone experiment NAME of a claim.
    status : str
        ok, failed, timeout, oom, diverged (a score is not finite) or interrupted.
    scores : dict of str to float
        Per metric, the mean where the bout scores examples. Empty unless ok.
    examples : dict of str to list of float
        Per-example scores in the order of the test examples, where the bout gives them.
    details : dict
        What ``score`` returned beyond the metrics (curves, tables: JSON), for the bout's own figures.
    cost : dict
        wall_s, cpu_s, peak_mb (above the baseline after loading), and where known artefact_bytes, model_calls.
    error : str
        Error class, message and the last 20 lines that the run printed.
    environment : dict
        Versions, platform, threads: from a fixed list, never the process environment.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """Read back what `to_json` wrote."""
        return cls(**data)

"""What a bake-off leaves on disk: an append-only journal of runs, and files written so that no crash tears them.

A record is one line ``{"run":{...},"sha256":"..."}`` in ``runs/*.jsonl``, one file per writing process, flushed to the
disk before the run counts as done. The check sum finds flipped bytes that are still valid JSON.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bakeoff.arena.types import SCHEMA, Bout, InputError, Run, from_json, to_json

_SLUG = re.compile(r"[A-Za-z0-9][\w.-]{0,59}")
_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:\w*key|token|secret|passw\w*|credentials?|auth)(?:$|_)")
_SECRET_OPTION = re.compile(r"(?i)(?:_key|token|secret|passw(?:or)?d)$")
_MASK = "REDACTED"
_SECRET_SHAPES = {
    r"(?<=://)[^/\s@]+(?=@)": _MASK,
    r"(?i)([?&](?:api[_-]?key|access[_-]?token|token|key|secret|password|sig)=)[^&\s\"']+": rf"\1{_MASK}",
    r"(?i)(--[\w-]*(?:key|token|secret|password)(?![\w-]*-env\b)[\w-]*[= ])\S+": rf"\1{_MASK}",
    r"(?i)\b((?:api[_-]?key|token|secret|password)\s*[=:]\s*[\"']?)[^\s\"',;}]{6,}": rf"\1{_MASK}",
    r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}": rf"\1 {_MASK}",
    r"\b(?:[spr]k[-_][\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{20,}|AKIA[0-9A-Z]{16}|xox[baprs]-[\w-]{10,})": _MASK,
}
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def redact(value: Any) -> Any:
    """Replace whatever is or looks like a secret in all strings of a JSON-like value, such as a run or a bout."""
    options = value.get("options", {}) if isinstance(value, dict) else {}
    secrets = [v for k, v in options.items() if isinstance(v, str) and _SECRET_OPTION.search(k)]
    secrets += [v for k, v in os.environ.items() if _SECRET_NAME.search(k) and v not in _names(value)]
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    for file in (hub / "token", Path.home() / ".huggingface" / "token"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            secrets.append(file.read_text().strip())
    forms = {f for s in secrets if len(s) >= 8 for f in (s, repr(s)[1:-1], json.dumps(s)[1:-1], quote(s, safe=""))}
    return _redact(value, sorted(forms, key=len, reverse=True))


def _names(value: Any) -> set[str]:
    """What a record or bout calls its method, contenders and metrics: none of it is a secret, whatever it equals."""
    if not isinstance(value, dict):
        return set()
    listed = [part["name"] for kind in ("contenders", "metrics") for part in value.get(kind, ())]
    return {*listed, *value.get("scores", ()), *(value[k] for k in ("method", "contender") if k in value)}


def _redact(value: Any, secrets: list[str], free: bool = False) -> Any:
    """`free`: keys are the user's own words, so that a value under one like api_key is hidden whatever it is."""
    if isinstance(value, dict):
        hidden = {k for k, v in value.items() if free and isinstance(v, str) and v and _SECRET_OPTION.search(str(k))}
        own = ("options", "details", "environment")
        return {
            _redact(k, secrets): _MASK if k in hidden else _redact(v, secrets, free or k in own)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(v, secrets, free) for v in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, _MASK)
    for shape, mask in _SECRET_SHAPES.items():
        value = re.sub(shape, mask, value)
    return value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        how = "free space or choose another --out; earlier results are intact"
        raise InputError(f"cannot write: {error.strerror or error}", str(path), how) from error


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part; InputError where it cannot be."""
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}")
    with _writing(path), contextlib.ExitStack() as cleanup:
        path.parent.mkdir(parents=True, exist_ok=True)
        cleanup.callback(temporary.unlink, missing_ok=True)
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_folder(out: Path, method: str) -> None:
    """Make or re-open a results folder; InputError where it cannot be one, or holds anything but runs of `method`."""
    where = f"--out {str(out)!r}"
    if not str(out).isprintable() or any(len(part.encode()) > 255 for part in out.parts):
        raise InputError("not a usable folder name", where, "use printable characters, at most 255 bytes a part")
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = sorted(out.iterdir())
        other = [p.name for p in there if p.name != "runs" and not p.name.startswith((".lock", ".bout.json."))]
        if other and not (out / "bout.json").exists():
            raise InputError(f"the folder holds other files ({other[0]!r} ...)", where, "choose an empty folder")
        if links := [p.name for p in there if p.is_symlink()]:
            raise InputError(f"{links[0]!r} in it points elsewhere", where, "choose an empty folder")
        (out / "runs").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror}", where, "choose another") from error
    found = method
    with contextlib.suppress(InputError):  # none yet, or damaged: it will be written
        found = read_bout(out).method
    if found != method:
        raise InputError(f"the folder holds results of {found}", where, "choose another")


@contextlib.contextmanager
def locked(folder: Path, shard: str | None = None) -> Iterator[None]:
    """Hold the folder until this process dies, however it dies; InputError names another process that holds it.

    A shard shares the folder with others, but not with itself.
    """
    with _lock(folder / ".lock", fcntl.LOCK_SH if shard else fcntl.LOCK_EX), contextlib.ExitStack() as own:
        if shard:
            own.enter_context(_lock(folder / f".lock-{shard.replace('/', '-of-')}", fcntl.LOCK_EX))
        yield


@contextlib.contextmanager
def _lock(path: Path, kind: int) -> Iterator[None]:
    with _writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = f"in use by another bakeoff (process {os.read(handle, 32).decode(errors='replace').strip()})"
            raise InputError(busy, str(path.parent), "wait for it or choose another --out") from None
        with _writing(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


class Journal:
    """Appends runs to a file of this process's own; a run that `append` returned from survives any crash."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs" / f"{os.getpid()}-{os.urandom(6).hex()}.jsonl"
        self._handle: int | None = None

    def append(self, run: Run) -> Run:
        """Write one record and wait until it is on the disk; returns it as stored, secrets masked."""
        stored: Run = from_json(Run, redact(to_json(run)))
        line = encode(stored) + b"\n"
        with _writing(self.path):
            if self._handle is None:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                _sync_folder(self.path.parent)
            while line:
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        return stored

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def encode(run: Run) -> bytes:
    """One journal record."""
    body = _canonical(to_json(run))
    return f'{{"run":{body},"sha256":"{_check_sum(body)}"}}'.encode()


def _check_sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def read_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """All intact runs of a folder, one per key (an ok one wins, else the latest), and a line per bad record."""
    problems: list[str] = []
    paths = sorted((folder / "runs").glob("*.jsonl"), key=lambda p: (p.lstat().st_mtime_ns, p.name))
    found = [run for path in paths for run in _decode_file(path, problems)]
    best = {run.key: run for run in found} | {run.key: run for run in reversed(found) if run.status == "ok"}
    return list(best.values()), problems


def _decode_file(path: Path, problems: list[str]) -> Iterator[Run]:
    """Records are found by their first bytes, so that a damaged line end costs no neighbour."""
    if path.is_symlink() or not path.is_file():
        problems.append(f"{path}: not a plain file, left out")
        return
    text = path.read_bytes().decode("ascii", errors="replace")  # intact records are ASCII
    for number, line in enumerate(text.split("\n"), 1):
        end, size = 0, len(line.rstrip())
        while end < size:
            start = line.find('{"run":', end)
            run, after = _decode(line, max(start, end))
            if not run or line[end:start].strip():
                problems.append(f"{path}:{number}: damaged record left out")
            end = after
            if run:
                yield run


def _decode(line: str, start: int) -> tuple[Run | None, int]:
    """The record that begins there and where it ends; no record and the line's end where it is damaged."""
    with contextlib.suppress(*_DAMAGE):
        outer, end = json.JSONDecoder().raw_decode(line, start)
        run = from_json(Run, outer["run"])
        if _check_sum(_canonical(outer["run"])) == outer["sha256"] and run.schema <= SCHEMA:
            return run, end
    return None, len(line)


def write_bout(folder: Path, bout: Bout) -> Bout:
    """Store what a report needs besides the runs; returns it as stored, secrets masked."""
    data = redact(to_json(bout))
    write_atomic(folder / "bout.json", json.dumps(data, indent=1, allow_nan=False))
    stored: Bout = from_json(Bout, data)
    return stored


def read_bout(folder: Path) -> Bout:
    """Read back `write_bout`; InputError where no results are there or the file is damaged."""
    path = folder / "bout.json"
    try:
        if path.is_symlink() or not path.is_file():
            how = "give a folder that --out named"
            raise InputError("no results here (bout.json is missing)", repr(str(folder)), how)
        bout: Bout = from_json(Bout, json.loads(path.read_text(encoding="utf-8")))
        if not (_SLUG.fullmatch(bout.method) and bout.primary and bout.paper_contender):
            raise ValueError("no bout")
        if bout.schema > SCHEMA:
            raise InputError(f"written by a newer bakeoff (schema {bout.schema})", str(path), "upgrade bakeoff")
        return bout
    except (OSError, StopIteration, *_DAMAGE) as error:
        how = "run the same command again to rewrite it"
        raise InputError(f"damaged: {type(error).__name__}", repr(str(path)), how) from error


def read_figures(folder: Path) -> dict[str, str]:
    """The figures that the report in a folder has, with their captions; none where there is no intact report."""
    with contextlib.suppress(OSError, *_DAMAGE):
        return dict(from_json(dict[str, str], json.loads((folder / "report.json").read_text())["figures"]))
    return {}


def write_csv(folder: Path, runs: list[Run]) -> None:
    """One line per run, derived from the journal."""
    metrics = sorted({m for run in runs for m in run.scores})
    costs = sorted({c for run in runs for c in run.cost})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["method", "contender", "seed", "status", *metrics, *costs, "error"])
    for run in sorted(runs, key=lambda r: (r.contender, r.seed)):
        numbers = [run.scores.get(m, "") for m in metrics] + [run.cost.get(c, "") for c in costs]
        table.writerow([run.method, run.contender, run.seed, run.status, *numbers, run.error.split("\n")[0]])
    write_atomic(folder / "runs.csv", text.getvalue())

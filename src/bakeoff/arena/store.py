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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bakeoff.arena.types import SCHEMA, Bout, InputError, Run

_START = b'{"run":'
_STATUSES = {"ok", "failed", "timeout", "oom", "diverged", "interrupted"}
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|credential|auth")
_MASK = "REDACTED"
_SECRET_SHAPES = [
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), _MASK),
    (re.compile(r"(?i)([?&](?:api[_-]?key|access[_-]?token|token|key|secret|password|sig)=)[^&\s\"']+"), rf"\1{_MASK}"),
    (re.compile(r"(?i)(--[\w-]*(?:key|token|secret|password)(?![\w-]*-env\b)[\w-]*[= ])\S+"), rf"\1{_MASK}"),
    (re.compile(r"(?i)\b((?:api[_-]?key|token|secret|password)\s*[=:]\s*[\"']?)[^\s\"',;}]{6,}"), rf"\1{_MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {_MASK}"),
    (
        re.compile(
            r"\b(?:sk|pk|rk)[-_][\w-]{16,}|\bhf_\w{16,}|\bgh[pousr]_\w{20,}|\bAKIA[0-9A-Z]{16}|\bxox[baprs]-[\w-]{10,}"
        ),
        _MASK,
    ),
]


def redact(value: Any) -> Any:
    """Replace whatever looks like a secret in all strings of a JSON-like value."""
    return _redact(value, _known_secrets())


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {_redact(k, secrets): _redact(v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(v, secrets) for v in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, _MASK)
    for shape, mask in _SECRET_SHAPES:
        value = shape.sub(mask, value)
    return value


def _known_secrets() -> list[str]:
    found = [v for k, v in os.environ.items() if _SECRET_NAME.search(k) and len(v) >= 8]
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    for file in (hub / "token", Path.home() / ".huggingface" / "token"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(file.read_text().strip())
    return sorted((s for s in found if len(s) >= 8), key=len, reverse=True)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part.

    Raises
    ------
    InputError
        The disk is full or the folder cannot be written.
    """
    blob = data.encode() if isinstance(data, str) else data
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot_write(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(
        f"cannot write: {reason}", str(path), "free space or choose another --out; earlier results are intact"
    )


def open_folder(out: Path) -> Path:
    """Make or re-open a results folder.

    Raises
    ------
    InputError
        The name cannot be a folder, or the folder holds something other than an earlier bake-off.
    """
    text = str(out)
    if not text.isprintable() or any(len(part.encode()) > 255 for part in out.parts):
        raise InputError("not a usable folder name", "--out", "use printable characters, at most 255 bytes a part")
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = [p.name for p in out.iterdir()]
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror}", f"--out {text!r}", "choose another") from error
    if others and "bout.json" not in others and "runs" not in others:
        raise InputError(
            f"the folder holds other files ({sorted(others)[0]!r} ...)",
            f"--out {text!r}",
            "choose an empty or new folder",
        )
    (out / "runs").mkdir(exist_ok=True)
    return out


@contextlib.contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Hold the folder; the system lets go of it when this process dies, however it dies.

    Raises
    ------
    InputError
        Another driver holds it; its process is named.
    """
    handle = os.open(folder / f".{name}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 32).decode(errors="replace").strip()
        os.close(handle)
        raise InputError(
            f"in use by another bakeoff (process {holder})", str(folder), "wait for it or choose another --out"
        ) from error
    try:
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

    def append(self, run: Run) -> None:
        """Write one record and wait until it is on the disk."""
        line = encode(run) + b"\n"
        try:
            if self._handle is None:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                _sync_folder(self.path.parent)
            while line:
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(run: Run) -> bytes:
    """One journal record, secrets masked."""
    body = _canonical(redact(run.to_json()))
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f'{{"run":{body},"sha256":"{digest}"}}'.encode()


def read_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """All intact runs of a folder, one per key (an ok one wins, else the latest), and a line per bad record."""
    runs: dict[str, Run] = {}
    problems: list[str] = []
    for path in sorted((folder / "runs").glob("*.jsonl")):
        if path.is_symlink() or not path.is_file():
            problems.append(f"{path}: not a plain file, left out")
            continue
        for run in _decode_file(path, problems):
            if run.key not in runs or runs[run.key].status != "ok":
                runs[run.key] = run
    return list(runs.values()), problems


def _decode_file(path: Path, problems: list[str]) -> Iterator[Run]:
    """Records are found by their first bytes, so that a damaged line end costs no neighbour."""
    blob = path.read_bytes()
    starts = [m.start() for m in re.finditer(re.escape(_START), blob)]
    if blob[: starts[0] if starts else None].strip():
        problems.append(f"{path}:1: damaged record left out")
    for start, end in zip(starts, [*starts[1:], len(blob)], strict=True):
        run = _decode(blob[start:end].decode("utf-8", errors="replace"))
        if run is None:
            problems.append(f"{path}:{blob[:start].count(10) + 1}: damaged record left out")
        else:
            yield run


def _decode(text: str) -> Run | None:
    try:
        outer, _ = json.JSONDecoder().raw_decode(text)
        body, digest = outer["run"], outer["sha256"]
        if hashlib.sha256(_canonical(body).encode()).hexdigest()[:16] != digest:
            return None
        run = Run.from_json(body)
        return run if run.status in _STATUSES and run.schema <= SCHEMA else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def write_bout(folder: Path, bout: Bout) -> None:
    """Store what a report needs besides the runs."""
    write_atomic(folder / "bout.json", json.dumps(redact(bout.to_json()), indent=1, allow_nan=False))


def read_bout(folder: Path) -> Bout:
    """Read back `write_bout`.

    Raises
    ------
    InputError
        No results there, or the file is damaged.
    """
    path = folder / "bout.json"
    try:
        return Bout.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(
            "no results here (bout.json is missing)", str(folder), "give a folder that --out named"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"damaged: {type(error).__name__}", str(path), "run the same command again to rewrite it"
        ) from error


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

"""Hashes that make a run a pure function of its key: of the code of one contender, and of the user's input.

The code hash covers what a contender really uses: the source of its function, of the functions, classes and constants
of the same file that it names, and whole files of the project's own modules that it imports. So an edit of one
contender reruns that contender only. It is read from the syntax tree: comments and layout do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any


def digest(*parts: Any) -> str:
    """A short stable hash of JSON-like parts."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_input(options: dict[str, Any]) -> str:
    """Hash of the options, in which a file or folder counts by its content and not by its name."""
    return digest({name: _content(value) for name, value in options.items()})


def _content(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_content(v) for v in value]
    if not isinstance(value, str | Path) or not str(value):
        return value
    path = Path(value)
    try:
        if path.is_file():
            return {"file": _file_hash(path)}
        if path.is_dir() and isinstance(value, Path):
            files = sorted(p for p in path.rglob("*") if p.is_file())
            return {"folder": [(str(p.relative_to(path)), _file_hash(p)) for p in files]}
    except OSError:  # a text too long for a file name, or one that may not be read
        pass
    if isinstance(value, str) and (module := _importable_file(value)):
        return {"object": value, "code": _file_hash(module)}
    return str(value)


def _importable_file(value: str) -> Path | None:
    """The source of ``module:attribute``, where the text is one."""
    module, colon, attribute = value.partition(":")
    if not colon or not attribute.replace(".", "").isidentifier():
        return None
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and Path(found.origin).is_file() else None


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_code(*functions: Any, hosts: Iterable[str] = ()) -> str:
    """Hash of what some functions do: their code and that of the project's own that they use, and host versions."""
    seen: set[str] = set()
    arguments = [_collect(function, seen) for function in functions]
    return digest(arguments, sorted(seen), {name: _version(name) for name in hosts})


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _collect(function: Any, seen: set[str], outer: tuple[Any, ...] = ()) -> Any:
    """Add the function's sources to `seen`; return the values that are bound to it. `outer`: what it is bound to."""
    if any(function is known for known in outer):
        return "itself"
    outer = (*outer, function)
    if isinstance(function, functools.partial):
        named = sorted(function.keywords.items())
        values = (function.func, *function.args, *(v for _, v in named))
        return [[_collect(v, seen, outer) for v in values], [k for k, _ in named]]
    if not callable(function):
        return repr(function) if isinstance(function, int | float | str | bool | tuple | type(None)) else None
    if not inspect.isroutine(function) and not inspect.isclass(function):  # an object with __call__
        bound = getattr(function, "__dict__", {}).values()
        return [_collect(type(function), seen), [_collect(v, seen, outer) for v in bound]]
    try:
        file, (lines, first) = inspect.getsourcefile(function), inspect.getsourcelines(function)
    except (TypeError, OSError):  # built in, or typed at a prompt: no file to read
        code = getattr(function, "__code__", None)
        return code.co_code.hex() + repr(code.co_consts) if code else repr(function)
    assert file is not None
    _source(file, function.__module__).add_lines(first, first + len(lines) - 1, seen)
    cells = getattr(function, "__closure__", None) or ()
    return [function.__qualname__, [_collect(cell.cell_contents, seen, outer) for cell in cells]]


class _Source:
    """One file, cut into its top-level statements by the names that they define."""

    def __init__(self, path: str, package: str) -> None:
        self.package = package
        self.tree = ast.parse(Path(path).read_bytes())
        self.defines: dict[str, list[ast.stmt]] = {}
        for node in self.tree.body:
            for name in _names_defined(node):
                self.defines.setdefault(name, []).append(node)

    def add_lines(self, first: int, last: int, seen: set[str]) -> None:
        """Add what is defined at these lines, and all that it names."""
        for node in self.tree.body:
            start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if not start <= first <= (node.end_lineno or start):
                continue
            inner = (n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.Lambda | ast.ClassDef))
            nested = next((n for n in inner if first <= n.lineno <= last), None) if first > start else None
            self._add(nested or node, seen)

    def _add(self, node: ast.AST, seen: set[str]) -> None:
        mark = digest(ast.dump(node))
        if mark in seen:
            return
        seen.add(mark)
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            for statement in self.defines.get(name, ()):
                self._add(statement, seen)
        for module in _modules_imported(node, self.package):
            _add_module(module, seen)


def _source(path: str, module: str) -> _Source:
    return _read(path, module.rpartition(".")[0], Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _read(path: str, package: str, changed: int) -> _Source:
    return _Source(path, package)


def _names_defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    else:
        yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _modules_imported(node: ast.AST, package: str) -> Iterator[str]:
    for found in ast.walk(node):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - found.level + 1] if found.level else []
            module = ".".join([*above, *filter(None, [found.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in found.names)


def _add_module(module: str, seen: set[str]) -> None:
    """Add a whole file of the project's own, and what it imports; installed libraries count by their version."""
    if module in seen or module.startswith("bakeoff.arena") or not _is_own(module.split(".")[0]):
        return
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return
    if not found or not found.origin or not found.origin.endswith(".py"):
        return
    source = _source(found.origin, f"{module}.__init__" if found.submodule_search_locations else module)
    seen |= {module, digest(ast.dump(source.tree))}
    for inner in _modules_imported(source.tree, source.package):
        _add_module(inner, seen)


@functools.cache
def _is_own(package: str) -> bool:
    """Whether a top-level package is bakeoff or the user's own code, rather than an installed library."""
    if package == "bakeoff":
        return True
    if package in sys.stdlib_module_names:
        return False
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return bool(found and found.origin and not {"site-packages", "dist-packages"} & set(Path(found.origin).parts))

"""Hashes that make a run a pure function of its key: of the code of one contender, and of the user's input.

The code hash covers what a contender really uses: the source of its function, and of all functions, classes and
constants that this names, through the imports of bakeoff's own and of the user's modules. So an edit of one contender
reruns that contender only. It is read from the syntax tree: comments and layout do not count. Installed libraries count
by the versions of the hosts.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
    module, colon, attribute = str(value).partition(":")
    if colon and attribute.replace(".", "").isidentifier() and (source := _file_of(module)):
        return {"object": value, "code": _file_hash(Path(source))}
    return str(value)


def _file_of(module: str) -> str:
    """The file of a module, which is not imported for that (but its parent is); empty where there is none."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return ""
    return found.origin if found and found.origin and Path(found.origin).is_file() else ""


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_code(*functions: Any, hosts: Iterable[str] = ()) -> str:
    """Hash of what some functions do: their code and that of the project's own that they use, and host versions."""
    seen: set[str] = set()
    arguments = [_collect(function, seen) for function in functions]
    versions = {name: [found.version for found in metadata.distributions(name=name)][:1] for name in hosts}
    return digest(arguments, sorted(seen), versions)


def _collect(function: Any, seen: set[str], outer: tuple[Any, ...] = ()) -> Any:
    """Add the function's sources to `seen`; return the values that are bound to it. `outer`: what it is bound to."""
    if any(function is known for known in outer):
        return "itself"
    outer = (*outer, function)
    if isinstance(function, functools.partial):
        keywords = sorted(function.keywords.items())
        values = (function.func, *function.args, *(v for _, v in keywords))
        return [[_collect(v, seen, outer) for v in values], [k for k, _ in keywords]]
    if isinstance(function, list | tuple):
        return [_collect(v, seen, outer) for v in function]
    if isinstance(function, dict):
        return [[repr(k), _collect(v, seen, outer)] for k, v in function.items()]
    if not callable(function):
        return _value(function)
    if not inspect.isroutine(function) and not inspect.isclass(function):  # an object with __call__
        bound = getattr(function, "__dict__", {}).values()
        return [_collect(type(function), seen), [_collect(v, seen, outer) for v in bound]]
    try:
        file, (lines, first) = inspect.getsourcefile(function), inspect.getsourcelines(function)
    except (TypeError, OSError):  # built in, or typed at a prompt: no file to read
        code = getattr(function, "__code__", None)
        return code.co_code.hex() + repr(code.co_consts) if code else repr(function)
    assert file is not None
    _follow_lines(_source(file, function.__module__), first, first + len(lines) - 1, seen)
    bound = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if inspect.ismethod(function):
        bound.append(function.__self__)
    if function.__module__ == "__main__" and inspect.isfunction(function):  # a script or notebook sets these as it goes
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        bound += [v for v in named if not callable(v) and not inspect.ismodule(v)]
    return [function.__qualname__, [_collect(v, seen, outer) for v in bound]]


def _value(value: Any) -> str:
    """A value by its content; one that cannot be written down by its type."""
    if isinstance(value, int | float | str | bool | type(None)):
        return repr(value)
    try:
        return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()
    except Exception:  # whatever the object's own pickling raises
        return repr(type(value))


class _Source(NamedTuple):
    """One file, cut into its top-level statements by the names that they define."""

    package: str
    body: list[ast.stmt]
    defines: dict[str, list[ast.stmt]]


def _source(path: str, module: str) -> _Source:
    return _parse(path, module, Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _parse(path: str, module: str, changed: int) -> _Source:
    body = ast.parse(Path(path).read_bytes()).body
    defines: dict[str, list[ast.stmt]] = {}
    for node in body:
        for name in _names_defined(node):
            defines.setdefault(name, []).append(node)
    return _Source(module if path.endswith("__init__.py") else module.rpartition(".")[0], body, defines)


def _names_defined(node: ast.stmt) -> list[str]:
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [_bound(alias) for alias in node.names]
    inner = [n.name for n in ast.walk(node) if isinstance(n, _DEFINITIONS)]  # under an if, say
    return inner + [_base(n) for n in ast.walk(node) if isinstance(getattr(n, "ctx", None), ast.Store)]


def _base(node: Any) -> str:
    """The name in ``name``, ``name[key]`` or ``name.part``."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _follow_lines(source: _Source, first: int, last: int, seen: set[str]) -> None:
    """Follow what is defined at these lines: a top-level statement, or a function inside one."""
    for node in source.body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if start <= first <= (node.end_lineno or start):
            inner = (n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.Lambda | ast.ClassDef))
            nested = next((n for n in inner if first <= n.lineno <= last), None) if first > start else None
            _follow(source, nested or node, seen)


def _follow(source: _Source, node: ast.AST, seen: set[str]) -> None:
    """Add a piece of code and all that it names."""
    mark = digest(source.package, ast.dump(node))
    if mark in seen:
        return
    seen.add(mark)
    for found in ast.walk(node):
        if isinstance(found, ast.Name):
            _follow_name(source, found.id, seen)
        elif isinstance(found, ast.Import | ast.ImportFrom):
            for alias in found.names:
                _follow_import(source, found, alias, seen)


def _follow_name(source: _Source, name: str, seen: set[str]) -> None:
    for statement in source.defines.get(name, ()):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if _bound(alias) == name:
                    _follow_import(source, statement, alias, seen)
        else:
            _follow(source, statement, seen)


def _follow_import(source: _Source, statement: ast.Import | ast.ImportFrom, alias: ast.alias, seen: set[str]) -> None:
    """Follow one imported name into its module; a module that is imported as such counts whole."""
    module, name = alias.name, ""
    if isinstance(statement, ast.ImportFrom):
        above = source.package.split(".")[: source.package.count(".") + 2 - statement.level] if statement.level else []
        module, name = ".".join([*above, *filter(None, [statement.module])]), alias.name
        if _own_source(f"{module}.{name}"):
            module, name = f"{module}.{name}", ""
    if not (target := _own_source(module)):
        return
    if name:
        _follow_name(target, name, seen)
    else:
        for part in target.body:
            _follow(target, part, seen)


def _own_source(module: str) -> _Source | None:
    """The source of a module of bakeoff's own or of the user's; None for the arena and for installed libraries."""
    if module.startswith("bakeoff.arena") or not _is_own(module.split(".")[0]):
        return None
    path = _file_of(module)
    return _source(path, module) if path.endswith(".py") else None


@functools.cache
def _is_own(package: str) -> bool:
    if package == "bakeoff" or package in sys.stdlib_module_names:
        return package == "bakeoff"
    path = _file_of(package)
    return bool(path) and not {"site-packages", "dist-packages"} & set(Path(path).parts)

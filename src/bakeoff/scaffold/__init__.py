"""Writes the files of a new method: a small one that runs, and tests that fail until they say something."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from bakeoff.arena.types import InputError

_LAZY = "import lazy_loader\n\n__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)\n"


def write(name: str, root: Path) -> list[Path]:
    """Write the files of method ROOM/NAME into a checkout; returns those that are new or have a new line.

    Raises
    ------
    InputError
        The name cannot be one, is taken, or `root` is not a checkout.
    """
    source = root / "src" / "bakeoff"
    match = re.fullmatch(r"([a-z][a-z0-9_]*)/([a-z][a-z0-9_]*)", name)
    if not match or any(keyword.iskeyword(part) for part in match.groups()):
        raise InputError(f"{name!r} is not ROOM/NAME", "new", "write two lower-case names, e.g. decide/example")
    if not (source / "catalog.py").is_file():
        raise InputError("no checkout of bakeoff", str(root), "go to its folder or give --root")
    room, method = source / match[1], match[2]
    if (room.exists() and not (room / "__init__.pyi").is_file()) or room.with_suffix(".py").exists():
        raise InputError(f"{match[1]!r} is a part of bakeoff and no room", "new", "choose another room")
    test, bench = root / "tests" / match[1] / f"test_{method}.py", root / "benchmarks" / f"bench_{method}.py"
    if taken := [str(p) for p in [*source.glob(f"*/{method}"), test, bench] if p.exists()]:
        raise InputError(f"{taken[0]} exists", "new", "choose another name")
    words = {"room": match[1], "name": method, "slug": method.replace("_", "-")}
    words["Name"] = "".join(part.capitalize() for part in method.split("_"))
    own = {part: room / method / part for part in ("card.toml", "method.py", "bout.py", "__init__.py")}
    files = {path: _template(part, words) for part, path in {**own, "test.py": test, "bench.py": bench}.items()}
    stub = room / "__init__.pyi"
    before = stub.read_text(encoding="utf-8") if room.exists() else ""
    files |= {stub: f"{before}from .{method} import {words['Name']} as {words['Name']}\n"}
    files |= {} if room.exists() else {room / "__init__.py": _LAZY}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)


def _template(part: str, words: dict[str, str]) -> str:
    text = (Path(__file__).parent / "templates" / f"{part}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(words)

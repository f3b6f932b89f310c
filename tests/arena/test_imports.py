"""Who may import whom (DESIGN, section 1), read from the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bakeoff

SRC = Path(bakeoff.__file__).parent
ROOMS = sorted({path.parent.parent.name for path in SRC.glob("*/*/card.toml")})
METHODS = sorted(path.parent for path in SRC.glob("*/*/card.toml"))
HEAVY = ("torch", "transformers", "sklearn", "pandas", "matplotlib", "scipy")


def imported(path: Path, top_level_only: bool = False) -> set[str]:
    """Absolute names of all modules that a file imports."""
    package = path.relative_to(SRC.parent).parent.parts
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in _loaded_at_import(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def _loaded_at_import(tree: ast.Module) -> list[ast.stmt]:
    typing_only = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    skipped = {id(inner) for node in typing_only for inner in ast.walk(node)}
    return [node for node in tree.body if id(node) not in skipped]


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] == "bakeoff"}


def stray(path: Path, *allowed: str) -> set[str]:
    """What a file imports of bakeoff beyond the packages that it may."""
    return {name for name in ours(path) if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)}


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def name_of(folder: Path) -> str:
    return ".".join(folder.relative_to(SRC.parent).parts)


def test_arena_imports_only_itself():
    files = python_files(SRC / "arena")
    assert len(files) > 8
    assert {p.name: stray(p, "bakeoff.arena", "bakeoff.__version__") for p in files if stray(p, "bakeoff.arena")} == {}


def test_command_line_knows_no_room():
    allowed = ("bakeoff.arena", "bakeoff.catalog", "bakeoff.scaffold", "bakeoff.__version__")
    for name in ("cli.py", "__init__.py", "catalog.py"):
        assert stray(SRC / name, *allowed) == set()
    assert stray(SRC / "catalog.py", "bakeoff.arena.types") == set()


def method_side(method: Path) -> set[Path]:
    """method.py and __init__.py, and the files of their own that these import, directly or not."""
    todo, seen = [method / "method.py", method / "__init__.py"], set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += [
                p for p in python_files(method) if any(f"{n}.".startswith(f"{name_of(p)[:-3]}.") for n in ours(path))
            ]
    return seen


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_method_knows_its_host_and_no_bakeoff(method):
    """Only bout.py, and what a bout has split off, knows bakeoff; whoever uses the method never loads that."""
    side = method_side(method)
    assert method / "method.py" in side
    assert method / "bout.py" not in side
    for path in python_files(method):
        shared = f"{name_of(method.parent)}._shared"
        own = (name_of(method), shared, "bakeoff.inputs", "bakeoff.arena.types")
        if path in side:
            own = (name_of(method), shared, "bakeoff.hosts")
        assert stray(path, *own) == set(), path


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_never_import_each_other(room):
    others = {f"bakeoff.{other}" for other in ROOMS if other != room}
    for path in python_files(SRC / room):
        assert not {name for name in ours(path) if ".".join(name.split(".")[:2]) in others}, path


def test_inputs_and_hosts_know_no_method():
    for path in python_files(SRC / "inputs"):
        assert stray(path, "bakeoff.inputs", "bakeoff.hosts", "bakeoff.arena.types") == set(), path
    for path in python_files(SRC / "hosts"):
        assert stray(path, "bakeoff.hosts") == set(), path


def test_light_modules_load_nothing_heavy():
    light = [SRC / "cli.py", SRC / "catalog.py", SRC / "__init__.py", *(m / "bout.py" for m in METHODS)]
    light += [path for folder in ("arena", "inputs") for path in python_files(SRC / folder)]
    for path in light:
        if path.exists():
            roots = {name.split(".")[0] for name in imported(path, top_level_only=True)}
            assert not roots & set(HEAVY), path


def test_the_rules_can_be_broken(tmp_path, monkeypatch):
    """The reader above sees relative, nested and aliased imports."""
    monkeypatch.setattr("test_imports.SRC", tmp_path / "bakeoff")
    path = tmp_path / "bakeoff/explain/x/method.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from ...arena import store as s\ndef f():\n    import bakeoff.decide.y\nfrom ..z.method import g\n"
    )
    assert stray(path, "bakeoff.explain.x") == {"bakeoff.arena.store", "bakeoff.decide.y", "bakeoff.explain.z.method.g"}


def test_the_core_stays_small():
    """Lines that are not blank, of all that is neither a room nor inputs; what a reader has to read."""
    files = [*SRC.glob("*.py"), *(SRC / "arena").glob("*.py"), *(SRC / "scaffold").glob("*.py")]
    assert sum(bool(line.strip()) for file in files for line in file.read_text().splitlines()) <= 2500

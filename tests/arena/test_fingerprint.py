"""A key changes with everything that a result depends on, and with nothing else."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.arena import fingerprint

JSON = st.recursive(st.none() | st.integers() | st.text() | st.floats(allow_nan=False), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(), JSON))
def test_order_of_options_does_not_count(options):
    backwards = dict(reversed(options.items()))
    assert fingerprint.digest(options) == fingerprint.digest(backwards)
    assert fingerprint.of_input(options) == fingerprint.of_input(backwards)


@given(JSON, JSON)
def test_different_parts_differ(a, b):
    same = fingerprint.digest(a, b) == fingerprint.digest(b, a)
    assert same == (repr(a) == repr(b))
    assert fingerprint.digest([a]) != fingerprint.digest(a)


def test_a_file_counts_by_its_content(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("a,b\n1,2\n")
    two.write_text("a,b\n1,2\n")
    by_name = fingerprint.of_input({"table": one})
    assert by_name == fingerprint.of_input({"table": two}) == fingerprint.of_input({"table": str(one)})
    two.write_text("a,b\n1,3\n")
    assert by_name != fingerprint.of_input({"table": two})
    assert by_name != fingerprint.of_input({"truth": one})


def test_a_folder_counts_by_its_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "weights.bin").write_bytes(b"1" * 100)
    first = fingerprint.of_input({"model": tmp_path / "a"})
    assert first == fingerprint.of_input({"model": tmp_path / "b"})
    (tmp_path / "b" / "inner" / "weights.bin").rename(tmp_path / "b" / "weights.bin")
    assert first != fingerprint.of_input({"model": tmp_path / "b"})


def test_texts_that_are_no_files():
    texts = ["", "x" * 5000, "a\0b", "no/such/file", "module:attribute", "MOD@http://h:1/v1"]
    assert len({fingerprint.of_input({"text": text}) for text in texts}) == len(texts)


HELPER = "SCALE = 2\n\ndef double(x):\n    return SCALE * x\n"
BOUT = '''"""A bout."""
import functools
import numpy as np
from {package} import helper
from {package}.helper import double

LIMIT = 3
OTHER = 4


class Wrapper:
    factor = 5

    def __init__(self, n):
        self.n = n

    def __call__(self, data, seed):
        return self.factor * self.n


def _clip(x):
    return min(x, LIMIT)


def plain(data, seed):
    return 1


def clipped(data, seed):
    return _clip(2)


def doubled(data, seed):
    return double(2)


def through_module(data, seed):
    return helper.double(2)


def inside(data, seed):
    from {package}.helper import double as d
    return d(1)


def recursive(data, seed):
    return recursive(data, seed - 1) if seed else _clip(1)


def closure(n):
    def run(data, seed):
        return n
    return run


def looped():
    def run(data, seed):
        return run(data, seed - 1) if seed else 0
    return run


lambdas = lambda data, seed: _clip(seed)
'''
NAMES = ("plain", "clipped", "doubled", "through_module", "inside", "recursive", "lambdas")


class Package:
    """A package of the user's own that can be edited."""

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = f"own_{folder.name.replace('-', '_')}", folder
        self.home = folder / self.name
        self.home.mkdir()
        (self.home / "__init__.py").touch()
        (self.home / "helper.py").write_text(HELPER)
        (self.home / "bout.py").write_text(BOUT.format(package=self.name))

    def hashes(self) -> dict[str, str]:
        import linecache

        linecache.checkcache()
        for name in [m for m in sys.modules if m.startswith(self.name)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        bout = importlib.import_module(f"{self.name}.bout")
        calls = {name: getattr(bout, name) for name in NAMES}
        calls |= {
            "partial": functools.partial(bout.clipped, seed=2),
            "partial 3": functools.partial(bout.clipped, seed=3),
        }
        calls |= {"object": bout.Wrapper(1), "object 2": bout.Wrapper(2)}
        calls |= {"looped": bout.looped(), "closure": bout.closure(1), "closure 2": bout.closure(2)}
        return {name: fingerprint.of_code(call) for name, call in calls.items()}

    def edit(self, file: str, old: str, new: str) -> set[str]:
        """Change a file; returns whose hash changed."""
        before, path = self.hashes(), self.home / file
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new) + "\n" * (1 + path.read_text().count("\n") % 7))
        after = self.hashes()
        return {name for name in before if before[name] != after[name]}


@pytest.fixture
def package(tmp_path, monkeypatch) -> Package:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    fingerprint._is_own.cache_clear()
    return Package(tmp_path)


def test_all_differ(package):
    hashes = package.hashes()
    assert len(set(hashes.values())) == len(hashes)
    assert hashes == package.hashes()


CLIPPED = {"clipped", "recursive", "lambdas", "partial", "partial 3"}
EDITS = [
    ("bout.py", "return 1\n", "return 11\n", {"plain"}),
    ("bout.py", "LIMIT = 3", "LIMIT = 33", CLIPPED),
    ("bout.py", "min(x, LIMIT)", "max(x, LIMIT)", CLIPPED),
    ("bout.py", "OTHER = 4", "OTHER = 44", set()),
    ("bout.py", '"""A bout."""', '"""Another text."""', set()),
    ("bout.py", "def plain", "# a comment\n\n\ndef plain", set()),
    ("bout.py", "return min(x, LIMIT)", "return min(\n        x,  # here\n        LIMIT,\n    )", set()),
    ("bout.py", "factor = 5", "factor = 55", {"object", "object 2"}),
    ("bout.py", "        return n\n", "        return n + 0\n", {"closure", "closure 2"}),
    ("helper.py", "SCALE = 2", "SCALE = 22", {"doubled", "through_module", "inside"}),
    ("helper.py", "def double", "# twice\ndef double", set()),
]


@pytest.mark.parametrize(("file", "old", "new", "changed"), EDITS, ids=[e[2][:20] for e in EDITS])
def test_edit(package, file, old, new, changed):
    assert package.edit(file, old, new) == changed


def test_host_versions_count():
    assert fingerprint.of_code(len, hosts=["numpy"]) != fingerprint.of_code(len)
    assert fingerprint.of_code(len, hosts=["no-such-distribution"]) != fingerprint.of_code(len, hosts=["numpy"])


def test_library_code_counts_by_version_only():
    seen: set[str] = set()
    fingerprint._collect(np.linalg.norm, seen)
    assert fingerprint._own_source("numpy.linalg") is None
    assert "numpy.linalg" not in seen


class Weighted:
    """Holds something that a contender works with."""

    def __init__(self, weights):
        self.weights = weights

    def call(self, data, seed):
        return float(sum(self.weights)) + data


def scaled(data, seed, params=None, parts=()):
    return data * params["value"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(scaled, params={"value": 3.0}), partial(scaled, params={"value": 99.0})),
        (partial(scaled, parts=[np.zeros(2)]), partial(scaled, parts=[np.ones(2)])),
        (partial(scaled, parts=(scaled,)), partial(scaled, parts=(len,))),
        (Weighted([1, 2]).call, Weighted([1, 3]).call),
    ],
    ids=["dict", "array in a list", "function in a tuple", "bound method"],
)
def test_values_bound_to_a_contender_count(one, other):
    assert fingerprint.of_code(one) == fingerprint.of_code(one)
    assert fingerprint.of_code(one) != fingerprint.of_code(other)


def test_values_that_a_script_sets_as_it_goes_count(tmp_path):
    script = "from bakeoff.arena.fingerprint import of_code\nw = [3.0]\nf = lambda d, s: w[0]\nfirst = of_code(f)\n"
    script += "w[0] = 99.0\nprint(first != of_code(f))\n"
    path = tmp_path / "script.py"
    path.write_text(script)
    assert subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout == "True\n"

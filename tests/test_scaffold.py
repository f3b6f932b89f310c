"""A new method: written by one command, it runs at once, passes the conformance suite and touches nothing else."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.arena.types import InputError
from bakeoff.scaffold import write

ROOT = Path(__file__).parents[1]
NEW = {
    "src/bakeoff/decide/example/__init__.py",
    "src/bakeoff/decide/example/bout.py",
    "src/bakeoff/decide/example/card.toml",
    "src/bakeoff/decide/example/method.py",
    "tests/decide/test_example.py",
    "benchmarks/bench_example.py",
}
STUB = "src/bakeoff/decide/__init__.pyi"


def state(root: Path) -> dict[str, str]:
    """Hash of every file that is not derived."""
    files = (p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "tests/test_every_method.py", "docs/option-names.md"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def python(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], cwd=root, env=env, capture_output=True, text=True, timeout=300)


def conformance(root: Path, checks: str = "test_") -> tuple[set[str], str]:
    """Names of the checks that do not pass, and what was printed."""
    select = f"[example] and {checks}"
    done = python(root, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_every_method.py", "-rfE", "-k", select)
    return set(re.findall(r"^(?:FAILED|ERROR) \S+::test_(\w+)", done.stdout, re.M)), done.stdout + done.stderr


def test_a_new_method_runs_and_touches_nothing_else(checkout: Path, tmp_path: Path):
    before = state(checkout)
    made = python(checkout, "-m", "bakeoff.cli", "new", "decide/example")
    assert made.returncode == 0, made.stderr
    after = state(checkout)
    assert set(after) - set(before) == NEW
    assert {name for name in before if after[name] != before[name]} == {STUB}
    old = (ROOT / STUB).read_text()
    assert (checkout / STUB).read_text() == f"{old}from .example import Example as Example\n"

    run = python(checkout, "-m", "bakeoff.cli", "run", "example", "--quick", "--out", str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    assert "example: " in run.stdout
    assert (tmp_path / "out" / "report.html").is_file()
    use = re.search(r"^Use it: (.+)$", run.stdout, re.M)
    assert use
    assert python(checkout, "-c", f"{use[1]}; print(Example().fit([1, 2, 3]).mean_)").stdout == "2.0\n"

    own = python(checkout, "-m", "pytest", "-p", "no:cacheprovider", "tests/decide/test_example.py")
    assert own.returncode == 1
    for told in ("set RIGHT_VALUE", "set REFERENCE", "BAD_INPUT has 0 of at least 8 cases", "3 failed, 1 passed"):
        assert told in own.stdout
    bench = python(checkout, "benchmarks/bench_example.py")
    assert re.fullmatch(r"example: [\d.]+ times the CPU time of the median\n", bench.stdout), bench.stderr


def store_report(root: Path, *words: str) -> None:
    """What `make bouts` does for the new method."""
    out = root / "docs" / "reports" / "example"
    done = python(root, "-m", "bakeoff.cli", "run", "example", "--claims", "--out", str(out), *words)
    assert done.returncode == 0, done.stderr


def test_a_new_method_conforms(checkout: Path):
    write("decide/example", checkout)
    store_report(checkout)
    failed, told = conformance(checkout)
    assert failed == set(), told
    assert int(re.findall(r"(\d+) passed", told)[0]) >= 20, told


def test_a_stored_report_of_another_bout_is_found(checkout: Path):
    write("decide/example", checkout)
    store_report(checkout, "--samples", "5", "--seeds", "3")
    bout = checkout / "src/bakeoff/decide/example/bout.py"
    bout.write_text(bout.read_text().replace("smaller error than the mean", "a larger error than the mean"))
    failed, told = conformance(checkout, "stored")
    assert failed == {
        "stored_report_is_of_the_default_bout",
        "floor_loses_in_the_stored_report",
        "every_claim_has_a_verdict_in_the_stored_report",
    }, told


def test_the_conformance_suite_finds_what_is_wrong(checkout: Path):
    write("decide/example", checkout)
    bout = checkout / "src/bakeoff/decide/example/bout.py"
    text = bout.read_text()
    wrongs = {
        "return float(np.median(sample_of(data, seed)))": "return float(np.median(np.random.standard_t(2, 50)))",
        "from pathlib import Path": "from pathlib import Path\nimport scipy.stats",
        "class Data:": "class Data:\n    calls = {}\n    seen: list",
        "return Data(None, ": "return Data([], None, ",
        "return Data(own": "return Data([], own",
        "    from .method import": "    data.seen.append(seed)\n    from .method import",
        "rng = np.random.default_rng(seed)": "rng = np.random.default_rng(7)",
        "bounds=(0.0, np.inf)": "bounds=(0.0, 1e-6)",
        "arrays: Path | None": "csv: Path | None",
        "    arrays : Path": "    csv : Path",
        "arrays is None": "csv is None",
        "np.load(arrays,": "np.load(csv,",
        "--arrays {arrays}": "--csv {csv}",
        'contender="example"': 'contender="nobody"',
        'InputError(f"cannot be read': 'OSError(f"cannot be read',
    }
    for right, wrong in wrongs.items():
        assert right in text, right
        text = text.replace(right, wrong)
    bout.write_text(text)
    ast.parse(text)
    failed, told = conformance(checkout, "not stored")
    assert failed == {
        "bad_input_gets_one_line",
        "bout_needs_no_extra_to_be_read",
        "claims_can_be_tested",
        "input_is_unchanged_after_a_run",
        "no_draw_from_global_generators",
        "options_are_documented_and_well_named",
        "scores_are_finite_and_in_bounds",
        "seeds_change_something",
    }, told


def test_a_skip_that_passes_is_an_error(checkout: Path):
    write("decide/example", checkout)
    card = checkout / "src/bakeoff/decide/example/card.toml"
    card.write_text(card.read_text() + 'file_caps = "because it would be too long"\nno_such_check = "a typing error"\n')
    failed, told = conformance(checkout, "(card_is or caps)")
    assert failed == {"file_caps", "card_is_complete"}, told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("example", "not ROOM/NAME"),
        ("Decide/example", "not ROOM/NAME"),
        ("decide/../x", "not ROOM/NAME"),
        ("decide/class", "not ROOM/NAME"),
        ("decide/_shared", "not ROOM/NAME"),
        ("arena/example", "no room"),
        ("inputs/example", "no room"),
        ("decide/merge_kernel", "exists"),
        ("explain/merge_kernel", "exists"),
    ],
)
def test_bad_names_are_refused(name: str, told: str, checkout: Path):
    before = state(checkout)
    with pytest.raises(InputError, match=told):
        write(name, checkout)
    assert state(checkout) == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no checkout"):
        write("decide/example", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_room(checkout: Path):
    write("zoo/two_words", checkout)
    code = "from bakeoff.zoo import TwoWords; print(TwoWords.__module__)"
    assert python(checkout, "-c", code).stdout == "bakeoff.zoo.two_words.method\n"
    assert "two-words" in python(checkout, "-m", "bakeoff.cli", "list").stdout

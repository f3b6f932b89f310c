"""The documentation says what is true: its commands run, its generated pages are current, its site needs no network."""

import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bakeoff.arena import store
from bakeoff.arena.report import Report
from bakeoff.inputs.language import default_text, tiny_llama

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)
RUN = {"bash", "python"}


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the environment's programs first on the path."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1", **more}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def copy_of(folder: Path, *names: str) -> Path:
    """A checkout of the named files and folders."""
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    return folder


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Where a reader tries the commands: a checkout, with a table and a problem of his own."""
    folder, rng = copy_of(tmp_path / "desk", "src", "pyproject.toml"), np.random.default_rng(0)
    sizes = rng.normal(size=(120, 4))
    with (folder / "my.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["rooms", "area", "age", "noise", "price"])
        rows.writerows([*row, row[0] + row[1] ** 2 + rng.normal()] for row in sizes)
    nodes = "\n".join(f"{i + 1} {x} {y}" for i, (x, y) in enumerate(rng.integers(0, 100, (12, 2))))
    head = "NAME: my\nTYPE: TSP\nDIMENSION: 12\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n"
    (folder / "my.tsp").write_text(f"{head}{nodes}\nEOF\n")
    model, tokenizer = tiny_llama()
    model.save_pretrained(folder / "my-model")
    tokenizer.save_pretrained(folder / "my-model")
    (folder / "my.txt").write_text(default_text())
    return folder


def quickened(text: str) -> str:
    """The same commands with the tests' small budget; one seed where none is named."""
    text = re.sub(r'compare\(("[\w-]+"), ', r"compare(\1, quick=True, ", text)
    lines = []
    for line in text.splitlines():
        if line.startswith("bakeoff run ") and "--help" not in line:
            seeds = "" if "--seeds" in line else " --seeds 1"
            line = re.sub(r"^bakeoff run ([\w-]+)", rf"bakeoff run \1 --quick{seeds}", line)
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_page_runs(page: Path, desk: Path):
    path = {"PYTHONPATH": str(desk / "src")}
    for language, text in BLOCK.findall(page.read_text()):
        if saved := re.match(r"# save as (\w+\.py)\n", text):
            (desk / saved[1]).write_text(text)
        elif language in RUN:
            code = quickened(text)
            words = ["bash", "-euc", code] if language == "bash" else [sys.executable, "-c", code]
            for task in range(1, 5 if "SLURM_ARRAY_TASK_ID" in text else 2):
                done = run(words, desk, SLURM_ARRAY_TASK_ID=str(task), **path)
                assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_blocks_are_run_or_need_another_machine():
    known = RUN | {"sh", "text", "toml"}
    for page in PAGES:
        assert {language for language, _ in BLOCK.findall(page.read_text())} <= known, page.name
    unrun = [
        line
        for page in PAGES
        for language, text in BLOCK.findall(page.read_text())
        if language == "sh"
        for line in text.splitlines()
    ]
    assert all(re.match(r"make |python3 -m venv|\.venv/bin/pip |bakeoff run (fdfi|\S+ --engine ray)", s) for s in unrun)


# The generated pages


def test_generated_pages_are_current():
    done = run([sys.executable, "docs/generate.py", "--check"], ROOT)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}python docs/generate.py writes them"


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the stored report of a small bout, its pages written."""
    root = copy_of(tmp_path_factory.mktemp("docs") / "root", "src", "docs", "README.md", "mkdocs.yml")
    out = root / "docs" / "reports" / "merge-kernel"
    shutil.rmtree(out, ignore_errors=True)
    done = run(["bakeoff", "run", "merge-kernel", "--quick", "--seeds", "5", "--out", str(out)], root)
    assert done.returncode == 0, done.stderr
    assert generate(root).returncode == 0
    return root


def generate(root: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "docs/generate.py", "--root", str(root), *words], root, **more)


def test_a_page_shows_the_stored_report(documented: Path):
    stored = documented / "docs" / "reports" / "merge-kernel"
    report = Report.build(store.read_bout(stored), store.read_runs(stored)[0])
    page = (documented / "docs" / "gallery" / "merge-kernel.md").read_text()
    for line in report.table(110).splitlines()[:14]:
        assert line in page
    for result in report.summary.claims:
        assert re.search(rf"^\| .+ \| {re.escape(result.verdict)} \| ", page, re.M)
    assert len(re.findall(r"^\| .* \| (?:held|not held|not shown|not tested) \| ", page, re.M)) == len(
        report.summary.claims
    )
    assert report.bout.command in page
    assert report.bout.scale in page
    assert "](../reports/merge-kernel/report.html)" in page
    row = next(s for s in (documented / "README.md").read_text().splitlines() if s.startswith("| [merge-kernel]"))
    verdicts = [r.versus.verdict for r in report.summary.rows if r.versus and r.role != "floor"]
    assert all(f"{verdicts.count(word)} {word}" in row for word in set(verdicts))


def test_pages_do_not_depend_on_the_terminal(documented: Path):
    assert generate(documented, "--check", COLUMNS="60").stdout == ""


def test_stale_pages_are_named(documented: Path, tmp_path: Path):
    root = tmp_path / "root"
    shutil.copytree(documented, root)
    card = root / "src" / "bakeoff" / "explain" / "fdfi" / "bout.py"
    card.write_text(card.read_text().replace("COL to predict.", "COL that is predicted."))
    (root / "docs" / "gallery" / "gone.md").write_text("a method that is no more")
    readme = root / "README.md"
    readme.write_text(readme.read_text().replace("| decide |", "| nowhere |"))
    done = generate(root, "--check")
    assert done.returncode == 1
    assert sorted(done.stdout.split()[1::2]) == ["README.md", "docs/gallery/fdfi.md", "docs/gallery/gone.md"]
    assert generate(root).returncode == 0
    assert generate(root, "--check").stdout == ""
    assert "COL that is predicted." in (root / "docs" / "gallery" / "fdfi.md").read_text()


# The site


class Addresses(HTMLParser):
    """What a browser loads, and what a reader can click."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = [value for name, value in attrs if name in ("src", "href", "data") and value]
        (self.links if tag == "a" else self.loaded).extend(found)


def test_the_site_builds_and_loads_nothing_from_elsewhere(documented: Path, tmp_path: Path):
    done = run(["mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")], documented)
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        addresses = Addresses()
        addresses.feed(page.read_text())
        assert [a for a in addresses.loaded if re.match(r"(https?:)?//", a)] == [], page.name
        inner = [a.split("#")[0] for a in addresses.links if not re.match(r"\w+:|#|/", a)]
        assert [a for a in inner if a and not (page.parent / a).exists()] == [], page.name


# Single statements


def test_the_sample_table_is_what_the_command_prints(tmp_path: Path):
    path = {"PYTHONPATH": str(ROOT / "tests" / "plugin")}
    done = run(["bakeoff", "run", "toy", "--out", str(tmp_path / "toy"), "--json"], tmp_path, **path)
    assert done.returncode == 0, done.stderr
    report = Report.build(store.read_bout(tmp_path / "toy"), store.read_runs(tmp_path / "toy")[0])
    sample = next(text for language, text in BLOCK.findall((ROOT / "docs/read-the-table.md").read_text()))
    lines = sample.splitlines()
    assert lines[0] in report.table(200)
    shown = [re.split(r"\s{2,}", line) for line in lines[2:] if line.split(" ")[0]]
    assert [row[0] for row in shown[1:]] == ["trimmed", "mean", "median", "zero"]
    assert shown[1:] == [[cell.strip() for cell in row[:6]] for row in report.cells]


def test_relative_links_outside_the_site_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert (ROOT / link).exists(), f"{name}: {link}"


def test_words_that_say_more_than_the_numbers_are_not_used():
    for page in [*PAGES, *(ROOT / "docs/gallery").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        assert not re.search(r"\bsignifican|state.of.the.art", page.read_text(), re.I), page.name


def test_project_files():
    licence = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert licence == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30", "not the standard Apache-2.0"
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 60
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert f"version: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()

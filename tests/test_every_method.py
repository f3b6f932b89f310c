"""The conformance suite: what holds for every method of the catalog.

A check that cannot hold for a method is named in the ``[skip]`` table of its card with the reason; it then has to fail,
an unexpected pass is an error.
"""

import ast
import doctest
import importlib
import importlib.util
import inspect
import math
import multiprocessing
import os
import pickle
import random
import re
import resource
import subprocess
import sys
import typing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import docstring_parser
import numpy as np
import pytest

from bakeoff import catalog
from bakeoff.arena import store, worker
from bakeoff.arena.report import Report
from bakeoff.arena.types import Card, Run

ROOT = Path(__file__).parents[1]
HEAVY = ["botorch", "gpytorch", "hidimstat", "matplotlib", "optuna", "pandas", "pyarrow", "ray", "scipy", "shap"]
HEAVY += ["sklearn", "torch", "transformers"]
CAPS = {"card.toml": 40, "method.py": 400, "bout.py": 200, "__init__.py": 10}
RESERVED = {"seeds", "contenders", "jobs", "engine", "address", "timeout", "memory", "shard", "out", "keep", "claims"}
RESERVED |= {"rival", "json", "verbose", "retry_failed"}
Probed = dict[str, dict[str, Any]]
KEPT = {".json", ".parquet", ".safetensors", ".csv", ".npz", ".npy"}


@pytest.fixture(scope="module", params=sorted(catalog.cards()))
def card(request: pytest.FixtureRequest) -> Card:
    """Every method in turn."""
    return catalog.find(request.param)


@pytest.fixture(autouse=True)
def _skipped_by_card(request: pytest.FixtureRequest) -> None:
    """A check that the card names has to fail."""
    if "card" in request.fixturenames:
        name = request.node.originalname.removeprefix("test_")
        if reason := request.getfixturevalue("card").skip.get(name):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="module")
def bout(card: Card) -> ModuleType:
    return importlib.import_module(f"{card.package}.bout")


def folder_of(card: Card) -> Path:
    found = importlib.util.find_spec(card.package)
    assert found is not None
    assert found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)))


def bakeoff(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; modules in `path` come first."""
    env = dict(os.environ, OMP_NUM_THREADS="1")
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "bakeoff.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


OFFLINE = """
import socket

def refuse(self, address):
    if self.family != socket.AF_UNIX:
        raise OSError(f"the network is blocked: {address}")
    return connect(self, address)

connect, socket.socket.connect, socket.socket.connect_ex = socket.socket.connect, refuse, refuse
socket.getaddrinfo = lambda *words, **more: refuse(socket.socket(), words)
"""


class Quick(NamedTuple):
    """One quick bout with two seeds and the network blocked."""

    runs: dict[tuple[str, int], Run]
    artefacts: Path


@pytest.fixture(scope="module")
def quick(card: Card, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    out, path = tmp_path_factory.mktemp("quick"), tmp_path_factory.mktemp("offline")
    (path / "sitecustomize.py").write_text(OFFLINE)
    done = bakeoff("run", card.slug, "--quick", "--seeds", "2", "--keep", "--out", str(out), path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    runs, problems = store.read_runs(out)
    assert not problems
    return Quick({(run.contender, run.seed): run for run in runs}, out / "artefacts")


def contenders(bout: ModuleType) -> list[Any]:
    """Those that can run here."""
    found = bout.contenders(bout.load(quick=True))
    return [c for c in found if all(map(importlib.util.find_spec, c.needs))]


def paper_of(bout: ModuleType) -> str:
    return next(c.name for c in contenders(bout) if c.role == "paper")


@pytest.fixture(scope="module")
def probed(card: Card) -> Probed:
    """What each contender does to the shared input and to the global generators, see `probe`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as in a run: sums depend on the number of threads
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(probe, card.slug).result(timeout=300)


def probe(slug: str) -> Probed:
    """Call all contenders, the optional ones included, on one and the same input in reverse order, and watch."""
    card = catalog.find(slug)
    for name in card.preload:
        importlib.import_module(name)
    bout = importlib.import_module(f"{card.package}.bout")
    data, seen = bout.load(quick=True), {}
    for contender in reversed(contenders(bout)):
        data_before = cloudpickle.dumps(data)
        worker.seed_everything(0)
        before = generators()
        output = contender.call(data, 0)
        after = generators()
        run = Run("", slug, contender.name, 0, {}, "", "")
        worker._record_scores(run, bout.score(output, data), {m.name for m in bout.METRICS})
        seen[contender.name] = {
            "input unchanged": cloudpickle.dumps(data) == data_before,
            "drawn from": [name for name, state in before.items() if after[name] != state],
            "scores": run.scores,
            "examples": run.examples,
        }
    return seen


def generators() -> dict[str, bytes]:
    """The states of the global generators."""
    states = {"random": pickle.dumps(random.getstate()), "numpy": pickle.dumps(np.random.get_state())}
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


@pytest.fixture(scope="module")
def stored(card: Card) -> Report:
    """The report of the default bout that the documentation shows."""
    folder = ROOT / "docs" / "reports" / card.slug
    assert (folder / "bout.json").is_file(), f"no stored report of the default bout: {folder}; `make bouts` makes it"
    runs, problems = store.read_runs(folder)
    assert not problems
    return Report.build(store.read_bout(folder), runs)


# The card and the files


def test_listing_imports_nothing_heavy():
    code = f"import sys; from bakeoff import cli; cli.list_methods(); print(sorted({set(HEAVY)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_card_is_complete(card: Card):
    checks = {n.removeprefix("test_") for n, f in globals().items() if "card" in getattr(f, "__annotations__", {})}
    unknown = set(card.skip) - checks
    assert not unknown, f"[skip] names no check of this suite: {unknown}"
    assert all(len(reason) > 10 for reason in card.skip.values()), "every skip needs a reason"
    assert re.fullmatch(r"[a-z0-9-]+", card.slug)
    for text in (card.title, card.paper, card.job, card.room, card.extra, card.scale):
        assert text.strip() == text
        assert text
        assert "\n" not in text
    assert card.exports
    assert 5 <= card.seeds <= 8 or card.limits, "fewer seeds than 5 leave no interval: say so in the limits"


def test_bout_needs_no_extra_to_be_read(card: Card):
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"{{name}} is imported", name=name)
sys.meta_path.insert(0, Blocked())
from bakeoff import catalog
import importlib
bout = importlib.import_module(catalog.find({card.slug!r}).package + ".bout")
print(len(bout.METRICS), len(bout.CLAIMS), bout.load.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_file_caps(card: Card):
    long = []
    for path in sorted(folder_of(card).glob("*")):
        if path.suffix in (".py", ".toml"):
            lines = path.read_text().splitlines()
            if len(lines) > CAPS.get(path.name, 400):
                long.append(f"{path.name}: {len(lines)} lines")
    assert not long


def test_function_caps(card: Card):
    long = []
    for path in sorted(folder_of(card).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (length := lines_of_code(node)) > 40:
                long.append(f"{path.name}: {node.name} has {length} lines")
    assert not long


def lines_of_code(function: ast.FunctionDef) -> int:
    """Of the body: neither the signature nor the docstring, in which options are listed one by one."""
    first = function.body[ast.get_docstring(function) is not None] if len(function.body) > 1 else function.body[0]
    assert function.end_lineno is not None
    return function.end_lineno - first.lineno + 1


def test_has_tests_of_its_own(card: Card):
    if not card.package.startswith("bakeoff."):
        pytest.skip("a plug-in keeps its tests elsewhere")
    _, room, name = card.package.split(".")
    files = sorted((ROOT / "tests" / room).glob(f"test_{name}*.py"))
    assert files
    assert {f.name: n for f in files if (n := len(f.read_text().splitlines())) > 400} == {}
    assert (ROOT / "benchmarks" / f"bench_{name}.py").is_file()


# How the method is used


def test_public_names_are_where_the_report_says(card: Card):
    room = importlib.import_module(card.package.rpartition(".")[0])
    for name in card.exports:
        assert inspect.getdoc(getattr(room, name)), f"{name} has no docstring"


def test_docstring_example_runs(card: Card):
    package = importlib.import_module(card.package)
    public = {name: getattr(package, name) for name in card.exports}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = {name: finder.find(thing, name, globs=dict(public)) for name, thing in public.items()}
    assert any(test.examples for test in examples[card.exports[0]]), f"{card.exports[0]} shows no example"
    for test in (t for tests in examples.values() for t in tests):
        assert runner.run(test, out=lambda text: print(text, end="")).failed == 0


# The declarations of the bout


def test_metrics_and_contenders(card: Card, bout: ModuleType):
    primary = [m for m in bout.METRICS if m.primary]
    assert len(primary) == 1
    assert primary[0].margin > 0
    assert len({m.name for m in bout.METRICS}) == len(bout.METRICS)
    roles = [c.role for c in bout.contenders(bout.load(quick=True)) if not c.optional]
    assert roles.count("paper") == 1
    assert roles.count("floor") >= 1
    assert roles.count("rival") >= 2


def test_claims_can_be_tested(card: Card, bout: ModuleType):
    assert bout.CLAIMS
    names = {c.name for c in bout.contenders(bout.load(quick=True))}
    metrics = {m.name for m in bout.METRICS}
    for claim in bout.CLAIMS:
        assert claim.text
        assert claim.expect
        assert claim.paper_figure
        if claim.check:
            assert list(inspect.signature(getattr(bout, claim.check)).parameters) == ["seed"], claim.check
            assert claim.metric, claim.text
        elif claim.rival:
            assert {claim.contender, claim.rival} - {""} <= names, claim.text
            assert not claim.metric or claim.metric in metrics, claim.text
        else:
            assert claim.status == "not decidable here", f"{claim.text}: neither rival nor check"
        assert claim.command or claim.status != "not decidable here", f"{claim.text}: which command would decide it?"


def test_options_are_documented_and_well_named(card: Card, bout: ModuleType):
    parameters = inspect.signature(bout.load).parameters
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters.values())
    assert parameters["quick"].default is False
    described = {p.arg_name: p.description for p in docstring_parser.parse(bout.load.__doc__).params}
    assert {name for name in parameters if not described.get(name)} == set(), "not in the docstring of load"
    assert set(described) == set(parameters), "the docstring of load names options that do not exist"
    assert not set(parameters) & RESERVED
    misnamed = {name: synonyms()[name] for name in parameters if name in synonyms()}
    assert not misnamed, f"docs/option-names.md has other names: {misnamed}"


def synonyms() -> dict[str, str]:
    """Words that are not used, and the options that are."""
    rows = re.findall(r"^\| `--([\w-]+)`[^|]*\|[^|]*\| (.+) \|$", (ROOT / "docs/option-names.md").read_text(), re.M)
    assert len(rows) > 10
    return {word: option for option, words in rows for word in re.findall(r"`(\w+)`", words)}


# A quick bout


def test_quick_bout_is_quick(card: Card, quick: Quick):
    seconds = sum(run.cost["cpu_s"] for (_, seed), run in quick.runs.items() if seed == 0)
    assert seconds <= 10, f"all contenders with one seed take {seconds:.1f} CPU seconds"


def test_scores_are_finite_and_in_bounds(card: Card, bout: ModuleType, quick: Quick, probed: Probed):
    bounds = {m.name: m.bounds for m in bout.METRICS}
    found = [(name, run.scores, run.examples) for (name, _), run in quick.runs.items()]
    found += [(name, seen["scores"], seen["examples"]) for name, seen in probed.items()]
    for name, scores, examples in found:
        assert scores, f"{name} has no finite score"
        for metric, value in scores.items():
            low, high = bounds[metric]
            assert all(low <= v <= high and math.isfinite(v) for v in [value, *examples.get(metric, [])]), (
                name,
                metric,
            )
    primary = next(m.name for m in bout.METRICS if m.primary)
    assert primary in quick.runs[paper_of(bout), 0].scores


def test_examples_average_to_the_score(card: Card, quick: Quick):
    for (name, _), run in quick.runs.items():
        for metric, values in run.examples.items():
            assert run.scores[metric] == pytest.approx(sum(values) / len(values), rel=1e-12), (name, metric)
    metrics = {metric for run in quick.runs.values() for metric in run.examples}
    lengths = {m: {len(run.examples[m]) for run in quick.runs.values() if m in run.examples} for m in metrics}
    assert all(len(found) == 1 for found in lengths.values()), f"contenders score different examples: {lengths}"


def test_equal_seeds_are_bit_equal_in_any_order(card: Card, quick: Quick, probed: Probed):
    for (name, seed), run in quick.runs.items():
        if seed == 0:
            assert probed[name]["scores"] == run.scores, name
            assert probed[name]["examples"] == run.examples, name


def test_seeds_change_something(card: Card, bout: ModuleType, quick: Quick):
    first, second = (quick.runs[paper_of(bout), seed] for seed in (0, 1))
    assert (first.scores, first.examples) != (second.scores, second.examples)


def test_input_is_unchanged_after_a_run(card: Card, probed: Probed):
    assert [name for name, seen in probed.items() if not seen["input unchanged"]] == []


def test_no_draw_from_global_generators(card: Card, probed: Probed):
    assert {name: seen["drawn from"] for name, seen in probed.items() if seen["drawn from"]} == {}


def test_kept_outputs_are_no_pickles(card: Card, quick: Quick):
    for path in (p for p in quick.artefacts.rglob("*") if p.is_file()):
        assert path.suffix in KEPT, path.name
        assert path.read_bytes()[:1] != b"\x80", f"{path.name} is a pickle"
        if path.suffix in (".npz", ".npy"):
            found = np.load(path, allow_pickle=False)
            if path.suffix == ".npz":
                assert all(found[key].dtype != object for key in found)


# The stored default bout


def test_stored_report_is_of_the_default_bout(card: Card, bout: ModuleType, stored: Report):
    default = {name: p.default for name, p in inspect.signature(bout.load).parameters.items()}
    assert stored.bout.options == {k: str(v) if isinstance(v, Path) else v for k, v in default.items()}
    assert len(stored.bout.seeds) == card.seeds
    assert stored.bout.metrics == bout.METRICS
    assert {c.name for c in stored.bout.contenders} >= {
        c.name for c in bout.contenders(bout.load(quick=True)) if not c.optional
    }
    assert [run for run in stored.runs if run.status != "ok"] == []


def test_floor_loses_in_the_stored_report(card: Card, stored: Report):
    assert stored.summary.floor_beaten is True


def test_every_claim_has_a_verdict_in_the_stored_report(card: Card, bout: ModuleType, stored: Report):
    assert stored.bout.claims == tuple(bout.CLAIMS)
    assert {c.claim.text: c.why for c in stored.summary.claims if c.verdict == "not tested"} == {}


# Bad input


def bad_commands(bout: ModuleType) -> list[list[str]]:
    """An unknown option; a file that does not exist, for every option that takes one; a word for a number."""
    hints = typing.get_type_hints(bout.load)
    files = [name for name, hint in hints.items() if Path in (hint, *typing.get_args(hint))]
    numbers = [name for name, hint in hints.items() if {int, float} & {hint, *typing.get_args(hint)}]
    commands = [["--no-such-option", "1"], *([option(name), "/no/such/file"] for name in files)]
    return commands + [[option(name), "many"] for name in numbers[:1]]


def option(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def test_bad_input_gets_one_line(card: Card, bout: ModuleType, tmp_path: Path):
    for words in bad_commands(bout):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = bakeoff("run", card.slug, *words, "--out", str(tmp_path / "out"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        told = f"{words}: {done.stdout}{done.stderr}"
        assert done.returncode == 2, told
        assert len(done.stderr.splitlines()) == 1, told
        assert words[0] in done.stderr or words[1] in done.stderr, f"does not say where: {told}"
        assert seconds <= 3, f"{words}: {seconds:.1f} CPU seconds"
        assert not (tmp_path / "out").exists(), f"{words}: left a results folder"

"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "sklearn", "pandas", "matplotlib", "scipy")
LIGHT = [["--help"], ["list"], ["run", "toy", "--help"], ["run", "fdfi", "--help"]]


def _user_seconds(cli, arguments: list[str]) -> float:
    """CPU time of one call, measured by its parent."""
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)"
    )
    return float(cli.python(script, Path(sys.executable).with_name("bakeoff"), *arguments).stdout)


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands(cli, arguments):
    seconds = min(_user_seconds(cli, arguments) for _ in range(3))
    print(f"bakeoff {' '.join(arguments)}: {seconds:.2f} s of CPU")
    script = f"""if True:
        import sys
        from bakeoff.cli import main
        sys.argv = ["bakeoff", *{arguments!r}]
        try:
            main()
        finally:
            print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
    """
    done = cli.python(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "loaded:"
    if arguments in (["--help"], ["list"]):
        assert seconds <= 0.3


def test_plug_in_is_listed(cli):
    assert "toy" in cli("list").stdout.split()
    assert "toy" not in cli("list", env={"PYTHONPATH": ""}).stdout.split()
    shown = cli("show", "toy").stdout
    for text in ("Means of a noisy sample", "trimmed", "covers", "from toy_methods import trimmed_mean", "optional"):
        assert text in shown


def test_result_fits_one_screen(cli, tmp_path):
    done = cli("run", "toy", "--claims")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 30
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 120
    assert done.stdout.splitlines()[-1] == f"Report: {tmp_path / 'bakeoff-toy' / 'report.html'}"
    again = cli("run", "toy", "--claims")
    assert again.stdout == done.stdout
    assert cli("report", "bakeoff-toy").stdout == done.stdout


def test_json_is_strict(cli):
    done = cli("run", "toy", "--seeds", 2, "--contenders", "overflows,mean", "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout, parse_constant=pytest.fail)
    assert {row["contender"]: row["statuses"] for row in report["rows"]}["overflows"] == {"diverged": 2}
    assert "Report: " in done.stderr


RIVALS = """
from functools import partial
from bakeoff.arena.types import Contender

def middle(data, seed):
    return 3.0 + seed / 100

class Thing:
    best = Contender("named", "rival", middle, "mine")

shifted = partial(middle, seed=5)
number = 5
"""


def test_rival_of_the_users_own(cli, tmp_path):
    (tmp_path / "mine.py").write_text(RIVALS)
    done = cli(
        "run", "toy", "--seeds", 2, "--rival", "mine:middle", "--rival", "mine:Thing.best", "--json", "--out", "o"
    )
    assert done.returncode == 0, done.stderr
    values = {row["contender"]: row["values"] for row in json.loads(done.stdout)["rows"]}
    assert values["middle"] == values["named"] == pytest.approx([0.0, 0.01])
    (tmp_path / "mine.py").write_text(RIVALS.replace("seed / 100", "seed / 10"))
    done = cli("run", "toy", "--seeds", 2, "--rival", "mine:middle", "--json", "--out", "o")
    assert "6 of 8 runs" not in done.stderr  # edited: runs again
    values = {row["contender"]: row["values"] for row in json.loads(done.stdout)["rows"]}
    assert values["middle"] == pytest.approx([0.0, 0.1])


def test_lambda_from_a_script_without_a_guard(cli, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import bakeoff\n"
        "from bakeoff.arena.types import Contender\n"
        "open('started', 'a').write('x')\n"
        "shift = 0.25\n"
        "mine = Contender('mine', 'rival', lambda data, seed: 3.0 + shift, 'a guess')\n"
        "report = bakeoff.compare('toy', extra=[mine], seeds=3, jobs=2, out='out')\n"
        "print([row.values for row in report.summary.rows if row.contender == 'mine'])\n"
    )
    process = cli.popen([sys.executable, str(script)])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "[[0.25, 0.25, 0.25]]"
    assert (tmp_path / "started").read_text() == "x"  # the script was not imported again by the runs


WRONG = [
    (["run", "toyy"], "toy"),
    (["run", "toy", "--no-such-option"], "--no-such-option"),
    (["run", "toy", "--size", "many"], "--size"),
    (["run", "toy", "--size", "1"], "--size: 1 is too small; give 2 or more"),
    (["run", "toy", "--contenders", "nobody"], "choose from: trimmed"),
    (["run", "toy", "--rival", "nowhere:f"], "--rival"),
    (["run", "toy", "--rival", "os"], "write module:object"),
    (["run", "toy", "--rival", "math:pi"], "cannot take part"),
    (["run", "toy", "--seeds", "0"], "--seeds"),
    (["run", "toy", "-j", "0"], "--jobs"),
    (["run", "toy", "--timeout", "-1"], "--timeout"),
    (["run", "toy", "--timeout", "nan"], "--timeout"),
    (["run", "toy", "--memory", "0"], "--memory"),
    (["run", "toy", "--shard", "3/2"], "--shard"),
    (["run", "toy", "--engine", "slurm"], "--engine"),
    (["report"], "bakeoff report DIR"),
    (["report", "nowhere"], "bout.json is missing"),
    (["board", "nowhere"], "bout.json is missing"),
    (["show", "nothing"], "bakeoff list"),
    (["dance"], "dance"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_input(cli, tmp_path, arguments, told):
    done = cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_reader_of_the_output_goes_away(cli):
    process = cli.popen(["bash", "-c", f"{Path(sys.executable).with_name('bakeoff')} list | true"])
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert "Exception" not in err


def test_board(cli, tmp_path):
    for out in ("one", "two"):
        assert cli("run", "toy", "--seeds", 1, "--out", out).returncode == 0
    done = cli("board", "one", "--out", "site")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "site")) == ["index.html", "toy.html"]
    assert 'href="toy.html"' in (tmp_path / "site/index.html").read_text()
    assert subprocess.run(["grep", "-c", "http-equiv", tmp_path / "site/toy.html"], capture_output=True).returncode == 0
    bad = cli("board", "one", "--out", "/dev/null/site")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)


def test_a_list_of_words_may_begin_with_a_minus(cli):
    done = cli("run", "toy", "--source", "-1,0,0.5", "--seeds", "1", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bout"]["options"]["source"] == "-1,0,0.5"

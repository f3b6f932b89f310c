"""However a bake-off or one of its runs ends, the rest of it is sound and no process stays behind."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from bakeoff.arena.worker import descendants

WAYS = {
    "Ctrl-C to the driver": (signal.SIGINT, os.kill),
    "Ctrl-C in a terminal": (signal.SIGINT, os.killpg),  # reaches every process of the foreground group
    "SIGTERM": (signal.SIGTERM, os.kill),
}


@pytest.mark.parametrize("way", WAYS)
def test_interrupted(way, cli, until, records):
    number, send = WAYS[way]
    for i in range(5):
        folder = cli.cwd / f"out {i}"
        driver = cli.start("run", "toy", "--pause", "0.5", "-j", 2, "--out", folder, start_new_session=True)
        until(lambda: records(folder), 30, "a first record")  # noqa: B023
        workers = [pid for pid in descendants(driver.pid) if pid != driver.pid]
        assert workers
        send(driver.pid, number)
        start = time.monotonic()
        until(lambda: not set(workers) & set(cli.alive()), 2, "workers gone")  # noqa: B023
        out, err = driver.communicate(timeout=20)
        assert driver.returncode == 130, err
        until(lambda: not cli.alive(), 2, "no process left")
        assert "contender" in out
        assert "trimmed" in out
        assert "Traceback" not in out + err, err
        assert len(records(folder)) < 32
        again = err.strip().splitlines()[-1].strip()
        assert again == shlex.join(["bakeoff", "run", "toy", "--pause", "0.5", "-j", "2", "--out", str(folder)])
        print(f"{way}: over after {time.monotonic() - start:.1f} s")
    kept = {run["key"]: run for run in records(folder)}
    done = cli(*shlex.split(again)[1:])
    assert done.returncode == 0, done.stderr
    assert len(records(folder)) == 32
    assert {run["key"]: run for run in records(folder)}.items() >= kept.items()


def test_interrupted_inside_native_code(cli, until):
    driver = cli.start("run", "toy", "--contenders", "spins_in_c,deadlocks", "--seeds", 1, "-j", 3)
    until(lambda: "trimmed 0" in cli.calls(), 30)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=20)
    assert driver.returncode == 130
    until(lambda: not cli.alive(), 2, "no process left")


def test_killed_driver_takes_all_processes_along(cli, until):
    """Forked, daemonised and stuck ones too."""
    names = "spins_in_c,deadlocks,lingers,lingers_away"
    driver = cli.start("run", "toy", "--contenders", names, "--seeds", 1, "-j", 5)
    until(lambda: {"trimmed 0", "lingers 0", "lingers_away 0"} <= set(cli.calls()), 30)
    driver.kill()
    until(lambda: not cli.alive(), 2, "no process left")
    driver.communicate(timeout=5)


EXPECTED = {
    "raises": ("failed", "ArithmeticError: the ice is too thin", "in raises"),
    "segfaults": ("failed", "Killed: the process died by SIGSEGV", "about to fall"),
    "exits": ("failed", "Exited: the process ended with code 7 before it had a result", ""),
    "quits": ("failed", "Exited: the process ended with code 1 before it had a result", "enough"),
    "forks": ("ok", "", ""),
    "daemonises": ("ok", "", ""),
    "hides": ("ok", "", ""),
    "hides_and_exits": ("failed", "Exited: the process ended with code 7 before it had a result", ""),
    "doubles": ("ok", "", ""),
    "deadlocks": ("timeout", "Timeout: longer than 2 s", ""),
    "spins_in_c": ("timeout", "Timeout: longer than 2 s", ""),
    "spams": ("timeout", "Timeout: longer than 2 s", "y" * 1000),
    "chatters": ("failed", "RuntimeError: done talking", "the last word"),
    "overflows": ("diverged", "not finite: error, estimate", ""),
}


def test_misbehaving_contenders_in_one_bake_off(cli, until, records):
    names = ",".join(["mean", "median", "zero", *EXPECTED])
    done = cli("run", "toy", "--contenders", names, "--seeds", 2, "--timeout", 2, "--out", "out", timeout=120)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    until(lambda: not cli.alive(), 2, "no process left")
    runs = {(run["contender"], run["seed"]): run for run in records(cli.cwd / "out")}
    for seed in (0, 1):
        for name in ("trimmed", "mean", "median", "zero"):
            assert runs[name, seed]["status"] == "ok"
        for name, (status, error, said) in EXPECTED.items():
            run = runs[name, seed]
            lines = run["error"].splitlines()
            assert (run["status"], lines[0] if lines else "") == (status, error)
            assert said in run["error"]
            assert len(lines) <= 21
            assert bool(run["scores"]) == (status == "ok")
            if status == "timeout":
                assert 2 <= run["cost"]["wall_s"] < 3
    assert len(runs) == 2 * (4 + len(EXPECTED))
    table = (cli.cwd / "out/runs.csv").read_text()
    assert "nan" not in table.lower().replace("finance", "")
    page = json.loads((cli.cwd / "out/report.json").read_text(), parse_constant=pytest.fail)
    means = {row["contender"]: row["primary"] for row in page["rows"]}
    assert means["overflows"] is None
    assert means["mean"] is not None


def test_twice_the_memory_cap(cli, records):
    done = cli("run", "toy", "--contenders", "hogs,mean", "--seeds", 1, "--memory", "0.3", "--out", "out")
    assert done.returncode == 3
    status = {run["contender"]: (run["status"], run["error"]) for run in records(cli.cwd / "out")}
    assert status == {"hogs": ("oom", "OutOfMemory: more than 0.3 GB"), "mean": ("ok", ""), "trimmed": ("ok", "")}


COMPARE = """
import sys, bakeoff
ballast = bytearray(int(sys.argv[1]))
ballast[::4096] = b"x" * len(ballast[::4096])
bakeoff.compare("toy", contenders=["holds_1gb", "zero"], seeds=1, out=sys.argv[2])
"""


def test_peak_memory_is_the_runs_own(cli, records):
    peaks = []
    for name, ballast in [("light", 0), ("heavy", 2**30)]:
        done = cli.python(COMPARE, str(ballast), name)
        assert done.returncode == 0, done.stderr
        peak = {run["contender"]: run["cost"]["peak_mb"] for run in records(cli.cwd / name)}
        assert abs(peak["holds_1gb"] - 1024) < 0.05 * 1024
        assert peak["zero"] < 20
        peaks.append(peak["holds_1gb"])
    print(f"1 GB measured as {peaks[0]:.0f} MB, with 1 GB in the driver as {peaks[1]:.0f} MB")
    assert abs(peaks[0] - peaks[1]) < 20


def test_exit_codes(cli, tmp_path):
    assert cli("run", "toy", "--seeds", 1).returncode == 0
    assert cli("run", "toy", "--seeds", 0).returncode == 2
    assert cli("run", "toy", "--seeds", 1, "--contenders", "raises").returncode == 3  # 130: test_interrupted
    cli.plugin = Path(shutil.copytree(cli.plugin, tmp_path / "plugin"))
    bout = cli.plugin / "toy_methods/toy/bout.py"
    bout.write_text("import no_such_library\n" + bout.read_text())
    lacking = cli("run", "toy")
    assert lacking.returncode == 4
    assert "'no_such_library'" in lacking.stderr
    assert "pip install 'bakeoff[dev]'" in lacking.stderr
    assert lacking.stderr.count("\n") == 1
    bout.write_text(
        bout.read_text().replace("import no_such_library\n", "").replace('"heavy tails"', '"x", ("nowhere",)')
    )
    lacking = cli("run", "toy")
    assert lacking.returncode == 4
    assert "'nowhere'" in lacking.stderr

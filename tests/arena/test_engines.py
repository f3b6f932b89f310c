"""The same runs on a real Ray cluster of this machine, with all limits in force there."""

from __future__ import annotations

import shutil
import sys

import pytest

from bakeoff.arena import engines, store
from bakeoff.arena.types import MissingExtraError, Settings

NAMES = "mean,median,zero,segfaults,deadlocks,hogs,raises"


def outcomes(folder) -> dict:
    runs = store.read_runs(folder)[0]
    return {
        (run.contender, run.seed): (
            run.key,
            run.status,
            run.error.split("\n")[0],
            {k: v.hex() for k, v in run.scores.items()},
        )
        for run in runs
    }


@pytest.mark.slow
def test_ray_equals_local(cli, tmp_path, until):
    pytest.importorskip("ray")
    common = ("run", "toy", "--seeds", 2, "--contenders", NAMES, "--timeout", 3, "--memory", 0.3, "--claims")
    temporary = {"RAY_TMPDIR": str(tmp_path)} if len(str(tmp_path)) < 40 else {}  # sockets need a short path
    ray = cli(*common, "-j", 2, "--engine", "ray", "--out", "ray", timeout=150, env=temporary)
    assert ray.returncode == 3, ray.stderr
    assert "Traceback" not in ray.stderr
    local = cli(*common, "-j", 2, "--out", "local")
    assert local.returncode == 3, local.stderr
    found = outcomes(tmp_path / "ray")
    assert found == outcomes(tmp_path / "local")
    assert {name: found[name, 1][1:3] for name in ("mean", "segfaults", "deadlocks", "hogs", "raises")} == {
        "mean": ("ok", ""),
        "segfaults": ("failed", "Killed: the process died by SIGSEGV"),
        "deadlocks": ("timeout", "Timeout: longer than 3 s"),
        "hogs": ("oom", "OutOfMemory: more than 0.3 GB"),
        "raises": ("failed", "ArithmeticError: the ice is too thin"),
    }
    assert sum(name.startswith("claim:") for name, _ in found) == 8
    again = cli(*common, "--engine", "local", "--out", "ray")  # what Ray did counts here too
    assert "24 of 24 runs are there already" in again.stderr
    until(lambda: not cli.alive(), 15, "Ray's processes gone")
    shutil.rmtree(tmp_path / "ray")


def test_without_ray(monkeypatch, toy):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bakeoff\[ray\]'"):
        engines.execute([], lambda run: None, Settings(engine="ray"))

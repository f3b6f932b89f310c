"""A default bout needs no network and writes nothing outside its results folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BAKEOFF = str(Path(sys.executable).with_name("bakeoff"))
BLOCK = """
import socket

def refuse(self, address, *more):
    if self.family == socket.AF_UNIX:  # processes of this machine
        return connect(self, address, *more)
    open("/proc/self/cwd/network-was-tried", "w").write(str(address))
    raise OSError(f"no network in this test: {address}")

class Socket(socket.socket):
    connect = connect_ex = refuse

connect, socket.socket = socket.socket.connect, Socket
"""


def _works(*command: str) -> bool:
    return subprocess.run(["unshare", *command, "true"], capture_output=True).returncode == 0


def _tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_offline_and_nothing_written_elsewhere(cli, tmp_path):
    for name in ("home", "cwd", "site"):
        (tmp_path / name).mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="t"))  # short: a socket's path has at most 108 bytes
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCK)
    places = {"HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    path = f"{tmp_path / 'site'}{os.pathsep}{cli.plugin}"
    namespace = ["unshare", "-rn"] if _works("-rn") else []
    command = [*namespace, BAKEOFF, "run", "toy", "--claims", "--seeds", "2", "--out", str(tmp_path / "out")]
    done = cli.popen(command, cwd=tmp_path / "cwd", env={**places, "PYTHONPATH": path})
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert "trimmed" in out
    assert _tree(tmp_path / "cwd") == _tree(temporary) == set()
    temporary.rmdir()
    cache = (".cache", ".config", ".config/matplotlib")  # matplotlib's list of fonts
    assert {name for name in _tree(tmp_path / "home") if not name.startswith(".cache/")} <= set(cache)
    names = {name for name in _tree(tmp_path / "out") if not name.startswith("runs/")}
    assert names == {".lock", "runs", "runs.csv", "bout.json", "report.json", "report.html"}


def test_the_block_blocks(tmp_path, cli):
    """The test above can fail: the same block stops a connection."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    script = "import socket; socket.create_connection(('127.0.0.1', 9))"
    done = cli.python(script, env={"PYTHONPATH": str(tmp_path)})
    assert "no network in this test" in done.stderr
    assert (tmp_path / "network-was-tried").exists()


def test_read_only_working_folder(cli, tmp_path):
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    if os.geteuid() == 0 or _works("-rm"):  # root may write anywhere but on a read-only mount
        if not _works("-rm"):
            pytest.skip("root, and nothing can be mounted")
        mount = f"mount --bind {cwd} {cwd} && mount -o remount,ro,bind {cwd} && cd {cwd}"
        shell = ["unshare", "-rm", "bash", "-c"]
    else:
        cwd.chmod(0o555)
        mount, shell = f"cd {cwd}", ["bash", "-c"]
    script = f"{mount}; touch x 2>/dev/null && exit 9; {BAKEOFF} run toy --seeds 1 --out {tmp_path}/out"
    good = cli.popen([*shell, script])
    err = good.communicate(timeout=60)[1]
    assert good.returncode == 0, err
    bad = cli.popen([*shell, f"{mount}; {BAKEOFF} run toy --seeds 1"])
    err = bad.communicate(timeout=60)[1]
    assert (bad.returncode, err.count("\n")) == (2, 1), err
    assert "--out" in err

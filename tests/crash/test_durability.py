"""Nothing that was finished is ever lost: not by kill -9, a torn journal, a full disk or a changed mind."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.arena import store
from bakeoff.arena.types import InputError, Run

JOBS, KILLS = 2, 50


def _names(runs) -> set[str]:
    return {f"{run['contender']} {run['seed']}" for run in runs}


def _whole(folder: Path) -> None:
    """Every file beside the journal is of one piece."""
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    if (folder / "report.html").exists():
        assert (folder / "report.html").read_text().rstrip().endswith("</html>")
    if (folder / "runs.csv").exists():
        assert (folder / "runs.csv").read_text().endswith("\n")


def _kill_again_and_again(cli, until, records, rng, kills: int, tally: Counter) -> None:
    """A chain of bake-offs, each killed at random moments until it gets through."""
    while tally["kills"] < kills:
        folder, killed = cli.cwd / f"bout-{tally['bouts']}", 0
        tally["bouts"] += 1
        cli.log.unlink(missing_ok=True)
        final: dict[str, dict] = {}
        late = 0
        while True:
            last = tally["kills"] >= kills or late >= 3
            driver = cli.start("run", "toy", "--pause", "0.1", "-j", JOBS, "--out", folder, stdout=subprocess.DEVNULL)
            try:
                driver.communicate(timeout=60 if last else rng.uniform(0.1, 2.8))
                assert driver.returncode == 0
                break
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.communicate()
            killed += 1
            tally["kills"] += 1
            until(lambda: not cli.alive(), 2, "workers gone")
            acknowledged = {f"{run['contender']} {run['seed']}": run for run in records(folder)}
            assert acknowledged.items() >= final.items(), "an acknowledged run was lost or redone"
            final = acknowledged
            late += len(final) == 32  # killed while the report was made
            tally["among the runs"] += len(final) < 32
            _whole(folder)
        calls = Counter(cli.calls())
        assert len(calls) == 32 == len(_names(records(folder))) == len(records(folder))
        assert {f"{run['contender']} {run['seed']}": run for run in records(folder)}.items() >= final.items()
        assert sum(calls.values()) - 32 <= killed * JOBS, "more runs redone than there were workers"
        tally["redone"] += sum(calls.values()) - 32
        assert not list(store.read_runs(folder)[1])


@pytest.mark.slow
def test_killed_driver_loses_nothing(tmp_path, cli, until, records):
    tallies, errors = [Counter(), Counter()], []

    def chain(i: int) -> None:
        (tmp_path / str(i)).mkdir()
        try:
            _kill_again_and_again(
                type(cli)(tmp_path / str(i)), until, records, random.Random(i), KILLS // 2, tallies[i]
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=chain, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(tallies)
    assert not errors, errors
    assert sum(t["kills"] for t in tallies) == KILLS
    assert sum(t["among the runs"] for t in tallies) >= KILLS // 3  # the moments did fall among the runs


def _run(i: int, **more) -> Run:
    return Run(
        **{
            "key": f"{i:016x}",
            "method": "toy",
            "contender": "mean",
            "seed": i,
            "options": {},
            "input_hash": "a",
            "code_hash": "b",
            "status": "ok",
            "scores": {"error": i + 0.25},
            "examples": {"error": [0.1, -2e-300]},
            # what a record begins with, inside a record
            "details": {"text": 'é "{"run":', "run": {"run": [1]}, "nested": [{"run": {"key": 1}}]},
            **more,
        }
    )


@pytest.fixture
def journal(tmp_path) -> Path:
    (tmp_path / "runs").mkdir()
    book = store.Journal(tmp_path)
    for i in range(4):
        assert book.append(_run(i)) == _run(i)
    book.close()
    return book.path


def test_journal_cut_at_any_byte(journal):
    blob = journal.read_bytes()
    start = blob[:-1].rindex(b"\n") + 1
    for cut in range(start, len(blob)):
        journal.write_bytes(blob[:cut])
        runs, problems = store.read_runs(journal.parent.parent)
        if cut == len(blob) - 1:  # only the line end is missing
            assert (runs, problems) == ([_run(i) for i in range(4)], [])
        else:
            assert runs == [_run(i) for i in range(3)]
            assert problems == ([f"{journal}:4: damaged record left out"] if cut > start else [])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_journal_with_flipped_bytes(journal, data):
    blob = bytearray(b"".join(store.encode(_run(i)) + b"\n" for i in range(4)))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    line = bytes(store.encode(_run(0)) + b"\n")
    hit = at // len(line)  # all four are of one length
    assert len(line) * 4 == len(blob)
    journal.write_bytes(bytes(blob))
    runs, problems = store.read_runs(journal.parent.parent)
    assert [run for run in runs if run.seed != hit] == [_run(i) for i in range(4) if i != hit]
    if len(runs) == 4:  # a line end, or white space for white space
        assert runs == [_run(i) for i in range(4)]
    else:
        assert problems[0] == f"{journal}:{hit + 1}: damaged record left out"
    lines = {int(problem.split(":")[1]) for problem in problems}
    assert lines <= {hit + 1, hit + 2}  # the second where the flip made a line end


def test_many_writers_on_one_folder(tmp_path, cli, records):
    (tmp_path / "runs").mkdir()
    script = """if True:
        import sys
        from pathlib import Path
        from bakeoff.arena.store import Journal
        from bakeoff.arena.types import Run
        journal = Journal(Path.cwd())
        for i in range(200):
            journal.append(Run(f"{sys.argv[1]}-{i}", "toy", "mean", i, {}, "a", "b", "ok", details={"x": "y" * 3000}))
    """
    writers = [cli.popen([sys.executable, "-c", script, str(i)]) for i in range(8)]
    assert [(w.communicate()[1], w.returncode) for w in writers] == [("", 0)] * 8
    runs, problems = store.read_runs(tmp_path)
    assert {run.key for run in runs} == {f"{w}-{i}" for w in range(8) for i in range(200)}
    assert not problems
    assert len(records(tmp_path)) == 1600


def test_latest_failure_wins_and_ok_stays(tmp_path):
    (tmp_path / "runs").mkdir()
    for i, (name, statuses) in enumerate([("z", ["failed"]), ("a", ["timeout", "ok"]), ("b", ["failed"])]):
        path = tmp_path / "runs" / f"{name}.jsonl"
        path.write_bytes(b"".join(store.encode(_run(k, status=s)) + b"\n" for k, s in enumerate(statuses)))
        os.utime(path, (i, i))
    statuses = [run.status for run in sorted(store.read_runs(tmp_path)[0], key=lambda r: r.seed)]
    assert statuses == ["failed", "ok"]


def test_file_is_old_or_new_after_kill(tmp_path, cli, until, rng):
    path = tmp_path / "report.html"
    script = """if True:
        import sys
        from pathlib import Path
        from bakeoff.arena.store import write_atomic
        path = Path(sys.argv[1])
        for i in range(10**9):
            write_atomic(path, ("old", "new")[i % 2] * 500_000)
    """
    for _ in range(15):
        path.unlink(missing_ok=True)
        writer = cli.popen([sys.executable, "-c", script, str(path)])
        until(path.exists, 20)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.communicate(timeout=rng.uniform(0, 0.1))
        writer.kill()
        writer.communicate()
        assert path.read_text() in ("old" * 500_000, "new" * 500_000)


ONE_LINE = re.compile(r"bakeoff: \S.*cannot write.*earlier results are intact\n\Z")


def _last_line(text: str) -> str:
    return text.splitlines(keepends=True)[-1]


def test_full_disk(cli, tmp_path):
    """A disk of 1 MB of its own, filled up between two calls; where no disk can be made, a limit on file size."""
    bakeoff = Path(sys.executable).with_name("bakeoff")
    script = f"""
        set -e; mkdir disk copy; mount -t tmpfs -o size=1m none disk
        {bakeoff} run toy --seeds 3 --out disk/out
        cp -r disk/out copy/before
        dd if=/dev/zero of=disk/filler bs=4096 count=1000 2>/dev/null || true
        {bakeoff} run toy --seeds 8 --out disk/out 2>err || echo "rc $?"
        cp -r disk/out copy/after
        rm disk/filler
        {bakeoff} run toy --seeds 8 --out disk/out
    """
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount; test_files_cannot_grow runs instead")
    shell = cli.popen(["unshare", "-rm", "bash", "-c", script])
    out, err = shell.communicate(timeout=60)
    assert shell.returncode == 0, err
    assert "rc 2\n" in out
    said = (tmp_path / "err").read_text()
    assert "Traceback" not in said
    assert ONE_LINE.fullmatch(_last_line(said)), said
    for name in ("report.html", "report.json", "runs.csv"):
        assert (tmp_path / "copy/after" / name).read_bytes() == (tmp_path / "copy/before" / name).read_bytes()
    kept = store.read_runs(tmp_path / "copy/after")[0]
    assert {r.key for r in kept} >= {r.key for r in store.read_runs(tmp_path / "copy/before")[0]}
    assert set(Counter(cli.calls()).values()) <= {1, 2}


def test_files_cannot_grow(cli, tmp_path):
    assert cli("run", "toy", "--seeds", 2, "--out", "out").returncode == 0
    before = (tmp_path / "out/report.html").read_bytes()
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # noqa: E731
    done = cli("run", "toy", "--seeds", 9, "--out", "out", "-j", 1, preexec_fn=limit)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ONE_LINE.fullmatch(_last_line(done.stderr)), done.stderr
    assert (tmp_path / "out/report.html").read_bytes() == before
    kept = {f"{r.contender} {r.seed}" for r in store.read_runs(tmp_path / "out")[0]}
    assert len(kept) > 8
    assert cli("run", "toy", "--seeds", 9, "--out", "out").returncode == 0
    assert len(set(cli.calls())) == 36
    assert {name for name, n in Counter(cli.calls()).items() if n > 1}.isdisjoint(kept)


def _calls_of(cli, *arguments) -> list[str]:
    cli.log.unlink(missing_ok=True)
    done = cli("run", "toy", "--out", "out", *(() if "--seeds" in arguments else ("--seeds", 2)), *arguments)
    assert done.returncode == 0, done.stderr
    return sorted(cli.calls())


def test_resume_runs_exactly_what_is_missing(cli, tmp_path):
    assert len(_calls_of(cli)) == 8
    assert _calls_of(cli) == []
    assert _calls_of(cli, "-j", 1) == []
    assert _calls_of(cli, "--contenders", "zero,median,mean,trimmed") == []
    assert _calls_of(cli, "--timeout", 77, "--memory", 3) == []
    assert _calls_of(cli, "--seeds", 3) == ["mean 2", "median 2", "trimmed 2", "zero 2"]
    assert len(_calls_of(cli, "--size", 101)) == 8
    assert _calls_of(cli, "--size", 101) == _calls_of(cli) == []
    (journal,) = [p for p in (tmp_path / "out/runs").iterdir() if p.read_bytes().count(b"\n") == 4]
    lines = journal.read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[1])["run"]
    journal.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert _calls_of(cli, "--seeds", 3) == [f"{lost['contender']} {lost['seed']}"]


def test_failed_runs_are_repeated_only_on_request(cli, records, tmp_path):
    arguments = ("run", "toy", "--out", "out", "--seeds", 2, "--contenders", "mean,raises")
    assert [cli(*arguments).returncode for _ in range(2)] == [3, 3]
    assert Counter(run["status"] for run in records(tmp_path / "out")) == {"ok": 4, "failed": 2}
    assert cli(*arguments, "--retry-failed").returncode == 3
    assert Counter(run["status"] for run in records(tmp_path / "out")) == {"ok": 4, "failed": 4}


def test_edited_code_reruns_only_what_uses_it(tmp_path, cli):
    cli.plugin = Path(shutil.copytree(cli.plugin, tmp_path / "plugin"))
    bout, method = (cli.plugin / "toy_methods/toy" / name for name in ("bout.py", "method.py"))

    def edit(path: Path, old: str, new: str) -> None:
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))

    assert len(_calls_of(cli)) == 8
    edit(bout, "float(np.median(", "0.0 + float(np.median(")
    assert _calls_of(cli) == ["median 0", "median 1"]
    edit(method, "int(share * len(ordered))", "int(share * len(ordered) / 2)")
    assert _calls_of(cli) == ["trimmed 0", "trimmed 1"]
    edit(method, "    cut = ", "    # cut the tails\n\n    cut = ")
    edit(bout, "def mean(", "# the usual thing\n\n\ndef mean(")
    edit(bout, "def holds_1gb(data: Data, seed: int)", "def holds_1gb(data: Data, seed: int = 0)")
    assert _calls_of(cli) == []
    edit(bout, "if size < 2:", "if size < 1:")
    assert len(_calls_of(cli)) == 8
    edit(bout, '"error": abs(output - 3)', '"error": abs(3 - output)')
    assert len(_calls_of(cli)) == 8


def test_second_driver_is_refused(cli, until, records, tmp_path):
    arguments = ("run", "toy", "--out", "out", "--pause", "0.4", "--seeds", "3")
    first = cli.start(*arguments)
    until(lambda: (tmp_path / "out/runs").is_dir() and records(tmp_path / "out"), 20, "first record")
    second = cli(*arguments)
    assert second.returncode == 2
    assert f"process {first.pid})" in second.stderr
    assert second.stderr.count("\n") == 1
    first.kill()
    first.communicate()
    third = cli(*arguments)  # at once: the system let go of the lock
    assert third.returncode == 0, third.stderr
    assert len(records(tmp_path / "out")) == 12


def test_lock_in_one_process(tmp_path):
    with store.locked(tmp_path), pytest.raises(InputError, match=str(os.getpid())), store.locked(tmp_path):
        pass
    with store.locked(tmp_path):
        pass


MANY = """if True:
    import json, multiprocessing, os, resource, sys, time
    from pathlib import Path
    from bakeoff import catalog
    from bakeoff.arena import plan, runner, store
    from bakeoff.arena.types import Settings

    def state():
        memory = next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmRSS"))
        return memory / 1024, len(os.listdir("/proc/self/fd"))

    planned = plan.make(catalog.find("toy"), {}, Settings(seeds=SEEDS), command="")
    store.open_folder(Path("out"), "toy")
    journal = store.Journal(Path("out"))
    states = []
    def done(run):
        assert journal.append(run).status == "ok", run
        states.append(state())
    runner.run_local(planned.tasks[:20], done, Settings(jobs=1))
    cpu, wall = time.process_time(), time.perf_counter()
    runner.run_local(planned.tasks, done, Settings(jobs=1))
    cpu, wall = (time.process_time() - cpu) / len(planned.tasks), (time.perf_counter() - wall) / len(planned.tasks)
    context = multiprocessing.get_context("forkserver")
    start = time.perf_counter()
    for _ in range(50):
        process = context.Process(target=int)
        process.start()
        process.join()
    bare = (time.perf_counter() - start) / 50
    print(json.dumps({"cpu": cpu, "wall": wall, "bare": bare, "before": states[19], "after": states[-1],
                      "files": sorted({s[1] for s in states[20:]})}))
"""


def test_many_runs_leave_the_driver_slim(cli):
    done = cli.python(MANY.replace("SEEDS", "75"), timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    over = found["wall"] - found["bare"]
    print(f"300 runs: driver {1000 * found['cpu']:.1f} ms CPU a run; {1000 * over:.1f} ms wall beyond a bare fork")
    assert found["cpu"] < 0.030
    assert found["after"][0] - found["before"][0] < 20
    assert len(found["files"]) == 1

"""A bout that takes milliseconds, and contenders that misbehave in every way a run can."""

import ctypes
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bakeoff.arena.types import Claim, Contender, InputError, Metric
from toy_methods.toy.method import trimmed_mean


@dataclass
class Data:
    size: int
    pause: float
    notes: tuple[str, ...] = ()


def load(*, size: int = 100, pause: float = 0.0, api_key: str = "", source: str = "", quick: bool = False) -> Data:
    """Draw samples.

    Parameters
    ----------
    size : int
        Numbers in a sample.
    pause : float
        Seconds that each contender sleeps.
    api_key : str
        Not used: a real method takes the name of a variable instead.
    source : str
        An address that ends up in the notes.
    """
    if size < 2:
        raise InputError(f"{size} is too small", "--size", "give 2 or more")
    return Data(size, pause, (f"from {source} with {api_key}",) if source else ())


def contenders(data: Data) -> tuple[Contender, ...]:
    good = (
        Contender("trimmed", "paper", trimmed, "heavy tails"),
        Contender("mean", "rival", mean, "habit"),
        Contender("median", "rival", median, "robust"),
        Contender("zero", "floor", zero, "does nothing"),
    )
    return good + tuple(Contender(f.__name__, "rival", f, "misbehaves", optional=True) for f in BAD)


def _sample(data: Data, seed: int, name: str) -> np.ndarray:
    if log := os.environ.get("TOY_LOG"):  # a line per call
        with open(log, "a") as file:
            file.write(f"{name} {seed}\n")
    time.sleep(data.pause)
    return np.random.default_rng(seed).standard_t(2, data.size) + 3


def trimmed(data: Data, seed: int) -> float:
    return trimmed_mean(_sample(data, seed, "trimmed"))


def mean(data: Data, seed: int) -> float:
    return float(_sample(data, seed, "mean").mean())


def median(data: Data, seed: int) -> float:
    return float(np.median(_sample(data, seed, "median")))


def zero(data: Data, seed: int) -> float:
    return 0.0 * len(_sample(data, seed, "zero"))


def raises(data: Data, seed: int) -> float:
    raise ArithmeticError("the ice is too thin")


def segfaults(data: Data, seed: int) -> float:
    print("about to fall")
    return float(ctypes.string_at(0)[0])


def exits(data: Data, seed: int) -> float:
    os._exit(7)


def forks(data: Data, seed: int) -> float:
    if os.fork() == 0:
        time.sleep(600)
    return 3.0


def daemonises(data: Data, seed: int) -> float:
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    time.sleep(0.2)
    return 3.0


def deadlocks(data: Data, seed: int) -> float:
    lock = threading.Lock()
    with lock:
        lock.acquire()
    return 0.0


def spins_in_c(data: Data, seed: int) -> float:
    return float(sum(range(10**13)))  # never lets go of the interpreter lock


def chatters(data: Data, seed: int) -> float:
    for _ in range(1600):
        print("x" * 65535)
    print("the last word")
    raise RuntimeError("done talking")


def spams(data: Data, seed: int) -> float:
    while True:
        os.write(1, b"y" * 65536)


def hides(data: Data, seed: int) -> float:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return 3.0


def hides_and_exits(data: Data, seed: int) -> float:
    hides(data, seed)
    os._exit(7)


def lingers(data: Data, seed: int) -> float:
    forks(data, seed)
    _sample(data, seed, "lingers")
    time.sleep(600)
    return 3.0


def lingers_away(data: Data, seed: int) -> float:
    hides(data, seed)
    _sample(data, seed, "lingers_away")
    time.sleep(600)
    return 3.0


def doubles(data: Data, seed: int) -> float:
    os.fork()
    return 3.0


def quits(data: Data, seed: int) -> float:
    sys.exit("enough")


class Kept(float):
    def save(self, folder: Path) -> None:
        (folder / "value.txt").write_text(repr(self))


def keeps(data: Data, seed: int) -> Kept:
    return Kept(_sample(data, seed, "keeps").mean())


def hogs(data: Data, seed: int) -> float:
    block = bytearray(600 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(30)
    return float(block[0])


def overflows(data: Data, seed: int) -> float:
    return float("nan")


def leaks(data: Data, seed: int) -> float:
    token = os.environ.get("PLANTED_TOKEN")
    for name, value in os.environ.items():
        print(f"{name}={value}")
    print("hub", Path(os.environ.get("HF_HOME", "."), "token").read_text())
    print(f"GET https://host.example/v1?api_key={token}&page=1 Authorization: Bearer {token}")
    raise RuntimeError(f"failed at https://me:{token}@host.example, {data.notes} with {dict(os.environ)}")


def holds_1gb(data: Data, seed: int) -> float:
    block = np.ones(2**27)
    return 3.0 * float(block[-1])


BAD = (
    *(raises, segfaults, exits, quits, forks, daemonises, hides, doubles, deadlocks, spins_in_c, chatters, spams),
    *(hides_and_exits, lingers, lingers_away),
    *(hogs, overflows, leaks, holds_1gb, keeps),
)


def score(output: float, data: Data) -> dict[str, float]:
    return {"error": abs(output - 3), "estimate": output}


def coverage(seed: int) -> dict[str, float]:
    sample = np.random.default_rng(seed).normal(size=200)
    return {"inside": float(abs(sample.mean()) < 1.96 / np.sqrt(200))}


METRICS = (
    Metric("error", "lower", primary=True, margin=0.02, bounds=(0, np.inf)),
    Metric("estimate", "higher"),
)
CLAIMS = (
    Claim("better than the mean", "smaller error on t(2)", "none", "error", "trimmed", "mean", 0.0),
    Claim("covers", "share inside at least 0.5", "none", "inside", check="coverage", margin=0.5, seeds=8),
)

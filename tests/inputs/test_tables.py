"""The user's table: what is read, and the one line that is said where it cannot be."""

from __future__ import annotations

import json

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from bakeoff.arena.types import InputError
from bakeoff.inputs.tables import diabetes, load_estimator, load_groups, load_table

N = 60


def good() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, 3)), columns=["age", "size", "weight"])
    return frame.assign(price=frame["age"] + rng.normal(size=N))


def written(tmp_path, frame, name="table.csv"):
    path = tmp_path / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def refused(path, target="price", task="auto", rows=None) -> str:
    with pytest.raises(InputError) as caught:
        load_table(path, target, task, rows)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.how
    return message


@pytest.mark.parametrize("name", ["table.csv", "table.parquet", "TABLE.CSV"])
def test_good_tables(tmp_path, name):
    frame = good()
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
    table = load_table(path, "price")
    np.testing.assert_allclose(table.X, frame[["age", "size", "weight"]])
    np.testing.assert_allclose(table.y, frame["price"])
    assert (table.names, table.task) == (("age", "size", "weight"), "regression")


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_numbers_survive_the_way_through_a_file(tmp_path_factory, data):
    names = data.draw(st.lists(st.text("abcdefgh é-", min_size=1).map(str.strip), min_size=2, max_size=4, unique=True))
    if "" in names:
        return
    values = st.floats(-1e6, 1e6, allow_subnormal=False)
    frame = pd.DataFrame({n: data.draw(st.lists(values, min_size=40, max_size=40)) for n in names})
    frame[names[0]] = np.arange(40.0)
    path = written(tmp_path_factory.mktemp("t"), frame)
    table = load_table(path, names[0])
    np.testing.assert_array_equal(table.X, frame[names[1:]])


def test_target_with_two_values_is_a_class(tmp_path):
    frame = good().assign(price=np.where(np.arange(N) % 3 == 0, "yes", "no"))
    table = load_table(written(tmp_path, frame), "price")
    assert (table.task, table.classes, table.y.sum()) == ("classification", ("no", "yes"), N / 3)
    numbers = good().assign(price=np.arange(N) % 2)
    assert load_table(written(tmp_path, numbers), "price").task == "classification"
    assert load_table(written(tmp_path, numbers), "price", "regression").task == "regression"
    truth = good().assign(price=np.arange(N) % 2 == 0)
    assert load_table(written(tmp_path, truth), "price").classes == ("False", "True")


def test_large_tables_are_sampled_the_same_way_every_time(tmp_path):
    path = written(tmp_path, good())
    one, two = load_table(path, "price", rows=40), load_table(path, "price", rows=40)
    assert len(one.y) == 40
    np.testing.assert_array_equal(one.X, two.X)


def test_repeated_rows_are_warned_of(tmp_path):
    frame = pd.concat([good(), good().iloc[:5]])
    with pytest.warns(UserWarning, match="5 rows repeat another one"):
        load_table(written(tmp_path, frame), "price")


def test_booleans_and_nullable_integers_are_numbers(tmp_path):
    frame = good().assign(flag=np.arange(N) % 2 == 0, count=pd.array(range(N), dtype="Int64"))
    assert load_table(written(tmp_path, frame, "t.parquet"), "price").X.shape == (N, 5)


# ---- bad input


def test_missing_values(tmp_path):
    frame = good()
    frame.loc[:2, "size"] = np.nan
    assert "column 'size' has 3 missing values; fill or drop them" in refused(written(tmp_path, frame))
    assert "column 'size' has 3 missing values" in refused(written(tmp_path, frame, "t.parquet"))
    frame["size"] = [np.inf] + [1.0] * (N - 1)
    assert "column 'size' has 1 missing value;" in refused(written(tmp_path, frame))
    nullable = good().assign(size=pd.array([None] + [1] * (N - 1), dtype="Int64"))
    assert "column 'size' has 1 missing value;" in refused(written(tmp_path, nullable, "t.parquet"))


def test_text_columns(tmp_path):
    assert "column 'size' holds 'red', not numbers; encode or drop it" in refused(
        written(tmp_path, good().assign(size="red"))
    )
    assert "holds '?'" in refused(written(tmp_path, good().assign(size=["?"] + ["1"] * (N - 1))))
    dates = good().assign(size=pd.date_range("2020", periods=N))
    assert "column 'size' holds '2020" in refused(written(tmp_path, dates, "t.parquet"))
    assert "column 'size' holds" in refused(written(tmp_path, good().assign(size=[[1]] * N), "t.parquet"))


def test_target(tmp_path):
    path = written(tmp_path, good())
    assert "no column 'cost'; there are 'age', 'size', 'weight', 'price'" in refused(path, "cost")
    assert "no column to predict" in refused(path, None)
    assert "constant" in refused(written(tmp_path, good().assign(price=1)))
    frame = good()
    frame.loc[0, "price"] = np.nan
    assert "target 'price' has 1 missing" in refused(written(tmp_path, frame))
    frame.loc[0, "price"] = np.inf
    assert "infinite" in refused(written(tmp_path, frame))
    three = good().assign(price=np.array(["a", "b", "c"])[np.arange(N) % 3])
    assert "does not hold numbers" in refused(written(tmp_path, three))
    assert "holds lists" in refused(written(tmp_path, good().assign(price=[[1]] * N), "t.parquet"))
    assert "has 3 classes" in refused(written(tmp_path, three), task="classification")
    rare = good().assign(price=[1, 1] + [0] * (N - 2))
    assert "fewer than 10 rows" in refused(written(tmp_path, rare))
    assert "only the target" in refused(written(tmp_path, good()[["price"]], "t.parquet"))


def test_too_few_rows(tmp_path):
    assert "has 29 rows" in refused(written(tmp_path, good().iloc[:29]))
    assert "has 0 rows" in refused(written(tmp_path, good().iloc[:0]))


def test_headers(tmp_path):
    path = tmp_path / "t.csv"
    rows = "1,2,3\n" * 40
    for header, words in (
        ("a,b,b", "column 'b' is there twice"),
        (",b,price", "column 1 has no name"),
        ("a,,price", "column 2 has no name"),
    ):
        path.write_text(header + "\n" + rows)
        assert words in refused(path)
    path.write_text("a;b;price\n" + "1;2;3\n" * 40)
    assert "separated by ';'" in refused(path)


def test_files(tmp_path):
    assert "No such file" in refused(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "directory" in refused(tmp_path / "folder.csv")
    assert "not .csv or .parquet" in refused(tmp_path / "table.xlsx")
    contents = {
        "empty.csv": b"",
        "latin.csv": "größe,price\n1,2\n".encode("latin-1"),
        "nul.csv": b"a,price\n\x00\x01,2\n" * 40,
        "fake.parquet": b"not parquet",
        "long.csv": b"a,b,price\n" + b"1,2,3,4\n" * 40,
        "ragged.csv": b"a,price\n1,2\n1,2,3,4\n" + b"1,2\n" * 40,
        "binary.csv": bytes(range(256)) * 20,
        "quote.csv": b'a,price\n"1,2\n' + b"1,2\n" * 40,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name)


def test_values_beyond_single_precision(tmp_path):
    assert "rescale it" in refused(written(tmp_path, good().assign(size=[1e300] + [1.0] * (N - 1))))


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=300))
def test_any_bytes_give_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a map"),
        ('{"g": "age"}', "not a map"),
        ('{"g": []}', "not a map"),
        ('{"g": ["height"]}', "group 'g' names column 'height'; there are 'age', 'size'"),
        ('{"g": ["age"], "h": ["age"]}', "column 'age' is in 'g' and 'h'"),
        ('{"size": ["age"]}', "group 'size' has the name of a column that is not in it"),
    ],
)
def test_groups(tmp_path, content, words):
    path = tmp_path / "groups.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        load_groups(path, ("age", "size"))
    path.write_text(json.dumps({"g": ["age"]}))
    assert load_groups(path, ("age", "size")) == {"g": ["age"]}


class Trap:
    """Runs when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


def test_pickles_are_not_opened_unless_trusted(tmp_path):
    path, canary = tmp_path / "model.joblib", tmp_path / "canary"
    joblib.dump(Trap(canary), path)
    with pytest.raises(InputError, match="--trust-pickle"):
        load_estimator(path, trust_pickle=False, task="regression")
    assert not canary.exists()
    joblib.dump(Ridge(2.0), path)
    assert load_estimator(path, trust_pickle=True, task="regression").alpha == 2.0
    joblib.dump({"a": 1}, path)
    with pytest.raises(InputError, match="holds a dict"):
        load_estimator(path, trust_pickle=True, task="regression")
    joblib.dump(Ridge, path)
    with pytest.raises(InputError, match="holds the class Ridge, not an object of it"):
        load_estimator(path, trust_pickle=True, task="regression")
    joblib.dump(Ridge(), path)
    with pytest.raises(InputError, match="holds no classifier, but this is a classification"):
        load_estimator(path, trust_pickle=True, task="classification")
    joblib.dump(LinearSVC(), path)
    with pytest.raises(InputError, match="without predict_proba"):
        load_estimator(path, trust_pickle=True, task="classification")
    path.write_bytes(b"junk")
    with pytest.raises(InputError, match=r"model\.joblib"):
        load_estimator(path, trust_pickle=True, task="regression")


def test_diabetes():
    table = diabetes()
    assert table.X.shape == (442, 10)
    assert np.corrcoef(table.X[:, table.names.index("s1")], table.X[:, table.names.index("s2")])[0, 1] == pytest.approx(
        0.9, abs=0.01
    )

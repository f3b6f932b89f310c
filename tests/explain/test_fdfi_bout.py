"""The bout: what is drawn, what the contenders make of it, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from bakeoff.arena.types import InputError, Run
from bakeoff.explain.fdfi import bout
from bakeoff.explain.fdfi.rivals import Ranking
from bakeoff.explain.fdfi.studies import draw

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 4)), columns=["a", "b", "c", "d"])
    frame["b"] = frame["a"] + 0.3 * frame["b"]
    frame["price"] = 2 * frame["a"] + frame["c"] + 0.3 * rng.normal(size=120)
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    return path


def outputs(data, seed=0, names=None):
    chosen = [c for c in bout.contenders(data) if (c.name in names if names else not c.optional)]
    return {c.name: c.call(data, seed) for c in chosen}


def test_importing_the_bout_is_cheap():
    code = (
        "import sys, bakeoff.explain.fdfi.bout;"
        "assert not {'torch', 'sklearn', 'pandas', 'scipy', 'matplotlib', 'hidimstat'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_metrics_contenders_and_claims_fit_together():
    names = [c.name for c in bout.contenders(bout.load(quick=True))]
    assert [m.primary for m in bout.METRICS].count(True) == 1
    assert len({claim.text for claim in bout.CLAIMS}) == len(bout.CLAIMS)
    assert all(len(metric.unit) <= 12 for metric in bout.METRICS)
    for claim in bout.CLAIMS:
        if claim.check:
            assert callable(getattr(bout, claim.check))
        else:
            assert {claim.contender, claim.rival} <= set(names)
    metrics = {claim.metric for claim in bout.CLAIMS if claim.check == "coverage"}
    assert metrics <= set(bout.coverage(0))


@pytest.mark.parametrize("study", ["table", "power", "shape"])
def test_every_contender_scores_the_same_columns(study):
    data = bout.load(study=study, quick=True)
    found = outputs(data)
    features = found["fdfi"].features
    for name, ranking in found.items():
        assert ranking.features == features, name
        scores = bout.score(ranking, data)
        for metric in bout.METRICS:
            low, high = metric.bounds
            assert low <= scores[metric.name] <= high, (name, metric.name)
    assert found["fdfi"].null == found["LOCO"].null


def test_equal_seeds_equal_scores_and_input_unchanged():
    data = bout.load(quick=True)
    before = data.X.copy()
    once, again, other = outputs(data, 0), outputs(data, 0), outputs(data, 1)
    for name in once:
        np.testing.assert_array_equal(once[name].score, again[name].score, err_msg=name)
        assert (once[name].score != other[name].score).any()
    np.testing.assert_array_equal(data.X, before)


def test_split_shares_no_row_and_decoys_keep_their_correlations():
    data = bout.load()
    split = draw(data, 3)
    train, test = split.train[0], split.test[0]
    assert len(train) == len(test) == 221
    assert not (train[:, None, :10] == test[None, :, :10]).all(2).any()
    X = np.vstack([train, test])
    own = [split.names.index(name.removeprefix("decoy of ")) for name in split.null]
    decoys = [split.names.index(name) for name in split.null]
    np.testing.assert_allclose(np.corrcoef(X[:, decoys].T), np.corrcoef(X[:, own].T), atol=1e-9)
    assert np.abs(np.corrcoef(X.T)[np.ix_(decoys, own)]).max() < 0.25


def test_loco_values_are_the_loss_differences_of_refits():
    """Independent reference: refit the forest without a column and take the squared errors by hand."""
    from sklearn.base import clone

    from bakeoff.explain.fdfi.rivals import left_out

    data = bout.load(quick=True)
    split, ranking = draw(data, 0), left_out(bout.load(quick=True), 0)
    X, y = split.test
    for j in (2, 8):
        refit = clone(split.model).fit(np.delete(split.train[0], j, 1), split.train[1])
        rise = (y - refit.predict(np.delete(X, j, 1))) ** 2 - (y - split.model.predict(X)) ** 2
        assert ranking.score[j] == pytest.approx(rise.mean())


def test_permutation_score_is_that_of_scikit_learn():
    data = bout.load()
    found = outputs(data, 0, ("PFI", "permutation_importance", "PFI-shipped"))
    np.testing.assert_allclose(found["PFI"].score, found["permutation_importance"].score, atol=0.02)
    np.testing.assert_allclose(found["PFI"].score, found["PFI-shipped"].score, atol=1e-9)


def test_rankings_without_a_test_have_no_discoveries():
    data = bout.load(quick=True)
    for name, ranking in outputs(data, 0, ("SHAP", "permutation_importance")).items():
        scores = bout.score(ranking, data)
        assert scores["net_discoveries"] is None, name
        assert 0 <= scores["decoy_share"] <= 1


def test_score_by_hand():
    ranking = Ranking(["a", "b", "n"], ["n"], np.array([3.0, -1.0, 1.0]), np.array([0.01, 0.5, 0.04]))
    scores = bout.score(ranking, None)
    assert scores["discoveries"] == 0.5
    assert scores["decoys_rejected"] == 1
    assert scores["net_discoveries"] == -0.5
    assert scores["decoy_share"] == 0.25


def test_own_table_groups_and_classes(table, tmp_path):
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"ab": ["a", "b"]}))
    data = bout.load(table=table, target="price", groups=groups, quick=True)
    found = outputs(data)
    assert found["fdfi"].features[:3] == ["ab", "c", "d"]
    assert found["PFI"].p[0] < 0.05
    frame = pd.read_csv(table)
    frame["price"] = np.where(frame["price"] > 0, "dear", "cheap")
    frame.to_csv(table, index=False)
    data = bout.load(table=table, target="price", quick=True)
    assert data.classification
    for name, ranking in outputs(data).items():
        assert np.isfinite(ranking.score).all(), name


def test_own_model_is_cloned_and_refitted(table, tmp_path):
    path = tmp_path / "model.joblib"
    joblib.dump(Ridge(3.0), path)
    data = bout.load(table=table, target="price", model=path, trust_pickle=True, quick=True)
    model = draw(data, 0).model
    assert model.alpha == 3.0
    assert model.n_features_in_ == 6
    assert not hasattr(data.predictor, "coef_")


def test_kept_output(tmp_path):
    data = bout.load(quick=True)
    outputs(data, 0, ("fdfi",))["fdfi"].save(tmp_path)
    assert {"ranking.json", "importance.parquet", "importance.json"} <= {p.name for p in tmp_path.iterdir()}


def test_figures(tmp_path):
    data = bout.load(quick=True)
    runs = []
    for name, ranking in outputs(data, 0, ("fdfi", "random")).items():
        details = {k: np.asarray(v).tolist() for k, v in bout.score(ranking, data).items() if k not in ("diagnostics",)}
        details["p"][0] = None  # as a NaN is stored
        runs.append(Run("k", "fdfi", name, 0, {}, "", "", status="ok", details=details))
    captions = bout.figures(runs, tmp_path)
    pathway = (tmp_path / "pathway.svg").read_text()
    assert "<!-- s5 -->" in pathway
    assert "<!-- column 9 -->" not in pathway
    assert set(captions) == {p.name for p in tmp_path.iterdir()} == {"found.svg", "pathway.svg"}
    assert bout.figures([], tmp_path) == {}
    runs[0].options["groups"] = "g.json"  # features in another order than the columns, even where they are as many
    bout.figures(runs, tmp_path)
    assert "<!-- column 9 -->" in (tmp_path / "pathway.svg").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "price"}, "--target: there is no table"),
        ({"table": "none.csv", "target": "y"}, "No such file"),
        ({"table": "TABLE"}, "--target: no column to predict"),
        ({"table": "TABLE", "target": "cost"}, "no column 'cost'"),
        ({"study": "power", "groups": "groups.json"}, "--groups: --study power draws its own data"),
        ({"study": "size"}, "--study: 'size' is not known; choose table, power, shape"),
        ({"predictor": "tree"}, "choose forest, boosting, linear"),
        ({"task": "ranking"}, "choose auto, regression, classification"),
        ({"decoys": 0}, "--decoys: 0 is too small"),
        ({"steps": -1}, "--steps: -1 is too small"),
        ({"rows": 3}, "--rows: 3 is too small"),
        ({"groups": "none.json"}, "--groups: none.json: No such file"),
        ({"model": "MODEL"}, "add --trust-pickle"),
        ({"model": "none.joblib", "trust_pickle": True}, "No such file"),
        ({"task": "classification"}, "--task: there is no table"),
        ({"rows": 100}, "--rows: there is no table"),
        ({"study": "power", "decoys": 3}, "--decoys: --study power draws its own data"),
        ({"study": "shape", "predictor": "boosting"}, "--predictor: --study shape draws"),
        ({"predictor": "linear", "model": "MODEL", "trust_pickle": True}, "--predictor: --model is a predictor too"),
        ({"model": "CLASSIFIER", "trust_pickle": True}, "holds a classifier, but this is a regression"),
        ({"table": "DECOYS", "target": "price"}, "'decoy of a' is the name of a column of the bout; rename it"),
    ],
)
def test_bad_options_are_refused_at_once(options, words, table, tmp_path):
    from pathlib import Path

    model = tmp_path / "m.joblib"
    joblib.dump(Ridge(), model)
    joblib.dump(LogisticRegression(), tmp_path / "c.joblib")
    pd.read_csv(table).rename(columns={"b": "decoy of a"}).to_csv(tmp_path / "d.csv", index=False)
    real = {"TABLE": table, "MODEL": model, "CLASSIFIER": tmp_path / "c.joblib", "DECOYS": tmp_path / "d.csv"}
    paths = {k: Path(real.get(v, v)) if k in ("table", "groups", "model") else v for k, v in options.items()}
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        bout.load(**paths)
    assert words in str(caught.value)
    assert time.process_time() - start < 3

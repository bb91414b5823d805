"""The estimator in scikit-learn: its checks, its model selection, and tables of (party, user, item) beside ratings."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings

pytestmark = pytest.mark.usefixtures("short_own_models")

QUICK: dict[str, Any] = {"epochs": 2, "dim": 6, "gate": False, "lists": False}


@pytest.fixture(scope="module")
def rated() -> tuple[pd.DataFrame, Any]:
    table = synthetic_ratings(users=60, items=30, ratings=900, seed=1)
    pairs = pd.DataFrame(
        {
            "party": table.columns["category"][table.item],
            "user": table.user_ids[table.user],
            "item": table.item_ids[table.item],
        }
    )
    return pairs, table.rating


@pytest.fixture(scope="module")
def fitted(rated: tuple[pd.DataFrame, Any]) -> vf.VerFedRecommender:
    return vf.VerFedRecommender(**QUICK).fit(*rated)


WIDE = "X has two or three columns: party, user, item"
SMALL = "the random X has parties of one to four ratings, which leaves none to validate on; tested below with ratings"
ALONE = "no user of the random X is at two parties; tested below with ratings"
NOT_APPLICABLE = {
    "check_no_attributes_set_in_init": "settings are keyword arguments; tested below without them",
    "check_n_features_in_after_fitting": WIDE,
    "check_estimators_dtypes": WIDE,
    "check_dtype_object": WIDE,
    "check_estimators_nan_inf": WIDE,
    "check_regressors_train": WIDE,
    "check_regressor_data_not_an_array": WIDE,
    "check_regressors_no_decision_function": WIDE,
    "check_regressors_int": WIDE,
    "check_fit2d_1sample": WIDE,
    "check_positive_only_tag_during_fit": SMALL,
    "check_estimators_overwrite_params": SMALL,
    "check_dont_overwrite_parameters": SMALL,
    "check_estimators_fit_returns_self": SMALL,
    "check_readonly_memmap_input": SMALL,
    "check_f_contiguous_array_estimator": SMALL,
    "check_methods_sample_order_invariance": SMALL,
    "check_methods_subset_invariance": SMALL,
    "check_dict_unchanged": SMALL,
    "check_fit_idempotent": SMALL,
    "check_fit_check_is_fitted": SMALL,
    "check_n_features_in": SMALL,
    "check_fit2d_predict1d": SMALL,
    "check_pipeline_consistency": ALONE,
    "check_estimators_pickle": ALONE,
    "check_supervised_y_2d": "a column of ratings is taken without a warning",
}


@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn() -> None:
    estimator = vf.VerFedRecommender(**QUICK)
    found = estimator_checks.check_estimator(
        estimator, expected_failed_checks=NOT_APPLICABLE, on_fail=None, on_skip=None
    )
    failed = {each["check_name"]: str(each["exception"]) for each in found if each["status"] == "failed"}
    assert not failed
    passed = {each["check_name"] for each in found if each["status"] == "passed"}
    assert len(passed) >= 18
    assert not passed & NOT_APPLICABLE.keys(), "a check that passes needs no excuse"
    estimator_checks.check_no_attributes_set_in_init("VerFedRecommender", vf.VerFedRecommender())


def test_what_the_checks_mean_holds_for_ratings(
    fitted: vf.VerFedRecommender, rated: tuple[pd.DataFrame, Any]
) -> None:
    pairs, ratings = rated
    before = {**fitted.get_params()}
    predicted = fitted.predict(pairs)
    assert fitted.get_params() == before == clone(fitted).get_params()
    assert fitted.n_features_in_ == 3
    assert fitted.feature_names_in_.tolist() == ["party", "user", "item"]
    order = np.random.default_rng(0).permutation(len(pairs))
    assert (fitted.predict(pairs.iloc[order]) == predicted[order]).all()
    assert (fitted.predict(pairs[:7]) == predicted[:7]).all()
    assert (pickle.loads(pickle.dumps(fitted)).predict(pairs) == predicted).all()
    again = clone(fitted).fit(pairs.to_numpy(), ratings)
    assert (again.predict(pl.DataFrame(pairs)) == predicted).all(), (
        "arrays and frames of any library are alike"
    )
    assert fitted.score(pairs, ratings) == pytest.approx(-np.sqrt(np.mean((predicted - ratings) ** 2)))
    check_is_fitted(fitted)
    with pytest.raises(vf.DataError, match="X has 2 features, but VerFedRecommender is expecting 3"):
        fitted.predict(pairs[["user", "item"]])
    with pytest.raises(ValueError, match="Reshape your data"):
        fitted.predict(pairs.to_numpy()[0])
    with pytest.raises(NotFittedError):
        clone(fitted).predict(pairs)


def test_pairs_without_a_party_are_split(rated: tuple[pd.DataFrame, Any]) -> None:
    pairs, ratings = rated
    estimator = vf.VerFedRecommender(**QUICK).fit(pairs[["user", "item"]], ratings, parties=3)
    assert len(estimator.parties_) == 3
    assert len(estimator.predict(pairs[["user", "item"]])) == len(pairs)


def test_a_grid_search_chooses_settings(rated: tuple[pd.DataFrame, Any]) -> None:
    search = GridSearchCV(
        vf.VerFedRecommender(**QUICK), {"dim": [8, 6], "preset": ["best"]}, cv=vf.RatingSplit(2)
    ).fit(*rated)
    assert search.best_params_["dim"] in (8, 6)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    scores = cross_val_score(vf.VerFedRecommender(**QUICK), *rated, cv=vf.RatingSplit(2))
    assert scores.mean() == pytest.approx(search.cv_results_["mean_test_score"][1])


@settings(max_examples=30, deadline=None)
@given(
    cells=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)),
        min_size=4,
        max_size=40,
        unique=True,
    ),
    folds=st.integers(2, 4),
)
def test_a_fold_tests_users_and_items_that_it_trains_on(cells: list[tuple[int, ...]], folds: int) -> None:
    rows = np.array(cells)
    tested = []
    for train, test in vf.RatingSplit(folds, seed=3).split(rows):
        assert sorted([*train, *test]) == [*range(len(rows))]
        assert {*rows[test, 1]} <= {*rows[train, 1]}
        assert {*map(tuple, rows[test][:, [0, 2]])} <= {*map(tuple, rows[train][:, [0, 2]])}
        tested += test.tolist()
    assert len(tested) == len(set(tested)), "a rating is tested at most once"
    assert vf.RatingSplit(folds).get_n_splits() == folds


def test_similar_items_come_from_all_catalogues(fitted: vf.VerFedRecommender) -> None:
    item = str(fitted.run_.parties[0].ratings.item_ids[0])
    found = fitted.similar(item, k=29)
    assert {each.party for each in found} == set(fitted.parties_)
    assert item not in {each.item for each in found}
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(vf.RunError, match="'nothing' is in no catalogue; known items look like"):
        fitted.similar("nothing")


def test_a_notebook_shows_the_parameters_and_the_run(fitted: vf.VerFedRecommender) -> None:
    assert "dim=6" in fitted._repr_html_()
    assert "<svg" in fitted._repr_html_()
    assert "<svg" not in vf.VerFedRecommender()._repr_html_()

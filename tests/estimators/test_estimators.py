"""Private estimators as scikit-learn's users use them, and what they say about what they cost."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import warnings
from unittest import SkipTest

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import sordina as sd
from sordina.errors import BudgetRefused, InvalidInput
from sordina.estimators import (
    PCA,
    SVC,
    BoostedClassifier,
    BoostedRegressor,
    GaussianNB,
    KMeans,
    LinearRegression,
    LinearSVC,
    LittleData,
    LogisticRegression,
    MLPClassifier,
    MLPRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    Ridge,
    UnbookedFits,
    load_estimator,
    save_estimator,
)
from sordina.privacy import Unit
from sordina.tables import Prepare

WIDE = {"bounds": (-10, 10)}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits"),
    pytest.mark.filterwarnings("ignore::sordina.estimators.LittleData"),
]
PLENTY = sd.Budget(1e4, 1e-5)
"""So much that scikit-learn's checks of accuracy on thirty rows can be met."""
CLASSIFIERS = [
    BoostedClassifier(PLENTY, **WIDE),
    GaussianNB(PLENTY, **WIDE),
    LinearSVC(PLENTY, **WIDE, epochs=40),
    LogisticRegression(PLENTY, **WIDE, epochs=40),
    MLPClassifier(PLENTY, **WIDE, epochs=20),
    RandomForestClassifier(PLENTY, **WIDE, n_estimators=1, max_depth=4),
    SVC(PLENTY, **WIDE, epochs=20),
]
REGRESSORS = [
    BoostedRegressor(PLENTY, **WIDE, target_bounds=(-10, 10)),
    LinearRegression(PLENTY, **WIDE, target_bounds=(-10, 10)),
    MLPRegressor(PLENTY, **WIDE, target_bounds=(-10, 10), epochs=20),
    RandomForestRegressor(PLENTY, **WIDE, target_bounds=(-10, 10), n_estimators=1, max_depth=4),
    Ridge(PLENTY, **WIDE, target_bounds=(-10, 10)),
]
OTHERS = [KMeans(3, PLENTY, **WIDE), PCA(1, PLENTY, row_norm=5.0)]
ACCURACY = {
    "check_classifiers_train": "asks for an accuracy on thirty rows, which noise may or may not allow",
    "check_regressors_train": "asks for a fit of thirty rows, which noise may or may not allow",
}
OLDER = {
    "check_sample_weights_invariance": "sample weights are refused: they would change the sensitivity",
}
"""What may fail besides with scikit-learn before 1.6."""
EXPECTED = {
    KMeans: {
        "check_fit_score_takes_y": "labels_ of the rows of the fit would not be private",
        "check_clustering": "labels_ of the rows of the fit would not be private",
    }
}
"""What may fail, with the reason."""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS, *OTHERS], ids=lambda one: type(one).__name__)
def test_scikit_learns_own_checks(estimator):
    expected = ACCURACY | EXPECTED.get(type(estimator), {})
    if type(estimator) in (LinearSVC, LogisticRegression, MLPClassifier, MLPRegressor, SVC):
        estimator = clone(estimator).set_params(epochs=4)  # conventions are checked here, accuracy is not
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "expected_failed_checks" in inspect.signature(check_estimator).parameters:
            check_estimator(estimator, expected_failed_checks=expected)
            return
        for one, check in check_estimator(estimator, generate_only=True):  # before scikit-learn 1.6
            if getattr(check, "func", check).__name__ not in expected | OLDER:
                with contextlib.suppress(SkipTest):  # one check that does not apply is not all of them
                    check(one)


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_classes_are_learned(estimator):
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = clone(estimator).set_params(bounds=([4, 2, 1, 0], [8, 5, 7, 3]), budget=sd.Budget(50, 1e-5), random_state=0)
    model.fit(x, names)
    assert set(model.predict(x)) <= set(names)
    assert model.score(x, names) > 0.6
    assert model.guarantee_.epsilon <= 50
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda one: type(one).__name__)
def test_numbers_are_learned(estimator):
    x, y = load_diabetes(return_X_y=True)
    model = clone(estimator).set_params(
        bounds=(-0.15, 0.2), target_bounds=(0, 400), budget=sd.Budget(100, 1e-5), random_state=0
    )
    assert model.fit(x, y).score(x, y) > 0.15


def test_linear_regression_without_much_noise_is_least_squares():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (5000, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3
    model = LinearRegression(sd.Budget(1000, 1e-5), bounds=(-1, 1), target_bounds=(-5, 5), random_state=0).fit(x, y)
    np.testing.assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.02)
    assert abs(model.intercept_ - 0.3) < 0.02


def test_pca_finds_the_subspace():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2)) @ rng.normal(size=(2, 6)) / 6
    model = PCA(2, sd.Budget(1, 1e-5), row_norm=1.0, random_state=0).fit(x)
    true = np.linalg.svd(x)[2][:2]
    assert np.linalg.norm(model.components_ @ true.T) > 1.38  # sqrt 2 where they agree


def test_the_ledger_is_booked_and_refuses(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("iris", sd.Budget(1, 1e-4))
    x, y = load_iris(return_X_y=True)
    for estimator in (GaussianNB, LogisticRegression):
        estimator(sd.Budget(0.4, 1e-5), bounds=(0, 8), ledger=ledger, dataset_budget="iris").fit(x, y)
    assert 0.4 < ledger.spent("iris") <= 0.81
    with pytest.raises(BudgetRefused):
        GaussianNB(sd.Budget(2, 1e-5), bounds=(0, 8), ledger=ledger, dataset_budget="iris").fit(x, y)


def test_cross_validation_says_what_it_costs():
    x, y = load_iris(return_X_y=True)
    with pytest.warns(UnbookedFits, match="cost epsilon"):
        cross_val_score(GaussianNB(sd.Budget(1, 1e-5), bounds=(0, 8)), x, y, cv=3)


def test_a_kernel_machine_says_that_rows_are_few_before_it_spends(tmp_path):
    x, y = load_iris(return_X_y=True)
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("iris", sd.Budget(1, 1e-4))
    machine = SVC(sd.Budget(0.5, 1e-5), bounds=(0, 8), ledger=ledger, dataset_budget="iris")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LittleData)
        with pytest.raises(LittleData, match="few for this estimator"):
            machine.fit(x, y)
    assert ledger.spent("iris") == 0


def test_persons_are_the_unit():
    x, y = load_breast_cancer(return_X_y=True)
    who = np.arange(len(x)) // 3
    for estimator in (
        GaussianNB(sd.Budget(1, 1e-5), bounds=(0, 5000)),
        LogisticRegression(sd.Budget(1, 1e-5), bounds=(0, 5000)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.set_params(rows_per_person=2).fit(x, y, persons=who)
        assert estimator.guarantee_.unit is Unit.USER


def test_in_a_pipeline_on_a_frame_and_pickled():
    frame = pandas.DataFrame({"age": [20, 40, 60, 80] * 50, "ward": ["A", "B"] * 100})
    schema = {
        "columns": {
            "age": {"kind": "number", "low": 0, "high": 100, "optional": False},
            "ward": {"kind": "category", "values": ["A", "B"], "optional": False},
        }
    }
    target = (frame["ward"] == "A").map({True: "yes", False: "no"})
    prepare = Prepare(schema).set_output(transform="pandas")
    pipeline = make_pipeline(prepare, RandomForestClassifier(sd.Budget(20, 1e-5), bounds=(0, 1), random_state=0))
    pipeline.fit(frame, target)
    assert [feature.ordered for feature in pipeline[-1].features_] == [True, False]
    assert pipeline.score(frame, target) == 1.0
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(frame) == pipeline.predict(frame)).all()


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS, *OTHERS], ids=lambda one: type(one).__name__)
def test_what_is_not_stated_is_refused(estimator):
    x, y = load_iris(return_X_y=True)
    y = y.astype(float) if estimator in REGRESSORS else y
    wrong = [{"budget": None}, {"budget": sd.Budget(float("inf"), 1e-5)}, {"dataset_budget": "iris"}]
    wrong += [{"row_norm": None}] if isinstance(estimator, PCA) else [{"bounds": None}, {"bounds": (1, 1)}]
    wrong += [{"target_bounds": None}] if estimator in REGRESSORS else []
    for options in wrong:
        with pytest.raises(InvalidInput):
            clone(estimator).set_params(**options).fit(x, y)
    with pytest.raises(InvalidInput):
        clone(estimator).fit(x, y, persons=[1, 2])
    with pytest.raises(TypeError):
        clone(estimator).fit(x, y, sample_weight=np.ones(len(x)))


def test_a_seeded_fit_repeats_and_says_so():
    x, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for estimator in (GaussianNB, RandomForestClassifier, BoostedClassifier, LogisticRegression):
            one, two = (estimator(sd.Budget(5, 1e-5), bounds=(0, 8), random_state=7).fit(x, y) for _ in range(2))
            assert (one.predict(x) == two.predict(x)).all()
            assert not one.releasable_
            assert estimator(sd.Budget(5, 1e-5), bounds=(0, 8)).fit(x, y).releasable_


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "classes", "wanted"),
    [(LogisticRegression, 120, 13, 3, 0.76), (LogisticRegression, 400, 30, 4, 0.9), (LinearSVC, 400, 30, 4, 0.9)],
)
def test_small_tables_with_loose_bounds_are_learned_the_better_the_more_budget(kind, rows, columns, classes, wanted):
    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(y < classes))
    x, y = x[chosen][:, np.argsort(-x.var(axis=0))[:columns]], y[chosen]
    scores = [
        np.mean([
            kind(sd.Budget(epsilon, 1e-5), bounds=(0, 100), random_state=seed).fit(x[:rows], y[:rows]).score(
                x[rows:], y[rows:]
            )
            for seed in range(2)
        ])
        for epsilon in (1, 8)
    ]  # fmt: skip
    assert scores[1] > wanted, scores
    assert scores[1] > scores[0] > wanted - 0.3, scores


def test_a_grid_search_books_every_fit(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("iris", sd.Budget(3, 1e-4))
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(
        PCA(2, sd.Budget(0.2, 1e-5), row_norm=10.0, ledger=ledger, dataset_budget="iris"),
        GaussianNB(sd.Budget(0.2, 1e-5), bounds=(-10, 10), ledger=ledger, dataset_budget="iris"),
    )
    search = GridSearchCV(pipeline, {"pca__n_components": [1, 2]}, cv=2).fit(x, y)
    settled = [entry.reservation for entry in ledger.history("iris") if entry.reservation is not None]
    assert len(settled) == 2 * (2 * 2 + 1)  # two estimators; two folds, two choices, one refit
    assert set(search.predict(x)) <= set(y)
    assert ledger.spent("iris") > search.best_estimator_[-1].cost_ + search.best_estimator_[0].cost_


@pytest.mark.parametrize("estimator", [KMeans(3, PLENTY, bounds=(0, 8)), PCA(2, PLENTY, row_norm=10.0)])
def test_transformers_name_their_columns(estimator):
    frame = load_iris(as_frame=True).data
    moved = estimator.set_output(transform="pandas").fit(frame).transform(frame)
    assert list(moved.columns) == list(estimator.get_feature_names_out())
    assert list(estimator.feature_names_in_) == list(frame.columns)
    assert (moved.index == frame.index).all()
    estimator.set_output(transform="default")


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS, *OTHERS], ids=lambda one: type(one).__name__)
def test_fitted_estimators_are_pickled_and_kept(estimator, tmp_path):
    x, y = load_iris(return_X_y=True)
    model = clone(estimator).fit(x, y.astype(float) if estimator in REGRESSORS else y)
    save_estimator(model, tmp_path / "kept.safetensors")
    answer = "transform" if hasattr(model, "transform") else "predict"
    for again in (pickle.loads(pickle.dumps(model)), load_estimator(tmp_path / "kept.safetensors")):
        np.testing.assert_array_equal(getattr(again, answer)(x), getattr(model, answer)(x))
        assert again.guarantee_ == model.guarantee_


def test_polars_frames_go_through_a_pipeline():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [20.0, 40.0, 60.0, None] * 50, "ward": ["A", "B"] * 100})
    schema = {
        "columns": {
            "age": {"kind": "number", "low": 0, "high": 100},
            "ward": {"kind": "category", "values": ["A", "B"]},
        }
    }
    target = frame["ward"].to_numpy()
    for model in (BoostedClassifier, LogisticRegression):  # bounds and names come with the prepared rows
        pipeline = make_pipeline(Prepare(schema), model(sd.Budget(20, 1e-5), random_state=0))
        assert pipeline.fit(frame, target).score(frame, target) == 1.0
        assert pipeline[-1].bounds_ == (0.0, 1.0)
        assert pipeline[-1].feature_names_in_[-1] == "ward=missing"
        again = pickle.loads(pickle.dumps(pipeline))
        assert (again.predict(frame) == pipeline.predict(frame)).all()


def test_thresholds_of_linear_classifiers_follow_from_public_facts():
    few, many = sd.Budget(1, 1e-5), sd.Budget(100, 1e-5)
    kinds = [type(LogisticRegression(one, bounds=(0, 1))._clipping(10_000)).__name__ for one in (few, many)]
    assert kinds == ["Fixed", "TypicalNorm"]

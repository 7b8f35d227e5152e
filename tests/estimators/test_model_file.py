"""Model files from elsewhere: refused in one line, never a walk without end; and facts of a fit that stay with it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sordina as sd
from sordina.errors import InvalidInput
from sordina.estimators import PCA, GaussianNB, KMeans, RandomForestClassifier, load_estimator, save_estimator
from sordina.estimators.model_file import pack, unpack
from sordina.estimators.table_model import facts_of
from sordina.tables import Schema

pytestmark = pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits")
BUDGET = sd.Budget(1, 1e-5)
X = np.random.default_rng(0).random((50, 2))
Y = (X[:, 0] > 0.5).astype(int)
SCHEMA = Schema.load({"columns": {"a": {"kind": "number", "low": 0, "high": 1}}})
CYCLE = {
    "feature": [0, 0, -1, -1, -1],
    "child": [1, 3, -1, -1, -1],
    "parent": [-1, 0, 0, 1, 1],
    "right": [[0] * 32, [-3] * 32] + [[0] * 32] * 3,
    "values": np.zeros((5, 2)),
}


def content(change=None, **header):
    from safetensors.numpy import load, save

    estimator = RandomForestClassifier(BUDGET, bounds=(0, 1), n_estimators=1).fit(X, Y)
    packed = pack(estimator, SCHEMA, facts_of(estimator, 50))
    length = int.from_bytes(packed[:8], "little")
    told = json.loads(packed[8 : 8 + length])["__metadata__"]
    arrays = load(packed) if change is None else {f"trees_.0.{key}": np.asarray(one) for key, one in change.items()}
    return save(arrays or {"nothing": np.zeros(1)}, metadata=told | header)


def test_what_was_packed_is_read_back():
    assert unpack(content())[0].predict(X).shape == (50,)


@pytest.mark.parametrize(
    "hostile",
    [
        {"change": CYCLE},
        {"change": CYCLE | {"right": np.zeros((5, 3))}},
        {"change": CYCLE | {"feature": [99, -1, -1, -1, -1], "right": np.zeros((5, 32))}},
        {"change": {}},
        {"options": "[" * 100_000},
        {"kind": "MLPClassifier", "options": '{"bounds": [0, 1], "hidden_layer_sizes": [1000000000000]}'},
    ],
    ids=["a cycle", "few cells", "no such feature", "no trees", "deep", "huge"],
)
def test_hostile_files_are_refused_when_they_are_read(hostile):
    with pytest.raises(InvalidInput, match="model file"):
        unpack(content(**hostile))


@pytest.mark.parametrize("kind", [PCA(1, BUDGET, row_norm=1.0, center=[0.5, 0.5]), KMeans(2, BUDGET, bounds=(0, 1))])
def test_what_is_no_model_of_a_table_is_kept_too(kind, tmp_path):
    kind.fit(X)
    save_estimator(kind, tmp_path / "kept.safetensors")
    again = load_estimator(tmp_path / "kept.safetensors")
    np.testing.assert_array_equal(again.transform(X), kind.transform(X))
    assert again.guarantee_ == kind.guarantee_
    with pytest.raises(InvalidInput, match="new file"):
        save_estimator(kind, tmp_path / "kept.safetensors")
    with pytest.raises(InvalidInput, match="load_estimator"):
        sd.load(tmp_path / "kept.safetensors")


def test_a_seeded_fit_is_not_releasable_whatever_is_set_or_loaded_later():
    estimator = RandomForestClassifier(BUDGET, bounds=(0, 1), random_state=1).fit(X, Y)
    packed = pack(estimator, SCHEMA, facts_of(estimator, 50))
    estimator.set_params(random_state=None)
    assert not estimator.releasable_
    assert not unpack(packed)[0].releasable_


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_one_enormous_row_does_not_show():
    rows = X.copy()
    rows[0] = 1e200
    PCA(budget=BUDGET, row_norm=1.0).fit(rows)
    with pytest.raises(InvalidInput, match="distance"):
        GaussianNB(BUDGET, bounds=(-1e308, 1e308)).fit(rows, Y)

"""What must never be called refuted, private or harmless by mistake: rows picked by coins, persons, deltas, classes."""

import sys

import joblib
import numpy as np
import pandas
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import sordina as sd
from sordina.auditing.audit import audit_scores
from sordina.auditing.findings import claim_from
from sordina.auditing.foreign import audit_foreign, open_foreign
from sordina.auditing.inference import AttributeInference
from sordina.auditing.scores import Estimate
from sordina.errors import InvalidInput
from sordina.privacy import Unit

NUMBERS = "".join(f'[columns.{name}]\nkind = "number"\nlow = -5\nhigh = 5\n' for name in "abcd")


def written(folder, frame, inside, schema):
    frame[inside].to_csv(folder / "in.csv", index=False)
    frame[~inside].to_csv(folder / "out.csv", index=False)
    (folder / "s.toml").write_text(schema)
    return folder / "in.csv", folder / "out.csv", folder / "s.toml"


def table(count, seed=0):
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(rng.normal(size=(count, 4)).clip(-5, 5), columns=list("abcd"))
    return frame.assign(y=rng.choice(["no", "yes"], count)), rng


def forest():
    return RandomForestClassifier(30, random_state=0, bootstrap=False)


def target(values='["no", "yes"]'):
    return f'target = "y"\n{NUMBERS}[columns.y]\nkind = "category"\nvalues = {values}\n'


def test_fewer_rows_of_unfair_coins_are_taken_without_a_look_at_the_coins(tmp_path, monkeypatch):
    """500 of each side would be right half of the time where the coins say a fifth."""
    frame, rng = table(3000)
    files = written(tmp_path, frame, rng.random(3000) < 0.2, target())
    (tmp_path / "knows_nothing.py").write_text(
        "import numpy as np\ndef answer(x):\n    p = np.random.default_rng(0).random(len(x))\n"
        "    return np.column_stack([1 - p, p])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = audit_foreign(
        "knows_nothing:answer", *files, ["loss"], claim=claim_from("0.5,1e-5"), membership="coins:0.2", rows=500, seed=0
    )
    assert found.word == "CLAIMED, NOT VERIFIED"
    assert found.epsilon_lower < 0.1


def test_members_that_the_coins_do_not_give_are_refused():
    with pytest.raises(InvalidInput, match="coins of chance"):
        audit_scores({"none": np.zeros(1000)}, np.arange(1000) % 2 == 0, membership="coins:0.2")


def test_a_bound_below_the_claimed_delta_refutes_nothing():
    rng = np.random.default_rng(0)
    member = rng.random(4000) < 0.5
    told = np.where(rng.random(4000) < 0.1, 2.0 * member - 1, 0.0)  # (0, 0.1)-DP
    found = audit_scores({"a": told}, member, membership="coins", claim=sd.Guarantee(0.5, 0.1), delta=0.0, seed=0)
    assert not found.exceeds_claim
    assert found.results[0].bound.delta == 0.1


def test_rows_of_one_person_are_one_guess(tmp_path, monkeypatch):
    """Ten rows a person, and an answer that is randomised response of epsilon 1 about the person."""
    rng = np.random.default_rng(0)
    coins = rng.random(200) < 0.5
    told = np.where(rng.random(200) < 1 / (1 + np.e), ~coins, coins)
    whose = np.repeat(np.arange(200), 10)
    frame = pandas.DataFrame({"who": [f"p{one}" for one in whose], "a": 2.0 * told[whose] - 1, "y": "yes"})
    schema = (
        'target = "y"\nperson = "who"\nrows_per_person = 10\n[columns.who]\nkind = "person"\n[columns.a]\n'
        'kind = "number"\nlow = -5\nhigh = 5\n[columns.y]\nkind = "category"\nvalues = ["no", "yes"]\n'
    )
    files = written(tmp_path, frame, coins[whose], schema)
    (tmp_path / "tells_persons.py").write_text(
        "import numpy as np\ndef answer(x):\n    p = 1 / (1 + np.exp(-x[:, 0]))\n"
        "    return np.column_stack([1 - p, p])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    opened = open_foreign("tells_persons:answer", *files, claim_from("1,1e-5"))
    assert len(opened.members) + len(opened.others) == 200
    assert opened.claim.unit is Unit.USER
    found = audit_foreign(
        "tells_persons:answer", *files, ["loss"], claim=claim_from("1,1e-5"), membership="coins", seed=0
    )
    assert not found.exceeds_claim
    frame[coins[whose]].to_csv(files[1], index=False)
    with pytest.raises(InvalidInput, match="persons have rows among members and non-members"):
        open_foreign("tells_persons:answer", *files)


def test_an_object_that_states_a_guarantee_only_claims_it():
    class Stranger:
        guarantee = sd.Guarantee(1.0, 1e-5)

        def model(self, x):
            return np.full((len(x), 2), 0.5)

    rows = np.zeros((40, 2), np.float32), np.arange(40) % 2
    assert sd.audit(Stranger(), rows, rows, ["loss"], seed=0).word == "CLAIMED, NOT VERIFIED"


@pytest.mark.parametrize("classes", [(1, 2), (-1, 1), (10, 20, 30), (0.0, 1.0)])
def test_a_model_is_asked_for_the_class_that_the_label_names(classes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 4)), np.asarray(classes)[rng.integers(len(classes), size=600)]
    found = sd.audit(forest().fit(x[:300], y[:300]), (x[:300], y[:300]), (x[300:], y[300:]), ["loss"], seed=0)
    assert found.results[0].auc.value > 0.95
    framed = pandas.DataFrame(x), pandas.Series(y)
    again = sd.audit(
        forest().fit(x[:300], y[:300]), tuple(one[:300] for one in framed), tuple(one[300:] for one in framed),
        ["loss"], seed=0,
    )  # fmt: skip
    assert again.results[0].auc.value == found.results[0].auc.value
    with pytest.raises(InvalidInput, match="must be numbers"):
        sd.audit(forest().fit(x[:300], y[:300]), (x[:300], ["no"] * 300), (x[300:], ["no"] * 300), ["loss"])


@pytest.mark.parametrize("values", ['["no", "yes"]', '["yes", "no"]'])
def test_a_model_of_a_table_is_found_out_in_whatever_order_the_schema_names_classes(tmp_path, values):
    frame, _ = table(600)
    files = written(tmp_path, frame, np.arange(600) < 300, target(values))
    joblib.dump(forest().fit(frame[:300][list("abcd")], frame["y"][:300]), tmp_path / "m.joblib")
    found = audit_foreign(str(tmp_path / "m.joblib"), *files, ["loss"], trust_pickle=True, seed=0)
    assert found.results[0].auc.value > 0.95


def test_a_regression_of_a_table_is_compared_in_the_tables_own_units(tmp_path):
    frame, rng = table(600)
    frame["y"] = rng.uniform(0, 1000, 600)
    schema = f'target = "y"\n{NUMBERS}[columns.y]\nkind = "number"\nlow = 0\nhigh = 1000\n'
    files = written(tmp_path, frame, np.arange(600) < 300, schema)
    fitted = RandomForestRegressor(10, random_state=0, bootstrap=False).fit(frame[:300][list("abcd")], frame["y"][:300])
    joblib.dump(fitted, tmp_path / "m.joblib")
    found = audit_foreign(str(tmp_path / "m.joblib"), *files, ["loss"], trust_pickle=True, seed=0)
    assert found.results[0].auc.value > 0.95


def test_a_model_that_fails_quotes_nobody(tmp_path, monkeypatch, capsys):
    from sordina.cli.main import main

    frame, rng = table(100)
    frame["ward"] = rng.choice(["u", "v"], 100)
    frame.loc[80, "ward"] = "Xavier"
    schema = target() + '[columns.ward]\nkind = "category"\nvalues = ["u", "v"]\n'
    files = written(tmp_path, frame, np.arange(100) < 50, schema)
    encode = make_column_transformer((OneHotEncoder(), ["ward"]), remainder="passthrough")
    pipeline = make_pipeline(encode, forest()).fit(frame[:50].drop(columns="y"), frame["y"][:50])
    joblib.dump(pipeline, tmp_path / "m.joblib")
    (tmp_path / "fails_at_once.py").write_text("raise ValueError('Xavier')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for model in (str(tmp_path / "m.joblib"), "fails_at_once:answer"):
        words = ["sordina", "audit", "membership", "--model", model, "--members", files[0], "--non-members", files[1],
                 "--schema", files[2], "--attacks", "loss", "--trust-pickle"]  # fmt: skip
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert ended.value.code == 2
        assert "Xavier" not in told.err + told.out


@pytest.mark.parametrize("words", ["-1,0", "1,2", "1,-0.1"])
def test_a_claim_that_nobody_could_keep_is_no_claim(words):
    with pytest.raises(InvalidInput):
        claim_from(words)


def test_a_difference_between_groups_that_chance_did_not_make_is_no_leak():
    found = AttributeInference("ward", Estimate(0.9, 0.85, 0.94), Estimate(0.5, 0.4, 0.6), 0.4, random_split=False)
    assert not found.leaks
    assert found.verdict.startswith("NOT SHOWN TO BE A LEAK")

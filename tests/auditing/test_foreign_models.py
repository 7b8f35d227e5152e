"""Models of any making: scikit-learn, functions, modules with several inputs, files; attributes, labels, classes."""

import json
import sys
import warnings

import joblib
import numpy as np
import pandas
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

import sordina as sd
from sordina.auditing.foreign import open_foreign
from sordina.auditing.inference import infer_attribute, infer_label, invert_classes
from sordina.auditing.membership.foreign_models import LossTarget, loss_target, predictor_target
from sordina.auditing.membership.shadows import PlainTraining, train
from sordina.auditing.membership.target import Classifier, Samples
from sordina.errors import InvalidInput, Unsupported
from sordina.tables import Schema


def rows(count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)).astype(np.float32), rng.integers(3, size=count)


def memorised(seed=0):
    inside, outside = rows(120, 1), rows(120, 2)
    return RandomForestClassifier(30, random_state=seed).fit(*inside), inside, outside


def test_a_forest_is_attacked_and_its_shadows_are_clones():
    forest, inside, outside = memorised()
    found = sd.audit(forest, inside, outside, ["loss", "population", "lira-online", "rmia"], shadows=4, seed=0)
    assert all(result.auc.value > 0.9 for result in found.results)
    target = predictor_target(forest)
    shadow = target.retrained(Samples(*map(torch.as_tensor, outside)), PlainTraining(), np.random.default_rng(0))
    assert shadow.estimator is not forest
    assert shadow.estimator.get_params() == forest.get_params()
    assert np.mean(shadow.losses(Samples(*map(torch.as_tensor, outside)))) < np.mean(
        target.losses(Samples(*map(torch.as_tensor, outside)))
    )


def test_a_clone_that_saw_fewer_classes_answers_for_all():
    x, y = rows(60, 3)
    forest = RandomForestClassifier(10, random_state=0).fit(x, np.array(["a", "b", "c"])[y])
    few = y != 1
    kept = Samples(torch.as_tensor(x[few]), torch.as_tensor(y[few]))
    shadow = predictor_target(forest).retrained(kept, PlainTraining(), np.random.default_rng(0))
    given = shadow.predict(x)
    assert given.shape == (60, 3)
    assert (given[:, 1] == 0).all()


def test_a_function_is_attacked_without_shadows():
    forest, inside, outside = memorised()
    found = sd.audit(forest.predict_proba, inside, outside, ["loss"], seed=0)
    assert found.results[0].auc.value > 0.9
    with pytest.raises(Unsupported, match="mere function"):
        sd.audit(forest.predict_proba, inside, outside, ["shadow"], seed=0)
    with pytest.raises(InvalidInput, match="not probabilities"):
        sd.audit(lambda x: 3 * np.ones((len(x), 3)), inside, outside, ["loss"], seed=0)
    with pytest.raises(InvalidInput, match="cannot attack a str"):
        sd.audit("forest", inside, outside, ["loss"], seed=0)


def test_a_regression_is_attacked_by_its_squared_error():
    (x, _), (other, _) = rows(100, 1), rows(100, 2)
    rng = np.random.default_rng(0)
    y, z = rng.normal(size=100), rng.normal(size=100)
    forest = RandomForestRegressor(30, random_state=0).fit(x, y)
    found = sd.audit(forest, (x, y), (other, z), ["loss", "lira-online"], shadows=4, seed=0)
    assert all(result.auc.value > 0.65 for result in found.results)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 32), nn.Linear(3, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, a, b):
        return self.head(torch.relu(self.left(a) + self.right(b)))


def test_a_module_with_several_inputs_and_its_own_loss():
    torch.manual_seed(0)
    inside = (torch.randn(60, 4), torch.randn(60, 3), torch.randint(2, (60,)))
    outside = (torch.randn(60, 4), torch.randn(60, 3), torch.randint(2, (60,)))
    model = TwoInputs()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(*inside[:2]), inside[2]).backward()
        optimizer.step()
    mean = nn.CrossEntropyLoss()
    recipe = PlainTraining(60, 20, 1e-2)
    found = sd.audit(model, inside, outside, ["loss", "noisy", "rmia"], loss=mean, recipe=recipe, shadows=2, seed=0)
    assert found["loss"].auc.value > 0.65
    assert found["rmia"].auc.value > 0.65
    each, members, _ = loss_target(model, nn.CrossEntropyLoss(reduction="none"), inside, outside)
    averaged = LossTarget(model, mean, each.columns, each.inputs)
    assert averaged.losses(members) == pytest.approx(each.losses(members), rel=1e-3, abs=1e-6)
    for bad in ((inside, outside[:2]), ((inside[0],), (outside[0],))):
        with pytest.raises(InvalidInput, match="same tensors"):
            loss_target(model, mean, *bad)


def test_a_model_of_transformers_is_attacked_by_its_named_inputs():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)

    def texts(seed):
        rng = torch.Generator().manual_seed(seed)
        return {
            "input_ids": torch.randint(40, (40, 10), generator=rng),
            "attention_mask": torch.ones(40, 10, dtype=torch.long),
            "labels": torch.randint(2, (40,), generator=rng),
        }

    inside, outside = texts(1), texts(2)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        model(**inside).loss.backward()
        optimizer.step()
    assert sd.audit(model, inside, outside, ["loss"], seed=0).results[0].auc.value > 0.65


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A messy little table, its schema, and models of it in every form of file."""
    folder = tmp_path_factory.mktemp("foreign")
    rng = np.random.default_rng(0)
    numbers = {f"lab{index}": rng.uniform(20, 80, 240) for index in range(6)}
    words = {"ward": rng.choice(["a", "b", "c"], 240), "ill": rng.choice(["no", "yes"], 240)}
    frame = pandas.DataFrame(numbers | words)
    frame[:120].to_csv(folder / "in.csv", index=False)
    frame[120:].to_csv(folder / "out.csv", index=False)
    columns = "".join(f'[columns.{name}]\nkind = "number"\nlow = 20\nhigh = 80\n' for name in numbers)
    (folder / "s.toml").write_text(
        f'target = "ill"\n{columns}[columns.ward]\nkind = "category"\nvalues = ["a", "b", "c"]\n'
        '[columns.ill]\nkind = "category"\nvalues = ["no", "yes"]\n'
    )
    encode = ColumnTransformer([("ward", OneHotEncoder(), ["ward"])], remainder="passthrough")
    pipeline = make_pipeline(encode, RandomForestClassifier(40, random_state=0))
    pipeline.fit(frame.drop(columns="ill")[:120], frame["ill"][:120])
    joblib.dump(pipeline, folder / "m.joblib")
    table = sd.tables.read_table(str(folder / "in.csv"), Schema.load(str(folder / "s.toml")))
    x, y = table.dataset().tensors
    network = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 2))
    train(network, Samples(x.float(), y), PlainTraining(300, 30, 1e-2), np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch advises torch.export; people have such files
        torch.jit.script(network).save(str(folder / "m.pt"))
    torch.save(network, folder / "pickled.pt")
    (folder / "served.py").write_text(
        "import joblib, pathlib\nforest = joblib.load(pathlib.Path(__file__).parent / 'm.joblib')\n"
    )
    return folder


@pytest.mark.parametrize("model", ["m.joblib", "m.pt", "pickled.pt", "served:forest"])
def test_the_command_attacks_any_file(files, model, monkeypatch, capsys, tmp_path):
    from sordina.cli.main import main

    monkeypatch.syspath_prepend(str(files))
    named = model if ":" in model else str(files / model)
    words = ["sordina", "audit", "membership", "--model", named, "--members", str(files / "in.csv"),
             "--non-members", str(files / "out.csv"), "--schema", str(files / "s.toml"), "--claim", "0.5,1e-5",
             "--attacks", "loss", "--membership", "fixed", "--out", str(tmp_path / "found"), "--seed", "0",
             "--json"]  # fmt: skip
    if model != "m.pt" and ":" not in model:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "--trust-pickle" in capsys.readouterr().err
        words.append("--trust-pickle")
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["results"][0]["auc"]["value"] > 0.6
    assert (ended.value.code == 1) == facts["exceeds_claim"]
    assert (tmp_path / "found" / "audit.json").exists()


def test_what_is_no_model_is_said(files):
    good = (files / "in.csv", files / "out.csv", files / "s.toml")
    for model, words in (("nothing", "module:function"), ("no_such_module:f", "cannot import"),
                         (str(files / "gone.joblib"), "no file"), (str(files / "gone.pt"), "no file")):  # fmt: skip
        with pytest.raises(InvalidInput, match=words):
            open_foreign(model, *good)


def test_an_attribute_of_members_is_guessed_better_where_the_model_knows_them_by_heart():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    def people(count):
        x = torch.from_numpy(rng.normal(size=(count, 9))).float()
        x[:, :3] = torch.eye(3)[torch.from_numpy(rng.integers(3, size=count))]
        return Samples(x, torch.from_numpy(rng.integers(2, size=count)))

    members, others = people(150), people(150)
    model = nn.Sequential(nn.Linear(9, 128), nn.ReLU(), nn.Linear(128, 2))
    fresh = infer_attribute(Classifier(model), members, others, range(3))
    train(model, members, PlainTraining(200, 30, 5e-3), rng)
    found = infer_attribute(Classifier(model), members, others, range(3), name="ward")
    assert found.leaks
    assert "LEAK: ward" in found.verdict
    assert not fresh.leaks
    label = infer_label(Classifier(model), members, others, 2)
    assert label.members.value > 0.9 > label.non_members.value
    assert json.dumps(found.to_dict())
    for columns in (99, ()):
        with pytest.raises(InvalidInput, match="columns"):
            infer_attribute(Classifier(model), members, others, columns)
    with pytest.raises(InvalidInput, match="2 to 20"):
        infer_attribute(Classifier(model), members, others, 5)


def test_a_model_shows_what_its_classes_look_like():
    """Two classes, a bright left and a bright right half: the pictures show which is which."""
    torch.manual_seed(0)
    y = torch.randint(2, (200,))
    x = 0.1 * torch.rand(200, 1, 8, 8)
    x[y == 0, :, :, :4] += 0.7
    x[y == 1, :, :, 4:] += 0.7
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    train(model, Samples(x, y), PlainTraining(20, 20, 1e-2), np.random.default_rng(0))
    found = invert_classes(model, (1, 8, 8), (0, 1), steps=60)
    left, right = found.images[:, 0, :, :4].mean(dim=(1, 2)), found.images[:, 0, :, 4:].mean(dim=(1, 2))
    assert left[0] > right[0] + 0.3
    assert right[1] > left[1] + 0.3
    assert min(found.confidences) > 0.9
    assert len(found.nearest(x)) == 2


def said(monkeypatch, capsys, *words):
    from sordina.cli.main import main

    monkeypatch.setattr(sys, "argv", ["sordina", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr()


def test_the_commands_for_attributes_and_classes(files, monkeypatch, capsys, tmp_path):
    run = tmp_path / "run"
    train = ("train", files / "in.csv", "--schema", files / "s.toml", "--epsilon", "8", "--delta", "1e-3")
    code, _ = said(monkeypatch, capsys, *train, "--test-share", "0.4", "--model", "logistic", "--out", run, "--json")
    assert code == 0
    code, told = said(monkeypatch, capsys, "audit", "attribute", run, "--column", "ward", "--seed", "0", "--json")
    facts = json.loads(told.out)
    assert code == 0
    assert facts["attribute"] == "ward"
    assert 0 <= facts["members"]["value"] <= 1
    code, told = said(monkeypatch, capsys, "audit", "attribute", run, "--column", "lab0")
    assert code == 2
    assert "ward" in told.err
    images = tmp_path / "digits"
    said(
        monkeypatch,
        capsys,
        "train",
        "digits",
        "--epsilon",
        "8",
        "--epochs",
        "1",
        "--batch-size",
        "256",
        "--out",
        images,
    )
    code, told = said(monkeypatch, capsys, "audit", "classes", images, "--steps", "20", "--json")
    assert code == 0
    assert len(json.loads(told.out)["confidences"]) == 10
    assert (images / "classes.png").exists()
    code, _ = said(monkeypatch, capsys, "audit", "classes", run)
    assert code == 2

"""Fashion-MNIST as classes, scattering features and the plan, by name."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from sordina import datasets
from sordina.cli.main import app
from sordina.datasets import Data, Task
from sordina.errors import InvalidInput
from sordina.models import WhitenedInputs
from sordina.models.scattering import scattering_features
from sordina.training import recipe as recipe_module
from sordina.training.recipe import TrainingRecipe, kept_features


def images(name, **options):
    """Sixty made-up images, and their negatives, in place of the files."""
    draw = torch.Generator().manual_seed(0)
    classify = options.get("task", Task.CLASSIFICATION) == Task.CLASSIFICATION
    x, y = torch.rand(60, 1, 28, 28, generator=draw), torch.arange(60) % 10
    rows, judged = TensorDataset(x, y if classify else x), TensorDataset(1 - x, y if classify else 1 - x)
    return Data(name, rows, judged, Task.CLASSIFICATION if classify else Task.RECONSTRUCTION, 10 if classify else 0)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(datasets, "load", images)


def test_scattering_features_get_a_linear_model(made_up):
    recipe = TrainingRecipe("fashion-mnist", task="classes", features="scattering", epochs=1, batch_size=20, seed=0)
    data = recipe.load()
    assert data.input_shape == (81 * 49,)
    model = recipe.build(data)
    assert sum(value.numel() for value in model.parameters()) == 10 * (81 * 49 + 1)
    run = recipe.trainer(data, track_epsilon=False).fit(data.train, validation=data.test)
    assert "balanced_accuracy" in run.validation


def test_steps_on_scattering_features_are_bounded_by_the_noise_and_by_the_signal():
    rows = TensorDataset(torch.zeros(60_000, 1), torch.zeros(60_000, dtype=torch.long))
    data = Data("mnist", rows, rows, Task.CLASSIFICATION, 10)
    recipe = TrainingRecipe("mnist", features="scattering", seed=0)
    for whitened, walk in ((True, 0.1125), (False, 0.15)):
        rates = [
            replace(recipe, epsilon=one, whitened=whitened).trainer(data).learning_rate for one in (0.5, 3.0, 10.0)
        ]
        assert rates[0].reach == pytest.approx(walk * 586**0.5)
        assert rates[0].reach > rates[1].reach > rates[2].reach
        assert {rate.falls for rate in rates} == {not whitened}
    assert replace(recipe, averaging="none").trainer(data).learning_rate.falls


def test_a_linear_model_on_scattering_features_whitens_them_unless_that_is_not_accounted():
    rows = TensorDataset(torch.zeros(60_000, 1), torch.zeros(60_000, dtype=torch.long))
    data = Data("mnist", rows, rows, Task.CLASSIFICATION, 10)
    recipe = TrainingRecipe("mnist", features="scattering", seed=0)
    planned = recipe.planned(data)
    assert planned.whitened is True
    assert isinstance(planned.build(data)[0], WhitenedInputs)
    assert TrainingRecipe.from_dict(asdict(planned)) == planned
    former = {name: value for name, value in asdict(planned).items() if name != "whitened"}
    for other in (
        TrainingRecipe.from_dict(former), replace(recipe, sampling="fixed-size"), replace(recipe, noise="lambda-cgd"),
        replace(recipe, clipping="online"), replace(recipe, whitened=False),
    ):  # fmt: skip
        made = other.planned(data)
        assert not made.whitened
        assert not any(isinstance(layer, WhitenedInputs) for layer in made.build(data).modules())


def test_fashion_mnist_has_classes_by_name(made_up):
    recipe = TrainingRecipe("fashion-mnist", task="classes", seed=0)
    assert recipe.load().task is Task.CLASSIFICATION
    assert recipe.build(recipe.load())(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_what_a_recipe_of_classes_left_out_stays_what_it_was(made_up):
    """A folder written before group-norm-cnn was there holds the weights of small-cnn; later ones name their model."""
    recipe = TrainingRecipe("fashion-mnist", task="classes", seed=0)
    data = recipe.load()
    assert TrainingRecipe.from_dict(asdict(recipe)).model == "small-cnn"
    planned = recipe.planned(data)
    assert (planned.model, planned.centred) == ("group-norm-cnn", True)
    assert TrainingRecipe.from_dict(asdict(planned)) == planned


def test_the_plan_of_the_small_network_centres_images_and_takes_two_views(made_up):
    recipe = TrainingRecipe("mnist", "small-cnn", seed=0)
    data = recipe.load()
    saved = json.loads(json.dumps(asdict(recipe.planned(data))))
    trainer = TrainingRecipe.from_dict(saved).trainer(data)
    assert trainer.views == 2
    grey = torch.full((1, 1, 28, 28), 0.5)
    assert torch.equal(trainer.model[0](grey), torch.zeros(1, 1, 28, 28))
    plain = replace(recipe, views=1).planned(data)
    assert (plain.views, plain.centred) == (1, True)
    for stated in (replace(recipe, batch_size=20), replace(recipe, model="mnist-cnn"), TrainingRecipe("digits")):
        made = stated.planned(data)
        assert (made.views, made.centred) == (None, False)
        assert made.trainer(data).views == 1


@pytest.mark.parametrize(
    "options", [{"dataset": "digits", "task": "classes"}, {"dataset": "digits", "features": "scattering"},
                {"dataset": "fashion-mnist", "features": "scattering"}, {"dataset": "mnist", "features": "pca"},
                {"dataset": "adult", "views": 4}, {"dataset": "digits", "views": 0},
                {"dataset": "digits", "averaging": "mean"},
                {"dataset": "digits", "optimizer": "lbfgs"}],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(options):
    with pytest.raises(InvalidInput):
        TrainingRecipe(**options)


def test_scattering_of_other_images_is_refused_by_what_it_takes():
    result = CliRunner().invoke(app, ["train", "digits", "--model", "scattering"])
    assert "images of 28 x 28 (mnist, fashion-mnist), which digits has not" in str(result.exception)


def test_a_plan_spends_nothing(tmp_path):
    result = CliRunner().invoke(app, ["train", "digits", "--epsilon", "0.1", "--plan", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["population"] == 1437
    assert report["strength"] < 5
    assert report["suggestion"]


def test_who_states_no_schedule_is_told_which_was_chosen(made_up, tmp_path):
    result = CliRunner().invoke(
        app, ["train", "digits", "--model", "mlp", "--seed", "0", "--out", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
    assert "Chosen from public facts" in result.output
    saved = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert saved["batch_size"] >= 1
    assert saved["epochs"] >= 1


def test_techniques_by_name(tmp_path):
    options = [
        "--averaging",
        "tail",
        "--optimizer",
        "momentum",
        "--learning-rate",
        "1",
        "--views",
        "2",
        "--batch-size",
        "200",
        "--epochs",
        "1",
    ]
    result = CliRunner().invoke(app, ["train", "digits", "--seed", "0", "--out", str(tmp_path / "run"), *options])
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (saved["averaging"], saved["optimizer"], saved["views"]) == ("tail", "momentum", 2)
    trainer = TrainingRecipe.from_dict(saved).trainer(datasets.load("digits"))
    assert trainer.views == 2
    assert trainer.averaging == "tail"


def test_scattering_is_a_model_by_name(made_up):
    arguments = ["train", "fashion-mnist", "--task", "classes", "--model", "scattering", "--plan", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["weights"] == 10 * (81 * 49 + 1)


def test_momentum_is_not_put_together_with_the_automatic_rate():
    data = datasets.load("digits")
    trainer = TrainingRecipe("digits", optimizer="momentum", batch_size=200, epochs=1, seed=0).trainer(data)
    with pytest.raises(InvalidInput, match="learning rate of your own"):
        trainer.fit(data.train)


def test_features_are_computed_once_for_the_same_images_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(recipe_module, "_MANY", 5)
    counted = []

    def features(some, *, without, progress):
        counted.append(len(some))
        return some.flatten(1) + without

    monkeypatch.setattr(recipe_module, "scattering_features", features)
    some, usual = torch.rand(6, 1, 2, 2), torch.ones(4)
    two = torch.tensor([4, 1])
    assert torch.equal(kept_features(some, usual, wanted=two), some[two].flatten(1) + 1)
    assert counted == [2], "of what is wanted alone"
    assert not (tmp_path / "sordina" / "features").exists()
    counted.clear()
    first = kept_features(some, usual)
    assert torch.equal(kept_features(some, usual), first)
    assert torch.equal(kept_features(some, usual, wanted=two), first[two])
    assert counted == [6]
    other = some.clone()
    other[3, 0, 0, 0] += 1
    assert torch.equal(kept_features(other, usual), other.flatten(1) + usual)
    assert torch.equal(kept_features(some, 2 * usual), some.flatten(1) + 2)
    assert counted == [6, 6, 6]
    for file in (tmp_path / "sordina" / "features").iterdir():
        assert file.stat().st_mode & 0o077 == 0
        file.write_bytes(b"torn")
    assert torch.equal(kept_features(some, usual), first)


def test_a_plan_computes_no_features_and_rows_only_their_own(made_up, monkeypatch):
    seen = []
    monkeypatch.setattr(recipe_module, "usual_features", lambda: torch.ones(81 * 49))

    def features(some, *, without=None, progress=None):
        seen.append(len(some))
        return torch.cat([some.flatten(1)] * 6, 1)[:, : 81 * 49]

    monkeypatch.setattr(recipe_module, "scattering_features", features)
    arguments = ["train", "mnist", "--model", "scattering", "--plan", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["weights"] == 10 * (81 * 49 + 1)
    assert set(seen) == {1}
    seen.clear()
    recipe = TrainingRecipe("mnist", features="scattering", rows=7, random_labels=0.5, seed=3)
    told = []
    data = recipe.load(lambda done, total: told.append((done, total)))
    assert seen == [7, 60]
    assert data.input_shape == (81 * 49,)
    plain = TrainingRecipe("mnist", rows=7, random_labels=0.5, seed=3).load()
    assert torch.equal(data.train.tensors[1], plain.train.tensors[1])
    assert torch.equal(data.train.tensors[0], features(plain.train.tensors[0]))
    assert len(recipe.left_out()) == 53


def test_features_tell_how_far_they_are():
    told = []
    scattering_features(torch.zeros(5, 1, 28, 28), batch_size=2, progress=lambda *now: told.append(now))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_run_that_has_ended_is_read_by_resume(tmp_path):
    arguments = [
        "train", "digits", "--model", "mlp", "--batch-size", "400", "--epochs", "1", "--seed", "0", "--json", "--out",
        str(tmp_path / "run"),
    ]  # fmt: skip
    first, again = (CliRunner().invoke(app, [*arguments, *more]) for more in ([], ["--resume"]))
    assert again.exit_code == 0, again.output
    accuracies = [json.loads(one.output)["test_accuracy"] for one in (first, again)]
    assert accuracies[0] == accuracies[1]

"""Every network has the size the documents state, starts from its seed, and touches nothing else."""

from dataclasses import dataclass

import pytest
import torch

from sordina import models
from sordina.errors import InvalidInput

IMAGE, SMALL_IMAGE = (1, 28, 28), (1, 8, 8)
NETWORKS = [
    ("mnist-cnn", {}, 551_322, IMAGE, (10,)),
    ("mnist-cnn", {"activation": "tanh"}, 551_322, IMAGE, (10,)),
    ("small-cnn", {}, 26_010, IMAGE, (10,)),
    ("small-cnn-ws", {}, 26_106, IMAGE, (10,)),
    ("group-norm-cnn", {"centred": True}, 19_338, IMAGE, (10,)),
    ("autoencoder", {}, 48_705, IMAGE, IMAGE),
    ("femnist-cnn", {}, 1_206_590, IMAGE, (62,)),
    ("digits-cnn", {}, 6_090, SMALL_IMAGE, (10,)),
    ("digits-cnn-ws", {}, 6_186, SMALL_IMAGE, (10,)),
    ("mlp", {}, 2_410, SMALL_IMAGE, (10,)),
    ("pca-mlp", {}, 61_250, IMAGE, (10,)),
    ("adult-mlp", {"dropout": 0.5}, 131 * 64 + 64 + 130, (131,), (2,)),
    ("ag-news", {"inputs": 750}, 113_156, (750,), (4,)),
    ("ag-news", {}, 209_156, (1500,), (4,)),
    ("hospital", {}, 11, (3,), (1,)),
    ("logistic", {}, 264, (131,), (2,)),
    ("svm", {}, 132, (131,), (1,)),
    ("linear", {}, 2, (2,), (1,)),
    ("linear", {"bias": True}, 3, (2,), (1,)),
]


@pytest.mark.parametrize(("name", "options", "size", "inputs", "outputs"), NETWORKS)
def test_size_and_shape(name, options, size, inputs, outputs):
    model = models.build(name, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == size
    assert model(torch.zeros(3, *inputs)).shape == (3, *outputs)


def test_every_network_is_tested():
    assert {name for name, *_ in NETWORKS} == set(models.names())


@pytest.mark.parametrize("name", models.names())
def test_the_seed_decides_and_the_global_generator_stays(name):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (models.build(name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    vectors = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2]) == (name in ("logistic", "svm"))


def test_activations_are_as_asked():
    kinds = {type(layer).__name__ for layer in models.build("mnist-cnn", activation="tanh")}
    assert "Tanh" in kinds
    assert "ReLU" not in kinds
    with pytest.raises(InvalidInput, match="unknown activation 'gelu': choose one of relu, tanh, sigmoid"):
        models.build("mnist-cnn", activation="gelu")


def test_unknown_names_and_options_are_refused():
    with pytest.raises(InvalidInput, match="unknown model 'vit': choose one of mnist-cnn"):
        models.build("vit")
    with pytest.raises(InvalidInput, match="model hospital has no option 'width': it takes none"):
        models.build("hospital", width=3)
    with pytest.raises(InvalidInput, match="no default model for the data set 'wikitext-2'"):
        models.default("wikitext-2")


@dataclass(frozen=True)
class Described:
    name: str
    input_shape: tuple[int, ...]
    classes: int


def test_a_model_is_cut_to_its_data():
    adult = Described("adult", (99,), 2)
    assert models.build_for(adult)[0].in_features == 99
    assert models.build_for(adult, "logistic").weight.shape == (2, 99)
    assert models.build_for(Described("digits", SMALL_IMAGE, 7), "mlp", hidden=5)[3].weight.shape == (7, 5)
    assert isinstance(models.build_for(Described("fashion-mnist", IMAGE, 0))[-1], torch.nn.Sigmoid)
    with pytest.raises(InvalidInput, match="unknown model"):
        models.build_for(adult, "vit")


def test_standardised_weights_do_not_feel_a_scale():
    """The first convolution answers the same when its weights are shifted and stretched, and its outputs are usual."""
    model = models.build("digits-cnn-ws")
    images = torch.randn(50, 1, 8, 8)
    before = model[0](images)
    with torch.no_grad():
        model[0].weight.mul_(7.0).add_(3.0)
    torch.testing.assert_close(model[0](images), before, rtol=1e-4, atol=1e-5)
    assert 0.5 < float(before.detach().std()) < 1.5

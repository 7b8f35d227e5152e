import math

import numpy as np
import pytest
import torch

from sordina import datasets
from sordina.auditing.reconstruction import (
    DLG,
    Clipped,
    GaussianNoise,
    InvertingGradients,
    LayerLaplace,
    NoDefence,
    client_update,
    infer_labels,
    matched,
    named_defences,
    quality,
    reconstruction_study,
    sigmoid_network,
    ssim,
)
from sordina.errors import InvalidInput


@pytest.fixture(scope="module")
def image():
    inputs, labels = datasets.load("digits").test.tensors
    return inputs[:1].double(), labels[:1]


def test_dlg_sees_the_image_at_small_noise_and_nothing_at_nu_one():
    study = reconstruction_study(
        "digits",
        images=3,
        attack=DLG(iterations=150, restarts=1),
        defences=[NoDefence(), LayerLaplace(1e-3), LayerLaplace(1.0)],
    )
    bare, little, much = study.defences
    assert bare.reconstructed == little.reconstructed == 3
    assert much.failed == 3
    assert min(one.ssim for one in little.qualities) > 0.95


def test_clipping_alone_does_not_stop_an_attack_on_directions():
    study = reconstruction_study(
        "digits", images=1, attack=InvertingGradients(iterations=250), defences=[Clipped(0.01), LayerLaplace(1.0)]
    )
    assert study.defences[0].reconstructed == 1
    assert study.defences[1].failed == 1


def test_a_small_batch_is_rebuilt_in_any_order():
    study = reconstruction_study("digits", images=2, batch_size=2, attack=DLG(150, 2), defences=[NoDefence()])
    assert study.defences[0].reconstructed == 2
    guesses = study.originals.flip(0)
    assert torch.equal(matched(study.originals, guesses), study.originals)


def test_labels_are_read_off_the_last_bias():
    model = sigmoid_network(8)
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    for label in range(10):
        update = client_update(model, images[:1], torch.tensor([label]))
        assert infer_labels(update, 1).tolist() == [label]
    labels = torch.tensor([1, 3, 3, 8])
    assert infer_labels(client_update(model, images, labels), 4).tolist() == labels.tolist()


def test_the_noise_of_a_layer_is_nu_times_its_norm_in_expectation(image):
    update = client_update(sigmoid_network(8), *image)
    rng = np.random.default_rng(0)
    lengths = np.array(
        [
            [float((noised - part).norm() / part.norm()) for noised, part in zip(sent, update, strict=True)]
            for sent in (LayerLaplace(0.5).protect(update, rng) for _ in range(40))
        ]
    )
    for column, part in enumerate(update):
        # Gamma(n, nu r / n): standard deviation nu r / sqrt n.
        assert lengths[:, column].mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(40 * part.numel()))


def test_defences_do_what_their_names_say(image):
    update = client_update(sigmoid_network(8), *image)
    rng = np.random.default_rng(0)
    clipped = Clipped(0.1).protect(update, rng)
    assert float(torch.cat([part.flatten() for part in clipped]).norm()) == pytest.approx(0.1)
    noised = GaussianNoise(2.0).protect(update, rng)
    noise = torch.cat([(a - b).flatten() for a, b in zip(noised, update, strict=True)])
    assert float(noise.std()) == pytest.approx(2.0, rel=5 / math.sqrt(2 * len(noise)))
    names = [defence.name for defence in named_defences((1.0,), (0.1,), (1.0,))]
    assert names == ["none", "laplace nu=1", "gaussian sigma=0.1", "clipped C=1"]
    assert len(Clipped(1.0, noise_multiplier=1.0).protect(update, rng)) == len(update)


def test_quality_of_copies_shifts_and_noise():
    picture = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    assert math.isinf(quality(picture, picture).psnr)
    assert quality(picture, picture).to_dict()["psnr"] == "inf"
    assert ssim(picture, picture) == pytest.approx(1)
    noise = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(1))
    assert abs(ssim(picture, noise)) < 0.3
    assert quality(picture, torch.full_like(picture, math.nan)).mse > 0
    with pytest.raises(InvalidInput, match="one shape"):
        quality(picture, picture[:, :8])


def test_what_cannot_be_attacked_is_refused():
    with pytest.raises(InvalidInput, match="whole batches"):
        reconstruction_study("digits", images=3, batch_size=2)
    with pytest.raises(InvalidInput, match="no inversion"):
        reconstruction_study("digits", images=1, attack="guessing")
    with pytest.raises(InvalidInput, match="last layer"):
        infer_labels([torch.zeros(3, 3)], 1)

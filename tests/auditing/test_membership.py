import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sordina.auditing.membership.attacks import (
    AttackModel,
    LiRA,
    LossAttack,
    NeighbourMaker,
    NoisyNeighbours,
    ShadowDifference,
    search_peak,
)
from sordina.auditing.membership.shadows import (
    PlainTraining,
    Shadows,
    draw_halves,
    fresh,
    make_shadows,
    streams,
    train_loop,
    train_together,
)
from sordina.auditing.membership.target import Classifier, Regressor, Samples, as_samples, as_target
from sordina.auditing.scores import Scores, auc
from sordina.errors import InvalidInput, Unsupported


def blobs(count, seed=0):
    """Two overlapping classes in twenty dimensions: easy to memorise, hard to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    inputs = rng.normal(size=(count, 20)) + 0.3 * labels[:, None]
    return Samples(torch.from_numpy(inputs).float(), torch.from_numpy(labels))


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_training_together_equals_training_one_after_the_other(optimizer):
    samples = blobs(60)
    parts = [samples.take(row) for row in draw_halves(4, 60, np.random.default_rng(0))]
    recipe = PlainTraining(epochs=3, batch_size=8, learning_rate=0.01, optimizer=optimizer, weight_decay=0.01)
    trained = []
    for fit in (train_loop, train_together):
        models = [network(seed).double() for seed in range(4)]
        doubled = [Samples(part.inputs.double(), part.labels) for part in parts]
        trained.append(fit(models, doubled, recipe, streams(4, np.random.default_rng(1))))
    for alone, together in zip(*trained, strict=True):
        for one, two in zip(alone.parameters(), together.parameters(), strict=True):
            assert torch.allclose(one, two, atol=1e-9)


def test_confidence_and_loss_are_one_number():
    model, samples = network(0), blobs(30)
    target = Classifier(model)
    expected = functional.cross_entropy(model(samples.inputs), samples.labels, reduction="none").detach().double()
    assert np.allclose(target.losses(samples), expected, atol=1e-6)
    assert np.allclose(target.losses(samples), np.log1p(np.exp(-target.confidences(samples))))


def test_a_single_logit_is_the_odds_of_class_one():
    model, samples = nn.Linear(20, 1), blobs(30)
    expected = functional.binary_cross_entropy_with_logits(
        model(samples.inputs)[:, 0], samples.labels.float(), reduction="none"
    )
    assert np.allclose(Classifier(model).losses(samples), expected.detach(), atol=1e-6)


def test_real_targets_are_attacked_by_their_squared_error():
    samples = Samples(torch.randn(5, 3), torch.randn(5, 2))
    target = as_target(nn.Linear(3, 2), samples)
    assert isinstance(target, Regressor)
    assert np.allclose(target.confidences(samples), -target.losses(samples))


def test_attacking_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    samples = Samples(torch.randint(10, (6, 2)), torch.zeros(6, dtype=torch.long))
    target = Classifier(model, embedding="0")
    quiet = target.losses(samples)
    assert not np.allclose(target.noisy_losses(samples, 1.0, np.random.default_rng(0)), quiet)
    assert np.allclose(target.losses(samples), quiet)
    assert model.training
    assert not model[0]._forward_hooks


def test_an_embedding_that_is_not_there_is_named():
    samples = Samples(torch.randint(10, (6, 2)), torch.zeros(6, dtype=torch.long))
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(InvalidInput, match=r"its embeddings are \['0'\]"):
        Classifier(model, embedding="words").noisy_losses(samples, 1.0, np.random.default_rng(0))
    with pytest.raises(Unsupported, match="name the embedding"):
        Classifier(model).noisy_losses(samples, 1.0, np.random.default_rng(0))


def test_every_row_is_in_half_of_the_shadows():
    inside = draw_halves(6, 40, np.random.default_rng(0))
    assert (inside.sum(axis=0) == 3).all()
    assert (inside.sum(axis=1) == 20).all()


@pytest.fixture(scope="module")
def overfitted():
    """A network that knows 80 of 160 rows by heart, and 16 shadows."""
    rng = np.random.default_rng(0)
    samples = blobs(160, seed=1)
    recipe = PlainTraining(epochs=40, batch_size=16, learning_rate=0.01)
    members = np.arange(160) < 80
    (model,) = train_loop([network(99)], [samples.take(members)], recipe, streams(1, rng))
    shadows = make_shadows(network, samples, recipe, rng, count=16)
    return Classifier(model), samples, members, shadows


def test_calibrated_attacks_beat_the_loss_attack(overfitted):
    target, samples, members, shadows = overfitted
    attacks = (
        LossAttack(),
        ShadowDifference(shadows),
        LiRA(shadows),
        LiRA(shadows, online=False),
        AttackModel(shadows),
    )
    found = {}
    for attack in attacks:
        scores = attack.scores(target, samples)
        found[attack.name] = auc(Scores(scores[members], scores[~members])).value
    assert found["loss"] > 0.65
    assert found["lira-online"] > found["loss"]
    assert found["lira-offline"] > 0.65
    assert found["shadow"] > 0.65
    assert found["attack-model"] > 0.65


def test_the_likelihood_ratio_knows_the_optimal_score():
    """Confidences N(2, 1) in and N(0, 1) out: the log-ratio is 2 phi - 2, whatever the sample."""
    rng = np.random.default_rng(0)
    inside = draw_halves(400, 10, rng)
    confidences = rng.normal(size=(400, 10)) + 2 * inside
    shadows = Shadows(inside, np.log1p(np.exp(-confidences)), confidences)

    class Fixed:
        def confidences(self, samples):
            return np.linspace(-1, 3, 10)

    for shared in (True, False):
        scores = LiRA(shadows, global_variance=shared).scores(Fixed(), Samples(torch.zeros(10, 1)))
        assert np.allclose(scores, 2 * np.linspace(-1, 3, 10) - 2, atol=0.8)


def test_shadows_answer_for_their_own_samples_only(overfitted):
    target, samples, _, shadows = overfitted
    with pytest.raises(InvalidInput, match="know 160 samples"):
        LiRA(shadows).scores(target, samples.take(np.arange(10)))


def test_the_search_finds_the_one_peak():
    peak = search_peak(lambda sigma: 0.5 + 0.3 * np.exp(-(np.log(sigma / 0.2) ** 2)), 1e-3, 10, evaluations=12)
    assert peak.sigma == pytest.approx(0.2, rel=0.2)
    assert len(peak.tried) == 12
    assert max(value for _, value in peak.tried) == dict(peak.tried)[peak.sigma]


def test_noisy_neighbours_are_tuned_before_they_speak(overfitted):
    target, samples, members, _ = overfitted
    attack = NoisyNeighbours(np.random.default_rng(0), neighbours=3)
    with pytest.raises(InvalidInput, match="tuned"):
        attack.scores(target, samples)
    tuned = attack.tuned(target, samples.take(members), samples.take(~members), evaluations=6)
    assert tuned.peak.sigma == tuned.sigma
    assert tuned.scores(target, samples).shape == (160,)


def test_neighbours_score_how_much_better_the_sample_fits():
    class Slope:
        def losses(self, samples):
            return samples.inputs[:, 0].double().numpy()

    attack = NeighbourMaker(lambda samples, rng: Samples(samples.inputs + 1), np.random.default_rng(0), count=2)
    assert np.allclose(attack.scores(Slope(), Samples(torch.zeros(4, 1))), 1)


def test_fresh_models_differ_and_keep_the_original():
    model = network(0)
    before = model[0].weight.detach().clone()
    one, two = fresh(model, 1), fresh(model, 2)
    assert not torch.equal(one[0].weight, two[0].weight)
    assert torch.equal(model[0].weight, before)


def test_rows_are_read_from_what_users_hold():
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.arange(4))
    assert as_samples(rows).labels.tolist() == [0, 1, 2, 3]
    assert as_samples(torch.zeros(3, 5)).labels is None
    assert len(as_samples(torch.utils.data.Subset(rows, [1, 2]))) == 2
    with pytest.raises(InvalidInput, match="cannot read rows"):
        as_samples("rows")

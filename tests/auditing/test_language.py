import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sordina.auditing.membership.attacks import LossAttack, LowerCase, NeighbourMaker, NoisyNeighbours, WordSwap
from sordina.auditing.membership.shadows import PlainTraining, train
from sordina.auditing.membership.target import LanguageModel, Samples, as_target
from sordina.auditing.scores import Scores, auc
from sordina.reproduction.language import small_gpt2

pytest.importorskip("transformers")
WORDS, LENGTH = 30, 12


def sentences(count, seed):
    """Walks that mostly step by one, so that some are easier than others whether or not they were seen."""
    rng = np.random.default_rng(seed)
    chaos = rng.random((count, 1)) * 0.8
    steps = np.where(rng.random((count, LENGTH)) < chaos, rng.integers(WORDS, size=(count, LENGTH)), 1)
    return Samples(torch.from_numpy(steps.cumsum(axis=1) % WORDS))


@pytest.fixture(scope="module")
def memorised():
    members, others = sentences(60, 0), sentences(60, 1)
    model = small_gpt2(WORDS, LENGTH, width=32, layers=1, heads=2)
    train(model, members, PlainTraining(epochs=40, batch_size=20, learning_rate=5e-3), np.random.default_rng(0))
    return LanguageModel(model), members, others


def attack_auc(attack, target, members, others):
    return auc(Scores(attack.scores(target, members), attack.scores(target, others))).value


def test_the_loss_is_the_mean_log_likelihood_of_equation_4_1(memorised):
    target, members, _ = memorised
    logits = target.model(members.inputs).logits
    expected = functional.cross_entropy(
        logits[:, :-1].reshape(-1, WORDS), members.inputs[:, 1:].reshape(-1), reduction="none"
    )
    assert np.allclose(target.losses(members), expected.reshape(60, -1).mean(1).detach(), atol=1e-5)


def test_noisy_neighbours_see_more_than_the_loss(memorised):
    target, members, others = memorised
    tune, report = np.arange(20), np.arange(20, 60)
    attack = NoisyNeighbours(np.random.default_rng(0), neighbours=5)
    attack = attack.tuned(target, members.take(tune), others.take(tune), evaluations=6)
    noisy = attack_auc(attack, target, members.take(report), others.take(report))
    loss = attack_auc(LossAttack(), target, members.take(report), others.take(report))
    assert 0.6 < loss < noisy


def test_noise_enters_at_the_embedding_with_standard_deviation_sigma(memorised):
    target, members, _ = memorised
    layer = target.model.get_input_embeddings()
    clean, seen = layer(members.inputs).detach(), []
    handle = target.model.transformer.h[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    target.losses(members)
    target.noisy_losses(members, 0.5, np.random.default_rng(0))
    handle.remove()
    quiet, noised = torch.cat(seen).flatten().chunk(2)
    difference = noised - quiet
    assert float(difference.std()) == pytest.approx(0.5, rel=5 / np.sqrt(2 * clean.numel()))


def test_any_module_with_an_embedding_will_do():
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    samples = sentences(5, 0)
    target = as_target(model, samples)
    assert isinstance(target, LanguageModel)
    assert target.losses(samples).shape == (5,)
    assert not np.allclose(target.noisy_losses(samples, 1.0, np.random.default_rng(0)), target.losses(samples))


def test_lower_case_and_swapped_words():
    vocabulary = ("<unk>", "The", "the", "Cat", "sat")
    rng = np.random.default_rng(0)
    lower = LowerCase(vocabulary)(Samples(torch.tensor([[1, 3, 4, 0]])), rng)
    assert lower.inputs.tolist() == [[2, 3, 4, 0]]
    words = Samples(torch.randint(1000, (50, 40)))
    swapped = WordSwap(range(1000), share=0.3, reach=20)(words, rng).inputs
    moved = (swapped != words.inputs).float()
    assert int(swapped.min()) >= 0
    assert int(swapped.max()) < 1000
    assert not moved[:, 0].any()
    assert float(moved[:, 1:].mean()) == pytest.approx(0.3, abs=5 * np.sqrt(0.3 * 0.7 / (50 * 39)))
    assert int((swapped - words.inputs).abs().max()) <= 40


def test_text_neighbours_score(memorised):
    target, members, others = memorised
    vocabulary = [str(index) for index in range(WORDS)]
    attack = NeighbourMaker(WordSwap(vocabulary), np.random.default_rng(0), count=5, name="word-swap")
    assert attack_auc(attack, target, members, others) > 0.6

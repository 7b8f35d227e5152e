"""A text's loss and gradient are its own: neither padding nor the other texts of a batch change them."""

from __future__ import annotations

import pytest
import torch
from tests.integrations import tiny

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients import Engine
from sordina.integrations.text_losses import TextLoss, loss_for, losses_of_batch
from sordina.queries import VectorQuery

CASES = {
    "sequence classification": (tiny.classifier, "class"),
    "token classification": (tiny.tagger, "tags"),
    "masked": (tiny.masked, "tokens"),
    "causal": (tiny.causal, "tokens"),
    "sequence to sequence": (tiny.translator, "pairs"),
}


def gradients(model, batch):
    """Of every text alone, by the engine that trains."""
    rows, loss = len(batch["input_ids"]), loss_for(model, None, 0.0)
    with Engine(model) as engine:
        engine.expect(rows)
        tape = engine.record(losses_of_batch(model, batch, loss))
        one = torch.eye(rows, dtype=torch.float64)
        return torch.stack([tape.contract([VectorQuery(each)])[0] for each in one])


@pytest.mark.parametrize("name", CASES)
def test_neither_padding_nor_other_texts_change_a_gradient(name):
    make, kind = CASES[name]
    model = make().double().train()
    items = tiny.texts(3, kind, seed=1)
    together = gradients(model, tiny.padded(items, to=20))
    for item, found in zip(items, together, strict=True):
        alone = gradients(model, tiny.padded([item]))[0]
        torch.testing.assert_close(found, alone, rtol=1e-7, atol=1e-9)


def test_an_average_over_the_batch_s_tokens_would_be_seen():
    model = tiny.tagger().double().train()
    items = tiny.texts(3, "tags", seed=1)
    own = model(**tiny.padded(items)).loss  # transformers' own: the mean over all tokens of all texts
    ours = losses_of_batch(model, tiny.padded(items), loss_for(model, None, 0.0)).mean()
    assert abs(float((own - ours).detach())) > 1e-6


def test_the_mean_is_over_the_text_s_own_tokens_or_a_public_length():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 4, 5), torch.tensor([[1, 2, 3, 4], [1, -100, -100, -100]])
    tokens = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    mean = TextLoss()({"logits": logits}, labels)
    torch.testing.assert_close(mean, torch.stack([tokens[0].mean(), tokens[1, 0]]))
    torch.testing.assert_close(TextLoss(public_length=10)({"logits": logits}, labels), tokens.sum(1) / 10)


def test_a_causal_model_predicts_the_next_token_and_others_the_token():
    assert loss_for(tiny.causal(), None, 0.0).shift
    assert not any(loss_for(make(), None, 0.0).shift for make in (tiny.masked, tiny.tagger, tiny.translator))


def test_smoothing_is_per_text():
    model, items = tiny.classifier(), tiny.texts(4)
    smooth = loss_for(model, None, 0.3)
    together = losses_of_batch(model, tiny.padded(items, to=12), smooth)
    alone = torch.cat([losses_of_batch(model, tiny.padded([item], to=12), smooth) for item in items])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_what_has_no_loss_is_refused():
    with pytest.raises(Unsupported, match="give loss="):
        TextLoss()({"logits": torch.zeros(2, 3, 4)}, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="no labels"):
        losses_of_batch(tiny.classifier(), {"input_ids": torch.ones(1, 4, dtype=torch.int64)}, TextLoss())
    with pytest.raises(InvalidInput, match="public_length"):
        loss_for(tiny.classifier(), 0, 0.0)


def test_a_text_of_masked_tokens_counts_as_nothing():
    """Attention over nothing is over everything, also over padding: the longest text decided for it (1.16 C)."""
    model, items = tiny.classifier(), tiny.texts(3)
    batch = tiny.padded(items)
    batch["attention_mask"][1] = 0
    losses = losses_of_batch(model, batch, loss_for(model, None, 0.0))
    assert losses[1] == 0
    assert losses[[0, 2]].gt(0).all()
    with Engine(model) as engine:
        norms = engine.record(losses_of_batch(model, batch, loss_for(model, None, 0.0))).scalars().norms
    assert norms[1] == 0
    assert norms[[0, 2]].gt(0).all()

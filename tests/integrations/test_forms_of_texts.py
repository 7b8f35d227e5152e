"""Texts of another form: refused before anything is spent, and of no effect if one turns up later."""

from contextlib import nullcontext

import pytest
import torch
from tests.integrations import tiny
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    default_data_collator,
)  # fmt: skip

import sordina as sd
from sordina.errors import InvalidInput
from sordina.gradients import removal
from sordina.integrations import text_batches
from sordina.integrations.huggingface import PrivateTrainer

STRANGE = {
    "an extra field": {"token_type_ids": [0, 0, 0]},
    "two labels": {"labels": [0, 1]},
    "no token": {"input_ids": [], "attention_mask": []},
    "nested": {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]]},
    "ragged": {"input_ids": [[5, 6], 7]},
    "a short mask": {"attention_mask": [1, 1]},
    "nothing but masked tokens": {"attention_mask": [0, 0, 0]},
    "a label of another type": {"labels": 1.0},
    "a missing field": {"attention_mask": None},
    "too long": {"input_ids": [5] * 99, "attention_mask": [1] * 99},
}


def strange(kind):
    item = {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "labels": 1, **STRANGE[kind]}
    return {name: value for name, value in item.items() if value is not None}


class Turning:
    """Texts, of which some become others once ``turn`` was set."""

    def __init__(self, items, change):
        self.items, self.change, self.turned = items, change, False

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.change.get(index, self.items[index]) if self.turned else self.items[index]
        if isinstance(item, Exception):
            raise item
        return dict(item)


def trainer(folder, items, model=None, **options):
    options = {"data_collator": DataCollatorWithPadding(tiny.tokenizer()), "noise_seed": 3, **options}
    args = tiny.arguments(folder, max_steps=2, lr_scheduler_type="constant", optim="sgd")
    budget = sd.Budget(8, 1e-5)
    return PrivateTrainer(model=model or tiny.classifier(), args=args, train_dataset=items, budget=budget, **options)


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("place", [0, 7])
def test_a_text_of_another_form_is_refused_before_anything_is_spent(tmp_path, kind, place):
    items = tiny.texts(20)
    items[place] = strange(kind)
    with pytest.raises(InvalidInput, match=r"item \d+"):
        trainer(tmp_path, items).train()
    assert not (tmp_path / "_sordina").exists()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_masked_beginning_is_refused_where_the_longest_text_decides_what_it_sees(tmp_path, attention):
    """A first token that may look at nothing looks at everything, also at the padding."""
    items, model = tiny.texts(20, "tokens"), tiny.causal()
    model.set_attn_implementation(attention)
    pads = DataCollatorForTokenClassification(tiny.tokenizer())
    trainer(tmp_path / "one", items, model, data_collator=pads).train()
    items[7]["attention_mask"][0] = 0
    refused = pytest.raises(InvalidInput, match="item 7 begins with masked") if attention == "eager" else nullcontext()
    with refused:
        trainer(tmp_path / "two", items, model, data_collator=pads).train()


def weights_after(folder, items, **options):
    ours = trainer(folder, items, **options)
    bind = ours._bind

    def bound():
        private = bind()
        items.turned = True
        return private

    ours._bind = bound
    ours.train()
    assert ours.run.steps == 2
    return torch.nn.utils.parameters_to_vector(ours.model.parameters()).detach()


@pytest.mark.parametrize("kind", STRANGE)
def test_one_that_turns_up_later_adds_nothing(tmp_path, kind):
    texts, places = tiny.texts(20), range(0, 20, 2)
    without = weights_after(tmp_path / "one", Turning(texts, dict.fromkeys(places, OSError())))
    changed = weights_after(tmp_path / "two", Turning(texts, dict.fromkeys(places, strange(kind))))
    torch.testing.assert_close(changed, without, rtol=1e-5, atol=1e-6)


def test_texts_of_different_lengths_that_nobody_pads_count_as_those_that_are_padded(tmp_path):
    texts = tiny.texts(20)
    padded = weights_after(tmp_path / "one", Turning(texts, {}), clipping=sd.clipping.Fixed(0.1))
    alone = weights_after(
        tmp_path / "two", Turning(texts, {}), clipping=sd.clipping.Fixed(0.1), data_collator=default_data_collator
    )
    torch.testing.assert_close(alone, padded, rtol=1e-4, atol=1e-6)


def test_a_label_that_is_no_number_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(text_batches, "RemovalSchedule", lambda: removal.RemovalSchedule(every=1))
    items = [{**item, "labels": float(item["labels"])} for item in tiny.texts(20)]
    items[3]["labels"] = items[8]["labels"] = float("nan")
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**tiny.BERT, num_labels=1))
    ours = trainer(tmp_path, items, model)
    ours.train()
    assert ours.run.steps == 2
    assert all(torch.isfinite(parameter).all() for parameter in ours.model.parameters())

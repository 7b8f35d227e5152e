"""What an adversary got past the trainer: each of these once ended with a claim that was not true."""

from __future__ import annotations

import json
import logging

import pytest
import torch
import torch.nn.functional as F
from tests.integrations import tiny
from tests.integrations.test_private_trainer import BUDGET, StopAfter, trainer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    FNetConfig,
    FNetForSequenceClassification,
    Trainer,
)

import sordina as sd
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.gradients import removal
from sordina.integrations import padding
from sordina.integrations.text_run import TextRecipe
from sordina.run_folder import PRIVACY

SAVES = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 6}
BEST = {**SAVES, "load_best_model_at_end": True}


def plain_training(folder):
    args = tiny.arguments(folder, max_steps=8, save_strategy="steps", save_steps=8)
    Trainer(model=tiny.classifier(), args=args, train_dataset=tiny.texts(40), processing_class=tiny.tokenizer()).train()


def left_tokenizer():
    tokenizer = tiny.tokenizer()
    tokenizer.padding_side = "left"
    return tokenizer


def mixer():
    torch.manual_seed(0)
    return FNetForSequenceClassification(
        FNetConfig(
            vocab_size=tiny.WORDS, hidden_size=16, num_hidden_layers=1, intermediate_size=24, num_labels=2,
            max_position_embeddings=tiny.LONGEST, hidden_dropout_prob=0.0, pad_token_id=0,
        )
    )  # fmt: skip


def left_padded(items):
    return DataCollatorWithPadding(left_tokenizer())([dict(item) for item in items])


def test_a_run_does_not_begin_among_checkpoints_of_another(tmp_path):
    plain_training(tmp_path)
    with pytest.raises(InvalidInput, match="checkpoint-8 of another training"):
        trainer(tmp_path, options=BEST, eval_dataset=tiny.texts(8, seed=5)).train()
    assert not (tmp_path / "_sordina").exists()


def test_a_resumed_run_refuses_checkpoints_that_it_did_not_write(tmp_path):
    given = {"options": BEST, "eval_dataset": tiny.texts(8, seed=5)}
    with pytest.raises(RuntimeError, match="power"):
        trainer(tmp_path, callbacks=[StopAfter(3, RuntimeError("power"))], **given).train()
    plain_training(tmp_path)
    with pytest.raises(InvalidInput, match="checkpoint-8, which this run did not write"):
        trainer(tmp_path, **given).train(resume_from_checkpoint=True)


def test_the_best_model_is_one_that_this_run_wrote(tmp_path, caplog):
    """Other weights put into a checkpoint of the run itself are not loaded."""

    class Swapped(StopAfter):
        def on_step_end(self, args, state, control, **rest):
            if state.global_step == 5:
                weights = tmp_path / "checkpoint-2" / "model.safetensors"
                weights.write_bytes((tmp_path / "checkpoint-4" / "model.safetensors").read_bytes())

    found = iter([3.0, 2.0, 1.0])
    ours = trainer(
        tmp_path, options={**BEST, "metric_for_best_model": "q", "greater_is_better": True}, callbacks=[Swapped(0)],
        eval_dataset=tiny.texts(8, seed=5), compute_metrics=lambda _: {"q": next(found)},
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="sordina"):
        ours.train()
    assert ours.state.best_model_checkpoint.endswith("checkpoint-2")
    assert "is not as this run wrote it" in caplog.text


@pytest.mark.parametrize(
    ("make", "collator"),
    [(tiny.classifier, left_padded), (mixer, DataCollatorWithPadding(tiny.tokenizer()))],
    ids=["left padding by hand", "no mask"],
)
def test_a_width_that_reaches_other_texts_is_refused_before_anything_is_spent(tmp_path, make, collator):
    with pytest.raises(Unsupported, match="a longer text in the batch changes the losses of the others"):
        trainer(tmp_path, make(), data_collator=collator).train()
    assert not (tmp_path / "_sordina").exists()


def test_one_public_width_is_taken(tmp_path):
    collator = DataCollatorWithPadding(tiny.tokenizer(), padding="max_length", max_length=tiny.LONGEST)
    assert trainer(tmp_path, mixer(), data_collator=collator).train().metrics["epsilon"] <= BUDGET.epsilon


def test_tokenizers_pad_on_the_right_while_training(tmp_path, caplog):
    tokenizer, sides = left_tokenizer(), set()

    class Seen(StopAfter):
        def on_step_end(self, args, state, control, **rest):
            sides.add(tokenizer.padding_side)

    with caplog.at_level(logging.WARNING, logger="sordina"):
        trainer(tmp_path, processing_class=tokenizer, data_collator=None, callbacks=[Seen(0)]).train()
    assert sides == {"right"}
    assert tokenizer.padding_side == "left"
    assert "padding_side" in caplog.text


def test_a_width_that_matters_for_some_batches_only_is_caught_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(padding, "RemovalSchedule", lambda: removal.RemovalSchedule(every=2))
    monkeypatch.setattr(padding.WidthCheck, "rehearse", lambda *given: None)
    with pytest.raises(SordinaError, match="a longer text in the batch"):
        trainer(tmp_path, mixer(), options={"max_steps": 40, "logging_steps": 40}).train()


def dropping():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**{**tiny.BERT, "hidden_dropout_prob": 0.5}, num_labels=2))


def first_losses(seed):
    """Those of the first batch, which is the same, after a public seed."""
    model = dropping()
    batch = tiny.padded([tiny.texts(1)[0]] * 4)
    tensors = (batch["input_ids"], batch["attention_mask"], batch["labels"])
    private = sd.make_private(
        model.train(), torch.optim.SGD(model.parameters(), lr=0.1), tensors, budget=BUDGET, batch_size=4, steps=1,
        seed=seed, sampling="fixed-size",
    )  # fmt: skip
    torch.manual_seed(42)
    for tokens, mask, labels in private:
        losses = F.cross_entropy(model(tokens, attention_mask=mask).logits, labels, reduction="none")
        private.step(losses)
    private.close()
    return losses.detach()


def test_dropout_does_not_come_from_a_public_seed():
    assert not torch.equal(first_losses(None), first_losses(None))
    assert torch.equal(first_losses(3), first_losses(3))  # a run that is repeatable stays so


def test_no_state_of_chance_is_saved(tmp_path):
    trainer(tmp_path, dropping(), options={"save_strategy": "steps", "save_steps": 2}).train()
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").is_file()
    assert not list(tmp_path.rglob("rng_state*"))


def test_the_training_data_are_not_scored_on(tmp_path):
    items = tiny.texts(60)
    for held in (items, {"seen": items, "other": tiny.texts(8, seed=1)}):
        with pytest.raises(InvalidInput, match="eval_dataset is the training data"):
            trainer(tmp_path, items=items, eval_dataset=held)
    ours = trainer(tmp_path, items=items)
    ours.train()
    with pytest.raises(InvalidInput, match="eval_dataset is the training data"):
        ours.evaluate(items)
    assert any("Scores on held-out data" in caveat for caveat in ours.run.caveats)


@pytest.mark.parametrize("part", [lambda items: items[5:9], lambda items: torch.utils.data.Subset(items, [1, 2])])
def test_a_part_of_the_training_data_is_not_scored_on_either(tmp_path, part):
    items = tiny.texts(60)
    with pytest.raises(InvalidInput, match="eval_dataset is the training data"):
        trainer(tmp_path, items=items, eval_dataset=part(items))


class Remembering:
    """Writes a word of the last batch into all rows of the next."""

    def __init__(self):
        self.last = None

    def __call__(self, items):
        batch = tiny.padded(items)
        if self.last is not None:
            batch["input_ids"][:, 0] = self.last
        self.last = int(batch["input_ids"][0, 1])
        return batch


def remembering():
    kept = []

    def collate(items):
        batch = tiny.padded(items)
        batch["input_ids"][:, 0] = kept[-1] if kept else 1
        kept.append(int(batch["input_ids"][0, 1]))
        return batch

    return collate


@pytest.mark.parametrize("collator", [Remembering(), remembering()], ids=["object", "function"])
def test_a_collator_that_remembers_is_refused(tmp_path, collator):
    with pytest.raises(Unsupported, match=r"the data collator (remembers|mixes)"):
        trainer(tmp_path, data_collator=collator).train()
    assert not (tmp_path / "_sordina").exists()


def test_random_numbers_of_a_collators_own_are_seeded_in_secret(tmp_path):
    """By a public seed the masks of all records after one would be others without it (3 to 6 C)."""
    collator = DataCollatorForLanguageModeling(tiny.tokenizer(), mlm_probability=0.3, seed=1)
    assert trainer(tmp_path, tiny.masked(), "plain", data_collator=collator).train().metrics["epsilon"] > 0
    assert collator.generator.initial_seed() != 1


class SeededLoss:
    """Smooths labels by random numbers of its own."""

    def __init__(self):
        self.own = torch.Generator().manual_seed(0)

    def __call__(self, outputs, batch):
        noise = torch.randn(outputs.logits.shape, generator=self.own)
        return F.cross_entropy(outputs.logits + 0.01 * noise, batch["labels"], reduction="none")


def test_a_loss_has_secret_numbers_and_a_wrong_one_is_refused(tmp_path):
    loss = SeededLoss()
    trainer(tmp_path / "one", loss=loss).train()
    assert loss.own.initial_seed() != 0
    with pytest.raises(InvalidInput, match="loss= cannot be computed"):
        trainer(tmp_path / "two", loss=torch.nn.CrossEntropyLoss(reduction="none")).train()


def test_an_old_claim_does_not_stay_beside_new_weights(tmp_path):
    ours = trainer(tmp_path)
    ours.train()
    ours.save_model()
    other = trainer(tmp_path, dropping())
    other.save_model()  # before any training of its own
    assert not (tmp_path / PRIVACY).exists()
    assert not (tmp_path / "README.md").exists()


def test_weights_in_sixteen_bits_train(tmp_path):
    """As transformers loads what was saved so: the first step once ended in an error, after it was paid for."""
    for kind in (torch.bfloat16, torch.float16):
        ours = trainer(tmp_path / str(kind), tiny.classifier().to(kind))
        assert ours.train().metrics["epsilon"] <= BUDGET.epsilon
        assert {each.dtype for each in ours.model.parameters()} == {kind}


def test_a_test_file_that_is_the_training_file_is_refused(tmp_path):
    file, link = tmp_path / "lines.txt", tmp_path / "other.txt"
    file.write_text("a b\n")
    link.symlink_to(file)
    for test in (file, link, tmp_path / "." / "lines.txt"):
        with pytest.raises(InvalidInput, match="the test data are the training data"):
            TextRecipe(str(file), "gpt2", task="causal-lm", test=str(test))


def test_weights_that_changed_after_the_run_get_no_claim(tmp_path, caplog):
    ours = trainer(tmp_path)
    ours.train()
    ours.save_model()
    assert json.loads((tmp_path / PRIVACY).read_text())["epsilon"] == ours.run.epsilon
    plain = tiny.arguments(tmp_path / "plain", max_steps=2)
    Trainer(model=ours.model, args=plain, train_dataset=tiny.texts(40), data_collator=tiny.padded).train()
    with caplog.at_level(logging.WARNING, logger="sordina"):
        ours.save_model()
    assert "NO CLAIM WAS WRITTEN" in caplog.text
    assert not (tmp_path / PRIVACY).exists()
    assert not (tmp_path / "README.md").exists()
    ours.save_model(str(tmp_path / "copy"))
    ours.create_model_card(output_dir=str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / PRIVACY).exists()


def test_a_run_is_saved_with_the_weights_that_it_ended_with(tmp_path):
    model = torch.nn.Linear(3, 2)
    data = (torch.randn(20, 3), torch.randint(2, (20,)))
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, budget=BUDGET, batch_size=4, steps=2
    )
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    run = private.finish()
    run.save(tmp_path / "sound")
    with torch.no_grad():
        model.weight += 1e-3
    with pytest.raises(InvalidInput, match="not those that the private run ended with"):
        private.save(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()

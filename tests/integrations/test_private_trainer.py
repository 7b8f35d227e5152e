"""`PrivateTrainer`: the habits of `transformers.Trainer`, and one account of what was spent."""

from __future__ import annotations

import json
import random

import pytest
import torch
import torch.nn.functional as F
from tests.integrations import tiny
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainerCallback,
)

import sordina as sd
from sordina.errors import InvalidInput, SordinaError, TrainingFailed, Unsupported
from sordina.gradients import removal
from sordina.integrations import padding, text_batches
from sordina.integrations.huggingface import PrivateTrainer
from sordina.run_folder import PRIVACY, read_claim

BUDGET = sd.Budget(8, 1e-3)


def trainer(folder, model=None, kind="class", items=None, options=None, **rest):
    rest.setdefault("data_collator", tiny.padded)
    rest.setdefault("train_dataset", items or tiny.texts(60, kind))
    rest.setdefault("budget", BUDGET)
    return PrivateTrainer(model=model or tiny.classifier(), args=tiny.arguments(folder, **(options or {})), **rest)


class Logged(TrainerCallback):
    def __init__(self):
        self.entries, self.steps = [], 0

    def on_log(self, args, state, control, logs=None, **rest):
        self.entries.append(dict(logs))

    def on_step_end(self, args, state, control, **rest):
        self.steps += 1


class StopAfter(TrainerCallback):
    def __init__(self, step, error=None):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **rest):
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


def test_a_run_has_the_habits_of_transformers_and_a_guarantee(tmp_path):
    seen = Logged()
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    options["eval_on_start"] = True
    ours = trainer(
        tmp_path, callbacks=[seen], eval_dataset=tiny.texts(10, seed=1), options=options,
        processing_class=tiny.tokenizer(),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    )  # fmt: skip
    done = ours.train()
    assert isinstance(ours, Trainer)
    assert done.global_step == seen.steps == ours.state.global_step == 3
    assert 0 < ours.run.epsilon <= BUDGET.epsilon
    assert done.metrics["epsilon"] == ours.guarantee.epsilon
    assert sum("eval_accuracy" in entry for entry in seen.entries) == 3  # at the start, after step 2, at the end
    assert (tmp_path / "checkpoint-2" / "model.safetensors").is_file()
    assert ours.predict(tiny.texts(5, seed=2)).predictions.shape == (5, 2)
    ours.save_model()
    assert read_claim(tmp_path).epsilon == ours.run.epsilon
    assert ours.run.statement() in (tmp_path / "README.md").read_text()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidInput, match="another model"):
        read_claim(tmp_path)


LOGS = {"logging_steps": 1, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
RELEASED = {"epsilon", "threshold", "learning_rate", "epoch"}
ON_HELD_OUT = {f"eval_{name}" for name in ("loss", "runtime", "samples_per_second", "steps_per_second")}


def logging_trainer(folder, *reported, **rest):
    """Logs every step, and evaluates."""
    options = {**LOGS, "report_to": list(reported)}
    return trainer(folder, options=options, eval_dataset=tiny.texts(10, seed=1), **rest)


def test_nothing_raw_is_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = Logged()
    logging_trainer(tmp_path, "tensorboard", callbacks=[seen]).train()
    assert {name for entry in seen.entries for name in entry} == RELEASED | ON_HELD_OUT
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    kept = EventAccumulator(str(file)).Reload()
    names = {name.replace("eval/", "eval_").removeprefix("train/") for name in kept.Tags()["scalars"]}
    assert names == RELEASED | ON_HELD_OUT
    epsilons = [event.value for event in kept.Scalars("train/epsilon")]
    assert len(epsilons) == 4
    assert epsilons[-1] == pytest.approx(BUDGET.epsilon, rel=0.01)


def test_mlflow_gets_released_values_only(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlflow'}")
    logging_trainer(tmp_path / "out", "mlflow").train()
    (run,) = mlflow.search_runs(output_format="list")
    assert set(run.data.metrics) == RELEASED | ON_HELD_OUT
    assert run.data.metrics["epsilon"] == pytest.approx(BUDGET.epsilon, rel=0.01)


def test_wandb_gets_released_values_only(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    logging_trainer(tmp_path / "out", "wandb").train()
    try:
        kept = {name: value for name, value in dict(wandb.run.summary).items() if not name.startswith("_")}
        names = {name.replace("eval/", "eval_").removeprefix("train/") for name in kept}
        assert names - {"global_step"} == RELEASED | ON_HELD_OUT
        assert kept["train/epsilon"] == pytest.approx(BUDGET.epsilon, rel=0.01)
    finally:
        wandb.finish()


def test_gradients_of_raw_batches_are_not_watched(tmp_path, monkeypatch):
    class WandbCallback(TrainerCallback):
        """Stands for that of transformers, which asks for the package."""

    monkeypatch.setenv("WANDB_WATCH", "gradients")
    with pytest.raises(Unsupported, match="WANDB_WATCH=gradients logs gradients before they are clipped"):
        trainer(tmp_path, callbacks=[WandbCallback()]).train()
    model = tiny.classifier()
    model.classifier.weight.register_hook(lambda gradient: None)
    with pytest.raises(Unsupported, match="is shown its gradient before"):
        trainer(tmp_path, model).train()
    assert not (tmp_path / "_sordina").exists()


def test_it_takes_the_steps_of_make_private(tmp_path):
    """No second private step: with the same seed the weights are those of a loop of one's own."""
    items, model = tiny.texts(60), tiny.classifier()
    options = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1}
    ours = trainer(tmp_path, items=items, options=options, noise_seed=5, clipping=sd.clipping.Fixed(1.0))
    ours.train()
    assert not ours.run.releasable
    assert any("the user's word" in caveat for caveat in ours.run.caveats)  # of the collator, which is of our own

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return len(items)

        def __getitem__(self, index):
            return items[index]

    private = sd.make_private(
        model.train(), torch.optim.SGD(model.parameters(), lr=0.1), Items(), budget=BUDGET, batch_size=16, steps=3,
        microbatch=8, clipping=sd.clipping.Fixed(1.0), collate_fn=tiny.padded, seed=5,
    )  # fmt: skip
    for batch in private:
        labels = batch.pop("labels")
        private.step(F.cross_entropy(model(**batch).logits, labels, reduction="none"))
    assert private.finish().epsilon == ours.run.epsilon
    for one, two in zip(model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("kind", "make"),
    [("tags", tiny.tagger), ("tokens", tiny.causal), ("pairs", tiny.translator)],
    ids=["token classification", "causal", "sequence to sequence"],
)
def test_every_task_trains(tmp_path, kind, make):
    ours = trainer(tmp_path, make(), kind)
    ours.train()
    assert ours.run.epsilon <= BUDGET.epsilon


def test_masked_language_models_train_on_random_masks(tmp_path):
    items = [{name: value for name, value in item.items() if name != "labels"} for item in tiny.texts(60)]
    collator = DataCollatorForLanguageModeling(tiny.tokenizer(), mlm_probability=0.3)
    ours = trainer(tmp_path, tiny.masked(), items=items, data_collator=collator)
    ours.train()
    assert not any("the user's word" in caveat for caveat in ours.run.caveats)


def test_bf16_with_evaluation(tmp_path):
    options = {"bf16": True, "eval_strategy": "steps", "eval_steps": 1}
    ours = trainer(tmp_path, options=options, eval_dataset=tiny.texts(4, seed=1))
    ours.train()
    assert ours.guarantee.epsilon > 0
    assert any("eval_loss" in line for line in ours.state.log_history)


def test_persons_with_many_texts(tmp_path):
    owners = [index // 3 for index in range(60)]
    ours = trainer(
        tmp_path, users=sd.sampling.Users(owners, rows_per_user=2), options={"gradient_accumulation_steps": 1}
    )
    ours.train()
    assert str(ours.guarantee.unit) == "user"
    assert ours.run.plan.sampler.population == 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_grad_norm": 0.5}, "clips the mean of a batch"),
        ({"train_sampling_strategy": "group_by_length"}, "not drawn at random"),
        ({"auto_find_batch_size": True}, "would draw twice"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"neftune_noise_alpha": 1.0}, "neftune"),
        ({"include_num_input_tokens_seen": "all"}, "counts the tokens"),
        ({"fp16": True}, "fp16"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "follows a loss"),
    ],
)
def test_arguments_that_would_void_the_guarantee_are_refused(tmp_path, options, reason):
    with pytest.raises(Unsupported, match=reason):
        trainer(tmp_path, options=options)
    assert not (tmp_path / "_sordina").exists()


@pytest.mark.parametrize("given", [{"max_grad_norm": 0.0}, {"max_grad_norm": 1.0}])
def test_no_clipping_of_the_mean_and_the_default_are_taken_for_unset(tmp_path, given):
    trainer(tmp_path, options=given)


def test_packing_and_several_devices_are_refused(tmp_path):
    args = tiny.arguments(tmp_path)
    for name, value, reason in (
        ("packing", True, "packing"),
        ("_n_gpu", 2, "several devices"),
        ("fsdp", "full", "fsdp"),
    ):
        before = getattr(args, name, None)
        setattr(args, name, value)
        with pytest.raises(Unsupported, match=reason):
            PrivateTrainer(model=tiny.classifier(), args=args, train_dataset=tiny.texts(4), budget=BUDGET)
        setattr(args, name, before)


def without_padding():
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=tiny.WORDS, n_embd=8, n_layer=1, n_head=1, num_labels=2))


def checkpointing():
    model = tiny.classifier()
    model.gradient_checkpointing_enable()
    return model


@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        (checkpointing, {}, "gradient_checkpointing runs layers"),
        (without_padding, {}, "config.pad_token_id"),
        (tiny.classifier, {"train_dataset": iter(tiny.texts(4))}, "a stream of texts"),
        (tiny.classifier, {"users": sd.sampling.Users([0, 0, 1], rows_per_user=2)}, "owners of 3 items"),
        (tiny.classifier, {"train_dataset": [{"input_ids": [5], "labels": [1.0, 0.0]}] * 40}, "config.problem_type"),
    ],
)
def test_what_people_stumble_over_is_said_in_a_line(tmp_path, model, given, reason):
    given = {"train_dataset": tiny.texts(40), "data_collator": tiny.padded, **given}
    with pytest.raises(SordinaError, match=reason):
        PrivateTrainer(model=model(), args=tiny.arguments(tmp_path), budget=BUDGET, **given).train()
    assert not (tmp_path / "_sordina").exists()


def shared_label(items):
    batch = tiny.padded(items)
    return {**batch, "labels": batch["labels"].max().expand(len(items)).clone()}


def flattened(items):
    tokens = [token for item in items for token in item["input_ids"]]
    return {"input_ids": torch.tensor([tokens]), "labels": torch.tensor([items[0]["labels"]])}


def mixing_now_and_then(items):
    """Only where all texts are of one length, which no made-up batch shows: every label becomes that of all."""
    batch = tiny.padded(items)
    if len({len(item["input_ids"]) for item in items}) == 1:
        batch["labels"] = (batch["labels"].sum() % 2).expand(len(items)).clone()
    return batch


@pytest.mark.parametrize(("collator", "reason"), [(shared_label, "mixes samples"), (flattened, "packing")])
def test_a_collator_that_mixes_or_packs_is_refused_before_anything_is_spent(tmp_path, collator, reason):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("notes", BUDGET)
    ours = trainer(tmp_path / "run", data_collator=collator, ledger=ledger, dataset_budget="notes")
    with pytest.raises(Unsupported, match=reason):
        ours.train()
    assert not ledger.spends()
    assert not (tmp_path / "run" / "_sordina").exists()


def test_a_collator_that_mixes_some_batches_only_is_caught_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(text_batches, "RemovalSchedule", lambda: removal.RemovalSchedule(every=2))
    monkeypatch.setattr(text_batches, "mixes_somewhere", lambda *_: False)  # it would be seen before the run
    items = [{**item, "input_ids": item["input_ids"][:4], "attention_mask": [1] * 4} for item in tiny.texts(60)]
    items[0] = tiny.texts(1, seed=3)[0]
    with pytest.raises(SordinaError, match="mixes samples"):
        trainer(
            tmp_path, items=items, data_collator=mixing_now_and_then, options={"max_steps": 60, "logging_steps": 60}
        ).train()


def with_neighbours(items, to=24):
    """A text of one token becomes its neighbour."""
    return tiny.padded([items[n - 1] if len(x["input_ids"]) < 2 else x for n, x in enumerate(items)], to)


def with_common_labels(items):
    """A text without a label gets the most common one of the batch."""
    batch = tiny.padded(items)
    known = batch["labels"][batch["labels"] != -100]
    if len(known):
        batch["labels"] = torch.where(batch["labels"] == -100, known.mode().values, batch["labels"])
    return batch


def with_noise(items):
    """Tokens at random, item by item; and, of texts of one token, the neighbour."""
    batch = with_neighbours(items)
    drawn = torch.rand(batch["input_ids"].shape) < 0.2
    return {**batch, "input_ids": batch["input_ids"].masked_fill(drawn & (batch["input_ids"] > 0), 4)}


def with_tosses(items):
    """Labels of the batch are mixed now and then."""
    batch = tiny.padded(items)
    return {**batch, "labels": batch["labels"].roll(1)} if random.random() < 0.1 else batch


class LastOnes:
    """Now and then the last text begins like one of the batch before."""

    last = 4

    def __call__(self, items):
        batch, before = tiny.padded(items), self.last
        self.last = int(batch["input_ids"][0, 0])
        if random.random() < 0.2:
            batch["input_ids"][:, 0] = before
        return batch


def sound_noise(items):
    batch = tiny.padded(items)
    drawn = torch.rand(batch["input_ids"].shape) < 0.2
    return {**batch, "input_ids": batch["input_ids"].masked_fill(drawn & (batch["input_ids"] > 0), 4)}


def padded_left(items):
    width = max(len(item["input_ids"]) for item in items)
    rows = {name: [[0] * (width - len(item[name])) + item[name] for item in items] for name in ("input_ids",)}
    return {**{name: torch.tensor(each) for name, each in rows.items()}, "labels": tiny.padded(items)["labels"]}


def with_a_short_one(count=300):
    items = tiny.texts(count)
    items[3] = {"input_ids": [7], "attention_mask": [1], "labels": 1}
    return items


@pytest.mark.parametrize("collator", [with_neighbours, with_common_labels, with_noise])
def test_a_collator_that_mixes_few_items_is_refused_before_anything_is_spent(tmp_path, collator):
    """No made-up text is that short, and few batches hold the one that is: the sum moved by 1.3 C."""
    items = with_a_short_one()
    items[5] = {**items[5], "labels": -100}
    with pytest.raises(Unsupported, match=r"mixes samples.*Nothing was spent"):
        trainer(tmp_path / "run", items=items, data_collator=collator).train()
    assert not (tmp_path / "run" / "_sordina").exists()


@pytest.mark.parametrize(("collator", "reason"), [(with_tosses, "mixes"), (LastOnes(), "remembers|mixes")])
def test_a_collator_that_mixes_or_remembers_by_the_toss_of_a_coin_is_refused(tmp_path, collator, reason):
    """It was tried with one seed, by which the coin always fell the same way."""
    with pytest.raises(Unsupported, match=f"the data collator ({reason})"):
        trainer(tmp_path / "run", items=tiny.texts(200), data_collator=collator).train()
    assert not (tmp_path / "run" / "_sordina").exists()


@pytest.mark.parametrize("collator", [tiny.padded, sound_noise, padded_left])
def test_a_sound_collator_is_not_taken_for_one_that_mixes(collator):
    items = text_batches.TextItems(with_a_short_one(), None)
    text_batches.WatchedCollator(collator, torch.device("cpu")).look_through(items)


def test_other_ways_to_a_loss_are_refused_or_tested(tmp_path):
    with pytest.raises(Unsupported, match="give loss="):
        trainer(tmp_path, compute_loss_func=lambda outputs, labels, **rest: outputs.logits.mean())

    class Own(PrivateTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    with pytest.raises(Unsupported, match="compute_loss is not used"):
        Own(model=tiny.classifier(), args=tiny.arguments(tmp_path), train_dataset=tiny.texts(4), budget=BUDGET)

    def centred(outputs, batch):
        losses = F.cross_entropy(outputs.logits, batch["labels"], reduction="none")
        return losses - losses.mean()

    with pytest.raises(Unsupported, match="mix"):
        trainer(tmp_path / "mixing", loss=centred).train()
    ours = trainer(
        tmp_path / "own", loss=lambda outputs, batch: F.cross_entropy(outputs.logits, batch["labels"], reduction="none")
    )
    ours.train()


def test_data_that_the_model_does_not_take_are_refused_without_quoting_them(tmp_path):
    items = tiny.texts(20)
    for change, reason in (
        ({"labels": 7}, "item 9 has a label"),
        ({"input_ids": [1, 9999]}, "item 9 has a token"),
        ({"input_ids": [1] * 99}, "item 9 has more tokens"),
    ):
        wrong = [*items[:9], {**items[9], **change}, *items[10:]]
        with pytest.raises(InvalidInput, match=reason) as told:
            trainer(tmp_path, items=wrong).train()
        assert "9999" not in str(told.value)
    with pytest.raises(InvalidInput, match="empty"):
        trainer(tmp_path, train_dataset=[]).train()


def test_an_interrupted_run_goes_on_and_pays_once(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("notes", sd.Budget(20, 1e-3))
    given = {
        "ledger": ledger,
        "dataset_budget": "notes",
        "options": {"max_steps": 6, "save_strategy": "steps", "save_steps": 2},
    }
    with pytest.raises(RuntimeError, match="power"):
        trainer(tmp_path / "run", callbacks=[StopAfter(5, RuntimeError("power"))], **given).train()
    with pytest.raises(InvalidInput, match="holds a run already: go on with resume_from_checkpoint=True"):
        trainer(tmp_path / "run", **given).train()
    with pytest.raises(InvalidInput, match="last checkpoint only"):
        trainer(tmp_path / "run", **given).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    second = trainer(tmp_path / "run", **given)
    second.train(resume_from_checkpoint=True)
    assert second.run.steps == second.state.global_step == 6
    assert second.run.epsilon <= BUDGET.epsilon
    third = trainer(tmp_path / "run", **given)
    third.train(resume_from_checkpoint=True)
    assert third.run.epsilon == second.run.epsilon
    assert len(ledger.spends()) == 1
    with pytest.raises(InvalidInput, match="holds no run"):
        trainer(tmp_path / "fresh", **given).train(resume_from_checkpoint=True)


def test_a_run_that_stops_early_pays_for_its_plan(tmp_path):
    early, full = trainer(tmp_path / "early", callbacks=[StopAfter(1)]), trainer(tmp_path / "full")
    early.train()
    full.train()
    assert early.state.global_step == 1
    assert early.run.epsilon == full.run.epsilon


def test_the_best_checkpoint_may_be_chosen_by_other_data(tmp_path):
    options = {
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 4,
        "load_best_model_at_end": True, "metric_for_best_model": "loss",
    }  # fmt: skip
    ours = trainer(
        tmp_path,
        options=options,
        eval_dataset=tiny.texts(8, seed=1),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )
    ours.train()
    ours.save_model()
    claim = json.loads((tmp_path / PRIVACY).read_text())
    assert claim["steps"] == claim["planned_steps"] == 4


def test_a_trainer_trains_once_and_tunes_never(tmp_path):
    ours = trainer(tmp_path)
    ours.train()
    with pytest.raises(InvalidInput, match="trained already"):
        ours.train()
    with pytest.raises(Unsupported, match="every trial"):
        ours.hyperparameter_search()


def test_a_parameter_that_cannot_train_stops_the_run_before_it_spends(tmp_path):
    model = tiny.classifier()
    model.register_parameter("forgotten", torch.nn.Parameter(torch.ones(3)))
    with pytest.raises(
        InvalidInput, match=r"'forgotten' is trainable, but the loss does not depend on it.*Nothing was spent"
    ):
        trainer(tmp_path, model).train()
    assert not (tmp_path / "_sordina").exists()
    model = tiny.classifier()
    rest = [value for name, value in model.named_parameters() if name != "classifier.bias"]
    with pytest.raises(InvalidInput, match=r"'classifier.bias' is trainable, but the optimiser"):
        trainer(tmp_path, model, optimizers=(torch.optim.SGD(rest, lr=0.1), None)).train()


def test_a_parameter_that_did_not_move_is_named(tmp_path):
    model = tiny.classifier()
    parts = [
        {"params": [value for name, value in model.named_parameters() if name != "classifier.bias"]},
        {"params": [model.classifier.bias], "lr": 0.0},
    ]
    with pytest.raises(TrainingFailed, match=r"'classifier.bias' is trainable, but did not move"):
        trainer(tmp_path, model, optimizers=(torch.optim.SGD(parts, lr=0.1), None)).train()


def test_without_privacy_it_says_so(tmp_path):
    ours = trainer(tmp_path, budget=sd.Budget(float("inf"), 1e-3))
    ours.train()
    ours.save_model()
    assert "NOT PRIVATE" in (tmp_path / "README.md").read_text()


def test_texts_are_padded_to_few_public_widths(tmp_path):
    """Every width is studied once: padded to the longest of each batch, ragged texts cost more studies than steps."""
    widths = set()
    collator = DataCollatorWithPadding(tiny.tokenizer())

    class Seen(StopAfter):
        def on_step_end(self, args, state, control, **rest):
            widths.add(ours._collator(ours._collator.items)["input_ids"].shape[1])

    items = [item | {"input_ids": item["input_ids"][:size], "attention_mask": item["attention_mask"][:size]}
             for size, item in enumerate(tiny.texts(20) * 3, start=3)]  # fmt: skip
    ours = trainer(
        tmp_path, items=items, data_collator=collator, callbacks=[Seen(0)], processing_class=tiny.tokenizer(),
        options={"max_steps": 12, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
    )  # fmt: skip
    ours.train()
    assert widths <= {8, 16, 24}  # the longest text is 24, so the multiple is 8
    assert collator.pad_to_multiple_of is None


def test_a_width_that_somebody_chose_is_left(tmp_path):
    for options, width in (({"pad_to_multiple_of": 6}, 6), ({"padding": "max_length", "max_length": 20}, None)):
        collator = DataCollatorWithPadding(tiny.tokenizer(), **options)
        with padding.public_widths(collator, 24):
            assert collator.pad_to_multiple_of == width

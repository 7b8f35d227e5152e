"""`sordina train` on texts: a model of `transformers` from a folder, fine-tuned on a file under a budget."""

from __future__ import annotations

import importlib.util
import json
import math
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordina import private_files
from sordina.accounting.ledger import Ledger
from sordina.clipping import named
from sordina.errors import InvalidInput, Unsupported
from sordina.integrations.padding import MULTIPLE
from sordina.integrations.text_files import TextTable, read_texts
from sordina.privacy import Budget, check_seed
from sordina.progress import Progress, StagedProgress, silent_stages
from sordina.run_folder import RECIPE, SCORES, read_claim, read_json
from sordina.tables.readers import refuse_scoring_on
from sordina.tables.schema import Schema
from sordina.training.run import Run

CLASSIFICATION, CAUSAL = "classification", "causal-lm"
TASKS = (CLASSIFICATION, CAUSAL)
RATES = {"lora": 1e-3, "all": 5e-4}
"""Learning rates for AdamW if none is stated: those that Li et al. (2022) and Yu et al. (2022) found good."""
USUAL_BATCH, AT_ONCE = 512, 16
"""Texts (or persons) in a batch, and in memory at once, if neither is stated."""
_SCORED_AT_ONCE = 32


@dataclass(frozen=True)
class TextRecipe:
    """What `sordina train` was asked for on texts.

    Args:
        dataset: The file of texts.
        model: A folder with a model of `transformers`, or an installed package that has one inside.
        schema: The file that says what is public; None for a plain file of lines.
        task: "classification" or "causal-lm".
        lora: The rank of LoRA adapters; None trains all weights.
        epsilon: Of the budget.
        delta: Of the budget.
        epochs: Passes over the texts, on average.
        batch_size: Expected texts (or persons) in a batch; None takes 512, or a quarter of all where they are fewer.
        microbatch: How many are in memory at once.
        learning_rate: Of AdamW; None takes a usual one.
        clipping: The policy's name.
        threshold: Its threshold, or the first one.
        max_tokens: Longer texts are cut there.
        test: Another file to score on.
        test_share: Part of the rows (persons) kept for scoring instead.
        seed: Makes the noise repeatable; such a model must not be released.
        encoding: Of the files.
        separator: Between the fields of CSV files.
    """

    dataset: str
    model: str
    schema: str | None = None
    task: str = CLASSIFICATION
    lora: int | None = None
    epsilon: float = 3.0
    delta: float = 1e-5
    epochs: float = 3.0
    batch_size: int | None = None
    microbatch: int | None = None
    learning_rate: float | None = None
    clipping: str = "online"
    threshold: float | None = None
    max_tokens: int = 128
    test: str | None = None
    test_share: float | None = None
    seed: int | None = None
    encoding: str = "utf-8"
    separator: str = ","

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InvalidInput(f"unknown task {self.task!r}: choose one of {', '.join(TASKS)}.")
        if self.schema is None and self.task == CLASSIFICATION:
            raise InvalidInput(
                f"a classifier needs a schema that names the texts and the target: draft one with `sordina schema "
                f"{self.dataset} --target COLUMN --out schema.toml`, complete it, and pass --schema schema.toml."
            )
        if self.test is not None and self.test_share is not None:
            raise InvalidInput("state a test file or a test share, not both.")
        if self.test is not None:
            refuse_scoring_on(self.dataset, self.test)
        for name in ("batch_size", "max_tokens", "lora", "microbatch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name.replace('_', ' ')} must be at least 1, got {value}.")
        if self.batch_size and self.microbatch and self.batch_size % min(self.microbatch, self.batch_size):
            raise InvalidInput(
                f"a batch of {self.batch_size} is not made of whole micro-batches of {self.microbatch}: choose a "
                "multiple."
            )
        if self.seed is not None:
            check_seed(self.seed)

    @property
    def command(self) -> str:
        """What asks for the same run again."""
        words = ["sordina", "train", self.dataset]
        usual = {each: getattr(TextRecipe, each, None) for each in self.__dataclass_fields__}
        for name, value in asdict(self).items():
            if name != "dataset" and value != usual.get(name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True)
class TextRun:
    """What training on texts gave.

    Args:
        run: The guarantee and how it came about.
        scores: On the test texts, if there were any.
    """

    run: Run
    scores: dict[str, float] = field(default_factory=dict)


def model_folder(name: str) -> Path:
    """The folder with a model of `transformers` that ``name`` stands for.

    Args:
        name: A folder, one that has such a folder inside, or an installed package that does.
    """
    path = Path(name)
    if not path.is_dir() and name.replace("-", "_").isidentifier():
        found = importlib.util.find_spec(name.replace("-", "_"))
        if found is not None and found.submodule_search_locations:
            path = Path(next(iter(found.submodule_search_locations)))
    for each in (path, *sorted(path.glob("*"))):
        if (each / "config.json").is_file():
            return each
    raise InvalidInput(
        f"{name!r} is neither a folder with a model of transformers (config.json and weights) nor an installed package "
        "that has one inside. Nothing is downloaded: fetch the model first."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and reports of transformers about files that it reads and writes."""
    logging = _transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@_quiet()
def train_texts(
    recipe: TextRecipe,
    folder: str | Path,
    *,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    progress: StagedProgress = silent_stages,
) -> TextRun:
    """Do what ``recipe`` says, and leave a folder that stock `transformers` or `peft` opens.

    Args:
        recipe: What is wanted.
        folder: Where model, card and guarantee go.
        resume: Continue the run in ``folder``.
        ledger: Where the run is booked.
        dataset_budget: The ledger's name of the data set.
        progress: Told what is being done.
    """
    transformers = _transformers()
    from sordina.integrations.huggingface import RUN_FOLDER, PrivateTrainer

    progress("reading the texts")
    train, held, split_seed = _read(recipe, Path(folder) / RUN_FOLDER if resume else None)
    model, tokenizer = _build(recipe, train)
    recipe = replace(recipe, batch_size=_batch_size(recipe, train))
    trainer = PrivateTrainer(
        model=model, args=_arguments(recipe, Path(folder)), processing_class=tokenizer,
        train_dataset=_Items(train, tokenizer, recipe),
        data_collator=_collator(tokenizer, recipe), budget=Budget(recipe.epsilon, recipe.delta), users=train.users,
        clipping=named(recipe.clipping, recipe.threshold), ledger=ledger, dataset_budget=dataset_budget,
        noise_seed=recipe.seed, callbacks=[_Steps(progress("training"))],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.recipe = {
        **{key: value for key, value in asdict(recipe).items() if value is not None}, "command": recipe.command,
        "kind": "texts", "columns": train.schema.to_dict(), "split_seed": split_seed,
    }  # fmt: skip
    trainer.train(resume_from_checkpoint=resume or None)
    assert trainer.run is not None
    trainer.save_model()
    _write_json(Path(folder) / RECIPE, trainer.recipe)
    progress("scoring")
    scores = {} if held is None else _scores(trainer.model, tokenizer, held, recipe)
    if scores:
        for each in (Path(folder), Path(folder) / RUN_FOLDER):
            _write_json(each / SCORES, {"model": recipe.model, **scores})
    return TextRun(trainer.run, scores)


def _batch_size(recipe: TextRecipe, train: TextTable) -> int:
    """What was asked for, or the usual, in whole micro-batches; how many units there are is public."""
    if recipe.batch_size is not None:
        return recipe.batch_size
    units = len(train) if train.owners is None else len(np.unique(train.owners))
    size = min(USUAL_BATCH, max(1, units // 4))
    return size - size % min(recipe.microbatch or AT_ONCE, size)


def fitting(size: int) -> int:
    """How many texts are in memory at once, if nobody says: about `AT_ONCE`, so that a batch is made of whole parts.

    >>> [fitting(size) for size in (512, 100, 34, 97, 7)]
    [16, 10, 17, 1, 7]
    """
    return next((part for part in (*range(AT_ONCE, 3, -1), *range(AT_ONCE, 65)) if size % part == 0), 1)


def _arguments(recipe: TextRecipe, folder: Path) -> Any:
    size = recipe.batch_size or USUAL_BATCH
    at_once = min(recipe.microbatch or fitting(size), size)
    return _transformers().TrainingArguments(
        str(folder), per_device_train_batch_size=at_once, gradient_accumulation_steps=size // at_once,
        num_train_epochs=recipe.epochs, learning_rate=recipe.learning_rate or RATES["lora" if recipe.lora else "all"],
        weight_decay=0.0, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="epoch",
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip


def _write_json(path: Path, value: dict[str, Any]) -> None:
    private_files.write(path, (json.dumps(value, indent=2) + "\n").encode())


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise Unsupported("language models need transformers: pip install 'sordina[llm]'.") from error
    return transformers


def _read(recipe: TextRecipe, resumed: Path | None) -> tuple[TextTable, TextTable | None, int | None]:
    """The texts to train and to score on; on resuming, divided by the same coins."""
    options: dict[str, Any] = {"encoding": recipe.encoding, "separator": recipe.separator}
    labelled = recipe.task == CLASSIFICATION
    table = read_texts(recipe.dataset, recipe.schema, with_target=labelled, **options)
    if recipe.test is not None:
        return table, read_texts(recipe.test, recipe.schema, with_target=labelled, **options), None
    if recipe.test_share is None:
        return table, None, None
    seed = secrets.randbits(53) if recipe.seed is None else recipe.seed
    if resumed is not None and (resumed / RECIPE).is_file():
        seed = int(read_json(resumed / RECIPE)["split_seed"])
    return (*table.divided(recipe.test_share, seed), seed)


def _build(recipe: TextRecipe, table: TextTable) -> tuple[Any, Any]:
    """The model with its head (drawn at random, not from the data) and adapter, and the tokenizer."""
    transformers = _transformers()
    path = model_folder(recipe.model)
    torch.manual_seed(recipe.seed or 0)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        if recipe.task == CLASSIFICATION:
            names = dict(enumerate(table.classes))
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                path, num_labels=len(names), id2label=names, label2id={name: code for code, name in names.items()},
                ignore_mismatched_sizes=True,
            )  # fmt: skip
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{path} cannot be opened as a model for {recipe.task}: {reason}") from error
    if recipe.task == CAUSAL:
        _check_causal(model, path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    return (model if recipe.lora is None else _with_lora(model, recipe)), tokenizer


@torch.no_grad()
def _check_causal(model: Any, path: Path) -> None:
    """Refuse an encoder: it reads the words that it is to predict, and learns to copy them."""
    tokens = torch.arange(8)[None] % model.get_input_embeddings().num_embeddings
    other = tokens.clone()
    other[0, -1] = 0
    one, two = (model.eval()(input_ids=each).logits[0, :-1] for each in (tokens, other))
    if float((one - two).abs().max()) > 1e-5 * float(one.abs().max()):  # exactly 0 in a causal model
        raise InvalidInput(
            f"{path} is no causal language model: what it says of a place depends on the words after it. Take one such "
            "as GPT-2, or --task classification."
        )


def _with_lora(model: Any, recipe: TextRecipe) -> Any:
    try:
        import peft
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
    except ImportError as error:
        raise Unsupported("LoRA needs peft: pip install 'sordina[llm]'.") from error
    kind = "SEQ_CLS" if recipe.task == CLASSIFICATION else "CAUSAL_LM"
    targets = None if model.config.model_type in KNOWN else "all-linear"
    rank = recipe.lora or 8
    config = peft.LoraConfig(
        task_type=kind, r=rank, lora_alpha=2 * rank, target_modules=targets,
        fan_in_fan_out=model.config.model_type == "gpt2",
    )  # fmt: skip
    return peft.get_peft_model(model, config)


class _Items:
    """Texts as a tokenizer gives them, cut at a public length."""

    def __init__(self, table: TextTable, tokenizer: Any, recipe: TextRecipe) -> None:
        self.tokens = tokenizer(table.texts, truncation=True, max_length=_longest(tokenizer, recipe))["input_ids"]
        blank = next(each for each in (tokenizer.eos_token_id, tokenizer.pad_token_id, 0) if each is not None)
        self.tokens = [each or [blank] for each in self.tokens]
        self.labels = table.labels if recipe.task == CLASSIFICATION else None

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {"input_ids": self.tokens[index], "attention_mask": [1] * len(self.tokens[index])}
        return item if self.labels is None else {**item, "labels": int(self.labels[index])}


def _longest(tokenizer: Any, recipe: TextRecipe) -> int:
    """Where texts are cut: a public number."""
    return min(recipe.max_tokens, int(tokenizer.model_max_length))


def _collator(tokenizer: Any, recipe: TextRecipe) -> Any:
    transformers = _transformers()
    if recipe.task == CLASSIFICATION:
        return transformers.DataCollatorWithPadding(tokenizer)
    return _NextTokens(tokenizer.pad_token_id, _longest(tokenizer, recipe))


@dataclass(frozen=True)
class _NextTokens:
    """Every token but padding is to be predicted, also one that has the number of the padding."""

    padding: int
    longest: int

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(item["input_ids"]) for item in items)
        width = max(width, min(self.longest, -(-width // MULTIPLE) * MULTIPLE))

        def rows(value: Any, blank: int) -> torch.Tensor:
            return torch.tensor([value(item) + [blank] * (width - len(item["input_ids"])) for item in items])

        tokens = rows(lambda item: list(item["input_ids"]), self.padding)
        labels = rows(lambda item: list(item["input_ids"]), -100)
        return {
            "input_ids": tokens,
            "attention_mask": rows(lambda item: list(item["attention_mask"]), 0),
            "labels": labels,
        }


class _Steps:
    """Tells how far a run is: its steps only."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda args, state, control, **rest: None

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """After a step."""
        self.progress(state.global_step, state.max_steps)


# What a trained folder answers, and how good it is.


@torch.no_grad()
def _logits(model: Any, tokenizer: Any, table: TextTable, recipe: TextRecipe) -> Any:
    """Batches of logits with their batch, in the order of the rows."""
    items, collate = _Items(table, tokenizer, recipe), _collator(tokenizer, recipe)
    model.eval()
    device = next(model.parameters()).device
    for start in range(0, len(items), _SCORED_AT_ONCE):
        batch = collate([items[index] for index in range(start, min(start + _SCORED_AT_ONCE, len(items)))])
        inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
        yield model(**inputs).logits.float().cpu(), batch


def _scores(model: Any, tokenizer: Any, held: TextTable, recipe: TextRecipe) -> dict[str, float]:
    """Scores on test texts, which the guarantee does not cover."""
    if recipe.task == CLASSIFICATION and held.labels is not None:
        found = torch.cat([logits for logits, _ in _logits(model, tokenizer, held, recipe)])
        truth = torch.from_numpy(held.labels)
        shares = np.bincount(held.labels, minlength=len(held.classes)) / len(held)
        return {
            "rows": float(len(held)),
            "accuracy": float((found.argmax(1) == truth).double().mean()),
            "log_loss": float(torch.nn.functional.cross_entropy(found, truth)),
            "constant_accuracy": float(shares.max()),
        }
    total, count = 0.0, 0
    for logits, batch in _logits(model, tokenizer, held, recipe):
        labels = batch["labels"][:, 1:]
        each = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
        total, count = total + float(each.sum()), count + int((labels != -100).sum())
    loss = total / max(1, count)
    return {"rows": float(len(held)), "loss": loss, "perplexity": math.exp(min(loss, 700))}


def is_text_model(folder: str | Path) -> bool:
    """Whether ``folder`` holds what `train_texts` left.

    Args:
        folder: A folder, or anything else.
    """
    path = Path(folder) / RECIPE
    return path.is_file() and read_json(path).get("kind") == "texts"


@_quiet()
def predict_texts(folder: str | Path, source: Any, *, encoding: str = "utf-8", separator: str = ",") -> dict[str, Any]:
    """Classes and probabilities of new texts (or their mean loss, for a language model), by column.

    Args:
        folder: What `train_texts` left.
        source: A file of the same form, without a target.
        encoding: Of the file.
        separator: Between the fields of a CSV file.
    """
    folder, transformers = Path(folder), _transformers()
    read_claim(folder)
    told = read_json(folder / RECIPE)
    known = {key: value for key, value in told.items() if key in TextRecipe.__dataclass_fields__}
    recipe, schema = TextRecipe(**known), Schema.load(told["columns"])
    plain = recipe.schema is None
    table = read_texts(source, None if plain else schema, with_target=False, encoding=encoding, separator=separator)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = _opened(folder, recipe, len(schema[schema.target].values) if schema.target else 0)
    answers: dict[str, Any] = {}
    if schema.person is not None and table.owners is not None:
        answers[schema.person] = np.array([table.persons[owner] for owner in table.owners], dtype=object)
    if recipe.task == CAUSAL:
        losses = []
        for logits, batch in _logits(model, tokenizer, table, recipe):
            labels = batch["labels"][:, 1:]
            each = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
            losses.append(each.sum(1) / (labels != -100).sum(1).clamp(min=1))
        return {**answers, "loss": torch.cat(losses).numpy()}
    chances = torch.cat([logits.softmax(1) for logits, _ in _logits(model, tokenizer, table, recipe)]).numpy()
    names = schema[schema.target or ""].values
    answers[schema.target or "class"] = np.array([names[code] for code in chances.argmax(1)], dtype=object)
    return answers | {f"p({name})": chances[:, code] for code, name in enumerate(names)}


def _opened(folder: Path, recipe: TextRecipe, classes: int) -> Any:
    transformers = _transformers()
    if recipe.lora is not None:
        import peft

        kind = peft.AutoPeftModelForSequenceClassification if classes else peft.AutoPeftModelForCausalLM
        return kind.from_pretrained(folder, **({"num_labels": classes} if classes else {}))
    kind = transformers.AutoModelForSequenceClassification if classes else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder)

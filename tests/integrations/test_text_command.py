"""`sordina train` on texts: a table with a schema or a file of lines, then predict, card and report on the folder."""

from __future__ import annotations

import csv
import json
import random

import pytest
from tests.integrations import tiny
from typer.testing import CliRunner

import sordina as sd
from sordina.auditing.language import base_of_folder
from sordina.cli.main import app
from sordina.errors import InvalidInput
from sordina.integrations.text_files import read_texts
from sordina.integrations.text_run import TextRecipe, model_folder, train_texts
from sordina.run_folder import PRIVACY, read_claim

SCHEMA = """
target = "topic"
person = "who"
rows_per_person = 2
[columns.who]
kind = "person"
[columns.note]
kind = "text"
[columns.topic]
kind = "category"
values = ["a", "b"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    for name, make in (("bert", tiny.classifier), ("gpt2", tiny.causal)):
        make().save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    (folder / "schema.toml").write_text(SCHEMA)
    with (folder / "notes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "note", "topic"])
        for row in range(60):
            label = rng.randrange(2)
            words = " ".join(f"w{rng.randrange(17) + 17 * label}" for _ in range(rng.randint(3, 9)))
            writer.writerow([f"p{row // 3}", words, "ab"[label]])
    (folder / "lines.txt").write_text("".join(f"w{rng.randrange(30)} w{rng.randrange(30)} w1 w2\n" for _ in range(40)))
    return folder


def said(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done, done.stdout


def test_classification_on_a_table_of_persons(place, tmp_path):
    out = tmp_path / "run"
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("notes", sd.Budget(9, 1e-3), unit="user")
    done, text = said(
        "train", place / "notes.csv", "--schema", place / "schema.toml", "--model", place / "bert", "--lora", 2,
        "--epsilon", 8, "--delta", 1e-3, "--epochs", 1, "--batch-size", 8, "--microbatch", 4, "--test-share", 0.3,
        "--ledger", tmp_path / "ledger.db", "--dataset-budget", "notes", "--out", out, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, text
    facts = json.loads(text)
    assert facts["unit"] == "user"
    assert 0 < facts["epsilon"] <= 8
    assert 0 <= facts["accuracy"] <= 1
    assert len(ledger.spends()) == 1
    assert read_claim(out).epsilon == facts["epsilon"]
    done, text = said("predict", out, place / "notes.csv", "--json")
    assert done.exit_code == 0, text
    answers = json.loads(text)
    assert answers["columns"] == ["who", "topic", "p(a)", "p(b)"]
    assert len(answers["rows"]) == 60
    assert {row[1] for row in answers["rows"]} <= {"a", "b"}
    done, text = said("card", out)
    assert done.exit_code == 0, text
    assert "rows of a person count" in text
    done, text = said("report", out, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, text
    assert "PRIVATE" in (tmp_path / "page.html").read_text()


def test_a_language_model_on_lines(place, tmp_path):
    out = tmp_path / "run"
    words = (
        "train", place / "lines.txt", "--model", place / "gpt2", "--task", "causal-lm", "--epsilon", 8, "--delta", 1e-3,
        "--epochs", 1, "--batch-size", 8, "--microbatch", 4, "--test-share", 0.3, "--out", out,
    )  # fmt: skip
    done, text = said(*words)
    assert done.exit_code == 0, text
    assert "perplexity" in text
    done, again = said(*words, "--resume", "--json")
    assert done.exit_code == 0, again
    assert json.loads(again)["epsilon"] == read_claim(out).epsilon
    done, text = said("predict", out, place / "lines.txt")
    assert text.splitlines()[0] == "loss"
    assert len(text.splitlines()) == 41
    assert base_of_folder(out) == place / "gpt2"
    (out / PRIVACY).unlink()
    done, text = said("predict", out, place / "lines.txt")
    assert "has not finished" in str(done.exception)


def test_few_texts_take_a_batch_that_fits(place, tmp_path):
    recipe = TextRecipe(str(place / "lines.txt"), str(place / "gpt2"), task="causal-lm", epochs=0.5, delta=1e-3)
    done = train_texts(recipe, tmp_path / "run")
    assert done.run.plan.sampler.batch_size == 10
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["batch_size"] == 10


def test_an_encoder_is_no_language_model(place, tmp_path):
    with pytest.raises(InvalidInput, match="depends on the words after it"):
        train_texts(TextRecipe(str(place / "lines.txt"), str(place / "bert"), task="causal-lm"), tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--model", "nowhere", "--lora", "2"], "neither a folder"),
        (["--model", "bert"], "say --out"),
        (["--model", "bert", "--task", "poetry", "--out", "x"], "unknown task"),
        (["--lora", "2"], "go with --model"),
        (["--model", "bert", "--out", "x", "--activation", "relu"], "does not go with"),
        (["--model", "bert", "--out", "x", "--batch-size", "10", "--microbatch", "4"], "whole micro-batches"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(place, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(place)
    words = [str(tmp_path / word) if word == "x" else word for word in words]
    if "nowhere" in words:
        words += ["--out", str(tmp_path / "y")]
    done, text = said("train", "notes.csv", "--schema", "schema.toml", *words)
    assert isinstance(done.exception, InvalidInput), text
    assert reason in str(done.exception)
    assert done.exception.exit_code == 2


def test_texts_are_read_by_their_schema(place, tmp_path):
    table = read_texts(place / "notes.csv", place / "schema.toml", with_target=True)
    assert len(table) == 60
    assert len(table.users) == 20
    train, held = table.divided(0.4, seed=1)
    assert not set(train.owners) & set(held.owners)
    assert len(train) + len(held) == 60
    (tmp_path / "other.csv").write_text("who,note,topic\np,w1 w2,secret\n")
    with pytest.raises(InvalidInput, match="none of the schema's classes") as told:
        read_texts(tmp_path / "other.csv", place / "schema.toml", with_target=True)
    assert "secret" not in str(told.value)


def test_a_model_may_lie_in_an_installed_package(place, monkeypatch, tmp_path):
    package = tmp_path / "some_words"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model").mkdir()
    (package / "model" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_folder("some-words") == package / "model"
    assert model_folder(str(package)) == package / "model"

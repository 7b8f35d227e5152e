"""`sordina collect`: questions whose answers are randomised before they leave a person's device."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import booked_on
from sordina.cli.output import say, say_json, say_table
from sordina.errors import InvalidInput
from sordina.privacy import Unit, format_up

if TYPE_CHECKING:
    from sordina.statistics.local.collection import Collection

app = typer.Typer(
    help="Ask people without a trusted party: plan a question, randomise answers, estimate from them.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Encoding = Annotated[str, typer.Option(help="Encoding of the CSV file.")]
Separator = Annotated[str, typer.Option(help="Field separator of the CSV file.")]
_SHOWN = 20


@app.command()
def plan(
    epsilon: Annotated[float, typer.Option(help="Of every answer; with --shuffled, of all answers, shuffled.")],
    people: Annotated[int, typer.Option(help="Approximate number of people who will answer.")],
    values: Annotated[
        str | None, typer.Option(help="The values to choose from: how many, or their names, comma-separated.")
    ] = None,
    range_: Annotated[
        str | None, typer.Option("--range", help="Instead: the least and the largest number, as 0,100.")
    ] = None,
    texts: Annotated[int | None, typer.Option(help="Instead: any texts, of which this many characters count.")] = None,
    protocol: Annotated[
        str, typer.Option(help="auto, or grr, oue, olh, hadamard; duchi, piecewise, hybrid; pem.")
    ] = "auto",
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="Answers go through a shuffler, and --people answer exactly.")
    ] = False,
    delta: Annotated[float, typer.Option(help="With --shuffled.")] = 1e-6,
    out: Annotated[Path | None, typer.Option(help="Write the question here, for everybody who answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which protocol has the smallest error, and how large it will be, before anybody answers.

    Example: `sordina collect plan --values 64 --epsilon 1 --people 10000`
    """
    from sordina import private_files
    from sordina.statistics.local.collection import Frequency

    if people < 1:
        raise InvalidInput(f"--people must be at least 1, got {people}.")
    names, low, high = _names(values), *_ends(range_)
    own = epsilon
    if shuffled:
        own, protocol = _before_shuffling(epsilon, delta, people, len(names), protocol)
    made = _collection(own, names, low, high, texts, protocol)
    error = made.asked.error(people)
    facts: dict[str, Any] = {
        "protocol": made.protocol, "epsilon": made.epsilon, "people": people, "error": error,
        "shuffled": {"epsilon": epsilon, "delta": delta} if shuffled else None,
    }  # fmt: skip
    if isinstance(made.asked, Frequency) and not shuffled:
        rivals = {name: Frequency(len(names), own, name) for name in ("grr", "oue", "olh", "hadamard")}
        facts["errors"] = {name: one.error(people) for name, one in rivals.items()}
        facts["bits"] = {name: one.bits for name, one in rivals.items()}
    if out is not None:
        private_files.write(out, made.to_json().encode())
    if as_json:
        say_json(facts)
        return
    if "errors" in facts:
        rows = [
            (name, f"{value:.5f}", f"{facts['bits'][name]:.0f}", "chosen" if name == made.protocol else "")
            for name, value in sorted(facts["errors"].items(), key=lambda item: item[1])
        ]
        say_table(("protocol", "error of a share", "bits an answer", ""), rows, right=("error of a share",))
    unit = "of a share" if made.values or texts else "of the mean"
    say(f"{made.protocol} at epsilon {format_up(made.epsilon)} an answer: standard error {unit} {error:.4g}.")
    if shuffled:
        say(f"Shuffled, {people} answers are ({format_up(epsilon)}, {format_up(delta)})-DP for each person.")
    if out is not None:
        say(f"Written to {out}.")


@app.command()
def randomize(
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file with a row per person.")],
    column: Annotated[str, typer.Option(help="The column with the person's value.")],
    out: Annotated[Path, typer.Option(help="Write the answers here; the question goes beside them.")],
    question: Annotated[Path | None, typer.Option(help="What `collect plan --out` wrote.")] = None,
    values: Annotated[str | None, typer.Option(help="Instead: the values to choose from, comma-separated.")] = None,
    range_: Annotated[str | None, typer.Option("--range", help="Instead: the least and the largest number.")] = None,
    texts: Annotated[int | None, typer.Option(help="Instead: any texts, of which this many characters count.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of every answer, if no question is given.")] = None,
    protocol: Annotated[str, typer.Option(help="If no question is given.")] = "auto",
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write the answers in random order, and book them as shuffled.")
    ] = False,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    unit: Annotated[Unit, typer.Option(help="Whose answer a row is, for the ledger.")] = Unit.USER,
    seed: Annotated[int | None, typer.Option(help="Makes it repeatable, for trials only: it protects nobody.")] = None,
    encoding: Encoding = "utf-8",
    separator: Separator = ",",
    as_json: AsJson = False,
) -> None:
    """Randomise the value of every row, as every person's device would: one answer each.

    Example: `sordina collect randomize people.csv --column drug --question question.json --out answers.csv`
    """
    from contextlib import nullcontext

    from sordina import private_files
    from sordina.accounting import Event, Shuffled
    from sordina.privacy import Adjacency
    from sordina.random import generator

    if question is not None:
        if epsilon is not None or values or range_ or texts is not None or protocol != "auto":
            raise InvalidInput("the question says all: leave out --epsilon, --values, --range, --texts and --protocol.")
        asked = _read_question(question)
    else:
        if epsilon is None:
            raise InvalidInput("say what is asked: --question FILE, or --epsilon with --values, --range or --texts.")
        asked = _collection(epsilon, _names(values), *_ends(range_), texts, protocol)
    rng, book = generator(seed), booked_on(ledger, dataset_budget)
    booking: Any = nullcontext()
    if book is not None:
        booking = book.reserve(
            str(dataset_budget), asked.event(), what=f"randomised answers about {column}"[:200],
            adjacency=Adjacency.REPLACE_ONE, unit=unit,
        )  # fmt: skip
    spent: Event = asked.event()
    with booking as reservation:
        answers = asked.randomize(_column(table, column, encoding, separator), rng)
        if shuffle:
            answers = [answers[place] for place in rng.permutation(len(answers)).tolist()]
            spent = Shuffled(asked.epsilon, len(answers), len(asked.values) if asked.protocol == "grr" else 0)
        private_files.write(_beside(out), asked.to_json().encode())
        private_files.write(out, ("answer\n" + "\n".join(answers) + "\n").encode())
        if reservation is not None:
            reservation.settle(spent)
    if as_json:
        say_json({
            "answers": len(answers), "out": str(out), "question": str(_beside(out)), "protocol": asked.protocol,
            "epsilon": asked.epsilon, "releasable": seed is None,
        })  # fmt: skip
        return
    say(f"{len(answers)} answers ({asked.protocol}, epsilon {format_up(asked.epsilon)} each) written to {out}.")
    if seed is not None:
        say("Seeded: whoever knows the seed knows the answers. Not for release.", alarm=True)


@app.command()
def estimate(
    answers: Annotated[Path, typer.Argument(help="A CSV file with a column of answers.")],
    question: Annotated[Path | None, typer.Option(help="The question; by default the file beside the answers.")] = None,
    column: Annotated[str, typer.Option(help="The column with the answers.")] = "answer",
    confidence: Annotated[float, typer.Option(help="Confidence of each interval.")] = 0.95,
    population: Annotated[
        bool, typer.Option("--population", help="The people are a random sample of a larger population of interest.")
    ] = False,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="Shares that are not negative and sum to one; a little biased.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write all estimates here, as CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate shares, or the mean, from randomised answers, with intervals.

    Example: `sordina collect estimate answers.csv --consistent`
    """
    from dataclasses import asdict

    from sordina import private_files

    asked = _read_question(question or _beside(answers))
    told = _column(answers, column, "utf-8", ",")
    found = asked.estimate(told, confidence=confidence, population=population, consistent=consistent)
    rows = [asdict(line) for line in found]
    if out is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, ("value", "estimate", "low", "high"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        private_files.write(out, text.getvalue().encode())
    if as_json:
        say_json({
            "people": len(told), "protocol": asked.protocol, "epsilon": asked.epsilon, "confidence": confidence,
            "biased": consistent, "estimates": rows,
        })  # fmt: skip
        return
    first = sorted(found, key=lambda line: -line.estimate)[:_SHOWN]
    cells = [(line.value, f"{line.estimate:.4f}", f"{line.low:.4f} to {line.high:.4f}") for line in first]
    say_table(("value", "estimate", f"{confidence:.0%} interval"), cells, right=("estimate",))
    more = f" The {_SHOWN} most common of {len(found)} are shown." if len(found) > _SHOWN else ""
    say(f"{len(told)} answers by {asked.protocol} at epsilon {format_up(asked.epsilon)} each.{more}")
    if out is not None:
        say(f"Written to {out}.")


def _names(values: str | None) -> tuple[str, ...]:
    if values is None:
        return ()
    if values.strip().lstrip("-").isdigit():
        count = int(values)
        if not 2 <= count <= 1_000_000:
            raise InvalidInput(f"--values must be from 2 to 1000000, or names with commas between; got {count}.")
        return tuple(map(str, range(count)))
    return tuple(name.strip() for name in values.split(","))


def _ends(text: str | None) -> tuple[float | None, float | None]:
    if text is None:
        return None, None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise InvalidInput("--range takes the least and the largest number with a comma between, as 0,100.") from None
    return low, high


def _collection(
    epsilon: float,
    names: tuple[str, ...],
    low: float | None,
    high: float | None,
    length: int | None,
    protocol: str,
) -> Collection:
    from sordina.statistics.local.collection import Collection

    if not names and low is None and length is None:
        raise InvalidInput("say what is asked: --values, --range or --texts.")
    return Collection(epsilon, names, low, high, length, protocol)


def _before_shuffling(epsilon: float, delta: float, people: int, values: int, protocol: str) -> tuple[float, str]:
    """The epsilon of a single answer, and the protocol it is for."""
    from sordina.privacy import Budget
    from sordina.statistics.shuffle import answer_epsilon, shuffled_frequency

    budget = Budget(epsilon, delta)
    if values and protocol == "auto":
        made = shuffled_frequency(values, people, budget).protocol
        return float(made.epsilon), str(made.name)
    return answer_epsilon(budget, people, values if protocol == "grr" else 0), protocol


def _read_question(path: Path) -> Collection:
    from sordina import private_files
    from sordina.statistics.local.collection import Collection

    if not path.exists():
        raise InvalidInput(f"{path} is not there: name the question with --question, as `collect plan --out` wrote it.")
    return Collection.from_json(private_files.read(path))


def _beside(answers: Path) -> Path:
    """Where the question is kept, beside its answers."""
    return answers.with_name(f"{answers.name}.question.json")


def _column(table: Path, column: str, encoding: str, separator: str) -> list[str]:
    from sordina.tables.readers import pieces

    found: list[str] = []
    for piece in pieces(table, [column], encoding=encoding, separator=separator):
        found += ["" if value is None else str(value) for value in piece.columns[column].tolist()]
    if not found:
        raise InvalidInput(f"{table.name} has no rows.")
    return found

"""`sordina ledger`: budgets of data sets that outlive a process."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli.output import say, say_json, say_table
from sordina.types import Adjacency, Budget, Unit

if TYPE_CHECKING:
    from sordina.accounting.events import Event
    from sordina.accounting.ledger import DataSet, Entry, Ledger, Statement

app = typer.Typer(
    help="Budgets that outlive a process: reserve before a run, settle after it, verify the history.",
    no_args_is_help=True,
)

Where = Annotated[
    str,
    typer.Option("--ledger", envvar="SORDINA_LEDGER", help="A SQLite file, or any SQLAlchemy URL.", show_default=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Who = Annotated[str | None, typer.Option(help="Who acts; user@host by default.")]
Id = Annotated[int, typer.Argument(help="The id of a reservation, as `ledger show` lists them.")]
AdjacencyOption = Annotated[Adjacency, typer.Option(help="Which data sets count as neighbours.")]
UnitOption = Annotated[Unit, typer.Option(help="Whose presence the budget hides.")]
Noise = Annotated[float | None, typer.Option(help="Noise per unit of sensitivity, of each Gaussian release.")]
Rate = Annotated[float | None, typer.Option(help="Chance of each unit to take part (Poisson); 1 by default.")]
Steps = Annotated[int | None, typer.Option(help="How many such releases; 1 by default.")]
EventJson = Annotated[str | None, typer.Option("--event", help="Instead: any event, as JSON.")]
DEFAULT = "sordina-ledger.db"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the data set.")],
    epsilon: Annotated[float, typer.Option(help="All that may ever be spent on it.")],
    delta: Annotated[float, typer.Option(help="At this delta, below 1/(number of records).")],
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    unit: UnitOption = Unit.RECORD,
    accountant: Annotated[str, typer.Option(help="pld, rdp, gdp, zcdp, advanced or basic.")] = "pld",
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Open the account of a data set; its budget is final.

    Example: `sordina ledger create patients --epsilon 10 --delta 1e-5`
    """
    book = _open(ledger)
    made = book.create(name, Budget(epsilon, delta), adjacency=adjacency, unit=unit, accountant=accountant, who=who)
    _say(as_json, _terms(made), f"{made.name}: epsilon {epsilon:g} at delta {delta:g}, in {book.name}.")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="One data set; all by default.")] = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """What was spent, what remains, and which reservations are open.

    Example: `sordina ledger show`
    """
    book = _open(ledger)
    statements = book.statements() if name is None else (book.statement(name),)
    if as_json:
        _print_json({"ledger": book.name, "datasets": [_statement(statement) for statement in statements]})
    else:
        _print_statements(statements)


@app.command()
def history(
    name: Annotated[str | None, typer.Argument(help="One data set; all by default.")] = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Every entry ever made, oldest first.

    Example: `sordina ledger history patients`
    """
    entries = _open(ledger).history(name)
    if as_json:
        _print_json({"entries": [entry.to_dict() for entry in entries]})
    else:
        _print_entries(entries)


@app.command()
def reserve(
    name: Annotated[str, typer.Argument(help="The data set.")],
    what: Annotated[str, typer.Option(help="What the budget is for, in a few words.")],
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    steps: Steps = None,
    event: EventJson = None,
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    unit: UnitOption = Unit.RECORD,
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set aside the worst case of a run made with another tool, before it touches data. Exit code 3 if it does not fit.

    Example: `sordina ledger reserve patients --what "run 7" --noise-multiplier 1.1 --sample-rate 0.01 --steps 1000`
    """
    spend = _open(ledger).reserve(
        name, _event(noise_multiplier, sample_rate, steps, event), what=what, adjacency=adjacency, unit=unit, who=who
    ).spend  # fmt: skip
    message = f"reserved as {spend.id}. When the run has ended: sordina ledger settle {spend.id}"
    _say(as_json, {"id": spend.id, "dataset": spend.dataset, "what": spend.what}, message)


@app.command()
def settle(
    reservation: Id,
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    steps: Steps = None,
    event: EventJson = None,
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Record what a reservation really spent: all of it, or what the options say.

    Example: `sordina ledger settle 2 --noise-multiplier 1.1 --sample-rate 0.01 --steps 640`
    """
    said = (noise_multiplier, sample_rate, steps, event)
    happened = None if said == (None,) * 4 else _event(*said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry = _open(ledger).settle(reservation, happened, who=who)
    _say(as_json, entry.to_dict(), f"settled {reservation} ({entry.what}). {_flag(entry)}")


@app.command()
def release(
    reservation: Id,
    why: Annotated[str, typer.Option(help="Why it is certain that nothing was spent; kept in the history.")],
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give back a reservation that never spent anything, e.g. of a run that crashed before it read data.

    Example: `sordina ledger release 2 --why "the machine died before the data was mounted"`
    """
    entry = _open(ledger).release(reservation, why=why, who=who)
    _say(as_json, entry.to_dict(), f"released {reservation} ({entry.what}); recorded as entry {entry.id}.")


@app.command()
def verify(
    head: Annotated[str | None, typer.Option(help="A head noted earlier, which must still be there.")] = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check that the history was not altered, and print its head. Exit code 1 if it was.

    Note the head where the database's owner cannot write, and give it back later: only that shows a history
    rewritten as a whole.

    Example: `sordina ledger verify`
    """
    from sordina.errors import LedgerCorrupt

    try:
        found = _open(ledger).verify(head)
    except LedgerCorrupt as error:
        if as_json:
            _print_json({"valid": False, "problem": str(error)})
        raise
    answer = {"valid": True, "entries": found.count, "head": found.hash}
    _say(as_json, answer, f"whole: {found.count} entries, head {found.hash}")


def _open(where: str) -> Ledger:
    from sordina.accounting.ledger import Ledger

    return Ledger(where)


def _event(noise_multiplier: float | None, sample_rate: float | None, steps: int | None, text: str | None) -> Event:
    from sordina.accounting.events import Gaussian, PoissonSampled, Repeated, from_dict
    from sordina.errors import InvalidInput

    if text is not None and (noise_multiplier, sample_rate, steps) == (None, None, None):
        try:
            return from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise InvalidInput(f"--event is not JSON ({error}).") from error
    if text is not None or noise_multiplier is None:
        raise InvalidInput("say what is spent, either by --noise-multiplier (--sample-rate, --steps) or by --event.")
    once = Gaussian(noise_multiplier)
    return Repeated(once if sample_rate is None else PoissonSampled(sample_rate, once), 1 if steps is None else steps)


def _terms(dataset: DataSet) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "epsilon": dataset.budget.epsilon,
        "delta": dataset.budget.delta,
        "adjacency": str(dataset.adjacency),
        "unit": str(dataset.unit),
        "accountant": dataset.accountant,
    }


def _statement(statement: Statement) -> dict[str, Any]:
    from sordina.accounting.ledger import Status

    waiting = [
        {"id": spend.id, "what": spend.what, "who": spend.who, "time": spend.time}
        for spend in statement.having(Status.OPEN)
    ]
    counts = {"settled": len(statement.having(Status.SETTLED)), "released": len(statement.having(Status.RELEASED))}
    amounts = {"spent": statement.spent, "remaining": statement.remaining}
    return _terms(statement.dataset) | amounts | counts | {"open": waiting}


def _flag(entry: Entry) -> str:
    return f"Beware: it {entry.note}." if entry.note else ""


def _say(as_json: bool, data: dict[str, Any], sentence: str) -> None:
    if as_json:
        _print_json(data)
    else:
        say(sentence.strip())


def _print_json(data: dict[str, Any]) -> None:
    say_json(data, indent=2)


def _print_statements(statements: tuple[Statement, ...]) -> None:
    from sordina.accounting.ledger import Status

    rows = [
        [
            entry.dataset.name, f"{entry.dataset.budget.epsilon:g}", f"{entry.dataset.budget.delta:g}",
            f"{entry.spent:.4f}", f"{entry.remaining:.4f}",
            f"{entry.dataset.adjacency}, {entry.dataset.unit}, {entry.dataset.accountant}",
        ]
        for entry in statements
    ]  # fmt: skip
    _print_table("budgets", ["data set", "epsilon", "delta", "spent", "remaining", "counted by"], rows)
    waiting = [spend for statement in statements for spend in statement.having(Status.OPEN)]
    if waiting:
        _print_table(
            "open reservations, counted as spent",
            ["id", "data set", "what", "who", "UTC"],
            [[str(spend.id), spend.dataset, spend.what, spend.who, _minute(spend.time)] for spend in waiting],
        )


def _print_entries(entries: tuple[Entry, ...]) -> None:
    from sordina.accounting.ledger.describe import describe

    rows = []
    for entry in entries:
        about = f"epsilon {entry.budget.epsilon:g}, delta {entry.budget.delta:g}" if entry.budget else entry.note
        if entry.event is not None:
            about = "; ".join(part for part in (describe(entry.event), entry.note) if part)
        kind = f"{entry.kind} {entry.reservation}" if entry.reservation else str(entry.kind)
        rows.append([str(entry.id), _minute(entry.time), entry.dataset, kind, entry.who, entry.what, about])
    _print_table("history", ["id", "UTC", "data set", "kind", "who", "what", "about"], rows)


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    say_table(columns, rows, title=title, unbroken=("id", "UTC", "kind"))

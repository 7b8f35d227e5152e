"""`sordina ledger`: budgets of data sets that outlive a process."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli.ledger_tables import (
    csv_lines,
    duration,
    fit_facts,
    print_entries,
    print_statements,
    statement_of,
    terms_of,
)
from sordina.cli.output import say, say_json
from sordina.privacy import Adjacency, Budget, Unit

if TYPE_CHECKING:
    from sordina.accounting.events import Event
    from sordina.accounting.ledger import Entry, Ledger

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
Rate = Annotated[float | None, typer.Option(help="Probability of each unit to take part (Poisson); 1 by default.")]
Steps = Annotated[int | None, typer.Option(help="How many such releases; 1 by default.")]
EventJson = Annotated[str | None, typer.Option("--event", help="Instead: any event, as JSON.")]
Epsilon = Annotated[float | None, typer.Option(help="Instead: anything that is known to be (epsilon, delta)-DP.")]
Delta = Annotated[float | None, typer.Option(help="With --epsilon; 0 by default.")]
DEFAULT = "sordina-ledger.db"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the data set.")],
    epsilon: Annotated[float, typer.Option(help="The total that may ever be spent on it.")],
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
    _say(as_json, terms_of(made), f"{made.name}: epsilon {epsilon:g} at delta {delta:g}, in {book.name}.")


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
        _print_json({"ledger": book.name, "datasets": [statement_of(statement) for statement in statements]})
    else:
        print_statements(statements)


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
        print_entries(entries)


@app.command()
def reserve(
    name: Annotated[str, typer.Argument(help="The data set.")],
    what: Annotated[str, typer.Option(help="What the budget is for, in a few words.")] = "reserved by hand",
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    steps: Steps = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    event: EventJson = None,
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    unit: UnitOption = Unit.RECORD,
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set aside the worst case of a run made with another tool, before it touches data. Exit code 3 if it does not fit.

    If you know its noise, give --noise-multiplier: that composes far better than an epsilon and a delta.

    Example: `sordina ledger reserve patients --epsilon 1 --delta 1e-6 --what "run 7"`
    """
    happens = _event(noise_multiplier, sample_rate, steps, epsilon, delta, event)
    spend = _open(ledger).reserve(
        name, happens, what=what, adjacency=adjacency, unit=unit, who=who, lasting=False
    ).spend  # fmt: skip
    message = f"reserved as {spend.id}. When the run has ended: sordina ledger settle {spend.id}"
    _say(as_json, {"id": spend.id, "dataset": spend.dataset, "what": spend.what}, message)


@app.command()
def fits(
    name: Annotated[str, typer.Argument(help="The data set.")],
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    steps: Steps = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead: a run of this epsilon, as `sordina train --epsilon` makes it.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="With --epsilon; the data set's by default.")] = None,
    event: EventJson = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Whether a run would fit into what is left, and why. Reserves nothing; exit code 3 if it does not fit.

    Example: `sordina ledger fits patients --epsilon 2`
    """
    from sordina.accounting.events import ApproximateDP

    book = _open(ledger)
    if epsilon is None:
        found = book.fit(name, _event(noise_multiplier, sample_rate, steps, None, delta, event))
        facts, lines = fit_facts(found), [str(found)]
    else:
        terms = book.dataset(name)
        asked = Budget(epsilon, terms.budget.delta if delta is None else delta)
        found = book.fit(name, _training(asked))
        opaque = book.fit(name, ApproximateDP(asked.epsilon, 0.0 if delta is None else asked.delta))
        facts = fit_facts(found) | {"anything": fit_facts(opaque)}
        lines = [
            f"A training with Gaussian noise calibrated to epsilon {epsilon:g} {found}",
            f"Anything else, known only to be ({epsilon:g}, {0.0 if delta is None else delta:g})-DP, {opaque}",
        ]
    if as_json:
        _print_json(facts)
    else:
        for text in lines:
            say(text[0].upper() + text[1:])
    if not found.fits:
        raise typer.Exit(3)


@app.command()
def settle(
    reservation: Id,
    noise_multiplier: Noise = None,
    sample_rate: Rate = None,
    steps: Steps = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    event: EventJson = None,
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Record what a reservation really spent: all of it, or what the options say.

    Example: `sordina ledger settle 2 --noise-multiplier 1.1 --sample-rate 0.01 --steps 640`
    """
    said = (noise_multiplier, sample_rate, steps, epsilon, delta, event)
    happened = None if said == (None,) * 6 else _event(*said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry = _open(ledger).settle(reservation, happened, who=who)
    _say(as_json, entry.to_dict(), f"settled {reservation} ({entry.what}). {_flag(entry)}")


@app.command()
def release(
    reservation: Annotated[int | None, typer.Argument(help="The id of a reservation.")] = None,
    why: Annotated[
        str | None, typer.Option("--why", "--reason", help="Why it is certain that nothing was spent; kept for ever.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Instead of an id: all open ones older than this, such as 7d or 36h.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="With --older-than: of this data set only.")] = None,
    who: Who = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give back a reservation that never spent anything, e.g. of a run that crashed before it read data.

    With --older-than, reservations of runs that are still alive are kept.

    Example: `sordina ledger release --older-than 7d --reason "the cluster was reinstalled before these ran"`
    """
    from sordina.errors import InvalidInput

    if (reservation is None) == (older_than is None):
        raise InvalidInput("say which reservation to release: its id, or --older-than 7d.")
    if why is None:
        raise InvalidInput("say why nothing was spent, by --reason: it is kept in the history.")
    if dataset is not None and older_than is None:
        raise InvalidInput("--dataset goes with --older-than.")
    book = _open(ledger)
    if reservation is not None:
        entry = book.release(reservation, why=why, who=who)
        _say(as_json, entry.to_dict(), f"released {reservation} ({entry.what}); recorded as entry {entry.id}.")
        return
    assert older_than is not None
    released, alive = book.release_older(duration(older_than), why=why, dataset=dataset, who=who)
    if as_json:
        running = [spend.id for spend in alive]
        _print_json({"released": [entry.to_dict() for entry in released], "still_running": running})
        return
    for entry in released:
        say(f"released {entry.reservation} ({entry.what}); recorded as entry {entry.id}.")
    for spend in alive:
        say(f"kept {spend.id} ({spend.what}): its run is alive.")
    if not released and not alive:
        say(f"no open reservation is older than {older_than}.")


@app.command()
def export(
    name: Annotated[str | None, typer.Argument(help="One data set; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write here; printed by default.")] = None,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """The history as CSV, one line per entry, for a spreadsheet or an auditor.

    The file is CSV also with --json, which then says where it is; without --out, --json prints the entries.

    Example: `sordina ledger export patients --out history.csv`
    """
    from sordina import private_files

    entries = _open(ledger).history(name)
    lines = csv_lines(entries)
    if out is None:
        if as_json:
            _print_json({"entries": [entry.to_dict() for entry in entries]})
            return
        for text in lines:
            say(text)
        return
    private_files.write(out, "".join(f"{text}\r\n" for text in lines).encode())
    _say(as_json, {"written": str(out), "count": len(entries)}, f"{len(entries)} entries written to {out}.")


@app.command()
def verify(
    head: Annotated[
        str | None, typer.Option(help="A head recorded earlier, which must still be in the history.")
    ] = None,
    recompose: Annotated[
        bool, typer.Option("--recompose", help="Also compose every spend again, however long it takes.")
    ] = False,
    ledger: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check that the history was not altered, and print its head. Exit code 1 if it was.

    Record the head where the database's owner cannot write, and pass it later: only that reveals a history
    rewritten as a whole.

    Example: `sordina ledger verify`
    """
    from sordina.errors import LedgerCorrupt

    try:
        found = _open(ledger).verify(head, recompose=recompose)
    except LedgerCorrupt as error:
        if as_json:
            _print_json({"valid": False, "problem": str(error)})
        raise
    answer = {"valid": True, "entries": found.count, "head": found.hash}
    _say(as_json, answer, f"whole: {found.count} entries, head {found.hash}")


def _open(where: str) -> Ledger:
    from sordina.accounting.ledger import Ledger

    return Ledger(where)


def _event(
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
    epsilon: float | None,
    delta: float | None,
    text: str | None,
) -> Event:
    from sordina.accounting.events import ApproximateDP, Gaussian, PoissonSampled, PureDP, Repeated, from_dict
    from sordina.errors import InvalidInput

    noisy = (noise_multiplier, sample_rate, steps) != (None, None, None)
    if [noisy, (epsilon, delta) != (None, None), text is not None].count(True) != 1:
        raise InvalidInput(
            "say what is spent in one way: by --noise-multiplier (--sample-rate, --steps), by --epsilon and --delta, "
            "or by --event."
        )
    if text is not None:
        try:
            return from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise InvalidInput(f"--event is not JSON ({error}).") from error
    if noisy:
        if noise_multiplier is None:
            raise InvalidInput("--sample-rate and --steps go with --noise-multiplier.")
        once = Gaussian(noise_multiplier)
        count = 1 if steps is None else steps
        return Repeated(once if sample_rate is None else PoissonSampled(sample_rate, once), count)
    if epsilon is None:
        raise InvalidInput("--delta goes with --epsilon.")
    return ApproximateDP(epsilon, delta) if delta else PureDP(epsilon)


def _training(budget: Budget) -> Event:
    """What a training calibrated to ``budget`` does to a ledger, nearly: one Gaussian release of its epsilon."""
    from sordina.accounting import Gaussian, noise_multiplier

    return Gaussian(noise_multiplier(Gaussian, budget))


def _flag(entry: Entry) -> str:
    return f"Beware: it {entry.note}." if entry.note else ""


def _say(as_json: bool, data: dict[str, Any], sentence: str) -> None:
    if as_json:
        _print_json(data)
    else:
        say(sentence.strip())


def _print_json(data: dict[str, Any]) -> None:
    say_json(data, indent=2)

"""`sordina federate` and `sordina flower`: a federated run with an account for every client, and apps of Flower."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import CommandWithFormerOptions, booked_on, grouped, stated
from sordina.cli.output import say, say_json
from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger


@dataclass(frozen=True)
class ClientFileOptions:
    """For files of your own."""

    schema: Annotated[Path | None, typer.Option(help="What is public about them (see sordina schema).")] = None
    client_column: Annotated[
        str | None, typer.Option(help="Of one file: the column that says which client a row belongs to.")
    ] = None
    test: Annotated[Path | None, typer.Option(help="Another file to validate on.")] = None
    test_share: Annotated[
        float | None, typer.Option(help="Share of the clients that validate and do not train; 0.2 by default.")
    ] = None
    model: Annotated[str | None, typer.Option(help="linear or network.")] = None
    encoding: Annotated[str, typer.Option(help="Encoding of CSV files.")] = "utf-8"
    separator: Annotated[str, typer.Option(help="Field separator of CSV files.")] = ","


@dataclass(frozen=True)
class AlgorithmOptions:
    """The algorithm."""

    strategy: Annotated[
        str,
        typer.Option(
            help="fedsgd, fedavg, fedprox, scaffold, feddyn, fsvrg, sub-fedavg, mean-regularised, per-fedavg, "
            "graph-regularised, fedem, ifca, metric-pfl or metric-pfl-steady."
        ),
    ] = "metric-pfl"
    hypotheses: Annotated[int, typer.Option(help="Models to train, for ifca, fedem and metric-pfl.")] = 2
    rounds: Annotated[int | None, typer.Option(help="The largest number of rounds.")] = None
    clients_per_round: Annotated[int | None, typer.Option(help="Clients in a round (expected, if central).")] = None
    learning_rate: Annotated[float | None, typer.Option(help="Step size at the client.")] = None
    batch_size: Annotated[int | None, typer.Option(help="Batch size at the client.")] = None
    epochs: Annotated[int, typer.Option(help="Passes over a client's rows.")] = 1
    server_learning_rate: Annotated[float | None, typer.Option(help="Step size at the server.")] = None
    mu: Annotated[
        float, typer.Option(help="Weight of the regulariser: fedprox, feddyn, mean- and graph-regularised.")
    ] = 0.1
    inner_learning_rate: Annotated[
        float | None,
        typer.Option(help="Step size with which per-fedavg's clients adapt; by default the learning rate."),
    ] = None
    prune: Annotated[float, typer.Option(help="Share of weights that sub-fedavg's clients prune in the end.")] = 0.5
    patience: Annotated[
        int | None, typer.Option(help="Validations without improvement before stopping; 0 for never.")
    ] = None
    window: Annotated[int | None, typer.Option(help="Validations the loss is averaged over before it is judged.")] = (
        None
    )
    aggregate: Annotated[
        str, typer.Option(help="mean, median, trimmed-mean or krum; the last three not under central privacy.")
    ] = "mean"
    compress: Annotated[str, typer.Option(help="none, 8bit, 4bit, 2bit, 1bit or top:SHARE, after sanitisation.")] = (
        "none"
    )
    seed: Annotated[int | None, typer.Option(help="Makes the noise repeatable; such models must not be released.")] = (
        None
    )


@dataclass(frozen=True)
class PrivacyOptions:
    """Privacy."""

    privacy: Annotated[
        str | None,
        typer.Option(help="none, metric, central, distributed, gopa, local or record; metric-pfl's own is metric."),
    ] = None
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise multiplier nu of metric privacy: each update leaks n/nu.")
    ] = 5.0
    radius: Annotated[
        str, typer.Option(help="'update' (the paper's heuristic) or 'public:R' (sound), for metric privacy.")
    ] = "update"
    leakage_limit: Annotated[float | None, typer.Option(help="No client leaks more than this.")] = None
    epsilon: Annotated[float, typer.Option(help="Budget epsilon of central, local and record privacy.")] = 3.0
    delta: Annotated[float, typer.Option(help="Budget delta of central, local and record privacy.")] = 1e-5
    clipping: Annotated[
        str, typer.Option(help="fixed, quantile, online, automatic, trailing or sector, for central privacy.")
    ] = "fixed"
    threshold: Annotated[float, typer.Option(help="Clipping threshold, or the first one.")] = 1.0
    records: Annotated[
        int | None, typer.Option(help="Record privacy: a public number close to the number of records of a client.")
    ] = None
    honest_share: Annotated[
        float,
        typer.Option(help="Share of a round's clients that does not collude with the server (distributed, gopa)."),
    ] = 0.7
    tolerated_dropout: Annotated[
        float, typer.Option(help="Largest share of a round's clients that may drop out of it (distributed, gopa).")
    ] = 0.1
    neighbours: Annotated[int, typer.Option(help="Others that each client shares noise with (gopa).")] = 10


@dataclass(frozen=True)
class SimulationOptions:
    """Where it runs, and what goes wrong there."""

    engine: Annotated[
        str, typer.Option(help="in-process, or flower: every client is a node of Flower's simulation.")
    ] = "in-process"
    dropout: Annotated[float, typer.Option(help="Share of clients that do not answer in a round.")] = 0.0
    late: Annotated[float, typer.Option(help="Share of answers that miss the deadline of their round.")] = 0.0
    hostile: Annotated[
        str,
        typer.Option(help="Clients that misbehave, as nan:3,huge:7 (or replay, duplicate, malformed, impostor)."),
    ] = ""


@dataclass(frozen=True)
class TopologyOptions:
    """Without a server."""

    topology: Annotated[
        str | None, typer.Option(help="Without a server: gossip, walk or decor (budget by --epsilon and --delta).")
    ] = None
    graph: Annotated[
        str,
        typer.Option(
            help="Of a topology: complete, ring, grid, exponential, erdos-renyi:P, k-out:K or a FILE of edges."
        ),
    ] = "exponential"
    gossip_rounds: Annotated[
        int | None, typer.Option(help="Rounds of averaging in a step of gossip; by default as many as the graph needs.")
    ] = None
    accelerated: Annotated[bool, typer.Option("--accelerated", help="Chebyshev's weights in gossip.")] = False
    protect: Annotated[
        str, typer.Option(help="worst: no pair is above epsilon; mean: only the mean over pairs is at it (gossip).")
    ] = "worst"


@dataclass(frozen=True)
class FederatedRunOptions:
    """The run."""

    out: Annotated[Path | None, typer.Option(help="Folder for metrics, guarantee, models and figures.")] = None
    ledger: Annotated[str | None, typer.Option(help="Ledger file or URL, for central, local or record privacy.")] = None
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@grouped
def federate(
    data: Annotated[
        list[str],
        typer.Argument(
            help="CSV or Parquet files, one per client, or synthetic, synthetic-fairness, hospital, mnist-writers, "
            "femnist, adult.",
            metavar="DATA...",
        ),
    ],
    files: ClientFileOptions,
    algorithm: AlgorithmOptions,
    privacy: PrivacyOptions,
    simulation: SimulationOptions,
    peers: TopologyOptions,
    run: FederatedRunOptions,
) -> None:
    """Train one model or several among clients that keep their data, and keep account of what each reveals.

    With tables: `sordina federate clients/*.csv --schema patients.toml --strategy fedavg --privacy central`

    Example: `sordina federate synthetic --strategy metric-pfl --hypotheses 2 --noise-multiplier 5
    --clients-per-round 7 --seed 0 --out runs/f`
    """
    if run.out is None and (run.resume or run.ledger or run.dataset_budget):
        raise InvalidInput("--resume, --ledger and --dataset-budget belong to a run's folder: name it with --out.")
    books = booked_on(run.ledger, run.dataset_budget)
    name, options, table_records = _tables(data, privacy.privacy, files)
    if peers.topology is not None:
        facts = _among_peers(name, options, algorithm, privacy, peers, run, books)
    else:
        records = table_records if privacy.records is None else privacy.records
        facts = _with_a_server(name, options, algorithm, replace(privacy, records=records), simulation, run, books)
    _tell(facts, run.out, run.as_json)


def _with_a_server(
    name: str,
    options: dict[str, Any],
    algorithm: AlgorithmOptions,
    privacy: PrivacyOptions,
    simulation: SimulationOptions,
    run: FederatedRunOptions,
    books: Ledger | None,
) -> dict[str, Any]:
    """Run a federation, and give what came out."""
    from sordina.cli.output import rounds_bar
    from sordina.federated import recipe as recipes
    from sordina.federated import record, run_keeper
    from sordina.federated.round import RoundView

    recipe = recipes.FederatedRecipe(name, options=options, **vars(algorithm), **vars(privacy), **vars(simulation))
    rounds = recipes.DATASET_DEFAULTS[name].rounds if algorithm.rounds is None else algorithm.rounds
    with rounds_bar(recipe.data, rounds, shown=not run.as_json) as tick:

        def observe(seen: RoundView) -> None:
            tick(record.line(seen))

        if run.out is None:
            return record.summary(recipes.run(recipe, observe))
        return run_keeper.federate_into(
            run.out, recipe, resume=run.resume, ledger=books, dataset=run.dataset_budget, observe=observe
        )


def _among_peers(
    name: str,
    options: dict[str, Any],
    algorithm: AlgorithmOptions,
    privacy: PrivacyOptions,
    peers: TopologyOptions,
    run: FederatedRunOptions,
    books: Ledger | None,
) -> dict[str, Any]:
    """Run a federation without a server, and give what came out."""
    from sordina.cli.output import rounds_bar
    from sordina.federated.decentralized.peer_run import peer_problem, run_peers
    from sordina.federated.decentralized.peer_training import PeerSettings

    if privacy.privacy is not None:
        raise InvalidInput("--topology has a privacy of its own: leave --privacy out.")
    settings = PeerSettings(
        str(peers.topology), peers.graph, algorithm.rounds or 30, privacy.epsilon, privacy.delta, privacy.threshold,
        algorithm.learning_rate or 0.5, peers.gossip_rounds, peers.accelerated, peers.protect, privacy.honest_share,
        seed=algorithm.seed,
    )  # fmt: skip
    with rounds_bar(name, settings.rounds, shown=not run.as_json) as tick:
        _, facts = run_peers(
            settings, lambda drawn: peer_problem(name, settings, options, drawn), data=name, folder=run.out,
            ledger=books, dataset=run.dataset_budget, observe=tick, resume=run.resume,
        )  # fmt: skip
    return facts


def _tell(facts: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from sordina.cli.output import say, say_json
    from sordina.privacy import format_up

    if as_json:
        say_json(facts)
        return
    for name, value in facts.items():
        if name not in ("accounts", "epsilon_by_distance", "fairness", "guarantee", "hypotheses", "leakage"):
            shown = format_up(value, 6) if isinstance(value, float) else value
            say(f"{name:>20}  {shown}")
    for one in facts.get("epsilon_by_distance", ())[:12]:
        say(
            f"{'at distance ' + format(one['distance'], 'g'):>20}  epsilon {format_up(one['mean'], 4)} on average, "
            f"{format_up(one['largest'], 4)} at most"
        )
    say(facts["guarantee"])
    if out is not None:
        say(f"Saved in {out}.")


def _tables(data: list[str], privacy: str | None, files: ClientFileOptions) -> tuple[str, dict[str, Any], int | None]:
    """The federation's name, the options of its loader and the public number of records of a client."""
    from sordina.cli.train import is_table
    from sordina.errors import Unsupported

    if not any(map(is_table, data)):
        if len(data) > 1 or stated(files):
            raise InvalidInput(f"--schema and the options for files go with files of your own, not with {data[0]!r}.")
        return data[0], {}, None
    from sordina.tables import Schema

    if files.schema is None:
        raise InvalidInput(
            f"tables need a schema that says what is public: draft one with `sordina schema {data[0]} --target COLUMN "
            "--out schema.toml`, complete it, and pass --schema schema.toml."
        )
    public = Schema.load(files.schema).complete()
    if privacy == "record" and public.person is not None:
        raise Unsupported(
            "record privacy protects a row, and these people have several: take central or distributed privacy, which "
            "protect a client with all its rows."
        )
    given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(files).items()}
    given = {name: value for name, value in given.items() if value is not None}
    return "table", {**given, "files": data, "schema": public.to_dict()}, public.rows


# `sordina flower`: Sordina's runs as Flower apps.

app = typer.Typer(help="Sordina's runs as Flower apps.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Sordina's runs as Flower apps."""


@app.command(cls=CommandWithFormerOptions)
def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the app.")],
    strategy: Annotated[str, typer.Option(help="As in `sordina federate`.")] = "metric-pfl",
    hypotheses: Annotated[int, typer.Option(help="Models to train, for ifca and metric-pfl.")] = 2,
    privacy: Annotated[
        str | None, typer.Option(help="none, metric, central, local, record, distributed or gopa.")
    ] = None,
    noise_multiplier: Annotated[float, typer.Option(help="Noise multiplier nu of metric privacy.")] = 5.0,
    radius: Annotated[str, typer.Option(help="'public:R' (sound) or 'update' (heuristic).")] = "public:1",
    leakage_limit: Annotated[float | None, typer.Option(help="No client leaks more than this.")] = None,
    epsilon: Annotated[float, typer.Option(help="Budget epsilon of central, local and record privacy.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Budget delta of central, local and record privacy.")] = 1e-5,
    clipping: Annotated[str, typer.Option(help="Clipping policy of central privacy.")] = "fixed",
    threshold: Annotated[float, typer.Option(help="Clipping threshold, or the first one.")] = 1.0,
    honest_share: Annotated[
        float, typer.Option(help="Share of a round's clients that does not collude (distributed, gopa).")
    ] = 0.7,
    tolerated_dropout: Annotated[
        float, typer.Option(help="Largest share of a round's clients that may drop out (distributed, gopa).")
    ] = 0.1,
    neighbours: Annotated[int, typer.Option(help="Others that each client shares noise with (gopa).")] = 10,
    clients: Annotated[int, typer.Option(help="How many clients there are: one SuperNode each.")] = 3,
    clients_per_round: Annotated[int | None, typer.Option(help="Clients in a round (expected, if central).")] = None,
    rounds: Annotated[int, typer.Option(help="The largest number of rounds.")] = 20,
    learning_rate: Annotated[float, typer.Option(help="Step size at the client.")] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Batch size at the client.")] = 32,
    epochs: Annotated[int, typer.Option(help="Passes over a client's rows in a round.")] = 1,
    records: Annotated[
        int | None, typer.Option(help="Record privacy: a public number close to the number of records of a client.")
    ] = None,
    dependency: Annotated[
        Path | None, typer.Option(help="A wheel or folder of Sordina for SuperLinks that install dependencies.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which a round goes on without clients that have not answered.")
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a Flower app: pyproject, server and client app, and the function where you load a client's data.

    Example: `sordina flower init hospitals --strategy fedavg --privacy central --epsilon 3 --clients 40 --rounds 50`
    """
    from sordina.federated.flower.app_template import write
    from sordina.federated.recipe import FederatedRecipe

    recipe = FederatedRecipe(
        "own", strategy=strategy, hypotheses=hypotheses, privacy=privacy, noise_multiplier=noise_multiplier,
        radius=radius,
        leakage_limit=leakage_limit, epsilon=epsilon, delta=delta, clipping=clipping, threshold=threshold,
        rounds=rounds, clients_per_round=clients_per_round, learning_rate=learning_rate, batch_size=batch_size,
        epochs=epochs,
        records=records, honest_share=honest_share, tolerated_dropout=tolerated_dropout, neighbours=neighbours,
    )  # fmt: skip
    files = write(folder, recipe, clients=clients, deadline=deadline, dependency=dependency)
    if as_json:
        say_json({"folder": str(folder), "files": files, "run": f"flwr run {folder}"})
        return
    for file in files:
        say(folder / file)
    say(f"Try it: cd {folder} && flwr run . --stream")
    say(f"Then make task.py your own, and see {folder / 'README.md'} for how to deploy it.")

"""`sordina federate` and `sordina flower`: a federated run with an account for every client, and apps of Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sordina.cli._options import CommandWithFormerOptions
from sordina.cli.output import say, say_json


def federate(
    data: Annotated[
        list[str],
        typer.Argument(
            help="CSV or Parquet files, one a client, or synthetic, synthetic-fairness, hospital, mnist-writers, "
            "femnist, adult.",
            metavar="DATA...",
        ),
    ],
    schema: Annotated[Path | None, typer.Option(help="For files: what is public about them (sordina schema).")] = None,
    client_column: Annotated[
        str | None, typer.Option(help="For one file: the column that says which client a row belongs to.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="For files: another one to validate on.")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="For files: part of the clients that validate and do not train; 0.2.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="For files: linear or network.")] = None,
    encoding: Annotated[str, typer.Option(help="For files: how CSV files are written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="For files: between the fields of CSV files.")] = ",",
    strategy: Annotated[
        str,
        typer.Option(
            help="fedsgd, fedavg, fedprox, scaffold, feddyn, fsvrg, sub-fedavg, mean-regularised, per-fedavg, "
            "graph-regularised, fedem, ifca, metric-pfl or metric-pfl-steady."
        ),
    ] = "metric-pfl",
    hypotheses: Annotated[int, typer.Option(help="Models to train, for ifca, fedem and metric-pfl.")] = 2,
    privacy: Annotated[
        str | None,
        typer.Option(help="none, metric, central, distributed, gopa, local or record; metric-pfl's own is metric."),
    ] = None,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise multiplier nu of metric privacy: n/nu leaks each time.")
    ] = 5.0,
    radius: Annotated[
        str, typer.Option(help="'update' (the paper's heuristic) or 'public:R' (sound), for metric privacy.")
    ] = "update",
    leakage_limit: Annotated[float | None, typer.Option(help="No client leaks more than this.")] = None,
    epsilon: Annotated[float, typer.Option(help="Budget epsilon of central, local and record privacy.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Budget delta of central, local and record privacy.")] = 1e-5,
    clipping: Annotated[
        str, typer.Option(help="fixed, quantile, online, automatic, trailing or sector, for central privacy.")
    ] = "fixed",
    threshold: Annotated[float, typer.Option(help="Clipping threshold, or the first one.")] = 1.0,
    honest_share: Annotated[
        float,
        typer.Option(help="Share of a round's clients that does not collude with the server (distributed, gopa)."),
    ] = 0.7,
    tolerated_dropout: Annotated[
        float, typer.Option(help="Largest share of a round's clients that may drop out of it (distributed, gopa).")
    ] = 0.1,
    neighbours: Annotated[int, typer.Option(help="Others that each client shares noise with (gopa).")] = 10,
    rounds: Annotated[int | None, typer.Option(help="The largest number of rounds.")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="Clients in a round (expected, if central).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size at the client.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size at the client.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over a client's rows.")] = 1,
    records: Annotated[
        int | None, typer.Option(help="Record privacy: a public number near the records of a client.")
    ] = None,
    server_learning_rate: Annotated[float | None, typer.Option(help="Step size at the server.")] = None,
    mu: Annotated[
        float, typer.Option(help="Weight of the regulariser: fedprox, feddyn, mean- and graph-regularised.")
    ] = 0.1,
    patience: Annotated[
        int | None, typer.Option(help="Validations without improvement before stopping; 0: never.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Validations the loss is averaged over before it is judged.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable noise; such models must not be released.")] = None,
    inner_learning_rate: Annotated[
        float | None, typer.Option(help="Step with which per-fedavg's clients adapt; else the learning rate.")
    ] = None,
    prune: Annotated[float, typer.Option(help="Share of weights sub-fedavg's clients end up without.")] = 0.5,
    aggregate: Annotated[
        str, typer.Option(help="mean, median, trimmed-mean or krum; the last three not under central privacy.")
    ] = "mean",
    compress: Annotated[
        str, typer.Option(help="none, 8bit, 4bit, 2bit, 1bit or top:SHARE, after sanitisation.")
    ] = "none",
    dropout: Annotated[float, typer.Option(help="Share of clients that stay silent in a round.")] = 0.0,
    late: Annotated[float, typer.Option(help="Share of answers that miss the deadline of their round.")] = 0.0,
    hostile: Annotated[
        str,
        typer.Option(help="Clients that misbehave, as nan:3,huge:7 (or replay, duplicate, malformed, impostor)."),
    ] = "",
    engine: Annotated[
        str, typer.Option(help="in-process, or flower: every client a node of Flower's simulation.")
    ] = "in-process",
    topology: Annotated[
        str | None, typer.Option(help="Without a server: gossip, walk or decor (budget by --epsilon and --delta).")
    ] = None,
    graph: Annotated[
        str,
        typer.Option(
            help="Of a topology: complete, ring, grid, exponential, erdos-renyi:P, k-out:K or a FILE of edges."
        ),
    ] = "exponential",
    gossip_rounds: Annotated[
        int | None, typer.Option(help="Rounds of averaging in a step of gossip; else as many as the graph needs.")
    ] = None,
    accelerated: Annotated[bool, typer.Option("--accelerated", help="Chebyshev's weights in gossip.")] = False,
    protect: Annotated[
        str, typer.Option(help="worst: no pair is above epsilon; mean: only the mean over pairs is at it (gossip).")
    ] = "worst",
    out: Annotated[Path | None, typer.Option(help="Folder for metrics, guarantee, models and figures.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger file or URL, for central, local or record privacy.")
    ] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train one model or several among clients that keep their data, and keep account of what each reveals.

    With tables: `sordina federate clients/*.csv --schema patients.toml --strategy fedavg --privacy central`

    Example: `sordina federate synthetic --strategy metric-pfl --hypotheses 2 --noise-multiplier 5
    --clients-per-round 7 --seed 0 --out runs/f`
    """
    from sordina.cli._options import booked_on
    from sordina.cli.output import rounds_bar
    from sordina.errors import InvalidInput
    from sordina.federated import recipe as recipes
    from sordina.federated import record, run_keeper
    from sordina.federated.round import RoundView

    if out is None and (resume or ledger or dataset_budget):
        raise InvalidInput("--resume, --ledger and --dataset-budget belong to a run's folder: name it with --out.")
    books = booked_on(ledger, dataset_budget)
    name, options, table_records = _tables(
        data, schema, privacy, client_column=client_column, test=test, test_share=test_share, model=model,
        encoding=encoding, separator=separator,
    )  # fmt: skip
    if topology is not None:
        from sordina.federated.decentralized.peer_run import peer_problem, run_peers
        from sordina.federated.decentralized.peer_training import PeerSettings

        if privacy is not None:
            raise InvalidInput("--topology has a privacy of its own: leave --privacy out.")
        settings = PeerSettings(
            topology, graph, rounds or 30, epsilon, delta, threshold, learning_rate or 0.5, gossip_rounds, accelerated,
            protect, honest_share, seed=seed,
        )  # fmt: skip
        with rounds_bar(name, settings.rounds, shown=not as_json) as tick:
            _, facts = run_peers(
                settings, lambda drawn: peer_problem(name, settings, options, drawn), data=name, folder=out,
                ledger=books, dataset=dataset_budget, observe=tick, resume=resume,
            )  # fmt: skip
        _tell(facts, out, as_json)
        return
    recipe = recipes.FederatedRecipe(
        name, strategy=strategy, hypotheses=hypotheses, privacy=privacy, noise_multiplier=noise_multiplier,
        radius=radius,
        leakage_limit=leakage_limit, epsilon=epsilon, delta=delta, clipping=clipping, threshold=threshold,
        rounds=rounds, clients_per_round=clients_per_round, learning_rate=learning_rate, batch_size=batch_size,
        epochs=epochs,
        records=records if records is not None else table_records, options=options, honest_share=honest_share,
        tolerated_dropout=tolerated_dropout, neighbours=neighbours, server_learning_rate=server_learning_rate, mu=mu,
        patience=patience,
        window=window, seed=seed, engine=engine, aggregate=aggregate,
        compress=compress, dropout=dropout, late=late, hostile=hostile, inner_learning_rate=inner_learning_rate,
        prune=prune,
    )  # fmt: skip
    with rounds_bar(
        recipe.data, recipes.DATASET_DEFAULTS[name].rounds if rounds is None else rounds, shown=not as_json
    ) as tick:

        def observe(seen: RoundView) -> None:
            tick(record.line(seen))

        if out is None:
            facts = record.summary(recipes.run(recipe, observe))
        else:
            facts = run_keeper.federate_into(
                out, recipe, resume=resume, ledger=books, dataset=dataset_budget, observe=observe
            )
    _tell(facts, out, as_json)


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


def _tables(
    data: list[str], schema: Path | None, privacy: str | None, **options: Any
) -> tuple[str, dict[str, Any], int | None]:
    """The federation's name, the options of its loader and the public number of records of a client."""
    from sordina.cli.train import is_table
    from sordina.errors import InvalidInput, Unsupported

    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    given = {name: value for name, value in given.items() if value is not None}
    plain = {"encoding": "utf-8", "separator": ","}
    if not any(map(is_table, data)):
        if len(data) > 1 or schema is not None or given != plain:
            raise InvalidInput(f"--schema and the options for files go with files of your own, not with {data[0]!r}.")
        return data[0], {}, None
    from sordina.tables import Schema

    if schema is None:
        raise InvalidInput(
            f"tables need a schema that says what is public: draft one with `sordina schema {data[0]} --target COLUMN "
            "--out schema.toml`, complete it, and pass --schema schema.toml."
        )
    public = Schema.load(schema).complete()
    if privacy == "record" and public.person is not None:
        raise Unsupported(
            "record privacy protects a row, and these people have several: take central or distributed privacy, which "
            "protect a client with all its rows."
        )
    return "table", {"files": data, "schema": public.to_dict(), **given}, public.rows


# `sordina flower`: Sordina's runs as apps of Flower.

app = typer.Typer(help="Sordina's runs as apps of Flower.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Sordina's runs as apps of Flower."""


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
        int | None, typer.Option(help="Record privacy: a public number near the records of a client.")
    ] = None,
    dependency: Annotated[
        Path | None, typer.Option(help="A wheel or folder of Sordina for SuperLinks that install dependencies.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds after which a round goes on without the silent.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a Flower app: pyproject, server and client app, and the hook where a client's data come in.

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

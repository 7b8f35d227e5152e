"""`sordina flower`: Sordina's runs as apps of Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli._options import CommandWithFormerOptions
from sordina.cli.output import say, say_json

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

"""`sordina account`: what noise costs and what a budget buys. Never touches data, never imports torch."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli.output import number, say, say_json, say_table
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Budget

if TYPE_CHECKING:
    from sordina.accounting import Event

app = typer.Typer(help="What noise costs, and how much noise a budget buys.", no_args_is_help=True)


class Sampling(str, Enum):
    """How a batch is drawn."""

    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"


class SearchMethod(str, Enum):
    """How a search pays for its runs."""

    COMPOSITION = "composition"
    RANDOM_STOPPING = "random-stopping"


Noise = Annotated[float, typer.Option(help="Noise per unit of the sensitivity under the chosen adjacency.")]
Epsilon = Annotated[float, typer.Option(help="Budget epsilon.")]
Delta = Annotated[float, typer.Option(help="Delta, below 1/(number of records).")]
Rate = Annotated[float, typer.Option(help="Share of the data in a batch; 1 means all of it, every time.")]
Steps = Annotated[int, typer.Option(help="How many times noise is added.")]
AccountantName = Annotated[str, typer.Option(help="pld, rdp, gdp, zcdp, advanced or basic.")]
AdjacencyOption = Annotated[Adjacency, typer.Option(help="Which data sets count as neighbours.")]
SamplingOption = Annotated[
    Sampling | None, typer.Option(help="How batches are drawn; by default what the adjacency suggests.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command()
def epsilon(
    noise_multiplier: Noise,
    delta: Delta,
    sample_rate: Rate = 1.0,
    steps: Steps = 1,
    accountant: AccountantName = "pld",
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    sampling: SamplingOption = None,
    as_json: AsJson = False,
) -> None:
    """The epsilon that a run costs.

    Example: `sordina account epsilon --noise-multiplier 1.0 --sample-rate 0.00853 --steps 1170 --delta 1e-5`
    """
    from sordina.accounting import accountant as accountant_called

    event = _run(noise_multiplier, sample_rate, steps, adjacency, sampling)
    spent = accountant_called(accountant).epsilon(event, delta, adjacency)
    _say(
        {
            "epsilon": spent,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "sample_rate": sample_rate,
            "steps": steps,
            "accountant": accountant,
            "adjacency": str(adjacency),
        },
        as_json,
    )


@app.command()
def noise(
    epsilon: Epsilon,
    delta: Delta,
    sample_rate: Rate = 1.0,
    steps: Steps = 1,
    accountant: AccountantName = "pld",
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    sampling: SamplingOption = None,
    as_json: AsJson = False,
) -> None:
    """The smallest noise multiplier that keeps a run within a budget.

    Example: `sordina account noise --epsilon 3 --delta 1e-5 --sample-rate 0.00853 --steps 1170`
    """
    from sordina.accounting import accountant as accountant_called
    from sordina.accounting import noise_multiplier

    def run(noise: float) -> Event:
        return _run(noise, sample_rate, steps, adjacency, sampling)

    found = noise_multiplier(run, Budget(epsilon, delta), adjacency, accountant)
    _say(
        {
            "noise_multiplier": found,
            "epsilon": accountant_called(accountant).epsilon(run(found), delta, adjacency),
            "target_epsilon": epsilon,
            "delta": delta,
            "sample_rate": sample_rate,
            "steps": steps,
            "accountant": accountant,
            "adjacency": str(adjacency),
        },
        as_json,
    )


@app.command()
def search(
    epsilon: Epsilon,
    delta: Delta,
    runs: Annotated[int, typer.Option(help="Runs of the search: exactly (composition), on average (random stopping).")],
    sample_rate: Rate = 1.0,
    steps: Steps = 1,
    method: Annotated[SearchMethod | None, typer.Option(help="By default the one that needs less noise.")] = None,
    accountant: AccountantName = "pld",
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    sampling: SamplingOption = None,
    as_json: AsJson = False,
) -> None:
    """The noise of every run such that a whole search costs one budget.

    Example: `sordina account search --epsilon 3 --delta 1e-5 --sample-rate 0.00853 --steps 1170 --runs 25`
    """
    from sordina.accounting import search_noise

    plan = search_noise(
        lambda noise: _run(noise, sample_rate, steps, adjacency, sampling),
        Budget(epsilon, delta),
        runs,
        method=None if method is None else method.value,
        adjacency=adjacency,
        accountant=accountant,
    )
    _say(
        {
            "runs": runs,
            "method": plan.method,
            "noise_multiplier": plan.noise_multiplier,
            "per_run_epsilon": plan.per_run_epsilon,
            "epsilon": epsilon,
            "delta": delta,
            "sample_rate": sample_rate,
            "steps": steps,
            "accountant": accountant,
            "adjacency": str(adjacency),
            "reason": plan.reason,
            "noise_by_method": plan.noise_by_method,
        },
        as_json,
    )


@app.command()
def joint(
    noise_multiplier: Noise,
    inflation: Annotated[float, typer.Option(help="How much more noise the gradient may get, as a fraction.")] = 0.01,
    as_json: AsJson = False,
) -> None:
    """Split one Gaussian query into a gradient and a side query of the same total cost.

    Example: `sordina account joint --noise-multiplier 1.0 --inflation 0.01`
    """
    from sordina.accounting import joint as split

    gradient, query = split(noise_multiplier, inflation)
    _say(
        {
            "gradient_noise_multiplier": gradient,
            "query_noise_multiplier": query,
            "noise_multiplier": noise_multiplier,
            "inflation": inflation,
        },
        as_json,
    )


@app.command()
def compare(
    noise_multiplier: Noise = 1.0,
    sample_rate: Rate = 0.00853,
    steps: Steps = 1170,
    delta: Delta = 1e-5,
    adjacency: AdjacencyOption = Adjacency.ADD_REMOVE,
    sampling: SamplingOption = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw epsilon against steps into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """What every accountant says about one run, as a table and a plot.

    Example: `sordina account compare --noise-multiplier 1.0 --sample-rate 0.00853 --steps 1170 --delta 1e-5`
    """
    from sordina.accounting.accountants import compare as judged
    from sordina.accounting.accountants import plot as draw

    verdicts = judged(_run(noise_multiplier, sample_rate, steps, adjacency, sampling), delta, adjacency)
    if plot is not None:
        draw(
            lambda count: _run(noise_multiplier, sample_rate, count, adjacency, sampling), steps, delta, plot, adjacency
        )
    if as_json:
        facts = {
            "epsilon": {verdict.accountant: verdict.epsilon for verdict in verdicts},
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "sample_rate": sample_rate,
            "steps": steps,
            "accountant": [verdict.accountant for verdict in verdicts],
            "adjacency": str(adjacency),
            "note": {verdict.accountant: verdict.note for verdict in verdicts},
            "plot": None if plot is None else str(plot),
        }
        _say(facts, True)
        return
    _table([(verdict.accountant, verdict.epsilon, verdict.note) for verdict in verdicts], delta)
    if plot is not None:
        say(f"Plot saved as {plot}.")


def _run(noise: float, rate: float, steps: int, adjacency: Adjacency, sampling: Sampling | None) -> Event:
    """``steps`` Gaussian releases on samples, drawn as asked or as the adjacency suggests."""
    from sordina.accounting import FixedSizeSampled, Gaussian, PoissonSampled, Repeated

    if not 0 <= rate <= 1:
        raise InvalidInput(f"--sample-rate must lie in [0, 1], got {rate}.")
    if sampling is None:
        sampling = Sampling.POISSON if adjacency is Adjacency.ADD_REMOVE else Sampling.FIXED_SIZE
    if sampling is Sampling.POISSON:
        return Repeated(PoissonSampled(rate, Gaussian(noise)), steps)
    population = 10**9
    return Repeated(FixedSizeSampled(math.ceil(rate * population), population, Gaussian(noise)), steps)


def _say(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(facts, indent=2)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number(name, part)}" for key, part in value.items())
        shown = number(name, value) if isinstance(value, float) else value
        say(f"{name.replace('_', ' '):>26}  {shown}")


def _table(rows: list[tuple[str, float | None, str]], delta: float) -> None:
    known = [value for _, value, _ in rows if value is not None and 0 < value < math.inf]
    least, most = (min(known), max(known)) if known else (1.0, 1.0)
    lines = []
    for name, value, note in rows:
        share = math.log(value / least) / math.log(most / least) if value and most > least and value < math.inf else 0.0
        lines.append((name, "refused" if value is None else f"{value:.5g}", "█" * (1 + round(23 * share)), note))
    columns = ("accountant", "epsilon", "against pld (logarithmic)", "")
    say_table(columns, lines, title=f"epsilon at delta = {delta:g}", right=("epsilon",))

"""A search to look at while it runs: a table made from the search's folder, a few times a second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordina.run_folder import METRICS
from sordina.tuning.decision import PLAN
from sordina.tuning.run import TRAINING, finished
from sordina.tuning.scheme import STOPPING

if TYPE_CHECKING:
    from rich.table import Table

_AT_MOST = 30


@contextmanager
def live_table(folder: Path) -> Iterator[None]:
    """Show the search in ``folder`` on standard error until it ends."""
    from rich.console import Console
    from rich.live import Live

    plan = json.loads((folder / PLAN).read_text())
    with Live(
        get_renderable=lambda: table(folder, plan), console=Console(stderr=True), refresh_per_second=2, transient=True
    ):
        yield


def table(folder: Path, plan: dict[str, Any]) -> Table:
    """The runs of a search and how far they are.

    Validation scores show where they are exact; under private selection nobody sees them. With random stopping even the
    number of runs is nobody's business.
    """
    from rich.table import Table

    scheme, orders = plan["scheme"], plan.get("orders", [])
    noise = f"{scheme['method']}, noise {scheme['noise_multiplier']:.4g}"
    if scheme["method"] == STOPPING:
        view = Table(title=f"{folder.name}: {noise}", title_justify="left")
        view.add_column("running; how many runs there are stays secret")
        return view
    states = [_state(folder / "runs" / f"{order['number']:04d}") for order in orders]
    done = sum(state["state"] != "waits" and state["state"] != "runs" for state in states)
    view = Table(title=f"{folder.name}: {noise}, {done} of {len(orders)} runs", title_justify="left")
    for column in ("run", "configuration", "step", "C", "rate", "score", "state"):
        view.add_column(column, justify="left" if column in ("configuration", "state") else "right")
    first = max(0, min(len(orders) - _AT_MOST, done - _AT_MOST // 2))
    for order, state in list(zip(orders, states, strict=True))[first : first + _AT_MOST]:
        values = " ".join(f"{name}={value:.4g}" for name, value in order["configuration"].items()) or "(none)"
        view.add_row(
            str(order["number"]), values, state["step"], state["C"], state["rate"], state["score"], state["state"]
        )
    return view


def _state(folder: Path) -> dict[str, str]:
    """What a run's folder tells: the last line of its metrics, and whether it has ended."""
    blank = {"step": "", "C": "", "rate": "", "score": "", "state": "waits"}
    entry = _last(folder / METRICS) or _last(folder / TRAINING / METRICS)
    if entry is not None:
        blank |= {
            "step": f"{entry['step']}/{entry['steps']}",
            "C": f"{entry['threshold']:.3g}",
            "rate": f"{entry['learning_rate']:.3g}",
            "score": _score(entry.get("validation", {})),
            "state": "runs",
        }
    result = finished(folder)
    if result is not None:
        blank |= {"state": result.stopped or "done"}
        if result.score is not None:
            blank["score"] = f"{result.score:.4g}"
    return blank


def _score(validation: dict[str, float]) -> str:
    value = validation.get("accuracy", validation.get("loss"))
    return "" if value is None else f"{value:.4g}"


def _last(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON lines."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        return entry
    return None

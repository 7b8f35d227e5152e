"""Utility against epsilon, one line per strategy."""

from __future__ import annotations

from typing import Any, BinaryIO

from sordina.tuning.strategies import STRATEGIES


def plot_utility(facts: dict[str, Any], path: BinaryIO) -> None:
    """Draw the searches of a comparison's `facts` into the open file ``path``; says how the selection was made."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    searches = [search for search in facts["searches"] if search["asked_epsilon"] is not None]
    for strategy in dict.fromkeys(search["strategy"] for search in searches):
        points = sorted(
            (search["asked_epsilon"], search["utility"], search["spread"] or 0.0)
            for search in searches
            if search["strategy"] == strategy
        )
        epsilons, values, spreads = zip(*points, strict=True)
        axes.errorbar(epsilons, values, yerr=spreads, marker="o", capsize=3, label=STRATEGIES[strategy].title)
    axes.set_xlabel("epsilon of the whole search")
    axes.set_ylabel(facts["searches"][0]["utility_metric"])
    axes.set_title(f"{facts['task']['dataset']}: {facts['selection']['label'].partition(':')[0]}", fontsize=9)
    axes.grid(alpha=0.3)
    if searches:
        axes.legend()
    figure.savefig(path, dpi=120, format="png")

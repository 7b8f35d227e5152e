"""A claim is never shown smaller than it is, and a delta that protects nobody is said to."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sordina
from sordina.cli.output import number
from sordina.privacy import Guarantee, delta_warning, format_down, format_up, rounded_up
from sordina.reports.charts import Axis
from sordina.training.callbacks import ProgressBar

PACKAGE = Path(sordina.__file__).parent
sizes = st.floats(1e-12, 1e12)


@given(sizes, st.integers(1, 6))
def test_what_is_shown_is_never_on_the_wrong_side(value, digits):
    assert float(format_up(value, digits)) >= value
    assert float(format_down(value, digits)) <= value
    assert float(rounded_up(value, digits).replace(",", "")) >= value


@given(sizes, st.integers(2, 6))
def test_and_never_off_by_more_than_its_last_digit(value, digits):
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    assert float(format_up(value, digits)) - value <= 1.001 * step
    assert value - float(format_down(value, digits)) <= 1.001 * step


@pytest.mark.parametrize(("value", "shown"), [(1.00049, "1.001"), (1.0, "1"), (0.1, "0.1"), (2.9999999, "3"), (0, "0")])
def test_examples(value, shown):
    assert format_up(value) == shown


def test_a_guarantee_says_no_less_than_it_is():
    assert str(Guarantee(1.00049, 1.004e-5)).startswith("(1.001, 1.01e-05)-DP")
    assert str(Guarantee(3.0, 1e-5)).startswith("(3, 1e-05)-DP")


def test_so_do_the_progress_bar_and_the_axis_of_a_chart():
    bar = ProgressBar(10)
    bar.report({"step": 1, "threshold": 1.0, "epsilon": 1.00049})
    assert "ε 1.001" in bar._bar.tasks[0].fields["facts"]
    assert Axis("ε spent", up=True).text(1.00001) == "1.001"


def test_no_claim_is_formatted_to_the_nearest_anywhere():
    """A number called epsilon, spent or leaked goes through `format_up`; a budget that was given stays as given."""
    nearest = re.compile(r"\{[^{}]*(epsilon|spent|leaked|together)[^{}]*:[,]?\.[0-9]+[gf]\}")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "reproduction" not in path.parts
        for line in path.read_text().splitlines()
        if nearest.search(line)
    ]
    assert not found, "\n".join(found)


def test_commands_round_claims_up_and_other_numbers_to_the_nearest():
    assert number("per_run_epsilon", 1.0000001) == "1.00001"
    assert number("noise_multiplier", 1.0000001) == "1"


class TestDelta:
    def test_one_in_n_or_more_is_warned_of(self):
        assert delta_warning(1e-3, 999) is None
        assert "WARNING" in delta_warning(1e-3, 1000)
        assert "1/50" in delta_warning(0.5, 50, "client")

    def test_nothing_is_said_where_nothing_is_known(self):
        assert delta_warning(0.1, None) is None
        assert delta_warning(0.0, 10) is None

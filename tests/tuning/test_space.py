import numpy as np
import pytest

from sordina.clipping import Fixed, Online, Quantile
from sordina.errors import InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, SteadyRate
from sordina.tuning import STRATEGIES, Between, Grid, GridFrom, Random, log_spaced
from sordina.tuning.space import fields_of, named, spanning


def test_the_grids_of_section_3_7_have_the_stated_sizes_and_ranges():
    for k in (5, 7, 9):
        sizes = {name: named(name).grid(k).runs for name in STRATEGIES}
        assert sizes["online"] == sizes["online-as-in-thesis"] == sizes["adam-wosm"] == k
        assert sizes["fixed-threshold"] == k * k
        assert sizes["fixed-quantile"] == 5 * k
        assert sizes["automatic"] == 1
    axes = named("fixed-threshold").grid(5).axes
    assert axes["rho"] == (0.00316228, 0.0316228, 0.316228, 3.16228, 31.6228)
    assert axes["C"] == (0.01, 0.1, 1.0, 10.0, 100.0)
    assert named("fixed-quantile").grid(9).axes["gamma"] == (0.1, 0.3, 0.5, 0.7, 0.9)


def test_a_strategy_sets_what_the_thesis_says():
    online = fields_of("online-as-in-thesis", {"rho": 0.3})
    assert online["clipping"] == Online.as_in_thesis(0.1, 2.5e-3)
    assert online["learning_rate"].first == 0.3
    assert online["learning_rate"].rate(1000) == 2.5e-3
    assert fields_of("online", {"rho": 2.0}) == {"clipping": Online(0.1), "learning_rate": SteadyRate(0.7)}
    assert fields_of("fixed-threshold", {"rho": 1.0, "C": 2.0}) == {"clipping": Fixed(2.0), "learning_rate": 1.0}
    assert fields_of("fixed-quantile", {"rho": 1.0, "gamma": 0.3})["clipping"] == Quantile(0.3, 0.1, 0.2)
    assert fields_of("adam-wosm", {"C": 2.0}) == {"clipping": Fixed(2.0), "optimizer": AdamWOSM}
    assert fields_of("automatic", {}) == {"clipping": None, "learning_rate": AutomaticRate()}
    assert fields_of(None, {"learning_rate": 0.1}) == {"learning_rate": 0.1}


def test_a_grid_is_the_product_of_its_axes():
    grid = Grid({"a": (1, 2), "b": ("x", "y", "z")})
    points = grid.configurations()
    assert len(points) == grid.runs == 6
    assert len({tuple(point.values()) for point in points}) == 6
    assert Grid({}).configurations() == [{}]


def test_draws_from_a_grid_are_uniform():
    grid, rng = Grid({"a": (1, 2), "b": (1, 2, 3)}), np.random.default_rng(0)
    draws = 6000
    counts: dict[tuple, int] = {}
    for _ in range(draws):
        point = tuple(grid.draw(rng).values())
        counts[point] = counts.get(point, 0) + 1
    expected = draws / 6
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 6
    assert chi_square < 20.5  # 99.9 % quantile at 5 degrees of freedom


def test_random_points_stay_in_their_ranges_and_spread_in_the_logarithm():
    space, rng = Random({"rho": Between(0.01, 100), "kind": ("a", "b")}, runs=2000), np.random.default_rng(1)
    points = space.configurations(rng)
    logs = np.log10([point["rho"] for point in points])
    assert len(points) == 2000
    assert logs.min() >= -2
    assert logs.max() <= 2
    assert abs(np.mean(logs)) < 4 * (4 / np.sqrt(12)) / np.sqrt(2000)
    assert {point["kind"] for point in points} == {"a", "b"}


def test_spanning_keeps_what_is_no_range():
    space = spanning(named("fixed-quantile").grid(5).axes, runs=7)
    assert space.runs == 7
    assert space.axes["rho"] == Between(0.00316228, 31.6228)
    assert space.axes["gamma"] == (0.1, 0.3, 0.5, 0.7, 0.9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grid({"a": ()}),
        lambda: Grid({"a": "abc"}),
        lambda: Grid({"a": (1.0, Fixed(1.0))}),
        lambda: Random({}, runs=0),
        lambda: Random({"a": []}, runs=1),
        lambda: Between(0.0, 1.0),
        lambda: Between(2.0, 1.0),
        lambda: log_spaced(1.0, 0.5, 3),
        lambda: log_spaced(1.0, 2.0, 0),
        lambda: named("offline"),
        lambda: named("online").grid(0),
    ],
)
def test_refusals(make):
    with pytest.raises(InvalidInput):
        make()


def test_a_grid_begins_at_the_points_that_are_known_to_be_good():
    grid = Grid({"C": (0.1, 1.0, 10.0), "mode": ("a", "b")})
    space = GridFrom(grid, ({"C": 7.0, "mode": "b"}, {"C": 12.0, "mode": "b"}, {"C": 0.1, "mode": "a"}))
    assert space.ahead == [{"C": 10.0, "mode": "b"}, {"C": 0.1, "mode": "a"}]
    configurations = space.configurations()
    assert configurations[:2] == space.ahead
    assert sorted(map(repr, configurations)) == sorted(map(repr, grid.configurations()))
    assert space.runs == grid.runs == 6
    assert space.draw(np.random.default_rng(0)) in configurations


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "values for C, mode"),
        (({"C": 1.0},), "values for C, mode"),
        (({"C": 1.0, "mode": "c"},), "mode has no value 'c' in the grid: 'a', 'b'"),
        (({"C": -1.0, "mode": "a"},), "C has no value -1.0"),
    ],
)
def test_points_that_are_not_of_the_grid_are_refused(points, said):
    with pytest.raises(InvalidInput, match=said):
        GridFrom(Grid({"C": (0.1, 1.0), "mode": ("a", "b")}), points).configurations()

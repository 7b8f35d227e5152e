"""Attacks on releases: averaging, differencing, membership in aggregates, reconstruction, linkage.

Membership in aggregates (Homer et al. 2008): who was in a study, from nothing but its published means.

A person with bits x is scored by ``sum_j (x_j - p_j) (mean_j - p_j)``: who was in has pulled the means a little their
way, and over thousands of attributes (p_j: how common each is among everybody, known) the little adds up.

Reconstruction (Dinur and Nissim 2003): a secret bit of everybody, from the answers to many counting questions.

A question is a random half of the people, its answer how many of them have the bit. With answers that are off by much
less than sqrt(n), almost all bits follow, by least squares or linear programming; with more noise, or fewer questions,
less and less does.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina import statistics
from sordina.accounting.ledger import Ledger
from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.auditing.scores import Roc, Scores, auc, roc, tpr_at
from sordina.errors import BudgetRefused, InvalidInput, TrainingFailed
from sordina.mechanisms import DiscreteGaussian, DiscreteLaplace
from sordina.mechanisms.mechanism import whole
from sordina.privacy import Budget, check_delta, check_epsilon, format_up
from sordina.progress import Progress, silent
from sordina.random import generator, releasable

# Averaging: the same noisy question again and again, until the noise is gone; a ledger refuses.


def averaging_study(
    *,
    count: int = 1234,
    asked: int = 10_000,
    epsilon: float = 0.1,
    budget: float = 1.0,
    delta: float = 1e-6,
    seed: int | None = None,
) -> ReleaseStudy:
    """How far the average of the answers is from the truth: without a ledger, and with one that has a budget.

    Args:
        count: The secret.
        asked: How often the question is asked.
        epsilon: Of each answer.
        budget: The epsilon of the data set in the ledger.
        delta: The delta of the data set in the ledger.
        seed: Makes the study repeatable.
    """
    whole("asked", asked), check_epsilon(epsilon)
    rng, mechanism = generator(seed), DiscreteLaplace(1, epsilon)
    naive = mechanism.release(np.full(asked, whole("count", count, least=0)), rng)
    answers, refusal = _with_ledger(epsilon, count, asked, Budget(budget, delta), rng)
    wrong = [np.abs(_running_mean(np.asarray(told)) - count) for told in (naive, answers)]
    turns = np.unique(np.geomspace(1, asked, 60).astype(int))
    mine = turns[turns <= len(answers)]
    ended = f"refused after {len(answers)}" if refusal else "never refused"
    return ReleaseStudy(
        attack="averaging",
        title="The same question again and again",
        data=f"a count, asked {asked} times at epsilon {format_up(epsilon)}",
        private=f"the ledger has ({format_up(budget)}, {format_up(delta)})-DP for the data set",
        verdict=(
            f"The average of {asked} answers is off by {wrong[0][-1]:.2f}. With a ledger the question is {ended}, and "
            f"the average stays off by {wrong[1][-1]:.2f}. {refusal}"
        ).strip(),
        lines=(
            StudyLine("answers given", float(asked), float(len(answers))),
            StudyLine("error of their average", float(wrong[0][-1]), float(wrong[1][-1])),
            StudyLine("questions refused", 0.0, float(asked - len(answers))),
        ),
        x="answers averaged",
        y="error of the average",
        curves=(
            StudyCurve("no ledger", tuple(turns.tolist()), tuple(wrong[0][turns - 1].tolist())),
            StudyCurve("with a ledger", tuple(mine.tolist()), tuple(wrong[1][mine - 1].tolist())),
        ),
        log_x=True,
        releasable=releasable(rng),
    )


def _with_ledger(
    epsilon: float, count: int, asked: int, budget: Budget, rng: np.random.Generator
) -> tuple[list[float], str]:
    """The answers that the ledger allowed, and how it refused the next. Whoever asks opens the table anew."""
    answers: list[float] = []
    schema = {"columns": {"ill": {"kind": "category", "values": ["yes"]}}}
    with tempfile.TemporaryDirectory() as folder:
        people = Path(folder) / "people.csv"
        people.write_text("ill\n" + "yes\n" * count)
        ledger = Ledger(Path(folder) / "ledger.db")
        ledger.create("people", budget)
        try:
            for _ in range(asked):
                table = statistics.Table(
                    people, schema=schema, budget=budget, ledger=ledger, dataset_budget="people", seed=rng
                )
                answers.append(float(table.count(epsilon=epsilon).release().value))
        except BudgetRefused as refusal:
            return answers, str(refusal)
    return answers, ""


def _running_mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.cumsum(values) / np.arange(1, len(values) + 1))


# Differencing: the mean before and after one person joined gives that person away (002 section 1).

_CLOSE = 1.0


def differencing_study(
    values: Sequence[float] | None = None,
    *,
    low: int = 17,
    high: int = 90,
    people: int = 1000,
    targets: int = 500,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> ReleaseStudy:
    """The value of a person who joins ``people`` others, from two means; exact ones, and noisy ones.

    Ours is a noisy sum and a noisy count, each at ``epsilon / 2`` (discrete Laplace; the values are whole numbers in a
    public range), so both releases together are ``2 epsilon``-DP for the person who joined.

    Args:
        values: Whole numbers; made up, evenly over the range, if left out.
        low: The least possible value.
        high: The largest.
        people: How many people were in it before.
        targets: How many people join, one at a time.
        epsilon: Of each of the two releases.
        seed: Makes the study repeatable.
    """
    check_epsilon(epsilon), whole("people", people), whole("targets", targets)
    world = np.random.default_rng(seed)
    made_up = world.integers(low, high + 1, size=people + targets)
    known = made_up if values is None else np.clip(np.array(values, float), low, high).astype(np.int64)
    if len(known) < people + targets:
        raise InvalidInput(f"{people + targets} people are needed, and there are {len(known)}.")
    rng = generator(seed)
    drawn = known[world.permutation(len(known))]
    base, joining = drawn[:people], drawn[people : people + targets]
    before = int(base.sum())
    exact = (before + joining) / (people + 1) * (people + 1) - before / people * people
    sums, counts = DiscreteLaplace(max(abs(low), abs(high)), epsilon / 2), DiscreteLaplace(1, epsilon / 2)

    def mean(total: np.ndarray, count: int) -> np.ndarray:
        noisy_count = np.maximum(counts.release(np.full(targets, count), rng), 1)
        return np.asarray(np.clip(sums.release(total, rng) / noisy_count, low, high))

    first, second = mean(np.full(targets, before), people), mean(before + joining, people + 1)
    guessed = np.clip(second * (people + 1) - first * people, low, high)
    best = max(float(np.mean(np.abs(joining - guess) <= _CLOSE)) for guess in range(low, high + 1))
    naive, ours = (float(np.mean(np.abs(found - joining) <= _CLOSE)) for found in (exact, guessed))
    errors = [np.sort(np.abs(found - joining)) for found in (exact, guessed)]
    shares = tuple(np.linspace(0, 1, targets).tolist())
    return ReleaseStudy(
        attack="differencing",
        title="A value from two means",
        data=f"{targets} people, each joining {people} others",
        private=f"noisy sum and count, {format_up(epsilon)}-DP each time, {format_up(2 * epsilon)}-DP together",
        verdict=(
            f"From exact means {naive:.0%} of the values are known to within {_CLOSE:g}; from ours {ours:.1%}, where "
            f"the best guess that looks at nothing is right for {best:.1%}."
        ),
        lines=(
            StudyLine(f"values known to within {_CLOSE:g}", naive, ours, best),
            StudyLine("median error", float(np.median(errors[0])), float(np.median(errors[1]))),
        ),
        x="error of the guess",
        y="share of people with a smaller error",
        curves=(
            StudyCurve("exact means", tuple(errors[0].tolist()), shares),
            StudyCurve("our means", tuple(errors[1].tolist()), shares),
        ),
        releasable=releasable(rng),
    )


# Membership in aggregates (Homer et al. 2008): who was in a study, from nothing but its published means.

_FALSE = 0.01
_POINTS = 200


def aggregates_study(
    *,
    members: int = 200,
    others: int = 1000,
    attributes: int = 5000,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    seed: int | None = None,
) -> ReleaseStudy:
    """How well members of a study are told from others of the same population, from its means.

    Ours publishes noisy counts: a person changes each of the counts by at most one, so their L2 sensitivity is
    ``sqrt(attributes)``, and discrete Gaussian noise for that makes them (epsilon, delta)-DP.

    Args:
        members: Of the study.
        others: People who were not in it.
        attributes: Bits of every person, each with a known share in the population.
        epsilon: Of our means.
        delta: Of our means.
        seed: Makes the study repeatable.
    """
    whole("members", members), whole("others", others), whole("attributes", attributes)
    check_epsilon(epsilon), check_delta(delta)
    rng, world = generator(seed), np.random.default_rng(seed)
    shares = world.uniform(0.05, 0.95, size=attributes)
    inside = world.random((members, attributes)) < shares
    outside = world.random((others, attributes)) < shares
    mechanism = DiscreteGaussian(math.sqrt(attributes), epsilon, delta)
    counts = inside.sum(axis=0)
    published = {"exact": counts / members, "ours": mechanism.release(counts, rng) / members}
    curves: list[StudyCurve] = []
    areas, found = {}, {}
    for name, means in published.items():
        scores = Scores((inside - shares) @ (means - shares), (outside - shares) @ (means - shares))
        areas[name], found[name] = auc(scores).value, tpr_at(scores, _FALSE).value
        curves.append(_curve(f"{name} means", roc(scores)))
    return ReleaseStudy(
        attack="aggregates",
        title="Who was in the study",
        data=f"{members} members, {others} others, {attributes} attributes",
        private=f"all means ({format_up(epsilon)}, {format_up(delta)})-DP per person",
        verdict=(
            f"From exact means {found['exact']:.0%} of the members are found at {_FALSE:.0%} false alarms (area under "
            f"the curve {areas['exact']:.3f}); from ours {found['ours']:.1%} ({areas['ours']:.3f})."
        ),
        lines=(
            StudyLine(f"members found at {_FALSE:.0%} false alarms", found["exact"], found["ours"], _FALSE),
            StudyLine("area under the curve", areas["exact"], areas["ours"], 0.5),
        ),
        x="false alarms",
        y="members found",
        curves=(*curves, StudyCurve("guessing", (0.0, 1.0), (0.0, 1.0))),
        releasable=releasable(rng),
    )


def _curve(label: str, found: Roc) -> StudyCurve:
    places = np.unique(np.linspace(0, len(found.fpr) - 1, _POINTS).astype(int))
    return StudyCurve(label, tuple(found.fpr[places].tolist()), tuple(found.tpr[places].tolist()))


# Reconstruction (Dinur and Nissim 2003): a secret bit of everybody, from the answers to many counting questions.

NOISES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_LARGEST_PROGRAM = 300

Bits = NDArray[np.int64]


def reconstruct_bits_study(
    *,
    people: int = 1000,
    questions: int = 4000,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    noises: Sequence[float] = NOISES,
    method: str = "least-squares",
    repeats: int = 5,
    seed: int | None = None,
    progress: Progress = silent,
) -> ReleaseStudy:
    """The share of bits that come out right: from exact answers, from ever noisier ones, and from ours.

    Ours is one release of all answers: a person is in at most all of them, so their L2 sensitivity is
    ``sqrt(questions)``, and discrete Gaussian noise for that makes all answers together (epsilon, delta)-DP.

    Args:
        people: Each with a fair bit.
        questions: Random halves of the people.
        epsilon: Of all our answers.
        delta: Of all our answers.
        noises: Standard deviations of naive noise to draw the curve with.
        method: least-squares, or linear-program (at most 300 people).
        repeats: How often ours is attacked, with fresh bits; the shares are means.
        seed: Makes the study repeatable.
        progress: Told how many attacks are done.
    """
    whole("people", people), whole("questions", questions), whole("repeats", repeats)
    check_epsilon(epsilon), check_delta(delta)
    if method not in ("least-squares", "linear-program"):
        raise InvalidInput(f"no method is called {method!r}: choose least-squares or linear-program.")
    if method == "linear-program" and people > _LARGEST_PROGRAM:
        raise InvalidInput(f"a linear program takes at most {_LARGEST_PROGRAM} people, got {people}.")
    rng, attacker = generator(seed), np.random.default_rng(seed)
    mechanism = DiscreteGaussian(math.sqrt(questions), epsilon, delta)
    total, done, naive, ours = len(noises) + repeats, 0, [], []
    asked = attacker.integers(0, 2, size=(questions, people))
    solve = _solver(asked, method)
    for noise in noises:
        bits = attacker.integers(0, 2, size=people)
        answers = asked @ bits + np.rint(attacker.normal(0, noise, size=questions)).astype(np.int64)
        naive.append(_right(solve(answers), bits))
        progress(done := done + 1, total)
    for _ in range(repeats):
        bits = attacker.integers(0, 2, size=people)
        ours.append(_right(solve(mechanism.release(asked @ bits, rng)), bits))
        progress(done := done + 1, total)
    found = float(np.mean(ours))
    return ReleaseStudy(
        attack="reconstruction",
        title="Secret bits from counts",
        data=f"{people} people with a bit each, {questions} random questions, {method}",
        private=f"all answers ({format_up(epsilon)}, {format_up(delta)})-DP, noise of {mechanism.sigma:.0f}",
        verdict=(
            f"From exact answers {naive[0]:.1%} of the bits come out right; from ours {found:.1%}, where a coin gives "
            f"50 %. Naive noise helps only when it passes sqrt(n) = {math.sqrt(people):.0f}."
        ),
        lines=(StudyLine("bits right", naive[0], found, 0.5),),
        x="standard deviation of the noise on an answer",
        y="share of bits right",
        curves=(
            StudyCurve("naive noise", tuple(max(noise, 0.3) for noise in noises), tuple(naive)),
            StudyCurve("ours", (mechanism.sigma,), (found,)),
            StudyCurve("guessing", (0.3, max(mechanism.sigma, *noises)), (0.5, 0.5)),
        ),
        log_x=True,
        releasable=releasable(rng),
    )


def _solver(asked: Bits, method: str) -> Any:
    if method == "linear-program":
        return lambda answers: _program(asked, answers)
    inverse = np.linalg.pinv(asked.astype(float))
    return lambda answers: inverse @ answers


def _program(asked: Bits, answers: Bits) -> NDArray[np.float64]:
    """Bits in [0, 1] with the least sum of absolute errors."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, hstack, identity, vstack

    questions, people = asked.shape
    matrix, slack = csr_matrix(asked.astype(float)), identity(questions)
    limits: Any = vstack([hstack([matrix, -slack]), hstack([-matrix, -slack])])
    found = linprog(
        np.concatenate([np.zeros(people), np.ones(questions)]),
        A_ub=limits,
        b_ub=np.concatenate([answers, -answers]).astype(float),
        bounds=[(0, 1)] * people + [(0, None)] * questions,
        method="highs",
    )
    if found.x is None:
        raise TrainingFailed("the linear program was not solved: ask fewer questions.")
    return np.asarray(found.x[:people])


def _right(guessed: NDArray[np.float64], bits: Bits) -> float:
    return float(np.mean((guessed > 0.5) == (bits == 1)))


# Linkage: a table without names, joined with a public list of names on columns that both have (Sweeney 1997).

COLUMNS = ("age", "education", "occupation", "relationship", "hours_per_week")
SECRET = "income"
_BANDS = (1, 5, 10, 20, 40, 100)
"""Widths to which numbers are coarsened, one after the other."""

Table = Mapping[str, Sequence[Any]]


def adult_table() -> dict[str, list[str]]:
    """The training part of UCI Adult, as text."""
    from sordina.datasets import adult
    from sordina.datasets.data import obtain

    return adult.read(obtain(adult.FILES["train"], "adult/train.csv"))


def linkage_study(
    table: Table | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    secret: str = SECRET,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    group_size: int = 5,
    seed: int | None = None,
) -> ReleaseStudy:
    """How many rows can be joined to one name; how many people of a k-anonymous table still have no secret; and ours.

    Ours is `sordina.statistics.Table.count` by the same columns, whose values nobody listed: cells are shown only where
    their noisy count passes the stability threshold. A row is linked if it is alone in a cell that is shown.

    Args:
        table: Columns of equal length; UCI Adult if left out.
        columns: What the public list has, too.
        secret: The sensitive column.
        epsilon: Of our release.
        delta: Of our release.
        group_size: The k of the k-anonymous release.
        seed: Makes the study repeatable.
    """
    check_epsilon(epsilon), check_delta(delta)
    table = adult_table() if table is None else table
    for name in (*columns, secret):
        if name not in table:
            raise InvalidInput(f"the table has no column {name!r}.")
    rows = len(table[secret])
    shares = [_alone(table, columns[:count]) / rows for count in range(1, len(columns) + 1)]
    width, kept, exposed = _homogeneity(table, columns, secret, group_size)
    rng = generator(seed)
    ours = _linked_in_ours(table, columns, epsilon, delta, rng) / rows
    return ReleaseStudy(
        attack="linkage",
        title="Rows joined to one name",
        data=f"{rows} rows, linked by {', '.join(columns)}",
        private=f"counts of the same columns, ({format_up(epsilon)}, {format_up(delta)})-DP per row",
        verdict=(
            f"{shares[-1]:.1%} of the rows are alone with their {len(columns)} values and join to one name. Made "
            f"{group_size}-anonymous (numbers in bands of {width}, {1 - kept:.1%} of the rows suppressed), "
            f"{exposed:.1%} of the rest still share their {secret} with everybody in their group, so it is known all "
            f"the same. Of our release {ours:.1%} can be linked."
        ),
        lines=(
            StudyLine("rows joined to one name", shares[-1], ours, 0.0),
            StudyLine(f"{secret} known from a {group_size}-anonymous table", exposed, None),
            StudyLine("rows suppressed to be anonymous", 1 - kept, None),
        ),
        x="columns that the public list has",
        y="share of rows joined to one name",
        curves=(
            StudyCurve("table without names", tuple(range(1, len(columns) + 1)), tuple(shares)),
            StudyCurve("our counts", (1, len(columns)), (ours, ours)),
        ),
        releasable=releasable(rng),
    )


def _cells(table: Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name] for name in columns), strict=True))


def _alone(table: Table, columns: Sequence[str]) -> int:
    return sum(count == 1 for count in Counter(_cells(table, columns)).values())


def _homogeneity(table: Table, columns: Sequence[str], secret: str, size: int) -> tuple[int, float, float]:
    """The band width at which at most a tenth is suppressed, the share that is kept, and of it what is homogeneous."""
    rows = len(table[secret])
    width, kept, exposed = 0, 0.0, 0.0
    for width in _BANDS:
        coarse = {name: _banded(table[name], width) for name in columns}
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for cell, value in zip(_cells(coarse, columns), table[secret], strict=True):
            groups.setdefault(cell, []).append(value)
        whole = [values for values in groups.values() if len(values) >= size]
        kept = sum(map(len, whole)) / rows
        exposed = sum(len(values) for values in whole if len(set(values)) == 1) / max(1.0, kept * rows)
        if kept >= 0.9:
            break
    return width, kept, exposed


def _banded(values: Sequence[Any], width: int) -> Sequence[Any]:
    """Numbers in bands; anything else as it is, until bands are 20 wide: then its first letter."""
    try:
        return [float(value) // width for value in values]
    except (TypeError, ValueError):
        return [str(value)[:1] for value in values] if width >= 20 else values


def _linked_in_ours(
    table: Table, columns: Sequence[str], epsilon: float, delta: float, rng: np.random.Generator
) -> int:
    """How many rows are alone in a cell that our table of counts shows."""
    texts = {name: [str(value) for value in table[name]] for name in columns}
    schema = {"columns": {name: {"kind": "category"} for name in columns}}
    release = statistics.Table(_frame(texts), schema=schema, budget=Budget(epsilon, delta), seed=rng)
    shown = set(map(tuple, release.count(by=list(columns)).release().groups))
    counts = Counter(_cells(texts, columns))
    return sum(count == 1 and cell in shown for cell, count in counts.items())


def _frame(columns: Table) -> Any:
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise InvalidInput("tables in memory need pandas: pip install 'sordina[tables]'.") from error
    return DataFrame(dict(columns))

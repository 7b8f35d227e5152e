"""Are the bounds of audits valid, and how much do they prove? Mechanisms whose epsilon is known, audited many times.

A bound that is not valid is a false accusation. So every bound meets mechanisms that are exactly as private as they
claim, among them the worst ones: randomised response, which reaches its epsilon with every answer, and leakage that
comes in bursts, which spends all of a delta on the runs where it pays. At confidence 95 % at most one audit in twenty
may find more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor, nn
from torch.nn import functional

from sordina import datasets
from sordina.accounting.accountants import accountant
from sordina.accounting.events import Event, Gaussian, PoissonSampled, Repeated
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.auditing.audit import RowSplit, audit_scores
from sordina.auditing.bounds import Bound, GaussianFamily, IndependentCanaries, TwoRates
from sordina.auditing.findings import Audit
from sordina.auditing.one_run import Membership, OneRun, PairedRun
from sordina.auditing.scores import BoolArray, FloatArray
from sordina.auditing.trade_off import GaussianDPFamily, NoiseFamily
from sordina.clipping import Fixed
from sordina.privacy import Budget, Guarantee
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.training import Trainer

RATE, STEPS = 0.3, 4


def sampled(noise_multiplier: float) -> Event:
    """A few steps of Gaussian noise on Poisson samples."""
    return Repeated(PoissonSampled(RATE, Gaussian(noise_multiplier)), STEPS)


@dataclass(frozen=True)
class KnownMechanism:
    """A mechanism on memberships whose guarantee is known: what it lets the best attacker see of each record.

    Args:
        name: In tables.
        scores: From memberships to scores, with fresh randomness.
        epsilon: Its epsilon under add/remove at ``delta``.
        delta: Where that is stated.
        replaced: Its epsilon under replace-one, at ``replaced_delta``; None if not known tightly.
    """

    name: str
    scores: Callable[[BoolArray, np.random.Generator], FloatArray]
    epsilon: float
    delta: float
    replaced: float | None = None
    replaced_delta: float = 0.0


def randomised_response(member: BoolArray, rng: np.random.Generator, epsilon: float = 1.0) -> FloatArray:
    """The truth about each record with odds ``e^epsilon``, and a random order among equal answers."""
    told = np.where(rng.random(len(member)) < 1 / (1 + math.exp(-epsilon)), member, ~member)
    scores: FloatArray = told + rng.uniform(0, 0.1, len(member))
    return scores


def bursts(part: float, delta: float) -> Callable[[BoolArray, np.random.Generator], FloatArray]:
    """Randomised response that now and then reveals a part of the records: each with chance delta in all."""

    def scores(member: BoolArray, rng: np.random.Generator) -> FloatArray:
        seen = randomised_response(member, rng)
        if rng.random() < delta / part:
            revealed = rng.random(len(member)) < part
            seen = np.where(revealed, np.where(member, 10.0, -10.0) + rng.uniform(0, 0.1, len(member)), seen)
        return seen

    return scores


def half_the_time(member: BoolArray, rng: np.random.Generator) -> FloatArray:
    """Randomised response in one run of two, nothing in the other: records leak together."""
    return randomised_response(member, rng) if rng.random() < 0.5 else rng.uniform(0, 1, len(member))


def gaussian(mu: float) -> Callable[[BoolArray, np.random.Generator], FloatArray]:
    """Gaussian noise of multiplier 1/mu; the score is the likelihood ratio."""
    return lambda member, rng: mu * (mu * (member - 0.5) + rng.normal(size=len(member)))


def sampled_gaussian(noise: float) -> Callable[[BoolArray, np.random.Generator], FloatArray]:
    """`sampled`; the score is the likelihood ratio."""

    def scores(member: BoolArray, rng: np.random.Generator) -> FloatArray:
        shown = rng.normal(scale=noise, size=(STEPS, len(member)))
        shown += member & (rng.random(shown.shape) < RATE)
        ratio: FloatArray = np.log1p(RATE * np.expm1((shown - 0.5) / noise**2)).sum(axis=0)
        return ratio

    return scores


@lru_cache
def mechanisms() -> tuple[KnownMechanism, ...]:
    """All of them."""
    small, mu, noise = 1e-5, 1.25, 0.8
    odds = 1 + math.e
    return (
        KnownMechanism("randomised response", randomised_response, 1.0, 0.0, 2.0),
        KnownMechanism("bursts of a tenth, delta 1e-3", bursts(0.1, 1e-3), 1.0, 1e-3, 2.0, odds * 1e-3),
        KnownMechanism("bursts of all, delta 1e-2", bursts(1.0, 1e-2), 1.0, 1e-2, 2.0, odds * 1e-2),
        KnownMechanism("leaks half the time", half_the_time, 1.0, 0.0, 2.0),
        KnownMechanism(
            "Gaussian", gaussian(mu), gaussian_epsilon(1 / mu, small), small,
            gaussian_epsilon(1 / (mu * math.sqrt(2)), small), small,
        ),
        KnownMechanism(
            "sampled Gaussian", sampled_gaussian(noise), accountant("pld").epsilon(sampled(noise), small), small
        ),
    )  # fmt: skip


def drawn_members(membership: Membership, records: int, rng: np.random.Generator) -> BoolArray:
    """Who is in: by coins, or so many of them."""
    if membership.drawn == "coins":
        return rng.random(records) < membership.probability
    member: BoolArray = rng.permutation(records) < round(membership.probability * records)
    return member


MEMBERSHIPS = (Membership("coins"), Membership("coins", 0.2), Membership("fixed"), Membership("fixed", 0.25))


def valid_bounds(mechanism: KnownMechanism, membership: Membership) -> dict[str, tuple[Bound, float, float]]:
    """The bounds that claim to hold here, with the true epsilon and the delta it is true at."""
    true = (mechanism.epsilon, mechanism.delta)
    fair = membership == Membership("coins")
    bounds: dict[str, tuple[Bound, float, float]] = {"one run": (OneRun(membership), *true)}
    if mechanism.name == "Gaussian":
        bounds["one run, Gaussian DP"] = (OneRun(membership, GaussianDPFamily()), *true)
    if mechanism.name == "sampled Gaussian":
        bounds["one run, events"] = (OneRun(membership, NoiseFamily(sampled)), *true)
    if mechanism.replaced is not None:
        bounds["pairs"] = (PairedRun(membership), mechanism.replaced, mechanism.replaced_delta)
    if fair and mechanism.name == "Gaussian":
        bounds["independent canaries"] = (IndependentCanaries(), *true)
        bounds["Gaussian family, two rates"] = (GaussianFamily(), *true)
    if fair and mechanism.name == "sampled Gaussian":
        bounds["independent canaries"] = (IndependentCanaries(sampled), *true)
    if fair and not mechanism.name.startswith(("bursts", "leaks")):
        bounds["two rates"] = (TwoRates(), *true)
    return bounds


def exceedances(
    mechanism: KnownMechanism, membership: Membership, records: int, audits: int, seed: int, confidence: float = 0.95
) -> dict[str, tuple[int, float]]:
    """For every bound, how often it passed the true epsilon, and its mean.

    Args:
        mechanism: What is audited.
        membership: How members are drawn.
        records: How many there are.
        audits: How often.
        seed: Of all randomness.
        confidence: Of the bounds.
    """
    rng = np.random.default_rng(seed)
    bounds = valid_bounds(mechanism, membership)
    found: dict[str, list[float]] = {name: [] for name in bounds}
    for _ in range(audits):
        member = drawn_members(membership, records, rng)
        scores = mechanism.scores(member, rng)
        halves = RowSplit.of(member, 0.3, membership, rng).separate(scores)
        for name, (bound, _, delta) in bounds.items():
            found[name].append(bound.epsilon_lower(*halves, delta, confidence).epsilon)
    return {
        name: (int((np.array(values) > bounds[name][1] + 1e-9).sum()), float(np.mean(values)))
        for name, values in found.items()
    }


def allowed(audits: int, risk: float = 0.05) -> int:
    """So many exceedances are ordinary: more have a chance below one in a thousand if the risk is as stated."""
    return int(binom.ppf(0.999, audits, risk))


def family_refutations(attacks: int, records: int, audits: int, seed: int) -> int:
    """Audits by many attacks at once on randomised response, which is as private as claimed: how many refute it?

    Args:
        attacks: How many; each sees the same answers through noise of its own.
        records: How many there are.
        audits: How often.
        seed: Of all randomness.
    """
    rng, refuted, claim = np.random.default_rng(seed), 0, Guarantee(1.0, 0.0)
    for number in range(audits):
        member = rng.random(records) < 0.5
        told = randomised_response(member, rng)
        scores = {f"attack {one}": told + rng.normal(scale=0.05 * one, size=records) for one in range(attacks)}
        refuted += audit_scores(scores, member, membership="coins", claim=claim, seed=number).exceeds_claim
    return refuted


def validity(job: Job) -> ExperimentFindings:
    """Every bound on every mechanism and way to draw members: refutations of what is true."""
    given, values = job.settings, []
    audits, most = given["audits"], allowed(given["audits"])
    for mechanism in mechanisms():
        for membership in MEMBERSHIPS:
            for records in given["records"]:
                found = exceedances(mechanism, membership, records, audits, given["seed"])
                for name, (count, mean) in found.items():
                    told = f"{membership.drawn}:{membership.probability:g}"
                    what = {"mechanism": mechanism.name, "membership": told, "records": str(records), "bound": name}
                    note = f"{count} of {audits}, at most {most} are ordinary; proves {mean:.2f} on average"
                    values.append(Value(what, count / audits, reference=0.05, note=note))
    count = family_refutations(given["attacks"], 400, given["family_audits"], given["seed"])
    note = f"{count} of {given['family_audits']}, at most {allowed(given['family_audits'])} are ordinary"
    what = {"mechanism": "randomised response", "membership": "coins:0.5", "records": "400"}
    values.append(
        Value(what | {"bound": f"{given['attacks']} attacks at once"}, count / given["family_audits"], note=note)
    )
    worst = max(value.ours or 0.0 for value in values)
    remarks = [f"The largest share of audits that found more than there is: {worst:.4f}; 0.05 is what is stated."]
    return ExperimentFindings("simulated mechanisms", values, (), [*remarks, *job.caveats])


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose epsilon at ``delta`` this is.

    >>> round(gaussian_mu(3.0, 1e-5), 3)
    0.719
    """
    return float(brentq(lambda mu: gaussian_epsilon(1 / mu, delta) - epsilon, 1e-3, 30.0))


def power(job: Job) -> ExperimentFindings:
    """What each bound proves of Gaussian canaries in one run, against the true epsilon and the number of canaries."""
    given, delta = job.settings, job.settings["delta"]
    fair = Membership("coins")
    bounds: dict[str, tuple[Membership, Bound]] = {
        "canaries that do not meet": (fair, IndependentCanaries()),
        "two rates, Gaussian": (fair, GaussianFamily()),
        "one run, Gaussian DP": (fair, OneRun(fair, GaussianDPFamily())),
        "one run, coins": (fair, OneRun(fair)),
        "one run, fixed split": (Membership("fixed"), OneRun(Membership("fixed"))),
        "two rates": (fair, TwoRates()),
    }
    means: dict[tuple[str, float, int], float] = {}
    for epsilon in given["epsilons"]:
        for canaries in given["canaries"]:
            rng = np.random.default_rng(given["seed"])
            found: dict[str, list[float]] = {name: [] for name in bounds}
            for _ in range(given["audits"]):
                for name, (membership, bound) in bounds.items():
                    member = drawn_members(membership, canaries, rng)
                    scores = gaussian(gaussian_mu(epsilon, delta))(member, rng)
                    halves = RowSplit.of(member, 0.3, membership, rng).separate(scores)
                    found[name].append(bound.epsilon_lower(*halves, delta, 0.95).epsilon)
            means |= {(name, epsilon, canaries): float(np.mean(one)) for name, one in found.items()}
    values = [
        Value({"bound": name, "true epsilon": f"{epsilon:g}", "canaries": str(canaries)}, mean)
        for (name, epsilon, canaries), mean in means.items()
    ]
    return ExperimentFindings("Gaussian canaries", values, _panels(means, given), job.caveats)


def _panels(means: dict[tuple[str, float, int], float], given: dict[str, list[float]]) -> list[Panel]:
    names, epsilons, counts = list(dict.fromkeys(key[0] for key in means)), given["epsilons"], given["canaries"]
    most, shown = int(counts[-1]), 3.0 if 3.0 in epsilons else epsilons[0]
    truth = PlottedCurve("the truth", epsilons, epsilons, reference=True)
    against = [PlottedCurve(name, epsilons, [means[name, one, most] for one in epsilons]) for name in names]
    growing = [PlottedCurve(name, counts, [means[name, shown, int(one)] for one in counts]) for name in names]
    flat = PlottedCurve("the truth", counts, [shown] * len(counts), reference=True)
    return [
        Panel(f"{most} canaries", "true epsilon", "proven epsilon", [truth, *against]),
        Panel(f"true epsilon {shown:g}", "canaries", "proven epsilon", [flat, *growing], log_x=True),
    ]


# One private training, audited by its final model alone: canaries among real rows, known by nothing but their loss.


def canary_inputs(rows: Tensor, count: int, length: float, seed: int) -> Tensor:
    """``count`` inputs of norm ``length``, at right angles to each other and to all ``rows``.

    What real rows teach the model does not show in such a direction, so that its loss speaks of the canary alone.

    Args:
        rows: (N, d), with N + count at most d.
        count: How many.
        length: Their norm.
        seed: Of the directions.
    """
    generator = torch.Generator().manual_seed(seed)
    filler = torch.randn(rows.shape[1], rows.shape[1] - len(rows), generator=generator)
    directions, _ = torch.linalg.qr(torch.cat([rows.T, filler], dim=1))
    planted: Tensor = length * directions.T[len(rows) : len(rows) + count]
    return planted


def audited_training(
    epsilon: float, *, rows: int = 300, canaries: int = 480, steps: int = 5, delta: float = 1e-5, seed: int = 0
) -> Audit:
    """Train softmax regression on MNIST rows and canaries that are in by coins; audit the final model by its losses.

    All rows are in every step, so that training is the composition of Gaussian mechanisms, and Gaussian DP.

    Args:
        epsilon: The budget.
        rows: Real rows.
        canaries: Canaries, under labels drawn at random.
        steps: Private steps.
        delta: Of the budget.
        seed: Of everything.
    """
    rng = np.random.default_rng(seed)
    inputs, labels = datasets.load("mnist").train.tensors
    chosen = torch.from_numpy(rng.permutation(len(inputs))[:rows])
    x, y = inputs[chosen].flatten(1), labels[chosen]
    planted = canary_inputs(x, canaries, 30.0, seed)
    marks = torch.from_numpy(rng.integers(10, size=canaries))
    coins = rng.random(canaries) < 0.5
    inside = torch.from_numpy(coins)
    data = torch.cat([x, planted[inside]]), torch.cat([y, marks[inside]])
    model = nn.Linear(x.shape[1], 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    trainer = Trainer(
        model, functional.cross_entropy, Budget(epsilon, delta), clipping=Fixed(1.0), batch_size=len(data[0]),
        epochs=steps, learning_rate=0.5, seed=seed,
    )  # fmt: skip
    run = trainer.fit(data)
    with torch.no_grad():
        losses = functional.cross_entropy(run.model(planted).double(), marks, reduction="none").numpy()
    return audit_scores(
        {"loss": -losses}, coins, membership="coins", claim=run.guarantee, mechanism=GaussianDPFamily(), seed=seed
    )


def black_box(job: Job) -> ExperimentFindings:
    """What is proven of each epsilon, with the mechanism known to be Gaussian and with nothing known."""
    given, values = job.settings, []
    for epsilon in given["epsilons"]:
        found = [audited_training(epsilon, seed=seed, **given["options"]).results[0] for seed in range(given["seeds"])]
        for place, known in enumerate(("Gaussian DP", "nothing")):
            proven = np.array([result.bounds[place].epsilon for result in found])
            spread = float(proven.std(ddof=1)) if len(proven) > 1 else None
            what = {"true epsilon": f"{epsilon:g}", "known of the mechanism": known}
            note = f"{proven.mean() / epsilon:.0%} of the truth; refuted {sum(one.exceeds_claim for one in found)}"
            values.append(Value(what, float(proven.mean()), spread, note=note))
    return ExperimentFindings("MNIST", values, (), ["The attacker sees the final model only.", *job.caveats])

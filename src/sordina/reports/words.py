"""The answer in plain words: what was trained, on whom, and what an attacker can at most learn about one of them."""

from __future__ import annotations

import math

from sordina.privacy import best_guess, delta_warning, format_down, most_found, odds_factor, percent_up, rounded_up
from sordina.reports.facts import AttackFacts, Claim, RunFacts

NOT_PRIVATE = "NOT PRIVATE"
_WHO = {"record": "record", "user": "person", "group": "group of people"}


def subject(run: RunFacts) -> str:
    """What was trained, and on whom; of a release, what was asked."""
    if run.kind == "release":
        return f"Released answers to {len(run.answers)} question{'s' * (len(run.answers) != 1)} about a table."
    what = {"train": "A model", "federate": "A federation of clients", "audit": "An audited model"}[run.kind]
    model = f" ({run.model})" if run.model else ""
    whom = f" on the data set “{run.dataset}”" if run.dataset else ""
    noun = "clients" if run.kind == "federate" else f"{_WHO.get(run.claim.unit, 'record')}s"
    many = f", {run.population:,} {noun}" if run.population else ""
    return f"{what}{model}, {'attacked' if run.kind == 'audit' else 'trained'}{whom}{many}."


def badge(run: RunFacts) -> tuple[str, str]:
    """A word or two on the guarantee, and how to colour it: good, care or bad."""
    claim = run.claim
    if any(attack.refuted for attack in run.attacks):
        return ("REFUTED", "bad")
    if claim.private is None:
        return ("NO GUARANTEE ON FILE", "bad")
    if not claim.private:
        return (NOT_PRIVATE, "bad")
    if claim.other_model:
        return ("CLAIM OF ANOTHER MODEL", "bad")
    if not claim.sound:
        return ("HEURISTIC, NOT PROVEN", "bad")
    if claim.releasable is False:
        return ("SEEDED: DO NOT RELEASE", "bad")
    if not claim.verified:
        return ("CLAIMED, NOT VERIFIED", "care")
    return ("PRIVATE", "good" if (claim.epsilon or leaked(run) or 0) <= 10 else "care")


def answer(run: RunFacts) -> list[str]:
    """Sentences that a reader without mathematics can act on; every "at most" is rounded up."""
    claim = run.claim
    if any(attack.refuted for attack in run.attacks):
        return ["An attack proved more leakage than was claimed, so the claim is false. Do not release this model."]
    if claim.private is None:
        return ["Nothing is on file that limits what an attacker may learn."]
    if not claim.private:
        return [
            "No noise was added, so there is no limit to what this model may tell about the people it was trained on. "
            "Treat it like the data themselves."
        ]
    if claim.other_model:
        return ["The claim on file is about another model than the one beside it. Nothing is on file for this one."]
    sentences = _metric(run) if claim.trust == "metric" else _odds(run)
    if not claim.sound:
        sentences.insert(0, "The noise follows a secret quantity, so the figure below is the method's, not a proof.")
    if warning := large_delta(run):
        sentences.insert(0, warning)
    if not claim.verified:
        sentences.insert(0, f"Nobody checked this claim: {claim.unverified}. What follows holds only if it is true.")
    if claim.releasable is False:
        what = "answers" if run.kind == "release" else "model"
        sentences.insert(
            0,
            "The noise came from a seed, and whoever knows the seed can take it off again: this run is for "
            f"reproduction only. Do not release the {what}. What follows would hold if the noise were secret.",
        )
    return sentences


def large_delta(run: RunFacts) -> str | None:
    """What to say of a delta of one in the number of those it protects, or more."""
    claim = run.claim
    if not run.private or claim.trust == "metric" or (run.kind == "federate" and claim.unit == "record"):
        return None
    return delta_warning(claim.delta or 0.0, run.population, "client" if run.kind == "federate" else claim.unit)


def _odds(run: RunFacts) -> list[str]:
    claim = run.claim
    if claim.epsilon is None:
        return [claim.statement]
    epsilon, delta = claim.epsilon, claim.delta or 0.0
    who = _WHO.get(claim.unit, claim.unit)
    seen, data = ("answers", "table") if run.kind == "release" else ("model", "training data")
    if claim.trust == "local":
        bet = f"which of two possible sets of data one {who} holds"
    elif claim.adjacency == "add-remove":
        bet = f"whether one particular {who} was {'in' if run.kind == 'release' else 'among'} the {data}"
    elif claim.adjacency is None:
        bet = f"what one {who} gave to the {data}"
    else:
        bet = f"which of two candidates for one {who}'s place was in the {data}"
    save = f", but for a chance of 1 in {math.floor(1 / delta + 1e-9):,}" if delta else ""
    return [
        f"Suppose an attacker sees the {seen}, knows all the other data, and asks {bet}. A coin guesses right half "
        f"of the time; the attacker does so at most {percent_up(best_guess(epsilon, delta))} of the time.",
        f"The odds move at most {rounded_up(odds_factor(epsilon))}-fold either way (ε = {rounded_up(epsilon)}){save}.",
        f"An attacker who wrongly accuses 1 % of those who were not in finds at most "
        f"{percent_up(most_found(epsilon, delta, 0.01))} of those who were.",
    ]


def _metric(run: RunFacts) -> list[str]:
    most = leaked(run)
    said = [claim for claim in (run.claim.statement,) if claim]
    if most is None:
        return said
    grown = f"{rounded_up(odds_factor(most))}-fold" if most else "1-fold"
    limit = f"grow at most {grown}" if run.claim.sound else f"would grow {grown}, if the figure were a bound"
    return [
        *said,
        f"The client who took part most often leaked {rounded_up(most) if most else 0}: seeing all its messages, an "
        f"attacker's odds between two updates within the radius {limit}.",
    ]


def protects(claim: Claim) -> str:
    """Whom the guarantee is for."""
    if claim.trust == "metric":
        return f"each message of one {_WHO.get(claim.unit, claim.unit)}, within the radius"
    neighbours = "neighbours not stated" if claim.adjacency is None else f"{claim.adjacency} neighbours"
    return f"one {_WHO.get(claim.unit, claim.unit)}, {neighbours}, {claim.trust} model"


def proven(attack: AttackFacts) -> str:
    """What the attack with the largest bound shows."""
    if attack.measured == 0:
        return "nothing (ε ≥ 0)"
    return f"ε ≥ {'∞' if math.isinf(attack.measured) else format_down(attack.measured, 3)} ({attack.name})"


def leaked(run: RunFacts) -> float | None:
    """The most that one client leaked."""
    return max(run.leakage, default=None) if run.leakage else None


def odds_short(run: RunFacts) -> str:
    """For a table: the odds' growth, or why there is none."""
    epsilon = run.claim.epsilon if run.claim.trust != "metric" else leaked(run)
    if not run.private or epsilon is None or not epsilon:
        return "no limit" if not run.private else "—"
    factor = odds_factor(epsilon)
    return f"× {rounded_up(factor)}" if math.isfinite(factor) and factor < 1e6 else "× more than a million"

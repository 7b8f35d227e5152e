"""Processes that race for one ledger, some of them killed. Run as a script on a JSON list of races; prints outcomes.

A forked child starts within a millisecond, so all of them are at the lock together; they wait for one signal.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from sordina.accounting import Gaussian, Repeated
from sordina.accounting.ledger import Ledger
from sordina.accounting.ledger.state import compose
from sordina.errors import BudgetRefused


def racer(path: str, number: int, start: int, report: int) -> None:
    """Wait for the start, reserve once, and report the outcome in one atomic write."""
    os.read(start, 1)
    try:
        outcome: list[object] = ["won", Ledger(path).reserve("patients", Gaussian(5.0), what=f"racer {number}").id]
    except BudgetRefused:
        outcome = ["refused", number]
    except BaseException as error:
        outcome = ["failed", f"{type(error).__name__}: {error}"]
    os.write(report, (json.dumps(outcome) + "\n").encode())
    os._exit(0)


def account_beforehand(path: str, most: int) -> None:
    """Leave the verdicts on 1 to ``most`` reservations where forked children find them, so that only locks matter."""
    dataset = Ledger(path).statement("patients").dataset
    for count in range(1, most + 1):
        dataset.epsilon(compose([Repeated(Gaussian(5.0), count)]))


def race(path: str, racers: int = 32, victims: int = 0, seed: int = 0, spread: float = 0.0) -> dict[str, object]:
    """Start ``racers``, kill ``victims`` of them at random moments within ``spread`` seconds, and gather reports."""
    start_read, start_write = os.pipe()
    report_read, report_write = os.pipe()
    children = []
    for number in range(racers):
        child = os.fork()
        if child == 0:
            os.close(start_write)
            racer(path, number, start_read, report_write)
        children.append(child)
    os.close(report_write)
    rng = random.Random(seed)
    moments = sorted((spread * rng.random() ** 3, child) for child in rng.sample(children, victims))  # early: who wins
    begun = time.monotonic()
    os.close(start_write)
    for moment, child in moments:
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        os.kill(child, signal.SIGKILL)  # a child that has ended is a zombie until it is waited for: harmless
    with os.fdopen(report_read) as reports:
        outcomes = [json.loads(line) for line in reports]
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return {
        "won": [what for verdict, what in outcomes if verdict == "won"],
        "refused": [what for verdict, what in outcomes if verdict == "refused"],
        "failed": [what for verdict, what in outcomes if verdict == "failed"],
        "killed": ends.count(-signal.SIGKILL),
        "seconds": time.monotonic() - begun,
    }


def main(races: list[dict[str, object]], most: int) -> list[dict[str, object]]:
    """Run the races one after the other; one that names no spread gets the duration of the first."""
    account_beforehand(races[0]["path"], most)
    outcomes: list[dict[str, object]] = []
    for options in races:
        spread = outcomes[0]["seconds"] if outcomes else 0.0
        outcomes.append(race(**{"spread": spread, **options}))
    return outcomes


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), int(sys.argv[2]))))

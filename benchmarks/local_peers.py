"""Peers of `benchmarks.local`, run by an interpreter that has them: seconds per answer, as JSON on standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

VALUES, EPSILON = 128, 1.0


def seconds(client: Callable[[int], Any], aggregate: Callable[[list[Any]], Any], people: int) -> float:
    """Of randomising and aggregating one answer, without the first (numba compiles in it)."""
    aggregate([client(0), client(1)])
    start = time.process_time()
    aggregate([client(place % VALUES) for place in range(people)])
    return (time.process_time() - start) / people


def multi_freq(people: int) -> dict[str, float]:
    from multi_freq_ldpy.pure_frequency_oracles import GRR, LH, UE

    return {
        "grr": seconds(
            lambda value: GRR.GRR_Client(value, VALUES, EPSILON),
            lambda told: GRR.GRR_Aggregator_MI(told, VALUES, EPSILON), people,
        ),
        "oue": seconds(
            lambda value: UE.UE_Client(value, VALUES, EPSILON, True),
            lambda told: UE.UE_Aggregator_MI(told, EPSILON, True), people,
        ),
        "olh": seconds(
            lambda value: LH.LH_Client(value, VALUES, EPSILON, True),
            lambda told: LH.LH_Aggregator_MI(told, VALUES, EPSILON, True), people,
        ),
    }  # fmt: skip


def pure_ldp(people: int) -> dict[str, float]:
    from pure_ldp.frequency_oracles import (
        DEClient,
        DEServer,
        HadamardResponseClient,
        HadamardResponseServer,
        LHClient,
        LHServer,
        UEClient,
        UEServer,
    )  # fmt: skip

    hadamard = HadamardResponseServer(EPSILON, VALUES)
    pairs = {
        "grr": (DEClient(EPSILON, VALUES), DEServer(EPSILON, VALUES)),
        "oue": (UEClient(EPSILON, VALUES, use_oue=True), UEServer(EPSILON, VALUES, use_oue=True)),
        "olh": (LHClient(EPSILON, VALUES, use_olh=True), LHServer(EPSILON, VALUES, use_olh=True)),
        "hadamard": (HadamardResponseClient(EPSILON, VALUES, hadamard.get_hash_funcs()), hadamard),
    }

    def aggregated(server: Any) -> Callable[[list[Any]], Any]:
        def work(told: list[Any]) -> None:
            for answer in told:
                server.aggregate(answer)
            server.estimate_all(range(1, VALUES + 1), suppress_warnings=True)

        return work

    return {
        name: seconds(lambda value, own=client: own.privatise(value + 1), aggregated(server), people)
        for name, (client, server) in pairs.items()
    }


def measured(measure: Callable[[int], dict[str, float]], people: int) -> dict[str, Any]:
    """What ``measure`` finds; a peer that does not run is reported as such."""
    try:
        return dict(measure(people))
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    answers = int(sys.argv[1])
    json.dump({"multi-freq-ldpy": measured(multi_freq, answers), "pure-ldp": measured(pure_ldp, answers)}, sys.stdout)

"""Secure aggregation beside Flower's own SecAgg+ workflow: seconds and bytes of a round, all parties in one process."""

from __future__ import annotations

import argparse
import copy
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from sordina.federated.decentralized.graphs import AggregationGraph
from sordina.federated.decentralized.secure_aggregation import SecureSum, sum_securely

STEPS = ("advertise", "share", "mask", "unmask")


def ours(clients: int, length: int, degree: int, threshold: int, gone: dict[int, str]) -> tuple[float, bool]:
    """Seconds of one sum, and whether it is exact."""
    rng = np.random.default_rng(len(gone))
    vectors = {one: rng.integers(0, 2**32, length, dtype=np.uint32) for one in range(clients)}
    common = SecureSum("bench", AggregationGraph(clients, degree, threshold, 0.0), threshold, length)
    started = time.process_time()
    total, remaining = sum_securely(vectors, common, tuple(map(int, rng.permutation(clients))), gone)
    seconds = time.process_time() - started
    expected = np.sum([vectors[one] for one in remaining], axis=0, dtype=np.uint32)
    return seconds, bool((total == expected).all())


def weight(value: Any) -> int:
    """Bytes of a value in a message."""
    if isinstance(value, list):
        return sum(map(weight, value))
    return len(value) if isinstance(value, bytes | str) else 8


def flower(clients: int, length: int, degree: int, threshold: int, gone: dict[int, str]) -> tuple[float, int]:
    """Processor seconds of the four stages of Flower's workflow, its mod called directly, and bytes up of a client."""
    from flwr.app import Context, Message, RecordDict
    from flwr.app.user_config import UserConfig
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.workflow import SecAggPlusWorkflow, constant
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    update = ndarrays_to_parameters([np.random.default_rng(0).normal(size=length).astype(np.float32)])
    contexts = {one: Context(1, one, UserConfig(), RecordDict(), UserConfig()) for one in range(1, clients + 1)}
    stage = iter(STEPS)
    received = [0]

    def train(message: Any, context: Any) -> Any:
        fit = FitRes(Status(Code.OK, ""), update, 1, {})
        return Message(compat.fitres_to_recorddict(fit, True), reply_to=message)

    class Direct:
        """A grid that calls the clients at once."""

        def send_and_receive(self, messages: Any, timeout: float | None = None) -> list[Any]:
            late = set(STEPS[: STEPS.index(next(stage)) + 1])
            replies = []
            for number, message in enumerate(messages):
                message = copy.deepcopy(message)  # as a network would
                message.metadata.__dict__["_message_id"] = f"{number}-{len(late)}"
                node = message.metadata.dst_node_id
                if gone.get(node - 1) in late:
                    continue
                reply = secaggplus_mod(message, contexts[node], train)
                reply.metadata.__dict__["_src_node_id"] = node
                values = [value for one in reply.content.config_records.values() for value in one.values()]
                received[0] += sum(map(weight, values))
                replies.append(reply)
            return replies

    workflow = SecAggPlusWorkflow(degree + 1, threshold, clipping_range=8.0, quantization_range=2**22, timeout=None)
    proxies = [SimpleNamespace(node_id=one) for one in contexts]
    strategy = SimpleNamespace(
        configure_fit=lambda *_: [(proxy, FitIns(update, {})) for proxy in proxies],
        aggregate_fit=lambda *_: (update, {}),
    )
    context = SimpleNamespace(
        strategy=strategy,
        client_manager=SimpleNamespace(num_available=lambda: clients),
        history=SimpleNamespace(add_metrics_distributed_fit=lambda **_: None),
        state=SimpleNamespace(
            config_records={constant.MAIN_CONFIGS_RECORD: {constant.Key.CURRENT_ROUND: 1}},
            array_records={constant.MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(update, True)},
        ),
    )
    state, grid = WorkflowState(), Direct()
    started = time.process_time()
    for step in (
        workflow.setup_stage, workflow.share_keys_stage, workflow.collect_masked_vectors_stage, workflow.unmask_stage,
    ):  # fmt: skip
        if not step(grid, context, state):  # type: ignore[arg-type]
            break
    return time.process_time() - started, received[0] // clients


def run() -> None:
    """Ours with and without drop-outs, then both at the same degree and threshold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--no-flower", action="store_true")
    given, _ = parser.parse_known_args()
    n, degree, threshold = given.clients, given.clients - 1, given.clients // 2
    rng = np.random.default_rng(0)
    seconds, exact = [], 0
    for _ in range(given.runs):
        leaving = rng.choice(n, int(given.dropout * n), replace=False)
        spent, right = ours(n, given.numbers, degree, threshold, {int(one): STEPS[rng.integers(4)] for one in leaving})
        seconds.append(spent)
        exact += right
    print(f"ours, all pairs, {given.dropout:.0%} dropping out: {exact} of {given.runs} sums exact, "
          f"{np.median(seconds):.2f} s of processor time for server and {n} clients")  # fmt: skip
    up = 4 * given.numbers + 64 + degree * (2 * 33 + 16) + 32 + degree * 33
    print(f"ours: {up} bytes up from a client (masked vector, keys, letters, shares)")
    if not given.no_flower:
        plain, _ = ours(n, given.numbers, degree, threshold, {})
        theirs, sent = flower(n, given.numbers, degree, threshold, {})
        print(
            f"no drop-outs: ours {plain:.2f} s, Flower's SecAgg+ {theirs:.2f} s; Flower's {sent} bytes up from a client"
        )


if __name__ == "__main__":
    run()

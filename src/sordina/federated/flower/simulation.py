"""Flower's simulation: every client a virtual node, run by Ray in processes of their own.

The clients' rows pass through Ray's shared memory and never touch a disk: spilling is turned off, and a killed run
leaves no row behind. The client half of the run, each client's account and memory live in a temporary folder for the
owner only, so the simulated path is the deployed one; what a killed run left of it goes when the next one starts.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from sordina import private_files
from sordina.errors import Unsupported
from sordina.federated.engines import ClientSide
from sordina.federated.flower.client import ClientFolder
from sordina.federated.population import Population
from sordina.federated.privacy.accounts import ClientAccount

T = TypeVar("T")
_PREFIX = "sordina-simulation-"
_START = 300.0
"""Seconds that Ray may take to start."""
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray tells nobody of its use, and its processes, which do the work here, are not put behind everybody else's."""


def simulated(
    body: Callable[[Any], T],
    population: Population,
    *,
    limit: Fraction | None = None,
    seed: int | None = None,
    processes: int | None = None,
) -> T:
    """Run ``body(engine)`` on an engine whose clients are the virtual nodes of Flower's simulation.

    With a ``seed`` the clients' noise is a function of (seed, round, client); without one it is secure.
    """
    _check_installed()
    for name, value in _RAY.items():
        os.environ.setdefault(name, value)
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from sordina.federated.flower.client_app import client_app
    from sordina.federated.flower.engine import Flower

    ended: list[T] = []
    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder, _quiet():
        stage = Stage(Path(folder), limit, seed)
        people = SharedRows()

        def main(grid: Any, context: Any) -> None:
            people.share(population)
            engine = Flower(grid, len(population), limit, side_number=stage.publish, look_up=stage.account)
            engine.gather()
            ended.append(body(engine))

        server = ServerApp()
        server.main()(main)
        run_simulation(
            server,
            client_app(partial(_desk, stage.root, people, limit, seed)),
            num_supernodes=len(population),
            backend_config={
                "init_args": {
                    "num_cpus": processes or min(os.cpu_count() or 1, len(population)),
                    "log_to_driver": False,
                    "logging_level": "error",
                    "_system_config": {"automatic_object_spilling_enabled": False},
                },
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    return ended[0]


@dataclass
class Stage:
    """The folder the simulated clients live in."""

    root: Path
    limit: Fraction | None
    seed: int | None
    sides: list[ClientSide] = field(default_factory=list)

    def publish(self, side: ClientSide) -> int:
        """Make a client half known to the processes; returns its number."""
        for number, known in enumerate(self.sides):
            if known.work is side.work and known.placement is side.placement:
                return number
        _store(self.root / f"side-{len(self.sides)}", side)
        self.sides.append(side)
        return len(self.sides) - 1

    def account(self, side: ClientSide, client: int) -> ClientAccount:
        """A client's own account of a client half."""
        total = ClientFolder(_home(self.root, self.publish(side), client)).total()
        runs = total.runs.values()
        spent = sum((one.spent for one in runs), Fraction())
        return ClientAccount(self.limit, spent, total.participations)


def _home(root: Path, side: int, client: int) -> Path:
    return root / f"client-{side}-{client}"


class SharedRows:
    """All clients' rows in Ray's shared memory; what travels to its processes is a reference."""

    def __init__(self) -> None:
        self.reference: Any = None

    def share(self, population: Population) -> None:
        """Put the rows there, once Flower has started Ray; before, a put would start another one."""
        import ray

        end = time.monotonic() + _START
        while not ray.is_initialized():
            if time.monotonic() > end:
                raise Unsupported(f"Ray did not start within {_START:g} seconds: is the machine too busy?")
            time.sleep(0.05)
        self.reference = ray.put((population.x.numpy(), population.y.numpy(), population.sizes))

    def load(self) -> Population:
        """The rows, in one of Ray's processes; read from shared memory, not copied."""
        import ray

        x, y, sizes = ray.get(self.reference)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch does not know arrays that must not be written
            return Population(torch.from_numpy(x), torch.from_numpy(y), sizes)


def _desk(
    root: Path, people: SharedRows, limit: Fraction | None, seed: int | None, instruction: Any, context: Any
) -> Any:
    """What a virtual node works with: the rows of the client the server called."""
    from sordina.federated.flower.client import ClientContext

    number, client = instruction.side, instruction.client
    home = ClientFolder(_home(root, number, client))
    side = _load(root / f"side-{number}")
    return ClientContext(side, lambda: people.load().cohort(np.array([client])), home, limit, seed=seed)


def _sweep() -> None:
    """Remove the folders of simulations of this user whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not pid.isdecimal():
                continue
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _store(path: Path, value: Any) -> None:
    from ray import cloudpickle

    private_files.write(path, cloudpickle.dumps(value))


@lru_cache(maxsize=8)
def _load(path: Path) -> Any:
    """Once per process; the folder is our own, so what is unpickled is what we wrote."""
    return pickle.loads(path.read_bytes())


def _check_installed() -> None:
    for name in ("flwr", "ray"):
        if importlib.util.find_spec(name) is None:
            raise Unsupported(f"the Flower engine needs {name}: pip install 'sordina[federated]'.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower tells only of errors, Ray of nothing, while a simulation runs: standard output is the caller's."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)

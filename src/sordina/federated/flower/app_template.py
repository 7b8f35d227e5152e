"""Writes a ready Flower app around Sordina: everything but the data and the model, which are the team's."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from torch import nn

from sordina import __version__
from sordina.errors import InvalidInput
from sordina.federated import losses
from sordina.federated.flower.client_policy import policy_for
from sordina.federated.objective import of_module
from sordina.federated.recipe import FederatedRecipe

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Federated learning with Sordina on Flower"
license = "Apache-2.0"
# Sordina is found where Flower is installed (README.md). A SuperLink that installs dependencies for every run can be
# given a wheel or a folder of sources: `sordina flower init --dependency PATH`. List here what task.py needs besides.
dependencies = [{dependencies}]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "sordina"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Both halves of the run are built from these values; change them here or with `flwr run --run-config`.
[tool.flwr.app.config]
{config}
"""

_SERVER = '''\
"""The server's half: strategy and public state. It sees released values only."""

from {package} import task
from sordina.federated.flower.deployment import server_app

app = server_app(task)
'''

_CLIENT = '''\
"""The client's half: rows, local training, clipping or sanitising, and the client's account stay in its process."""

from {package} import task
from sordina.federated.flower.deployment import client_app

app = client_app(task)
'''

_TASK = '''\
"""What is learnt, and where a client's rows are: the file to make your own."""

import numpy as np
import torch
from torch import nn

LOSS = "mse"
"""mse, cross-entropy, or a function (outputs, targets) with one number per row."""


def model():
    """The model all clients train, untrained."""
    return nn.Linear(2, 1)


def train_data(context):
    """This client's rows. Runs on the SuperNode, which was started with --node-config 'data="rows.npz" ...'.

    In Flower's simulation (`flwr run .`) nodes have no data of their own: they get made-up rows, to try the app out.
    """
    if "data" not in context.node_config:
        return made_up(int(context.node_config.get("partition-id", 0)))
    with np.load(str(context.node_config["data"]), allow_pickle=False) as rows:
        x, y = torch.from_numpy(rows["x"]).float(), torch.from_numpy(rows["y"])
    return x, y.long() if LOSS == "cross-entropy" else y.float().reshape(len(y), 1)


def made_up(number):
    """Rows of a linear law with noise."""
    rng = np.random.default_rng(number)
    x = rng.standard_normal((40, 2))
    y = x @ [[1.0], [-2.0]] + 0.1 * rng.standard_normal((40, 1))
    return torch.from_numpy(x).float(), torch.from_numpy(y).float()


def validation_data():
    """Held-out clients the server may look at in the clear, as [(x, y), ...]; here made-up ones."""
    return [made_up(1000 + number) for number in range(5)]
'''

_README = """\
# {name}

Made by `sordina flower init`. Edit `{package}/task.py`: the model, the loss, and how a client finds its rows.
What is trained and how privately stands in `pyproject.toml` under `[tool.flwr.app.config]`.

{trust}

## Try it, on this machine

Install Sordina beside Flower: {install}. Then, here,

    flwr run . --stream

trains among {clients} made-up clients in Flower's simulation and writes `results/`: models, `privacy.json`,
metrics and how often each client withheld its update. `sordina report results` makes a page of it.

## Loopback: a SuperLink and a SuperNode per client, on one machine, without encryption

    flower-superlink --insecure --disable-runtime-dependency-installation

    # one terminal per client; every node needs a port of its own, and a folder of its own for its policy and account
{nodes}
    # in this folder, with this in ~/.flwr/config.toml:
    #   [superlink.loopback]
    #   address = "127.0.0.1:8000"
    #   insecure = true
    flwr run . loopback --stream

`rows-0.npz` holds the arrays `x` and `y` of client 0; without `data=` a client has made-up rows.

## Machines of their own, with TLS

    # the server's machine; make the certificates as Flower's documentation on TLS says
    flower-superlink --host 0.0.0.0 --port 8000 --ssl-certfile server.pem --ssl-keyfile server.key \\
        --ssl-ca-certfile ca.crt --disable-runtime-dependency-installation

    # every client's machine; state-dir holds this client's policy, account and model: keep it, one per client
    mkdir -m 700 /var/lib/sordina && cp client-policy.json /var/lib/sordina/policy.json
    flower-supernode --superlink server:8000 --root-certificates ca.crt \\
        --node-config 'name="north" data="rows.npz" state-dir="/var/lib/sordina"'

    # the scientist, with this in ~/.flwr/config.toml:
    #   [superlink.mine]
    #   address = "server:8000"
    #   root-certificates = "ca.crt"
    flwr run . mine --stream

## Each client decides for itself

`policy.json` says what a client accepts and how much it reveals at most, over all runs together; a client
without one takes part in nothing. A run's configuration and messages can only ask for less: they cannot lower
the noise below the policy, seed it, or pass a limit. `client-policy.json` is a proposal made from this app's
settings; read it before you copy it. The policy does not protect against other *code*: whoever may submit
runs to your SuperLink ships the app that SuperNodes execute, so let them run apps you know only.

## What comes out

The server's `out` folder is a run like any other (`sordina report results`, `sordina card results`); nothing
is overwritten, the next run goes to `results-2`. Attack its model with rows that were in it and rows that
were not, as `.npz` files of `x` and `y`:

    sordina audit membership results --task {package}/task.py --members rows-0.npz --non-members others.npz

Every client keeps the model it would use itself in its own folder (`model-RUN.npz`), made with its own rows:
it never leaves.

    model = sordina.federated.load_personal_model("/var/lib/sordina", task.model())
"""

_NODE = """\
    mkdir -m 700 client-{number} && cp client-policy.json client-{number}/policy.json
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port {port} \\
        --node-config 'name="client {number}" data="rows-{number}.npz" state-dir="client-{number}"'

"""

_TRUST = {
    "central": "Privacy is central: clients clip, and the ServerApp, which must be trusted, adds the noise.",
    "metric": "Privacy is metric with a public radius: clients sanitise what they send, and the server need not be "
    "trusted: it tells models within that radius of each other apart by no more than the policy's leakage. Models "
    "further apart are protected less, in proportion.",
    "heuristic": "Privacy is metric with the paper's HEURISTIC radius: the noise follows the length of the secret "
    "update, so nothing is proven, and the server must be trusted. Use --radius public:R for a guarantee.",
    "distributed": "Privacy is distributed: every client adds a share of the noise, and secure aggregation shows the "
    "server their sum only; it must follow the protocol, but need not be trusted with any update.",
    "gopa": "Privacy is distributed (GOPA): clients share noise in pairs, which cancels in their sum, so the server "
    "can read no message by itself; it must follow the protocol, but need not be trusted with any update.",
    "local": "Privacy is local: clients clip and noise what they send, and the server need not be trusted with it.",
    "record": "Privacy is per record: clients noise what they send, and the server need not be trusted with it.",
    "none": "There is no privacy: the server sees every update.",
}


def write(
    folder: Path,
    recipe: FederatedRecipe,
    *,
    clients: int,
    deadline: float = 600.0,
    dependency: str | Path | None = None,
) -> list[str]:
    """Write the app; refuses a folder that holds anything, and a combination that could not run. Returns the files.

    Args:
        folder: A new folder.
        recipe: What is trained, and how privately.
        clients: How many clients there are.
        deadline: Seconds after which a round goes on without clients that have not answered.
        dependency: A wheel or a folder of Sordina's sources, for a SuperLink that installs dependencies for every run.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is not empty: name a new folder, nothing is overwritten.")
    if clients < 1 or not deadline > 0:
        raise InvalidInput(f"at least one client and a positive deadline, got {clients} and {deadline:g}.")
    recipe.setup(clients).method(of_module(nn.Linear(2, 1), losses.mse))
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    package = re.sub(r"^(?=\d)", "app_", name.replace("-", "_"))
    if importlib.util.find_spec(package) is not None:
        package = f"{package}_app"
    values: dict[str, Any] = {
        "name": name, "package": package, "config": _config(recipe, clients, deadline),
        "trust": _TRUST["heuristic" if recipe.placed == "metric" and recipe.radius == "update" else recipe.placed],
        "install": _install(), "clients": clients, "dependencies": _dependency(dependency),
        "nodes": "".join(_NODE.format(number=one, port=9100 + one) for one in range(min(clients, 3))),
    }  # fmt: skip
    texts = {
        "pyproject.toml": _PROJECT, "README.md": _README, f"{package}/__init__.py": '"""A federation."""\n',
        f"{package}/server_app.py": _SERVER, f"{package}/client_app.py": _CLIENT, f"{package}/task.py": _TASK,
    }  # fmt: skip
    written = {path: text if path.endswith("task.py") else text.format(**values) for path, text in texts.items()}
    written["client-policy.json"] = json.dumps(policy_for(recipe), indent=1) + "\n"
    (folder / package).mkdir(parents=True)
    for path, text in written.items():
        (folder / path).write_text(text, encoding="utf-8")
    return sorted(written)


def _dependency(path: str | Path | None) -> str:
    """A local wheel or folder as a requirement."""
    if path is None:
        return ""
    found = Path(path).expanduser().resolve()
    if not found.exists():
        raise InvalidInput(f"there is no {path}: name a wheel of Sordina, or a folder of its sources.")
    return _toml(f"sordina[federated] @ {found.as_uri()}")


def _install() -> str:
    """How this very Sordina gets onto another machine: as a wheel of its sources, or from where it came from."""
    try:
        told = json.loads(importlib.metadata.distribution("sordina").read_text("direct_url.json") or "{}")
        where = str(told.get("url", ""))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        where = ""
    if where.startswith("file:") or not where:
        wheel = f"sordina-{__version__}-py3-none-any.whl[federated]"
        return f"`pip wheel --no-deps -w . SOURCES` once in Sordina's sources, then `pip install './{wheel}'`"
    return f"`pip install 'sordina[federated] @ {where}'`"


def _config(recipe: FederatedRecipe, clients: int, deadline: float) -> str:
    """The run configuration: every choice of the recipe, so that `flwr run --run-config` may change any."""
    setup, steps = recipe.setup(clients), recipe.local_steps
    pairs: dict[str, Any] = {
        "clients": clients, "deadline": float(deadline), "wait": 600.0, "out": "results", "strategy": recipe.strategy,
        "hypotheses": recipe.hypotheses, "privacy": recipe.placed, "noise-multiplier": recipe.noise_multiplier,
        "radius": recipe.radius,
        "leakage-limit": recipe.leakage_limit or 0.0, "epsilon": recipe.epsilon, "delta": recipe.delta,
        "clipping": recipe.clipping, "threshold": recipe.threshold, "rounds": setup.facts.rounds,
        "clients-per-round": setup.facts.clients_per_round, "learning-rate": steps.learning_rate,
        "batch-size": steps.batch_size,
        "epochs": recipe.epochs, "records": recipe.records or 0,
        "server-learning-rate": recipe.server_learning_rate or 0.0,
        "mu": recipe.mu, "honest-share": recipe.honest_share, "tolerated-dropout": recipe.tolerated_dropout,
        "neighbours": recipe.neighbours, "seed": -1, "ledger": "", "dataset-budget": "",
    }  # fmt: skip
    return "\n".join(f"{key} = {_toml(value)}" for key, value in pairs.items())


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)

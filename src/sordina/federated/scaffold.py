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
from sordina.federated.client_policy import policy_for
from sordina.federated.objective import of_module
from sordina.federated.recipe import Recipe

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Federated learning with Sordina on Flower"
license = "Apache-2.0"
# Sordina is on no package index yet, and SuperNodes install nothing by themselves: install it beforehand (README.md),
# wherever this app runs. List here what task.py needs besides.
dependencies = []

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
from sordina.federated.engines.deployment import server_app

app = server_app(task)
'''

_CLIENT = '''\
"""The client's half: rows, local training, clipping or sanitising, and the client's account stay in its process."""

from {package} import task
from sordina.federated.engines.deployment import client_app

app = client_app(task)
'''

_TASK = '''\
"""What is learnt, and where a client's rows are: the file to make your own."""

import numpy as np
import torch
from torch import nn

LOSS = "mse"
"""mse or cross-entropy."""


def model():
    """The model all clients train, untrained."""
    return nn.Linear(2, 1)


def train_data(context):
    """This client's rows. Runs on the SuperNode, which was started with --node-config 'data="rows.npz" ...'.

    In Flower's simulation (`flwr run .`) nodes have no data of their own: they get made-up rows, to try the app out.
    """
    if "data" not in context.node_config:
        return made_up(int(context.node_config["partition-id"]))
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
    """Held-out clients the server may look at in the clear, as [(x, y), ...]; none to begin with."""
    return []
'''

_README = """\
# {name}

Made by `sordina flower init`. Edit `{package}/task.py`: the model, the loss, and how a client finds its rows.
What is trained and how privately stands in `pyproject.toml` under `[tool.flwr.app.config]`.

Before anything else, install Sordina on every machine: {install}.
To try the app out with made-up rows on one machine: `flwr run . --stream`.

    # the server's machine (certificates: see Flower's documentation on TLS)
    flower-superlink --host 0.0.0.0 --port 8000 --ssl-certfile server.pem --ssl-keyfile server.key \\
        --ssl-ca-certfile ca.crt --disable-runtime-dependency-installation

    # every client's machine; state-dir holds this client's policy and account: keep it, one per client
    mkdir -m 700 /var/lib/sordina && cp client-policy.json /var/lib/sordina/policy.json
    flower-supernode --superlink server:8000 --root-certificates ca.crt \\
        --node-config 'data="rows.npz" state-dir="/var/lib/sordina"'

    # the scientist, with the SuperLink's address under [superlink.mine] in ~/.flwr/config.toml
    flwr run . mine --stream

**Each client decides for itself.** `policy.json` says what a client accepts and how much it reveals at most, over all
runs together; a client without one takes part in nothing. A run's configuration and messages can only ask for less:
they cannot lower the noise below the policy, seed it, or pass a limit. `client-policy.json` is a proposal made from
this app's settings; read it before you copy it. The policy does not protect against other *code*: whoever may submit
runs to your SuperLink ships the app that SuperNodes execute, so let them run apps you know only.

{trust}

Results go to a new folder (`out`); a run on Flower is not resumed, and nothing is overwritten: name another `out` for
the next run.
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
    "local": "Privacy is local: clients clip and noise what they send, and the server need not be trusted with it.",
    "record": "Privacy is per record: clients noise what they send, and the server need not be trusted with it.",
    "none": "There is no privacy: the server sees every update.",
}


def write(folder: Path, recipe: Recipe, *, clients: int, deadline: float = 600.0) -> list[str]:
    """Write the app; refuses a folder that holds anything, and a combination that could not run. Returns the files."""
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
        "install": _install(),
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


def _config(recipe: Recipe, clients: int, deadline: float) -> str:
    """The run configuration: every choice of the recipe, so that `flwr run --run-config` may change any."""
    setup, steps = recipe.setup(clients), recipe.local_steps
    pairs: dict[str, Any] = {
        "clients": clients, "deadline": float(deadline), "wait": 600.0, "out": "results", "strategy": recipe.strategy,
        "hypotheses": recipe.hypotheses, "privacy": recipe.placed, "noise": recipe.noise, "radius": recipe.radius,
        "leakage-limit": recipe.leakage_limit or 0.0, "epsilon": recipe.epsilon, "delta": recipe.delta,
        "clipping": recipe.clipping, "threshold": recipe.threshold, "rounds": setup.facts.rounds,
        "clients-per-round": setup.facts.clients_per_round, "local-rate": steps.rate, "batch": steps.batch,
        "epochs": recipe.epochs, "server-rate": recipe.server_rate or 0.0, "mu": recipe.mu, "seed": -1,
    }  # fmt: skip
    return "\n".join(f"{key} = {_toml(value)}" for key, value in pairs.items())


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)

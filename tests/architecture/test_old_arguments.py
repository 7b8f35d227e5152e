"""Arguments and fields of 0.1 and 0.2 keep working for two minor releases, and say what they are called now."""

from __future__ import annotations

import inspect
import io
from functools import partial
from typing import Any

import pytest
import torch

import sordina as sd
from sordina._renamed import current_settings
from sordina.accounting.events import from_dict, to_dict
from sordina.clipping.online import OnlineState
from sordina.clipping.quantile import QuantileState
from sordina.clipping.sector import SectorState
from sordina.clipping.trailing import TrailingState
from sordina.errors import InvalidInput
from sordina.federated.flower.deployment import recipe_of
from sordina.federated.recipe import FederatedRecipe
from sordina.training.checkpoint import read_tensors
from sordina.training.learning_rates import Start
from sordina.training.recipe import TrainingRecipe

RENAMED: list[Any] = [
    (sd.clipping.Fixed, {"C": 0.5}, {"threshold": 0.5}),
    (sd.clipping.Quantile, {"initial": 0.5}, {"threshold": 0.5}),
    (sd.clipping.Online, {"initial": 0.5}, {"threshold": 0.5}),
    (sd.clipping.Online.as_in_thesis, {"initial": 0.5}, {"threshold": 0.5}),
    (sd.clipping.Trailing, {"initial": 0.5}, {"threshold": 0.5}),
    (TrainingRecipe, {"dataset": "digits", "lr": 0.5}, {"dataset": "digits", "learning_rate": 0.5}),
    (partial(Start, steps=1, weights=2, size=1.0), {"lr": 0.5}, {"learning_rate": 0.5}),
    (
        partial(sd.Trainer, torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, sd.Budget(1, 1e-5)),
        {"lr": 0.5},
        {"learning_rate": 0.5},
    ),
    (partial(sd.sampling.Poisson, population=9), {"batch": 3}, {"batch_size": 3}),
    (partial(sd.sampling.FixedSize, population=9), {"batch": 3}, {"batch_size": 3}),
    (
        partial(sd.accounting.FixedSizeSampled, population=9, event=sd.accounting.Gaussian(1.0)),
        {"batch": 3}, {"batch_size": 3},
    ),
    (
        partial(FederatedRecipe, "synthetic"),
        {"local_rate": 0.3, "batch": 4, "noise": 2.0, "server_rate": 0.5, "inner_rate": 0.1},
        {"learning_rate": 0.3, "batch_size": 4, "noise_multiplier": 2.0, "server_learning_rate": 0.5,
         "inner_learning_rate": 0.1},
    ),
    (sd.clipping.Sector, {"high": 0.5}, {"threshold": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "old", "new"), RENAMED, ids=[repr(call)[:40] for call, _, _ in RENAMED])
def test_a_former_argument_works_and_warns(call, old, new):
    with pytest.warns(DeprecationWarning, match="is now"):
        made = call(**old)
    assert made == call(**new)
    for former, current in zip(old, new, strict=True):
        if former != current and not inspect.ismethod(call):
            with pytest.warns(DeprecationWarning, match=f"{former} is now {current}"):
                assert getattr(made, former) == getattr(made, current)
    with pytest.raises(InvalidInput, match="former name"):
        call(**(old | new))


def test_an_unknown_argument_is_still_refused():
    with pytest.raises(TypeError):
        sd.clipping.Fixed(D=1.0)


@pytest.mark.parametrize("kind", [QuantileState, OnlineState, TrailingState, SectorState])
def test_states_in_older_checkpoints_are_read(kind):
    rest = {"low": 0.1, "angle": 1.0} if kind is SectorState else {}
    state = kind(threshold=0.25, **rest)
    fields = {name: value for name, value in state.__dict__.items() if name != "threshold"}
    former = "high" if kind is SectorState else "C"
    written = object.__new__(kind)
    written.__dict__.update({former: 0.25, **fields})
    file = io.BytesIO()
    torch.save({"state": written}, file)
    assert read_tensors(file.getvalue(), [kind])["state"] == state


def test_a_former_option_works_and_says_its_new_name(capfd):
    from typer.testing import CliRunner

    from sordina.cli.main import app

    result = CliRunner().invoke(app, ["train", "no-such-data", "--lr=0.5", "--epochs", "1"])
    assert "--lr is now --learning-rate" in result.output
    assert "unknown data set" in str(result.exception)


def test_apps_and_folders_of_earlier_versions_are_read_without_a_warning():
    app = recipe_of({"strategy": "fedavg", "privacy": "none", "local-rate": 0.3, "batch": 7, "server-rate": 0.0})
    assert (app.learning_rate, app.batch_size, app.server_learning_rate) == (0.3, 7, None)
    stored = {"data": "synthetic", "noise": 2.0, "local_rate": 0.3}
    assert FederatedRecipe.from_dict(stored).noise_multiplier == 2.0
    assert TrainingRecipe.from_dict({"dataset": "digits", "lr": 0.5}).learning_rate == 0.5


def test_an_event_is_stored_as_it_always_was():
    event = sd.accounting.FixedSizeSampled(3, 9, sd.accounting.Gaussian(1.0))
    stored = to_dict(event)
    assert stored == {
        "kind": "FixedSizeSampled", "batch": 3, "population": 9, "event": {"kind": "Gaussian", "noise_multiplier": 1.0}
    }  # fmt: skip
    assert from_dict(stored) == event


def test_progress_is_a_bar_or_a_function(capfd):
    told = []
    data = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
    sd.Trainer(
        torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, sd.Budget(9, 1e-5), batch_size=4, steps=3, seed=0,
        progress=lambda *step: told.append(step),
    ).fit(data)  # fmt: skip
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.warns(DeprecationWarning, match="is now ProgressBar"):
        assert sd.training.Progress is sd.training.ProgressBar


def test_settings_that_an_earlier_version_stored_are_compared_under_their_new_names():
    stored = {"clipping": [[["w"], {"class": "Fixed", "C": 1.0}]], "C": 3, "optimizer": ["SGD", {"lr": 0.1}]}
    expected = stored | {"clipping": [[["w"], {"class": "Fixed", "threshold": 1.0}]]}
    assert current_settings(stored) == expected
    search = {"trainer": {"lr": 0.5, "learning_rate": None, "steps": 3}}
    assert current_settings(search) == {"trainer": {"learning_rate": 0.5, "steps": 3}}

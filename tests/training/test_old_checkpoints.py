"""What 0.1 wrote is still read: checkpoints name classes by the modules they lived in then."""

import io
import sys
import types

import pytest
import torch

from sordina.training.checkpoint import _FORMER, read_tensors
from sordina.training.learning_rates import DistanceState, RateState, SteadyState


@pytest.mark.parametrize("kind", [RateState, SteadyState, DistanceState])
def test_states_under_their_former_names_are_read(kind, monkeypatch):
    module = f"sordina.training.{_FORMER[kind]}"
    old = types.ModuleType(module)
    setattr(old, kind.__name__, kind)
    state = kind.__new__(kind)
    state.__dict__.update(value=1.0)
    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, old)
        patch.setattr(kind, "__module__", module)
        torch.save({"rate": state}, file)
    former = [(kind, f"{module}.{kind.__name__}")]
    found = read_tensors(file.getvalue(), former)
    assert found is not None
    assert type(found["rate"]) is kind
    assert read_tensors(file.getvalue(), [kind]) is None, "a test that cannot fail"

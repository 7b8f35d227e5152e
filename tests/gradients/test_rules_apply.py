"""Every layer that has a rule is answered by it: without, answers are right and slow, and nobody notices."""

from __future__ import annotations

import pytest

from sordina.auditing.self_checks import layer_models
from sordina.gradients.layers import RULES, rule_for


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_a_plain_layer_gets_its_rule(kind):
    model = layer_models()[kind.__name__][0]()
    found = [rule_for(module) for module in model.modules() if type(module) is kind]
    assert found
    assert all(rule is RULES[kind] for rule in found)

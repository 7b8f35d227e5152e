"""Placing the taps in a model: layers with a rule are wrapped, all other parameters are watched by a tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from torch import Tensor, nn

from sordina.gradients.capture import Recorder
from sordina.gradients.layers import Fold, Rule, rule_for
from sordina.gradients.meeting import Meeting
from sordina.gradients.trace import Tracer

OURS = "_sordina_original"


@dataclass(frozen=True)
class Installed:
    """What stands in the model, and what is watched because no rule covers it."""

    modules: tuple[nn.Module, ...]
    watched: frozenset[str]

    def remove(self) -> None:
        """Give every module its own forward pass back."""
        for module in self.modules:
            module.__dict__.pop("forward", None)


def install(
    model: nn.Module,
    recorder: Recorder,
    parameters: Mapping[str, Tensor],
    watched: frozenset[str],
    tell: Callable[[str], None],
) -> Installed:
    """Wrap what has a rule; watch ``watched`` and every parameter that no rule covers."""
    for module in model.modules():
        if hasattr(module.__dict__.get("forward"), OURS):
            del module.__dict__["forward"]
    names = {id(parameter): name for name, parameter in parameters.items()}
    owners = {module: _own(module, names) for module in model.modules()}
    rules = {module: rule for module, own in owners.items() if own and (rule := rule_for(module)) is not None}
    watched |= {name for module, own in owners.items() if module not in rules for name in own}
    while spoiled := [module for module in rules if owners[module] & watched]:
        for module in spoiled:
            del rules[module]
            watched |= owners[module]
    for name, module in model.named_modules():
        if module in rules:
            _replace(module, _layer(module, rules[module], name or type(module).__name__, recorder))
    _replace(model, _root(model, recorder, parameters, watched, Meeting(recorder, tell, names)))
    recorder.learning = True
    return Installed((*rules, model), frozenset(watched))


def _own(module: nn.Module, names: Mapping[int, str]) -> frozenset[str]:
    return frozenset(names[id(p)] for p in module._parameters.values() if p is not None and id(p) in names)


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    setattr(forward, OURS, True)
    module.forward = forward


def _layer(module: nn.Module, rule: Rule, name: str, recorder: Recorder) -> Callable[..., Any]:
    """The layer's forward pass, listened to."""
    original, terms, any_dim = module.forward, rule.terms, rule.any_dim

    @wraps(original)
    def plain(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if terms is not None and recorder.listening:
            inputs = args if not kwargs else (*args, *kwargs.values())
            sources = inputs if len(inputs) == 1 else tuple([x for x in inputs if isinstance(x, Tensor)])
            recorder.tap(name, output, partial(_build, terms, module, args, kwargs), sources, any_dim)
        return output

    @wraps(original)
    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        if not recorder.listening or rule.forward is None:
            return original(*args, **kwargs)
        return rule.forward(module, partial(_tap, recorder, name), *args, **kwargs)

    return plain if rule.forward is None else in_pieces


def _build(terms: Any, module: nn.Module, args: Any, kwargs: Any, b: Tensor, fold: Fold) -> Any:
    if kwargs or len(args) > 1:
        still = [x.detach() if isinstance(x, Tensor) else x for x in args]
        return terms(
            module, b, fold, *still, **{k: x.detach() if isinstance(x, Tensor) else x for k, x in kwargs.items()}
        )
    return terms(module, b, fold, args[0].detach())


def _tap(recorder: Recorder, name: str, part: str, *args: Any) -> None:
    recorder.tap(f"{name}.{part}", *args)


def _root(
    model: nn.Module, recorder: Recorder, parameters: Mapping[str, Tensor], watched: frozenset[str], meeting: Meeting
) -> Callable[..., Any]:
    """The model's forward pass, traced while its structure is unknown or a parameter is watched."""
    original = model.forward
    interesting = {id(parameters[name]): parameters[name] for name in watched}
    everything = {id(parameter) for parameter in parameters.values()}

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not recorder.listening or not (recorder.learning or watched):
            return original(*args, **kwargs)
        if recorder.learning:
            args = tuple([_differentiable(value, recorder) for value in args])
            kwargs = {key: _differentiable(value, recorder) for key, value in kwargs.items()}
        tracer = Tracer(interesting, everything, meeting)
        tracer.enter([args, kwargs])
        recorder.batched = tracer.batched
        try:
            with tracer:
                return original(*args, **kwargs)
        finally:
            recorder.batched = _always

    return forward


def _always(tensors: Iterable[Tensor]) -> bool:
    return True


def _differentiable(value: Any, recorder: Recorder) -> Any:
    """A copy of a real input through which samples that mix before the first layer can be seen."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.requires_grad:
        return value
    leaf = value.detach().requires_grad_()
    recorder.inputs.append(leaf)
    return leaf.clone()

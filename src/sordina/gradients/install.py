"""Placing the taps in a model: layers with a rule are wrapped, all other parameters are left to a tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from torch import Tensor, nn

from sordina.gradients.calls import Calls
from sordina.gradients.capture import Recorder, again
from sordina.gradients.layers import Fold, Rule, rule_for
from sordina.gradients.meeting import Meeting
from sordina.gradients.nested import tensors_in
from sordina.gradients.trace import Tracer
from sordina.gradients.wrapping import unwrap, wrap


def install(
    model: nn.Module,
    recorder: Recorder,
    parameters: Mapping[str, Tensor],
    tell: Callable[[str], None],
    public_buffers: frozenset[str],
    root: Callable[..., Any],
) -> tuple[list[nn.Module], Calls]:
    """Wrap what has a rule, and the model itself, which from then on runs ``root``.

    Returns:
        the wrapped modules, and what keeps the model's calls.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    remove(model.modules())
    layers: list[tuple[nn.Module, Callable[..., Any]]] = []
    loose, wrapped = set[str](), list[nn.Module]()
    for name, module in model.named_modules():
        if any(id(parameter) in names for parameter in module._parameters.values()):
            rule = rule_for(module)
            if rule is not None:
                layers.append((module, _layer(module, rule, name or type(module).__name__, recorder)))
            else:
                recorder.tracing = True
                loose.add(name)
    calls = Calls(model, recorder, Meeting(recorder, tell, names), parameters, public_buffers)
    for module in _above(model, loose):
        wrap(module, _traced_again(module.forward, recorder, calls.meeting), recorder)
        wrapped.append(module)
    for module, forward in layers:
        if module is model:
            calls.forward = forward
        else:
            wrap(module, forward, recorder)
    wrap(model, root, recorder)
    return [*wrapped, *(module for module, _ in layers), model], calls


def remove(modules: Iterable[nn.Module]) -> None:
    """Give modules their own forward pass back; an engine that listened to them is told."""
    for module in modules:
        owner = unwrap(module)
        if isinstance(owner, Recorder):
            owner.retired = True


def _above(model: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    """The modules of these names and all that hold them, but for the model itself."""
    held = {".".join(parts[:n]) for parts in (name.split(".") for name in names) for n in range(1, len(parts) + 1)}
    for name, module in model.named_modules():
        if name in held and module is not model:
            yield module


def _traced_again(original: Callable[..., Any], recorder: Recorder, meeting: Meeting) -> Callable[..., Any]:
    """A forward pass that is traced also where a checkpoint computes it again, in which the model takes no part."""

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if recorder.tracer is not None or not again() or not recorder.listening:
            return original(*args, **kwargs)
        recorder.tracer = Tracer(meeting.names.keys(), meeting, (), recorder.rows)
        try:
            with recorder.tracer:
                return original(*args, **kwargs)
        finally:
            recorder.tracer = None

    return forward


def _layer(module: nn.Module, rule: Rule, name: str, recorder: Recorder) -> Callable[..., Any]:
    """The layer's forward pass, listened to."""
    original, terms, any_dim = module.forward, rule.terms, rule.any_dim

    @wraps(original)
    def plain(*args: Any, **kwargs: Any) -> Any:
        if terms is None or not recorder.listening:
            return original(*args, **kwargs)
        inputs = args if not kwargs else (*args, *kwargs.values())
        sources = inputs if len(inputs) == 1 else tuple([x for x in inputs if isinstance(x, Tensor)])
        tracer, batched = recorder.tracer, True
        if tracer is None or tracer.suspended:
            output = original(*args, **kwargs)
        else:
            batched = tracer.batched(sources)
            if not batched and not recorder.rows_of_constants(name, sources[0].shape[0], tracer.rows):
                return original(*args, **kwargs)
            output = tracer.inside(original, *args, **kwargs)
        recorder.tap(name, output, partial(_build, terms, module, args, kwargs), sources, any_dim, batched)
        return output

    @wraps(original)
    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        tracer = recorder.tracer
        if rule.forward is None or not recorder.listening:
            return original(*args, **kwargs)
        if tracer is None or tracer.suspended:
            return rule.forward(module, partial(_tap, recorder, name), *args, **kwargs)
        if not tracer.batched(tensors_in([args, kwargs])):
            return original(*args, **kwargs)
        return tracer.inside(rule.forward, module, partial(_tap, recorder, name), *args, **kwargs)

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

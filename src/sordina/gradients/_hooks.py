"""Where the engine listens in on a forward pass: wrapped modules, taps, and the graph between these and parameters."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordina.errors import Unsupported
from sordina.gradients._kept_state import _installed
from sordina.gradients._tracing import Tracer
from sordina.gradients.layout import Fold
from sordina.gradients.terms import Term

if TYPE_CHECKING:
    from sordina.gradients._way_back import ModelCall

# Another forward pass for one module, without a trace in what is copied, saved or left behind.
#
# The module becomes an instance of a subclass made for it alone. A copy, and what is pickled, is of the module's own
# class again; anything that still reaches the subclass with another module gets that module's own forward pass.

_OWN_CLASS = "_sordina_own_class"
_OWNER = "_sordina_owner"
_OWN_FORWARD = "_sordina_own_forward"
_COMPILED = "_compiled_call_impl"
WRAPPING = (_OWN_FORWARD, _OWN_CLASS, _OWNER, _COMPILED, "forward")
"""Under these names the class of a module that is wrapped has what is the engine's, and first the module's forward pass
if that was an attribute."""


def wrap(module: nn.Module, forward: Callable[..., Any], owner: object, call: Callable[..., Any] | None = None) -> None:
    """Let ``module`` run ``forward`` (called without the module) on behalf of ``owner``, until `unwrap`.

    ``call`` takes the place of calling the module, hooks included; its first argument does what calling did before.
    """
    kind: Any = type(module)
    own_forward = module.__dict__.pop("forward", None)

    @wraps(kind.forward)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self is module else kind.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        ours = self.__class__
        self.__class__ = kind
        try:
            made, arguments, state, *rest = (*self.__reduce_ex__(protocol), None, None)[:5]
        finally:
            self.__class__ = ours
        if made is copyreg.__newobj__:  # type: ignore[attr-defined]
            made = object.__new__
        if own_forward is not None and isinstance(state, dict):
            state = {**state, "forward": own_forward}
        return made, arguments, state, *rest

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = partial(kind.__call__, self)
        return call(before, *args, **kwargs) if call and self is module else before(*args, **kwargs)

    members = {
        "forward": run,
        **({} if call is None else {"__call__": called}),
        "__reduce_ex__": reduce,
        _COMPILED: property(_uncompiled, _compile),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _OWN_CLASS: kind,
        _OWN_FORWARD: own_forward,
        _OWNER: owner,
    }
    module.__class__ = type(kind.__name__, (kind,), members)


def _uncompiled(module: nn.Module) -> None:
    """What `torch.nn.Module.compile` has made of a module is not used while it is listened to."""


def _compile(module: nn.Module, compiled: Any) -> None:
    vars(module)[_COMPILED] = compiled


def unwrap(module: nn.Module) -> object | None:
    """Give a module its own class and forward pass back; return on whose behalf it ran another, if it did."""
    members = type(module).__dict__
    if _OWN_CLASS not in members:
        return None
    module.__class__ = members[_OWN_CLASS]
    if members[_OWN_FORWARD] is not None:
        module.__dict__["forward"] = members[_OWN_FORWARD]
    owner: object = members[_OWNER]
    return owner


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module, whatever forward pass it runs."""
    kind: type[nn.Module] = type(module).__dict__.get(_OWN_CLASS, type(module))
    return kind


def calls_itself(module: nn.Module) -> bool:
    """Whether calling a module is more than PyTorch's way to its forward pass: its class, not a library's, says how."""
    kind = own_class(module)
    for name in ("__call__", "_wrapped_call_impl", "_call_impl"):
        owner = next(each for each in kind.__mro__ if name in vars(each))
        if owner is not nn.Module and not _installed(owner.__module__):
            return True
        if name in vars(module):
            return True
    return False


def hooks_of(module: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """The hooks that run when a module is called, or on the way back."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def hooked(module: nn.Module) -> bool:
    """Whether anything but its forward pass runs when a module is called."""
    return any(hooks_of(module)) or calls_itself(module) or bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def wrapped_by(module: nn.Module, owner: object) -> bool:
    """Whether a module runs a forward pass on behalf of ``owner``."""
    return type(module).__dict__.get(_OWNER) is owner


# Taps: where the engine listens in on a forward pass.

Found: TypeAlias = Iterator[tuple[Tensor, Term]]
"""Parameters with their terms."""
Build: TypeAlias = Callable[[Tensor, Fold], Found]
"""What a tap does with the gradient that passes it."""


class Tap(NamedTuple):
    """One use of parameters: where its output lies in the graph, and how its gradient becomes terms."""

    key: tuple[str, int]
    """A label, and the number of dimensions: taps of equal key have their samples along the same dimension."""
    edge: GradientEdge
    shape: torch.Size
    build: Build | None
    """None where another tap answers for the parameters used here."""
    sources: tuple[Tensor, ...]
    """The other inputs of the tapped operation: behind them, a walk through the graph goes on."""
    versions: tuple[int, ...]
    batched: bool
    """Whether the samples take part; if not, the output is a function of the parameters alone."""
    any_dim: bool = True
    """Whether the samples may lie along another dimension than the first."""

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return self.key[0]


def edge_of(output: Tensor) -> GradientEdge:
    """Where an output's gradient passes, whatever is later done to the output in place.

    An in-place operation on a view rewrites the graph above the view's base. `torch.nn.functional.linear` over several
    leading dimensions returns a view of a matrix nobody else holds, so that matrix is tapped instead.
    """
    base = output._base
    if base is not None and type(base.grad_fn).__name__ == "AddmmBackward0" and base.numel() == output.numel():
        output = base
    assert output.grad_fn is not None
    return GradientEdge(output.grad_fn, output.output_nr)


class Gathering:
    """A backward pass from a forward pass that was recorded: what it computes again is to be done in the same way."""

    running = 0
    """How many of them there are."""

    def __enter__(self) -> None:
        Gathering.running += 1

    def __exit__(self, *_: object) -> None:
        Gathering.running -= 1


def again() -> bool:
    """Whether a backward pass is running."""
    return bool(torch._C._current_graph_task_id() != -1)


@dataclass
class Recorder:
    """The taps of the forward passes since the last record."""

    model: nn.Module
    taps: list[Tap] = field(default_factory=list)
    learning: bool = False
    """Whether the model runs on made-up rows, for its structure to be learned."""
    muted: int = 0
    """Above zero while the model runs on the side and nobody listens."""
    tracing: bool = False
    """Whether there are parameters that only a tracer can follow."""
    tracer: Tracer | None = None
    """The tracer of the forward pass that is running."""
    constant_rows: set[str] = field(default_factory=set)
    """What is called with one row per sample although no sample takes part in them; known by label."""
    rows: int = 0
    """How many samples the last traced forward pass had."""
    retired: bool = False
    """Whether another engine has taken over the model."""
    dynamic: str = ""
    """Where, if anywhere, the shape of a tensor was seen to depend on the values of samples."""

    @property
    def listening(self) -> bool:
        """Only a training forward pass with gradients is recorded.

        A forward pass inside a backward pass is a checkpoint that is computed again: it must do what the first did.
        """
        if again():
            return Gathering.running > 0 and self.model.training
        return self.model.training and torch.is_grad_enabled() and not self.muted

    @property
    def unrecorded(self) -> bool:
        """Whether a training forward pass is not recorded only because it has no gradients."""
        return self.model.training and not torch.is_grad_enabled() and not self.muted and not again()

    def rows_of_constants(self, label: str, size: int, rows: int) -> bool:
        """Whether ``size`` rows in which no sample takes part are one for each of the ``rows`` samples.

        It is learned on made-up rows, whose number occurs nowhere else, and then goes by the label.
        """
        if self.learning and size == rows:
            self.constant_rows.add(label)
        return size == rows and label in self.constant_rows

    def tap(
        self,
        label: str,
        output: Any,
        build: Build | None,
        sources: tuple[Tensor, ...],
        any_dim: bool = True,
        batched: bool = True,
    ) -> None:
        """Listen to the gradient of ``output``, a function of parameters and ``sources``."""
        if not isinstance(output, Tensor):
            return
        with torch._C.DisableTorchFunction():  # nobody follows what is asked here
            if output.grad_fn is not None:
                versions = tuple([source._version for source in sources])
                key, shape = (label, output.dim()), output.shape
                self.taps.append(Tap(key, edge_of(output), shape, build, sources, versions, batched, any_dim))


# Questions to the graph: which parameters lie below losses, results and taps, by which nodes, and whether anybody sees.

REENTRANT = "CheckpointFunctionBackward"
"""The node of a checkpoint that computes the parameters inside of it behind autograd's back."""
NOT_REENTRANT = (
    "gradient checkpointing with use_reentrant=True hides parameters from everybody but backward(), so their "
    "per-sample gradients would be zero: pass use_reentrant=False (with transformers: "
    "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}))."
)


def used_outside(losses: Tensor, calls: Sequence[ModelCall], names: Mapping[int, str]) -> list[str]:
    """The parameters (``names`` by their identity) that the losses depend on, not through the results of ``calls``."""
    results: dict[Any, tuple[Tensor, ...]] = {edge[:2]: () for call in calls for edge in call.edges if edge is not None}
    return _named(_leaves([(losses.grad_fn, 0)], results), names)


def loss_graph(losses: Tensor, calls: Sequence[ModelCall]) -> int:
    """A number that tells which operations lead from the results of ``calls`` to the losses."""
    results = {edge[:2] for call in calls for edge in call.edges if edge is not None}
    told, stack, seen = 0, [(losses.grad_fn, 0)], set[Any]()
    while stack:
        place = stack.pop()
        node = place[0]
        told = hash((told, place in results, type(node)))
        if node is not None and place not in results and node not in seen:
            seen.add(node)
            stack.extend(node.next_functions)
    return told


def untapped(calls: Sequence[ModelCall], names: Mapping[int, str]) -> list[str]:
    """The parameters (``names`` by their identity) that results of calls depend on without a tap between them."""
    taps: dict[Any, tuple[Tensor, ...]] = {
        tap.edge[:2]: tap.sources
        for call in calls
        for tap in call.taps
        if tap.build is None or call.structure.taps.get(tap.key) is not None
    }
    return _named(_leaves([edge[:2] for call in calls for edge in call.edges if edge is not None], taps), names)


def leaf_edges(outputs: Sequence[Tensor]) -> dict[int, list[GradientEdge]]:
    """By the identity of a tensor without a graph behind it where ``outputs`` lead to it.

    That is more than one place if its values were in another precision for a while (`Doubled`): what was computed
    before leads to a node that the tensor itself no longer knows, and who asks for its gradient would hear of none.
    """
    found: dict[int, list[GradientEdge]] = {}
    for node in _leaves([_place(output) for output in outputs if output.requires_grad]):
        found.setdefault(id(node.variable), []).append(GradientEdge(node, 0))
    return found


def leads_to(outputs: Sequence[Tensor], nodes: Collection[Any]) -> bool:
    """Whether one of some nodes lies below ``outputs``."""
    seen: set[Any] = set()
    stack = [output.grad_fn for output in outputs] if nodes else []
    while stack:
        node = stack.pop()
        if node in nodes:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(below for below, _ in node.next_functions)
    return False


def refuse_reentrant(outputs: Sequence[Tensor]) -> None:
    """Refuse results in whose graph a checkpoint hides parameters."""
    leaf_edges(outputs)


def _place(tensor: Tensor) -> Any:
    """Where a tensor lies in its graph: a node and the number of its output."""
    return get_gradient_edge(tensor)[:2] if tensor.is_leaf else (tensor.grad_fn, tensor.output_nr)


def _named(leaves: Iterator[Any], names: Mapping[int, str]) -> list[str]:
    return [names[id(node.variable)] for node in leaves if id(node.variable) in names]


def _leaves(stack: list[Any], jumps: Mapping[Any, tuple[Tensor, ...]] | None = None) -> Iterator[Any]:
    """The nodes at the end of a graph that stand for tensors; from places in ``jumps`` on to what stands there.

    A place is a node and the number of its output.
    """
    jumps = jumps or {}
    seen: set[Any] = set()
    while stack:
        place = stack.pop()
        sources = jumps.get(place)
        if sources is not None:
            for source in sources:
                if source.requires_grad:
                    edge = _place(source)
                    if edge != place:
                        stack.append(edge)
            continue
        node = place[0]
        if node is None or node in seen:
            continue
        seen.add(node)
        below = node.next_functions
        if below:
            if type(node).__name__ == REENTRANT:
                raise Unsupported(NOT_REENTRANT)
            stack.extend(below)
        elif getattr(node, "variable", None) is not None:
            yield node

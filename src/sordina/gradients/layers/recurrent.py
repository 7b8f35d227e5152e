"""``torch.nn.LSTM``, ``GRU`` and ``RNN``, their fused loops taken apart so that the gates can be listened to.

All gates of one layer and direction come from ``W_ih x_t + b_ih`` and ``W_hh h_(t-1) + b_hh``. The gradient of the
first at all times, with the inputs and the previous states, is all that the four parameters need; only the candidate
of a GRU sees the second part through its reset gate, ``n = tanh(x-part + r o h-part)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sordina.gradients._hooks import own_class
from sordina.gradients.layers.linear import own
from sordina.gradients.layout import Fold, widen
from sordina.gradients.terms import Dense, Term, outer

State: TypeAlias = tuple[Tensor, Tensor | None]
"""Hidden state, and the cell of an LSTM."""


def recurrent_forward(
    module: nn.RNNBase, tap: Callable[..., None], input: Tensor | PackedSequence, hx: Any = None
) -> tuple[Tensor | PackedSequence, Any]:
    """The same function as the module's own forward pass."""
    if isinstance(input, PackedSequence):
        return _packed(module, tap, input, hx)
    if input.dim() == 2:
        return own_class(module).forward(module, input, hx)  # type: ignore[no-any-return]
    steps = input.transpose(0, 1) if module.batch_first else input
    output, state = _run(module, tap, steps, hx, None)
    return output.transpose(0, 1) if module.batch_first else output, state


def _packed(
    module: nn.RNNBase, tap: Callable[..., None], packed: PackedSequence, hx: Any
) -> tuple[PackedSequence, Any]:
    """Padded, run with the padding ignored, and packed again; samples in their original order in between."""
    steps, lengths = pad_packed_sequence(packed)
    real = torch.arange(len(steps))[:, None] < lengths
    output, state = _run(module, tap, steps, hx, real.to(steps.device))
    ordered = packed.sorted_indices is None
    return pack_padded_sequence(output, lengths, enforce_sorted=ordered), state


def _run(
    module: nn.RNNBase, tap: Callable[..., None], steps: Tensor, hx: Any, real: Tensor | None
) -> tuple[Tensor, Any]:
    """All layers and directions over (time, batch, features)."""
    gated = module.mode == "LSTM"
    ways = 2 if module.bidirectional else 1
    start, cells = _initial(module, steps, hx, gated)
    ends: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            state = (start[place], cells[place] if cells is not None else None)
            direction = _Direction(module, layer, way)
            states, end = direction.run(tap, steps, state, real)
            outputs.append(states)
            ends.append(end)
        steps = outputs[0] if ways == 1 else torch.cat(outputs, 2)
        if module.dropout and module.training and layer < module.num_layers - 1:
            steps = F.dropout(steps, module.dropout)
    if real is not None:
        steps = steps * real[:, :, None]
    hidden = torch.stack([end[0] for end in ends])
    return steps, (hidden, torch.stack([end[1] for end in ends if end[1] is not None])) if gated else hidden


def _initial(module: nn.RNNBase, steps: Tensor, hx: Any, gated: bool) -> tuple[Tensor, Tensor | None]:
    if hx is not None:
        return hx if gated else (hx, None)
    count = module.num_layers * (2 if module.bidirectional else 1)
    width = module.proj_size or module.hidden_size
    hidden = steps.new_zeros(count, steps.shape[1], width)
    return hidden, steps.new_zeros(count, steps.shape[1], module.hidden_size) if gated else None


class _Direction:
    """One layer in one direction."""

    def __init__(self, module: nn.RNNBase, layer: int, way: int) -> None:
        self.module, self.way = module, way
        self.name = f"l{layer}{'_reverse' * way}"

    def parameter(self, kind: str) -> Tensor | None:
        """``weight_ih_l0`` and the like, if the module has it."""
        return self.module._parameters.get(f"{kind}_{self.name}")

    def run(self, tap: Callable[..., None], steps: Tensor, state: State, real: Tensor | None) -> tuple[Tensor, State]:
        """States at all times, and the last one."""
        weight = self.parameter("weight_ih")
        assert weight is not None
        gates = F.linear(steps, weight, self.parameter("bias_ih"))
        times = range(len(steps) - 1, -1, -1) if self.way else range(len(steps))
        before: list[Tensor] = [steps] * len(steps)
        resets: list[Tensor] = [steps] * len(steps)
        states: list[Tensor] = [steps] * len(steps)
        for t, gate in ((t, gates[t]) for t in times):
            before[t] = state[0].detach()
            fresh, reset = self.step(tap, gate, state)
            resets[t] = reset.detach()
            state = fresh if real is None else _held(real[t], fresh, state)
            states[t] = state[0]
        tap(self.name, gates, self._build(steps, before, resets), (steps,))
        return torch.stack(states), state

    def step(self, tap: Callable[..., None], gate: Tensor, state: State) -> tuple[State, Tensor]:
        """One step of the cell, in the order of gates that torch uses; the reset gate of a GRU comes along."""
        hidden, cell = state
        weight = self.parameter("weight_hh")
        assert weight is not None
        inner = F.linear(hidden, weight, self.parameter("bias_hh"))
        tap(f"{self.name}.hh", inner, None, (hidden,))
        if self.module.mode == "GRU":
            (rx, zx, nx), (rh, zh, nh) = gate.chunk(3, 1), inner.chunk(3, 1)
            reset, update = (rx + rh).sigmoid(), (zx + zh).sigmoid()
            return ((1 - update) * (nx + reset * nh).tanh() + update * hidden, None), reset
        if self.module.mode == "LSTM":
            assert cell is not None
            i, f, g, o = (gate + inner).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            return (self.projected(tap, o.sigmoid() * cell.tanh()), cell), gate
        total = gate + inner
        return (total.tanh() if self.module.mode == "RNN_TANH" else total.relu(), None), gate

    def projected(self, tap: Callable[..., None], full: Tensor) -> Tensor:
        """The hidden state of an LSTM with ``proj_size``."""
        weight = self.parameter("weight_hr")
        if weight is None:
            return full
        hidden = F.linear(full, weight)

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            if weight.requires_grad:
                yield weight, outer(fold.places(b), fold.places(full.detach()))

        tap(f"{self.name}.proj", hidden, build, (full,))
        return hidden

    def _build(
        self, steps: Tensor, before: list[Tensor], resets: list[Tensor]
    ) -> Callable[[Tensor, Fold], Iterator[tuple[Tensor, Term]]]:
        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            x_part = h_part = widen(b)
            if self.module.mode == "GRU":
                candidate = 2 * self.module.hidden_size
                h_part = torch.cat([b[..., :candidate], b[..., candidate:] * torch.stack(resets)], -1)
            sides = {"ih": (x_part, steps.detach()), "hh": (h_part, torch.stack(before))}
            for side, (left, right) in sides.items():
                weight, bias = self.parameter(f"weight_{side}"), self.parameter(f"bias_{side}")
                if weight is not None and weight.requires_grad:
                    yield weight, outer(fold.places(left), fold.places(right))
                if bias is not None and bias.requires_grad:
                    yield bias, Dense(fold.total(left))

        return build


def _held(real: Tensor, fresh: State, state: State) -> State:
    """Samples that have ended keep their state."""
    mask = real[:, None]
    cell = None if fresh[1] is None or state[1] is None else torch.where(mask, fresh[1], state[1])
    return torch.where(mask, fresh[0], state[0]), cell


# ``torch.nn.LSTMCell``, ``GRUCell`` and ``RNNCell``: two linear maps each, listened to one by one.


def cell_forward(module: nn.RNNCellBase, tap: Callable[..., None], input: Tensor, hx: Any = None) -> Any:
    """The same function as the module's own forward pass."""
    if input.dim() != 2:
        return own_class(module).forward(module, input, hx)
    gated = isinstance(module, nn.LSTMCell)
    if hx is None:
        nothing = input.new_zeros(len(input), module.hidden_size)
        hx = (nothing, nothing) if gated else nothing
    hidden, cell = hx if gated else (hx, None)
    given, inner = _part(module, tap, "ih", input), _part(module, tap, "hh", hidden)
    if isinstance(module, nn.GRUCell):
        (rx, zx, nx), (rh, zh, nh) = given.chunk(3, 1), inner.chunk(3, 1)
        update = (zx + zh).sigmoid()
        return (1 - update) * (nx + (rx + rh).sigmoid() * nh).tanh() + update * hidden
    if gated:
        assert cell is not None
        i, f, g, o = (given + inner).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    total = given + inner
    return total.tanh() if getattr(module, "nonlinearity", "tanh") == "tanh" else total.relu()


def _part(module: nn.RNNCellBase, tap: Callable[..., None], side: str, x: Tensor) -> Tensor:
    output = F.linear(x, getattr(module, f"weight_{side}"), getattr(module, f"bias_{side}"))

    def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
        if (weight := own(module, f"weight_{side}")) is not None:
            yield weight, outer(fold.places(b), fold.places(x.detach()))
        if (bias := own(module, f"bias_{side}")) is not None:
            yield bias, Dense(fold.total(b))

    tap(side, output, build, (x,))
    return output

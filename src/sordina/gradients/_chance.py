"""Chance in a model: the generators it draws from, and runs without chance, so that two of them can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from sordina.gradients._kept_state import _foreign, _installed, _looked_into, _named, _of_pytorch, same

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState)
EVERYBODYS: tuple[Any, ...] = (torch.default_generator, random._inst, np.random.mtrand._rand)
"""Those of torch, of Python and of NumPy that a model need not hold to draw from them."""
UNUSUAL = 0xC01D_5F32_D0
"""From here on seeds are counted: a model will hardly seed by them; the first numbers of eight are spread evenly."""


class Generators:
    """All generators a model may draw from: everybody's, and those it holds itself (``self.rng = default_rng()``)."""

    def __init__(self, model: Any = None) -> None:
        """Look for those in the attributes of ``model`` (or data set) and of its parts, and those its methods name."""
        self.all: dict[int, Any] = {id(each): each for each in EVERYBODYS}
        for each in () if model is None else held_by(model):
            source = each.bit_generator if isinstance(each, np.random.Generator) else each
            with suppress(Exception):  # one without a state, such as the operating system's
                _put_state(source, _state(source))
                self.all[id(source)] = source
        self._seeds = {id(each): {each.initial_seed()} for each in self.all.values() if _of_torch(each)}

    def seeded_by_others(self, generator: torch.Generator) -> bool:
        """Whether a generator of torch was seeded by somebody else since, or is a new one that was not used yet."""
        if id(generator) in self._seeds:
            return generator.initial_seed() not in self._seeds[id(generator)]
        fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        return torch.equal(fresh.get_state(), generator.get_state())

    def states(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """How far those of torch have come, and how far the others: equal if no number was drawn in between."""
        torchs = tuple(_state(each).numpy().tobytes() for each in self.all.values() if _of_torch(each))
        return torchs, tuple(_comparable(_state(each)) for each in self.all.values() if not _of_torch(each))

    def kept(self) -> list[Callable[[], None]]:
        """What puts all of them back to where they are now."""
        return [partial(_put_state, each, _state(each)) for each in self.all.values()]

    def seed(self, seed: int, case: int = 0) -> None:
        """Have all begin anew, those with `COINS` from there if a ``case`` is given."""
        coins = COINS.get(case, {})
        for number, each in enumerate(self.all.values()):
            own = seed + UNUSUAL + max(0, number + 1 - len(EVERYBODYS))
            _seed(each, next((coin for kind, coin in coins.items() if isinstance(each, kind)), own))
            if _of_torch(each):
                self._seeds[id(each)] |= {each.initial_seed()}

    def begin_anew(self) -> None:
        """Seed all by what nobody else seeds them by."""
        self._seeds = {key: set() for key in self._seeds}
        self.seed(0)


def held_by(model: Any) -> Iterator[Any]:
    """The generators that ``model``, its parts and their objects hold, and those that their methods name."""
    seen: dict[int, Any] = {}
    todo: list[tuple[Any, int]] = [(model, _DEEP)]
    while todo and len(seen) < _MOST:
        value, deep = todo.pop()
        if id(value) in seen or isinstance(value, Tensor | str | int | float | type(None)):
            continue
        seen[id(value)] = value
        if isinstance(value, GENERATORS):
            yield value
        elif isinstance(value, nn.Module):
            todo += [(each, deep) for each in (*value._modules.values(), *_inside(value))]
        elif deep:
            todo += [(each, deep - 1) for each in _inside(value)]


_DEEP, _LONG, _MOST = 6, 64, 20_000
"""So deep is looked into what is no module, at so many things in a list, and in all."""


def _inside(value: Any) -> Iterator[Any]:
    yield getattr(value, "__dict__", {}).get("__wrapped__")
    if isinstance(value, Mapping):
        yield from islice(value.values(), _LONG)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from islice(value, _LONG)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType | BuiltinMethodType):
        yield value.__self__
    elif isinstance(value, FunctionType):
        yield from () if _installed(value.__module__) else (each for _, _, each in _named(value) if _followed(each))
    elif isinstance(value, nn.Module | Dataset) or _looked_into(value):
        yield from (each for name, each in getattr(value, "__dict__", {}).items() if not _of_pytorch(value, name))
        for kind in type(value).__mro__:
            if not _foreign(kind.__module__):
                wanted = GENERATORS if _installed(kind.__module__) else (*GENERATORS, FunctionType)
                for each in vars(kind).values():
                    found = _named(each) if isinstance(each, FunctionType) else [(None, "", each)]
                    yield from (each for _, _, each in found if isinstance(each, wanted))


def _followed(value: Any) -> bool:
    """Whether what a function names may lead to a generator."""
    return isinstance(value, (*GENERATORS, FunctionType, MethodType, BuiltinMethodType, partial)) or _looked_into(value)


def _of_torch(generator: Any) -> bool:
    return isinstance(generator, torch.Generator)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState) else generator.state


def _put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    else:
        generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        generator.state = type(generator)(seed).state


def _comparable(state: Any) -> Any:
    """A state as a plain value."""
    if isinstance(state, Mapping):
        return tuple((key, _comparable(each)) for key, each in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_",
}  # fmt: skip
UNIFORM, NORMAL, YES, LONG, COUNT = (
    (0.4, 1e-3, 0.996),
    (0.3, -3.3, 3.3),
    (1.0, 0.0, 1.0),
    (0.7, 0.1, 3.0),
    (1.0, 1.0, 2.0),
)
DRAWS = {
    "rand": UNIFORM, "rand_like": UNIFORM, "uniform_": UNIFORM, "randn": NORMAL, "randn_like": NORMAL, "normal": NORMAL,
    "normal_": NORMAL, "cauchy_": NORMAL, "bernoulli": YES, "bernoulli_": YES, "poisson": YES, "exponential_": LONG,
    "log_normal_": LONG, "geometric_": COUNT, "random_": COUNT, "_standard_gamma": LONG, "binomial": YES,
}  # fmt: skip
"""What random numbers are replaced by: an ordinary value, a low one and a high one."""
CASES = (0, 1, 2)
"""Which of them: what a model does now and then, by the toss of a coin, is done in one of the cases."""
COINS: dict[int, dict[type, int]] = {
    1: {random.Random: 8038, np.random.RandomState: 16028, np.random.PCG64: 152659},
    2: {random.Random: 87393, np.random.RandomState: 12774, np.random.PCG64: 6625},
}
"""By case seeds of Python's numbers and of NumPy's whose first ones are low, or high: coins fall as they seldom do."""
AS_DRAWN = 3
"""Random numbers as they are, from a seed of one's own: for two runs of the same shapes."""
TOSSES = 8
"""How often a model that draws random numbers is tried with new ones."""
RATES = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
"""Functions that drop values inside, and the place of the rate among their arguments."""


def dropout_rate(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The rate at which one of `RATES` drops values."""
    place = RATES[name]
    return float(args[place] if len(args) > place else kwargs.get("dropout_p", 0.0))


WHOLE = {"randint", "randint_like", "multinomial"}
"""Functions that draw whole numbers."""


def _ends(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int, int]:
    """What whole numbers are replaced by: the least one, the same, and the largest."""
    if name == "multinomial":
        return 0, 0, (args[0] if args else kwargs["input"]).shape[-1] - 1
    given = [each for each in args if isinstance(each, int)]
    high = kwargs.get("high", given[-1] if given else 1)
    low = kwargs.get("low", given[0] if len(given) + ("high" in kwargs) > 1 else 0)
    return low, low, high - 1


WATCHED = DROPOUTS | DRAWS.keys() | RATES.keys() | WHOLE | {"rrelu", "gumbel_softmax"}


class WithoutChance(TorchFunctionMode):
    """Dropout does nothing and every random number is the same, so that two runs can be compared.

    What is drawn from ``own`` stays random: the rows that are made up, and what is asked about them.
    """

    def __init__(self, own: torch.Generator | None = None, generators: Generators | None = None) -> None:
        super().__init__()
        self.own, self.generators = own, generators or Generators()
        self.case = 0
        """Which of `CASES` is played."""
        self.drew = False
        """Whether random numbers were drawn, as of the last look at the `seeds`."""
        self.seeded = False
        """Whether the model was seen to seed a generator itself: that is no chance."""
        self._new: list[torch.Generator] = []
        self._seeds: list[int] = []
        self._begun = self.generators.states()

    def begin(self, case: int, seed: int = 0) -> None:
        """Play a case from here on; ``seed`` is that of numbers as they are drawn, or of those nothing replaces."""
        self.case, self._seeds, self._new = case, [], []
        if case:
            self.generators.seed(seed if case == AS_DRAWN else seed or case, 0 if seed else case)
        self._begun = self.generators.states()

    def seeds(self) -> list[Any]:
        """From which seeds random numbers came since, which may not depend on samples.

        And of numbers as they are drawn how far they came: where that is the same, everybody got the same ones.
        """
        now = self.generators.states()
        self.drew = now != self._begun
        return [*self._seeds, torch.initial_seed(), *([now] if self.case == AS_DRAWN else [])]

    def left(self, run: Callable[[int], list[Tensor]]) -> bool:
        """Whether there is chance that nothing here replaces: that of compiled code, of NumPy or of Python.

        Args:
            run: Plays case 1 from a seed, and says what came of it.
        """
        first, moved_on = run(1), self.generators.states()[1]
        self.begin(1, 1)
        begun = self._begun[1]
        if moved_on != begun:
            run(2)
            ends = zip(begun, moved_on, self.generators.states()[1], strict=True)
            self.seeded |= any(start != one == two for start, one, two in ends)
            return not self.seeded
        return any(not all(map(same, first, run(seed))) for seed in range(2, 10))

    def _seeded(self, generator: torch.Generator) -> bool:
        """Whether the model seeded ``generator``, or made it, in this run: its numbers stay what they are."""
        new = any(each is generator for each in self._new)
        if not new and not self.generators.seeded_by_others(generator):
            return False
        if not new and id(generator) not in self.generators.all:
            self._new.append(generator)
        self._seeds.append(generator.initial_seed())
        return True

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in WATCHED and "generator" not in kwargs:
            return func(*args, **kwargs)
        kwargs, generator = dict(kwargs), kwargs.get("generator")
        if (generator is None or generator is not self.own) and self._seeded(generator or torch.default_generator):
            self.seeded = True
            return func(*args, **kwargs)
        if name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "rrelu":
            return torch.nn.functional.leaky_relu(args[0], 0.2)
        if name == "gumbel_softmax":
            return torch.softmax(args[0], -1)
        if name == "_standard_gamma" and self.case != AS_DRAWN:  # it has a gradient, which needs the result as it was
            return args[0] * DRAWS[name][self.case]
        if name in RATES:
            if len(args) > RATES[name]:
                args = [*args[: RATES[name]], 0.0, *args[RATES[name] + 1 :]]
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        result = func(*args, **kwargs)
        if generator is not None and generator is not self.own:
            self._seeds.append(generator.initial_seed())
        if self.case == AS_DRAWN and (generator is None or id(generator) in self.generators.all):
            return result
        if name in DRAWS and isinstance(result, Tensor) and (self.own is None or generator is not self.own):
            with torch.no_grad():
                result.fill_(DRAWS[name][self.case % len(CASES)])
        elif name in WHOLE and isinstance(result, Tensor) and (self.own is None or generator is not self.own):
            with torch.no_grad():
                result.fill_(_ends(name, args, kwargs)[self.case % len(CASES)])
        return result


class InOrder(TorchFunctionMode):
    """Random numbers in the order of the rows, so that fewer rows get those that the first of many get.

    Normal numbers come from torch in blocks, and a second draw begins where the first one ended: both depend on how
    many there are. Numbers that the code in here seeds itself stay what they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name, own = kwargs or {}, getattr(func, "__name__", ""), torch.default_generator
        drawn = name in WATCHED and kwargs.get("generator") is None
        if not drawn or own.initial_seed() != UNUSUAL + self._drawn:
            return func(*args, **kwargs)
        self._drawn += 1
        result = func(*args, **kwargs)
        own.manual_seed(UNUSUAL + self._drawn)
        if name in NORMALS:
            given = args if name == "normal" else args[1:] if name == "normal_" else ()
            mean, deviation = (*given[:2], *(kwargs.get(key, key == "std") for key in ("mean", "std")[len(given) :]))
            with torch.no_grad():
                even = torch.rand(result.shape, dtype=torch.float64, device=result.device)
                result.copy_(torch.special.ndtri(even.clamp(1e-9, 1 - 1e-9)) * deviation + mean)
            own.manual_seed(UNUSUAL + self._drawn)
        return result


NORMALS = {"randn", "randn_like", "normal", "normal_"}
"""Functions that draw normal numbers."""

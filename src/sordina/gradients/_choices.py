"""What a run does by values and not by formulas: clamps, maxima, masks, look-ups.

A guard that is turned (`sordina.gradients._reads`) may lead to other operations, and these must say the same of *all*
rows, not of made-up ones alone: ``x.clamp(-5, 5)`` changes no ordinary number, and any number above five. Two
formulas that agree on random numbers agree everywhere. Operations that choose by values do not, so there must be the
same ones either way. But for one kind: what is chosen by the truths that the guard itself is about (``if mask.all():``,
else ``h.masked_fill(~mask, 0)``), because whoever does not turn the guard has the same truths as everybody else there.

Nor do formulas agree everywhere that hold an *extreme number*: ``norm + 1e-10`` is ``norm`` on every made-up row, and
not where a norm is about as small. These must be the same ones either way, too.

So what is not computed from numbers with a fraction has *roots*: an argument of truths or whole numbers, or a
comparison. What is made of it alone has the same roots, or new ones below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Roots = frozenset[int]
Choice = tuple[str, str]
"""An operation, and the numbers among its arguments."""
SMOOTH = {
    "add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10",
    "sqrt", "rsqrt", "square", "pow", "sin", "cos", "tanh", "sigmoid", "log_sigmoid", "log_sigmoid_forward",
    "logaddexp", "logsumexp", "erf", "erfc", "erfinv", "gelu", "silu", "mish", "softplus", "lerp", "addcmul", "addcdiv",
    "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "linear", "convolution", "sum", "mean", "var", "var_mean",
    "std", "cumsum", "softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax", "native_layer_norm",
    "native_group_norm", "_fused_rms_norm", "linalg_vector_norm", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "mse_loss", "avg_pool1d",
    "avg_pool2d", "_adaptive_avg_pool2d", "cat", "stack", "clone", "copy", "_to_copy", "detach", "contiguous", "repeat",
    "expand", "flip", "roll", "select", "slice", "diagonal", "as_strided", "constant_pad_nd", "pad", "zero", "fill",
    "view", "_unsafe_view", "_reshape_copy", "unfold", "im2col", "col2im", "pixel_shuffle", "tril", "triu", "permute",
    "new_zeros", "select_scatter", "slice_scatter", "conj", "real", "imag", "complex", "view_as_real",
}  # fmt: skip
"""Operations that are formulas, or move values whatever they are; their ways back are too."""


class Choices:
    """The choices of one run."""

    def __init__(self, memory_of: Callable[[Tensor], int], samples: Iterable[Tensor]) -> None:
        """Begin with the tensors that hold ``samples``; ``memory_of`` tells where the values of a tensor lie."""
        self._memory_of = memory_of
        self._roots: dict[int, Roots] = {}
        """By memory."""
        self._above: list[Roots] = []
        """For each root those it was made of."""
        self._sizes: list[int] = []
        self._arguments: dict[int, Tensor] = {}
        self._settled: set[int] = set()
        """The roots that are the same for all who do not turn a guard."""
        self._made: list[tuple[Choice, Roots]] = []
        for tensor in samples:
            if not _fractions(tensor):
                self._arguments[len(self._sizes)] = tensor
                self._new(tensor)

    def _new(self, tensor: Tensor, above: Roots = frozenset()) -> None:
        self._roots[self._memory_of(tensor)] = frozenset({len(self._sizes)})
        self._sizes.append(tensor.numel())
        self._above.append(above)

    def operation(
        self, func: Any, args: Any, given: Sequence[Tensor], held: Sequence[bool], made: Sequence[Any]
    ) -> None:
        """An operation on values of samples.

        Args:
            func: The operation.
            args: All its arguments.
            given: The tensors among them.
            held: Which of these hold values of samples.
            made: The tensors it gives, or changes.
        """
        memories = {self._memory_of(each) for each in given}
        if not func._schema.is_mutable and all(self._memory_of(each) in memories for each in made):
            return  # a view
        sets = [self._roots.get(self._memory_of(each)) for each, own in zip(given, held, strict=True) if own]
        roots = frozenset[int]().union(*(each for each in sets if each is not None))
        others = [each for each, own in zip(given, held, strict=True) if not own]
        if None not in sets and not any(_fractions(each) and each.dim() for each in others):
            for tensor in made:
                self._follow(tensor, roots, given)
            return
        name = func._schema.name.removeprefix("aten::")
        if any(map(_fractions, made)) and (roots or not _smooth(name) or _extreme(name, args, others)):
            self._made.append(((name, _numbers(args)), roots))
        for tensor in made:
            if _fractions(tensor):
                self._roots.pop(self._memory_of(tensor), None)
            else:
                self._new(tensor)

    def _follow(self, tensor: Tensor, roots: Roots, given: Sequence[Tensor]) -> None:
        """A tensor made of ``roots`` alone: it has the same, or a new one where it says less than they do."""
        less = tensor.dtype == torch.bool and any(each.dtype != torch.bool for each in given)
        if less or len(roots) != 1 or any(tensor.numel() != self._sizes[root] for root in roots):
            self._new(tensor, roots)
        else:
            self._roots[self._memory_of(tensor)] = roots

    def counted(self, number: Tensor, truths: Tensor) -> None:
        """A tensor is the number of some truths."""
        if (roots := self._roots.get(self._memory_of(truths))) and truths.numel() >= max(map(self._size, roots)):
            self._roots[self._memory_of(number)] = roots

    def agreed(self, truths: Tensor, count: int) -> None:
        """All samples say the same in ``truths`` (or in what they are the number of), so many they are."""
        for root in self._roots.get(self._memory_of(truths), ()):
            if count >= self._size(root):
                self._settled.add(root)
                self._settled |= set(filter(self._constant, self._ancestors(root)))

    def _size(self, root: int) -> int:
        return self._sizes[root]

    def _ancestors(self, root: int) -> set[int]:
        found, todo = set[int](), [root]
        while todo:
            each = todo.pop()
            found.add(each)
            todo += self._above[each] - found
        return found

    def _constant(self, root: int) -> bool:
        """Whether a root is an argument in which all values are the same."""
        tensor = self._arguments.get(root)
        return tensor is not None and tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())

    def _same_for_all(self, root: int) -> bool:
        above = self._above[root]
        return root in self._settled or (bool(above) and all(map(self._same_for_all, above)))

    def made(self) -> Counter[Choice]:
        """What was chosen, but for choices by what is the same for all who do not turn a guard."""
        return Counter(choice for choice, roots in self._made if not roots or not all(map(self._same_for_all, roots)))


def _fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _smooth(name: str) -> bool:
    plain = name.removesuffix("_data").removesuffix("_backward").removesuffix("_overrideable")
    return plain in SMOOTH or plain.rstrip("_") in SMOOTH


ARITHMETIC = {"add", "sub", "rsub", "mul", "div", "pow", "addcmul", "addcdiv", "lerp", "fill"}
"""Formulas whose whole numbers are no sizes."""
USUAL = 1e-3, 1e3
"""Numbers between these show on made-up rows."""


def _extreme(name: str, args: Any, constants: Iterable[Tensor]) -> bool:
    """Whether a formula holds a number, alone or in a tensor of nothing else, that is very small or very large."""
    kinds: Any = (int, float, complex) if name.rstrip("_") in ARITHMETIC else (float, complex)
    low, high = USUAL
    sizes = [abs(each) for each in _leaves(args) if isinstance(each, kinds)]
    if any(0 < size < low or size > high for size in sizes):
        return True
    dense = (each.detach() for each in constants if _fractions(each) and each.layout == torch.strided)
    ends = [each.abs().double().aminmax() for each in dense if 0 < each.numel() <= MOST_VALUES]
    return any(0 < float(most) < low or float(least) > high for least, most in ends)


MOST_VALUES = 4096
"""Tensors of so many values are looked at."""


def _numbers(args: Any) -> str:
    """The numbers among the arguments of an operation, in words."""
    return " ".join(repr(each) if isinstance(each, float) else str(each) for each in _leaves(args))


def _leaves(args: Any) -> Iterator[Any]:
    """What is among the arguments of an operation, but for tensors."""
    todo = [args]
    while todo:
        each = todo.pop()
        if isinstance(each, list | tuple):
            todo.extend(reversed(each))
        elif isinstance(each, dict):
            todo.extend(reversed(each.values()))
        elif not isinstance(each, Tensor):
            yield each

"""What Python reads of the samples: a number that decides which way a model goes.

``x * 3 if x.mean() > 0 else x.sin()`` lets all samples decide what happens to each of them, and made-up rows may never
cross the border at which that shows. So a model is watched while it runs: what is computed from the samples is marked
(by its memory, so views and changes in place count too), and any value of it that reaches Python (``bool``, ``item``,
``tolist``, ``numpy``, ``torch.equal``), or gives a tensor its shape (``nonzero``, a mask as an index, ``unique``), is
noted. So is a truth about several samples that stays in a tensor (``torch.where(x.mean() > 9, a, b)``): truths of
samples have one row, or several, for each. A model of which something is noted runs one sample at a time: then a sample
decides for itself alone.

One kind is common and harmless, such as ``if mask.all():`` before a faster attention. It is recognised: a truth about
*all* samples, or about *any*, which turns as soon as one of them is unlike the others. Where the samples agree, it is
turned around by force: if the model then says the same (or raises an error), it does not matter who else is there; if
it keeps something else for later batches (a count of those with an overflow), it is refused.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePath
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sordina.gradients._choices import Choice, Choices
from sordina.gradients._kept_state import all_differing
from sordina.gradients._tracing import tensors_in
from sordina.gradients._turns import Path, Site, Turned, Turns

WHOLE = {"tolist", "numpy", "__array__", "__dlpack__", "__cuda_array_interface__", "__array_interface__"}
"""Ways to many values at once, which PyTorch's dispatcher does not see."""
MAKING = {"tensor", "as_tensor", "asarray", "new_tensor", "new"}
"""Functions that make a tensor of numbers: values of tensors in a list, which the dispatcher does not see either."""
NUMBERS = {"__float__", "__int__", "__index__", "__complex__"}
"""Ways to one value, which it does not always see."""
CHECKS = {"one_hot"}
"""Functions that read values to check them only."""
SHAPES = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
"""Operations that take nothing of a tensor but its shape and type."""
FORMAL = {
    "dim", "size", "stride", "numel", "len", "storage_offset", "sym_size", "sym_stride", "sym_numel", "element_size",
    "sym_storage_offset", "sym_is_contiguous", "is_contiguous", "is_strides_like_format", "is_same_size", "is_set_to",
    "is_non_overlapping_and_dense", "is_pinned", "is_complex", "is_floating_point", "is_signed", "is_conj", "is_neg",
    "is_leaf", "is_inference", "is_distributed", "retains_grad", "output_nr", "get_device", "result_type", "_version",
    "_is_zerotensor", "_debug_has_internal_overlap", "_has_compatible_shallow_copy_type", "_has_same_storage_numel",
    "cudnn_is_acceptable", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "_fused_sdp_choice",
    "_batch_norm_impl_index", "_cudnn_attention_forward", "_efficient_attention_forward",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}  # fmt: skip
"""Operations whose numbers are about shapes, types and memory, or choose between two ways to compute the same."""
QUANTIFIERS = {"all": True, "any": False, "_is_all_true": True, "_is_any_true": False}
"""Operations that ask whether all are true, or any; and which answer calm samples give."""
SKIPPED = (
    "torch.overrides", "torch.utils._python_dispatch", "sordina.gradients._reads", "sordina.gradients._rehearsal",
    "sordina.gradients._chance", "sordina.gradients._tracing", "sordina.gradients._operations",
    "sordina.gradients._owners", "sordina.gradients._footprints",
)  # fmt: skip
"""Modules that stand between a line that reads and what notes it."""
TRUSTED = ("torch.nn.modules.rnn", "torch.nn.utils.rnn", "torch.autograd.graph")
"""PyTorch's own that reads values to no harm: lengths of packed sequences; derivatives that look for zeros."""


SCALES = 1e-4, 1e-2, 10.0, 1e2, 1e3, 1e4, 1e6
"""How many times as large samples are in further companies: formulas may agree near one and nowhere else."""
Company = tuple[Any, Sequence[Tensor], int]
"""Arguments, their tensors that hold samples, and the number of samples."""


@dataclass(frozen=True)
class Read:
    """A value of the samples that reached Python, or a truth about several of them."""

    site: Site
    name: str
    calm: bool | None
    """What it is as long as every sample alone says this; None where it is no truth about all or any of them."""
    value: bool | None = None
    path: int = 0
    """The way through the code to it, as a number."""

    def __str__(self) -> str:
        how = {"_local_scalar_dense": "a number read"}.get(self.name, self.name.strip("_"))
        where = f"{PurePath(self.site[0]).name}:{self.site[1]}"
        advice = "torch.where decides sample by sample"
        if "nested_tensor" in self.name:
            advice = "give nn.TransformerEncoder enable_nested_tensor=False"
        return f"values of samples decide what happens next ({how}, {where}; {advice})"


class Reads:
    """Around a forward pass: notes what Python reads of the samples."""

    def __init__(self, samples: Iterable[Tensor], rows: int, turned: Turned = frozenset()) -> None:
        """Watch for values computed from ``samples``, of ``rows`` samples; the answers ``turned`` are negated."""
        self.rows, self.turned = rows, turned
        self.found: list[Read] = []
        self.unclear: dict[tuple[Site | None, torch.Size], str] = {}
        """Truths (and how they came to be) whose shape does not tell whether they have rows for each sample."""
        self.function = ""
        """The function of PyTorch that was called last."""
        self._marks: dict[int, Any] = {}
        self._truths: set[int] = set()
        """The memories of truths about all samples, or any, and of what was made of these alone."""
        self._counts: dict[int, int] = {}
        """By the memory of a number of truths how many there are at most."""
        self.begun = list(samples), rows, turned
        for tensor in self.begun[0]:
            self._mark(tensor)
        self.choices = Choices(memory_of, self.begun[0])
        self._modes = ExitStack()

    def __enter__(self) -> Reads:
        self._modes.enter_context(_Operations(self))
        self._modes.enter_context(_Functions(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._modes.close()

    def unknown(self, known: frozenset[Site] = frozenset()) -> str:
        """What was read at a place that is not among the ``known`` ones; empty if nothing was."""
        return next((str(read) for read in self.found if read.calm is None or read.site not in known), "")

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of the tensors was computed from samples."""
        return any(memory_of(tensor) in self._marks for tensor in tensors)

    def _mark(self, tensor: Tensor) -> None:
        memory = memory_of(tensor)
        if memory and memory not in self._marks:
            self._marks[memory] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    def note(self, name: str, calm: bool | None = None, value: bool | None = None) -> Site | None:
        """Something was read."""
        site = _site()
        if site is not None:
            if _going_back() and site not in {read.site for read in self.found}:
                calm = None  # one gradient may decide for all; what a checkpoint computes again was read before
            self.found.append(Read(site, name, calm, value, _path()))
        return site

    def operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation as the dispatcher sees it."""
        given = list(tensors_in([args, kwargs]))
        if not self.holds(given):
            return func(*args, **kwargs)
        result, name = func(*args, **kwargs), func._schema.name.removeprefix("aten::")
        if name in SHAPES:
            return result
        made = list(tensors_in([result] if result is not None else given))
        held = [self.holds([tensor]) for tensor in given]
        for tensor in made:
            self._mark(tensor)
        self.choices.operation(func, [args, kwargs], given, held, made)
        if torch.Tag.data_dependent_output in func.tags or (name not in FORMAL and _tells(func)):
            return self._read(given[0], name, result)
        dynamic = torch.Tag.dynamic_output_shape in func.tags and not _whole_indices(name, args)
        if dynamic or not all(
            map(memory_of, made)
        ):  # what has no memory is sparse or nested: its size depends on values
            self.note(name)
        elif isinstance(result, Tensor) and not self._per_sample(result):
            self._understand(name, args, given, result)
        elif isinstance(result, Tensor) and result.dtype == torch.bool and self.rows not in result.shape:
            self.unclear[_site(), result.shape] = name
        return result

    def _read(self, tensor: Tensor, name: str, value: Any) -> Any:
        known = name == "_local_scalar_dense" and memory_of(tensor) in self._truths  # it was noted when it came to be
        if self.function not in CHECKS and not known:
            self.note(self.function or name)
        return value

    def _per_sample(self, tensor: Tensor) -> bool:
        """Whether a tensor has rows for each sample, by its shape."""
        return self.rows in tensor.shape or (tensor.dim() > 0 and tensor.shape[0] % self.rows == 0)

    def _understand(self, name: str, args: Sequence[Any], given: Sequence[Tensor], result: Tensor) -> None:
        """What a tensor without rows of samples is: a truth about all samples, or any; how many truths there are."""
        first, memory = given[0], memory_of(result)
        held = [tensor for tensor in given if self.holds([tensor])]
        whole = len(args) == 1 and self.rows in first.shape
        if result.dtype != torch.bool:
            if name == "sum" and whole and first.dtype == torch.bool:
                self._counts[memory] = first.numel()
                self.choices.counted(result, first)
            return
        if all(memory_of(tensor) in self._truths for tensor in held):  # made of such truths only
            self._truths.add(memory)
            return
        calm: bool | None = None
        if name in QUANTIFIERS and whole:
            calm = QUANTIFIERS[name]
        elif len(args) == 2 and len(given) == 1 and (most := self._counts.get(memory_of(first))) is not None:
            calm = {
                ("eq", most): True, ("eq", 0): True, ("ne", 0): False, ("gt", 0): False, ("ne", most): False,
                ("lt", most): False,
            }.get((name, args[1]))  # fmt: skip
        if result.dim() or calm is None:
            self.note(name)
            return
        self._truths.add(memory)
        if bool(result) == calm:
            self.choices.agreed(first, self._counts.get(memory_of(first), first.numel()))
        site = self.note(name, calm, bool(result))
        if site is not None and (site, sum(read.site == site for read in self.found)) in self.turned:
            result.logical_not_()

    def met(self, calm: bool) -> list[Path]:
        """What was read, in its order; what may be turned is all of it, or what is ``calm``."""
        times: Counter[Site] = Counter()
        paths: list[Path] = []
        for read in self.found:
            times[read.site] += 1
            paths.append(((read.site, times[read.site]), read.path, not calm or read.value == read.calm))
        return paths

    def truth(self, tensor: Tensor) -> bool:
        """Whether a tensor is a truth about all samples, or any, which was noted when it came to be."""
        return memory_of(tensor) in self._truths


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, reads: Reads) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.reads.operation(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        reads, name = self.reads, getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **(kwargs or {}))
        given = list(tensors_in(args)) if name in WHOLE | MAKING | NUMBERS else []
        nested = name not in MAKING or not (args and isinstance(args[0], Tensor) and len(given) == 1)
        if given and nested and reads.holds(given) and not all(map(reads.truth, given)):
            reads.note(name)
        before, reads.function = reads.function, name
        try:
            return func(*args, **(kwargs or {}))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # who catches it learns of all samples
            if reads.holds(tensors_in(args)):
                reads.note(name)
            raise
        finally:
            reads.function = before


def _going_back() -> bool:
    """Whether a backward pass runs."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() >= 0


def memory_of(tensor: Tensor) -> int:
    """Where the values of a tensor lie: zero if nobody can tell."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _tells(func: Any) -> bool:
    """Whether an operation gives Python a number or a truth: PyTorch's tags do not name all of these."""
    return any(str(each.type) in ("bool", "int", "float", "complex", "number") for each in func._schema.returns)


def _whole_indices(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation picks by numbers, which give the result their own shape, and not by truths."""
    return name == "index" and not any(each.dtype in (torch.bool, torch.uint8) for each in tensors_in([args[1]]))


def _site() -> Site | None:
    """The line that reads: of the model's code, or else of PyTorch's; None for what may read."""
    frame: Any = sys._getframe(1)
    found: Site | None = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        here = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        if name in TRUSTED and found is None:
            return None
        if name.startswith("torch."):
            found = found or (None if name in SKIPPED or name.startswith("torch._") else here)
        elif name not in SKIPPED:
            return found or here if name.startswith("sordina.gradients") else here
        frame = frame.f_back
    return found


def _path() -> int:
    """The way through the code that leads here, as a number."""
    frame: Any = sys._getframe(1)
    found: list[Any] = []
    while frame is not None:
        if (name := frame.f_globals.get("__name__", "")) not in SKIPPED:
            if name.startswith("sordina."):
                break
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(found))


class Remembered(Exception):
    """An answer about all samples, or any, changes what is kept after the batch; the text is where."""


class _Usual(NamedTuple):
    """A run in which nothing was turned."""

    result: Sequence[Tensor]
    kept: Mapping[str, Any]
    chosen: Counter[Choice]


def settled(
    run: Callable[[Any], Sequence[Tensor]],
    companies: Sequence[Company],
    same: Callable[[Sequence[Tensor], Sequence[Tensor]], bool],
    spare: Callable[[], Iterable[Company]],
    left: Callable[[], Mapping[str, Any]],
) -> tuple[frozenset[Site], str]:
    """The places at which it does not matter what Python reads of the samples, and else where it might.

    Args:
        run: Called with arguments; gives results.
        companies: On what to call it.
        same: Whether two results are the same.
        spare: More companies, of samples that are more alike, smaller or larger; asked for where something was read.
        left: What is kept when an ordinary batch has followed on what was run last (`kept_state`).

    Returns:
        The places, and an empty text; or no places, and what was read.

    Raises:
        Remembered: What is kept depends on such an answer.
    """
    seen: dict[Site, str] = {}
    met: set[Site] = set()
    unclear: list[dict[tuple[Site | None, torch.Size], str]] = []

    def further() -> Iterator[Company]:
        if seen:
            yield from spare()

    for number, (value, samples, rows) in enumerate(itertools.chain(companies, further())):
        usual: _Usual | None = None
        turns = Turns()
        while (turned := turns.following()) is not None:
            with Reads(samples, rows, turned) as reads:
                try:
                    result = run(value)
                except Exception:
                    if usual is None and number < len(companies):
                        raise
                    result = None  # a check that fails
                    if usual is None:
                        break
            if why := next((str(read) for read in reads.found if read.calm is None), ""):
                return frozenset(), why
            seen.update({read.site: str(read) for read in reads.found})
            if usual is None:
                assert result is not None
                usual = _Usual(result, left() if reads.found else {}, reads.choices.made())
                unclear.append(reads.unclear)
            elif result is not None:
                if names := set(all_differing(usual.kept, left())):
                    run(value)
                    if names - set(all_differing(usual.kept, left())):  # not just the time of day
                        raise Remembered(min(names))
                if not same(usual.result, result) or usual.chosen != reads.choices.made():
                    return frozenset(), next(words for site, words in seen.items() if site in {x for x, _ in turned})
            met |= {site for site, _ in turned}
            turns.ran(turned, reads.met(calm=True), result is None)
            if turns.too_many:
                return frozenset(), next(iter(seen.values()))
    for other in unclear[1:2]:  # of the same shape with more samples: no rows of samples are in it
        for site, shape in unclear[0].keys() & other.keys():
            if site is not None:
                return frozenset(), str(Read(site, other[site, shape], None))
    unmet = [words for site, words in seen.items() if site not in met]
    return (frozenset(), unmet[0]) if unmet else (frozenset(seen), "")

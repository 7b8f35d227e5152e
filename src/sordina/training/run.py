"""What a training run leaves behind: the model, its history, and the guarantee with all that gives it meaning."""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sordina
from sordina.accounting import Account, Event, to_dict
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients._footprints import Following, followed
from sordina.gradients._rehearsal import changed_words
from sordina.plan import Plan, event_of, spent
from sordina.privacy import Guarantee, delta_warning
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import METRICS, RunFolder

# Statistics of the raw data, for debugging on public or synthetic data: off by default, and marked wherever they show.
#
# They are computed without noise from the people in the batch, so no guarantee covers them. A run that collects them
# carries a caveat, and its metrics must not leave the room.

KEY = "NOT_PRIVATE"
CAVEAT = "The metrics hold raw statistics of the training data (NOT_PRIVATE), which no guarantee covers."


def raw_statistics(losses: Tensor, norms: Tensor, threshold: float) -> dict[str, float]:
    """Mean loss, median gradient norm and clipped fraction of a batch."""
    return {
        "training_loss": float(losses.detach().mean()),
        "median_norm": float(torch.median(norms)),
        "clipped": float((norms > threshold).double().mean()),
    }


# What a training run leaves behind: the model, its history, and the guarantee with all that gives it meaning.

CAVEATS = (
    "The population size that the sampling rate is computed from is treated as public.",
    "Scores on held-out data (validation, test) are raw, computed without noise: the guarantee does not cover the "
    "people in them.",
    "Gradients are computed and added up in floating point. Noise of an exactly known law covers the sum of "
    "clipped ones over the reals, not its rounding, nor that a gradient may be rounded otherwise beside others.",
)
CORRELATED = (
    "Noise is correlated over the steps. For a group of people, multiply the guarantee of one out (Guarantee.group): "
    "sharper figures of accountants for groups are proved for independent noise."
)
OWN_LOOP = (
    "The losses came from a loop of the user's own. What the model does was tested; that nothing else in the loop "
    "makes the loss of a sample depend on others (mixup, standardising a batch, weights or averages taken over it, its "
    "size) is the user's word; and so is that no code in it fails on a record, since an error would tell when that "
    "record was drawn."
)


OWN_ITEMS = (
    "The items came from a data set of the user's own ({}). Some were read again, and, of records in memory, read with "
    "others around them; that every item depends on its own record alone, always, is the user's word."
)
UNKNOWN_OPTIMIZER = (
    "The optimiser {} is not one that Sordina knows: that its updates depend on nothing but the noised gradients is "
    "its author's word."
)
_SHOWN = 100
"""No more coefficients of correlated noise are written."""


@dataclass(frozen=True)
class Run:
    """The outcome of `Trainer.fit`.

    Args:
        model: The trained model.
        plan: What the run was planned to do.
        clipping: How gradients were clipped, as plain data.
        releasable: Whether the noise was drawn securely.
        seconds: How long it took.
        history: What was reported on the way: released values only.
    """

    model: nn.Module
    plan: Plan
    account: Account
    """The events that ran: what is claimed and what is settled comes from here alone."""
    steps: int
    """The steps on the account."""
    clipping: Mapping[str, Any]
    releasable: bool
    seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)
    lost_steps: int = 0
    """Steps on the account whose results were lost in a crash."""
    own_loop: bool = False
    """Whether the losses came from a loop that was not ours."""
    earlier: tuple[Guarantee, ...] = ()
    """What earlier runs on the same model, in the same process, cost."""
    public_buffers: tuple[str, ...] = ()
    """Buffers that the forward pass may change, because the user said that they hold nothing of the data."""
    own_items: str | None = None
    """The name of the data set's type, if its items are made by code of the user's."""
    unknown_optimizer: str | None = None
    """The optimiser's name, if it is of nobody whose optimisers take gradients alone."""
    weights: str | None = None
    """Digest of the weights that the run ended with: the claim speaks of no others."""

    @property
    def event(self) -> Event:
        """Everything that ran, as one event."""
        return event_of(self.account)

    @property
    def guarantee(self) -> Guarantee:
        """The claim for everything on the account."""
        return spent(self.plan, self.account)

    @property
    def epsilon(self) -> float:
        """What was spent, at the plan's delta; infinite without privacy."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """The plan's delta."""
        return self.plan.budget.delta

    @property
    def validation(self) -> dict[str, float]:
        """The last validation scores."""
        return next((entry["validation"] for entry in reversed(self.history) if "validation" in entry), {})

    @property
    def claim(self) -> PrivacyClaim:
        """The guarantee, the way it came about and its limits."""
        sampler = self.plan.sampler
        return PrivacyClaim.of(
            self.guarantee,
            private=self.plan.private,
            statement=self.statement(),
            accountant=self.plan.accountant,
            noise_multiplier=self.plan.noise_multiplier,
            clipping=self.clipping,
            event=to_dict(self.event),
            releasable=self.releasable,
            caveats=tuple(self.caveats),
            versions=versions(),
            more={
                "sampler": {"kind": type(sampler).__name__, **vars(sampler)},
                "steps": self.steps,
                "planned_steps": self.plan.steps,
                "lost_steps": self.lost_steps,
                **({} if self.plan.noise is None else {"correlated_noise": self._noise()}),
            },
        )

    def _noise(self) -> dict[str, Any]:
        """How the noise of steps is correlated: C, by its first column."""
        return {"kind": type(self.plan.noise).__name__, "coefficients": list(self.plan.coefficients[:_SHOWN])}

    def privacy(self) -> dict[str, Any]:
        """The claim as plain data."""
        return self.claim.to_dict()

    @property
    def caveats(self) -> list[str]:
        """What the guarantee does not cover."""
        found = [*CAVEATS]
        if self.warning:
            found.append(self.warning)
        if any(KEY in entry for entry in self.history):
            found.append(CAVEAT)
        if self.plan.noise is not None:
            found.append(CORRELATED)
        if self.own_loop:
            found.append(OWN_LOOP)
        if self.own_items is not None:
            found.append(OWN_ITEMS.format(self.own_items))
        if self.unknown_optimizer is not None:
            found.append(UNKNOWN_OPTIMIZER.format(self.unknown_optimizer))
        if self.public_buffers:
            found.append(
                f"The buffers {', '.join(self.public_buffers)} change in training; that they hold nothing of the data "
                "is the user's word."
            )
        if self.lost_steps:
            found.append(
                f"{self.lost_steps} of the {self.steps} steps paid for were lost when the run was interrupted: they "
                "are not in the model."
            )
        if self.earlier:
            before = "; ".join(str(one) for one in self.earlier)
            found.append(
                "The model had been trained before in the same process, and that run is not in this figure: "
                f"{before}. For people who were in both, the costs add up."
            )
        return found

    @property
    def warning(self) -> str | None:
        """What to say of a delta that excludes nothing."""
        sampler = self.plan.sampler
        return delta_warning(self.delta, getattr(sampler, "population", None), str(self.plan.unit))

    def statement(self) -> str:
        """The guarantee in a sentence."""
        if not self.plan.private:
            return "NOT PRIVATE: trained without clipping and noise; nothing is guaranteed to anybody."
        claim = str(self.guarantee)
        if self.earlier:
            claim += ", for the last run alone (the model had been trained before: see the caveats)"
        if not self.releasable:
            claim += ", IF the noise were secret: this run was seeded for reproduction, so do not release it"
        return f"{claim}. {self.warning}" if self.warning else f"{claim}."

    def save(self, folder: str | Path) -> Path:
        """Write ``model.pt``, ``metrics.jsonl`` and ``privacy.json`` into ``folder``.

        Args:
            folder: A folder that holds no run yet.
        """
        if self.plan.private and self.weights is not None and self.weights != weights_digest(self.model):
            raise InvalidInput(
                "the model's weights are not those that the private run ended with, so its guarantee does not speak of "
                "them: save the run before anything else changes the model."
            )
        with RunFolder.begin(folder, "train", {"saved": self.privacy()}) as held:
            self.leave(held)
        return Path(folder)

    def leave(self, folder: RunFolder, settle: Callable[[], object] | None = None) -> None:
        """The end of a run in ``folder``: metrics, model, guarantee, settlement; may be killed and repeated.

        Args:
            folder: The folder, held.
            settle: Settles the reservation.
        """
        folder.write(METRICS, "".join(json.dumps(entry) + "\n" for entry in self.history).encode())
        folder.finish(lambda file: torch.save(self.model.state_dict(), file), self.claim, settle)


def weights_digest(model: nn.Module) -> str:
    """A SHA-256 of all weights and buffers of ``model``, wherever they lie.

    Args:
        model: Is not changed.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} ".encode())
            digest.update(_content(value))
    return digest.hexdigest()


def _content(value: Tensor) -> bytes:
    """A SHA-256 of a tensor's type, shape and values."""
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    if value.layout is not torch.strided:
        value = value.to_dense()  # a graph's edges
    digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


# What a model was trained on before: a second private run on the same model adds to the first.
#
# A guarantee speaks of one run. Whoever trains the same model object again, on the same people, spends both; so a run
# whose model was trained before in this process says so, with the price of all of it.

_RUNS: weakref.WeakKeyDictionary[nn.Module, list[tuple[Plan, Account]]] = weakref.WeakKeyDictionary()


@dataclass
class Earlier:
    """The runs of a model before the present one."""

    model: weakref.ref[nn.Module]
    runs: list[tuple[Plan, Account]] = field(default_factory=list)
    begun: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Earlier:
        """What is known of ``model`` and of the modules it is made of."""
        known = {id(account): (plan, account) for each in model.modules() for plan, account in _RUNS.get(each, [])}
        return cls(weakref.ref(model), list(known.values()))

    def forget(self) -> None:
        """The weights were replaced by those of a saved run: what was trained into them before is gone."""
        self.runs = []
        for module in self._modules():
            _RUNS.pop(module, None)

    def begin(self, plan: Plan, account: Account) -> None:
        """The present run draws its first batch: whoever comes later finds it."""
        if not self.begun:
            self.begun = True
            for module in self._modules():
                _RUNS.setdefault(module, []).append((plan, account))

    def _modules(self) -> list[nn.Module]:
        """The model, and what holds its weights."""
        model = self.model()
        return [] if model is None else [one for one in model.modules() if one is model or len(one._parameters)]

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What each earlier run cost."""
        return tuple(spent(plan, account) for plan, account in self.runs)


class UntrainedState:
    """What a model's ``state_dict`` holds besides trained parameters; it is saved with them, so a run may not write it.

    However a forward pass writes into it (a buffer by way of ``.data``, a buffer that is registered later, a module's
    ``get_extra_state``, a frozen weight), the raw data in it would leave with the model. So what is there when a
    run begins is there, bit for bit, whenever something is saved.

    Args:
        model: As the run begins.
        public: Names of buffers that may change, because they hold nothing of the data.
    """

    def __init__(self, model: nn.Module, public: Collection[str] = ()) -> None:
        self._public = frozenset(public)
        self._before = self._contents(model)

    def check(self, model: nn.Module) -> None:
        """Refuse a model whose untrained state is another than at the beginning.

        Args:
            model: About to be saved.
        """
        now = self._contents(model)
        for name in sorted(now.keys() | self._before.keys()):
            if now.get(name) != self._before.get(name):
                raise Unsupported(
                    f"{name!r} in the model's state_dict has changed in training although it is not trained: it would "
                    "be saved, and may hold raw data. Nothing more was saved. Remove what writes it, or, if it does "
                    "not depend on the data (a count of steps, an average of released weights), name it in "
                    "public_buffers=."
                )

    def _contents(self, model: nn.Module) -> dict[str, bytes]:
        trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
        left_out = trained | self._public
        return {name: _digest(value) for name, value in model.state_dict().items() if name not in left_out}


class HeldWeights:
    """What trained parameters hold while the samples of a step are computed.

    Between two steps of the optimiser nobody may change them but the user's own loop: no forward pass, no loss and no
    backward pass, by ``.data`` neither, which leaves no trace in a tensor's version.

    Few values are copied. Of many the bits are added up, modulo 2^64, by pieces of half a megabyte: one pass through
    memory, in which one changed value always shows, and several do unless they cancel out in their piece.

    Args:
        parameters: By name; the same ones every time.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._names, self._tensors = list(parameters), list(parameters.values())
        alike = len({(one.dtype, one.device) for one in self._tensors}) == 1
        self._sizes = [one.numel() for one in self._tensors]
        self.few = alike and sum(self._sizes) <= _COPIED
        """Whether a look costs next to nothing."""
        self._before: list[Tensor] | None = None

    def hold(self) -> None:
        """From now on."""
        if self._before is None:  # a model is called, or a loss: this is no work of theirs
            with nullcontext() if Following.active is None else followed(None):
                self._before = self._now()

    def drop(self) -> None:
        """From now on they may change."""
        self._before = None

    def check(self) -> None:
        """Refuse parameters that changed since `hold`; from now on they may."""
        before, self._before = self._before, None
        if before is None:
            return
        now = self._now()
        if all(map(torch.equal, map(_bits, before), map(_bits, now))):
            return
        if self.few:
            before = [_bits(one) for one in torch.split(before[0], self._sizes)]
            now = [_bits(one.detach().reshape(-1)) for one in self._tensors]
        same = map(torch.equal, before, now)
        raise Unsupported(changed_words(next(name for name, kept in zip(self._names, same, strict=True) if not kept)))

    def _now(self) -> list[Tensor]:
        if self.few:
            return [torch._utils._flatten_dense_tensors([one.data for one in self._tensors])]  # type: ignore[no-untyped-call]
        return [_sums(one.data) for one in self._tensors]


_COPIED, _PIECE = 1 << 14, 1 << 16
"""So many values are copied; so many words of eight bytes are added up to one."""


def _sums(values: Tensor) -> Tensor:
    """The bits of ``values`` as whole numbers of eight bytes, added up by pieces; the ends follow as they are."""
    flat = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
    if not len(flat):
        return torch.zeros(1, dtype=torch.int64)
    if len(flat) <= _COPIED:
        return flat.clone()
    words = 8 // flat.element_size()
    start = -flat.storage_offset() % words
    body = flat[start : start + (len(flat) - start) // words * words].view(torch.int64)
    whole = len(body) // _PIECE * _PIECE
    ends = (flat[:start], flat[start + len(body) * words :])
    over = [_bits(end).to(torch.int64) for end in ends if len(end)]
    return torch.cat([body[:whole].view(-1, _PIECE).sum(1), body[whole:].sum()[None], *over])


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def _bits(values: Tensor) -> Tensor:
    """As whole numbers of the same size: not a number is the same as itself."""
    return values.view(_WORDS.get(values.element_size(), torch.int64))


def _digest(value: Any) -> bytes:
    """Of anything that can stand in a ``state_dict``; what cannot be written down has a new one every time."""
    if isinstance(value, Tensor):
        return _content(value)
    try:
        return hashlib.sha256(pickle.dumps(value)).digest()
    except Exception:
        return repr(value).encode()


def versions() -> dict[str, str]:
    """Of what a run depends on."""
    return {"sordina": sordina.__version__, "torch": torch.__version__, "python": platform.python_version()}

"""A named training job: data set, model and options as plain data, so that a folder can say how it came about."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordina import clipping, datasets, models, private_files
from sordina._renamed import current_fields, renamed
from sordina.accounting.ledger import Ledger
from sordina.clipping import Fixed, Policy, named
from sordina.datasets import Column, Data, Task
from sordina.datasets.data import cache_folder
from sordina.errors import InvalidInput, SordinaError
from sordina.mechanisms.correlated import CorrelatedNoise
from sordina.models import scattering
from sordina.models.public_pictures import usual_directions
from sordina.models.scattering import scattering_features
from sordina.plan import Plan, make_plan
from sordina.privacy import Budget, check_positive, check_seed
from sordina.privacy_claim import PrivacyClaim
from sordina.progress import Progress, silent
from sordina.run_folder import METRICS, MODEL, RECIPE, read_claim, read_json
from sordina.training.augmentation import ImageShift
from sordina.training.averaging import averaging_named
from sordina.training.checkpoint import read_tensors
from sordina.training.components import components_event
from sordina.training.learning_rates import Rate, SteadyRate
from sordina.training.losses import Loss
from sordina.training.optimizers import optimizer_named
from sordina.training.planning import planned_noise, planned_schedule, verdict
from sordina.training.run import Run
from sordina.training.trainer import Trainer, make_schedule

POPULATIONS = {"digits": 1437, "adult": 32561, "mnist": 60000, "fashion-mnist": 60000, "ag-news": None}
"""The public sizes of the training sets; None where it depends on what the user has."""
DATASETS = tuple(POPULATIONS)
_TASKS = {"classes": Task.CLASSIFICATION, "reconstruction": Task.RECONSTRUCTION}
SCATTERING = "scattering"
_THRESHOLD, _TRAVEL, _WALK = 0.1, 3200.0, 0.1125
_FORMER_TRAVEL, _FORMER_WALK = 4800.0, 0.15
"""For a linear model on scattering features: all rows have a norm of 40 (`WhitenedInputs`; before there were such, the
group norm gave them 63 at most), so their gradients have a public scale and nothing needs to be searched. Gradients
that agree move a weight by ``_TRAVEL`` at most in a run, noise alone by ``_WALK``. The numbers, as the batch size, the
epochs and what is taken off the features, were chosen on held-out rows of MNIST's *training* part, as they are and
spoilt (`docs/benchmarks.md`); no test part had a say."""
_GREY = ("mnist", "fashion-mnist")
_VIEWS = {"digits": ImageShift(1), "mnist": ImageShift(1), "fashion-mnist": ImageShift(1, flip=True)}
"""How images are varied: digits are no longer the same in a mirror."""
_COMPONENTS = "pca-mlp"
_GROUP_NORM_CNN = "group-norm-cnn"
_FORMER_CLASSIFIER = "small-cnn"
"""What classified fashion-mnist before recipes named their model."""
_PLANNED_VIEWS = {"small-cnn": (2, 1), _GROUP_NORM_CNN: (1, 2)}
"""Whose plan has centred images, so many views and times the epochs of others, which cost the same time: chosen on
held-out rows of MNIST's *training* part, as they are and spoilt."""
_LOSSES: dict[Task, Loss] = {
    Task.CLASSIFICATION: nn.functional.cross_entropy,
    Task.RECONSTRUCTION: nn.functional.mse_loss,
}


@renamed(lr="learning_rate")
@dataclass(frozen=True)
class TrainingRecipe:
    """What ``sordina train`` was asked for. ``seed`` None means secure, releasable noise."""

    dataset: str
    model: str | None = None
    activation: str | None = None
    epsilon: float = 3.0
    delta: float = 1e-5
    clipping: str | None = None
    """Left out, typical-norm, or falling-norm for pictures that are given back; on scattering features, whose norm is
    public, fixed."""
    threshold: float | None = None
    batch_size: int | None = None
    epochs: float | None = None
    """Both are chosen from public facts where they are left out (`sordina.training.planned_schedule`)."""
    learning_rate: float | None = None
    sampling: str | None = None
    microbatch: int | None = None
    seed: int | None = None
    rows: int | None = None
    """Train on this many rows of the training file, drawn at random; the others are left for an audit."""
    random_labels: float = 0.0
    """Share of the training file under a label drawn at random: canaries, which a model can only memorise."""
    task: str | None = None
    """For fashion-mnist: "reconstruction" (as the thesis) or "classes"."""
    features: str | None = None
    """"scattering": fixed features of images (`sordina.models.scattering`) and a linear model on them."""
    optimizer: str | None = None
    """sgd, momentum, adam, adam-bc or adam-wosm; left out, SGD."""
    averaging: str | None = None
    """tail, ema or none."""
    views: int | None = None
    """Views of an image in a step: shifted a little, and mirrored where that makes sense. Left out, one; if the
    schedule is left out as well, two for small-cnn."""
    noise: str | None = None
    """independent (the default), banded, toeplitz or lambda-cgd: noise that is correlated over the steps."""
    bands: int | None = None
    """Of banded noise; left out, chosen from public facts."""
    decay: float | None = None
    """The lambda of lambda-cgd."""
    centred: bool = False
    """For small-cnn and group-norm-cnn: pixels from -1 to 1. Part of the plan where the schedule is left out."""
    components_noise: float | None = None
    """For pca-mlp: the noise multiplier of its components; left out, a tenth of the budget pays (searches need it)."""
    whitened: bool | None = None
    """For scattering features: shorten the directions in which all are alike, found privately. Left out, where nothing
    else is stated than the budget and the schedule."""

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise InvalidInput(f"unknown data set {self.dataset!r}: choose one of {', '.join(DATASETS)}.")
        if self.clipping is not None and self.clipping not in clipping.NAMES:
            raise InvalidInput(f"unknown clipping {self.clipping!r}: choose one of {', '.join(clipping.NAMES)}.")
        Budget(self.epsilon, self.delta)
        if self.seed is not None:
            check_seed(self.seed)
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidInput(f"batch size must be at least 1, got {self.batch_size}.")
        if self.microbatch is not None and self.microbatch < 1:
            raise InvalidInput(f"microbatch must be at least 1, got {self.microbatch}.")
        if self.rows is not None and self.rows < 1:
            raise InvalidInput(f"at least one row to train on, got {self.rows}.")
        if not 0 <= self.random_labels <= 1:
            raise InvalidInput(f"the share of random labels must lie in [0, 1], got {self.random_labels}.")
        averaging_named(self.averaging)
        planned_noise(self.noise, Budget(math.inf, 1e-5), 1, 1, 1.0, bands=self.bands, decay=self.decay)
        if self.optimizer is not None:
            optimizer_named(self.optimizer)
        if self.centred and self._named_model not in _PLANNED_VIEWS:
            raise InvalidInput(f"centred images go with the models {' and '.join(_PLANNED_VIEWS)}.")
        views = 1 if self.views is None else self.views
        if views < 1 or (views > 1 and (self.dataset not in _VIEWS or self.features is not None)):
            raise InvalidInput(f"views are at least 1, and more than one of images only: {', '.join(_VIEWS)}.")
        if self.task is not None and (self.dataset != "fashion-mnist" or self.task not in _TASKS):
            raise InvalidInput("a task goes with fashion-mnist: choose classes or reconstruction.")
        if self.features not in (None, SCATTERING):
            raise InvalidInput(f"features are scattering, for {' and '.join(_GREY)}; got {self.features!r}.")
        if self.features is not None and self.dataset not in _GREY:
            raise InvalidInput(
                f"scattering, as a model or as features, takes images of 28 x 28 ({', '.join(_GREY)}), which "
                f"{self.dataset} has not: leave --model out for its own, {models.default(self.dataset)}, or take mlp."
            )
        if self.components_noise is not None:
            check_positive("components_noise", self.components_noise)
            if self.model != _COMPONENTS:
                raise InvalidInput(f"the noise of principal components goes with the model {_COMPONENTS}.")
        if self.features is not None and self.dataset == "fashion-mnist" and self.task != "classes":
            raise InvalidInput("scattering features of fashion-mnist go with the task classes.")
        if self.epochs is not None and (not self.epochs > 0 or math.isinf(self.epochs)):
            raise InvalidInput(f"epochs must be positive and finite, got {self.epochs}.")

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> TrainingRecipe:
        """The recipe in `RECIPE`, also of earlier versions.

        Args:
            facts: Plain data.
        """
        recipe = cls(**current_fields(cls, {"whitened": False, **facts}))
        return replace(recipe, model=_FORMER_CLASSIFIER) if recipe._unnamed_classifier else recipe

    def refuse_early(self, ledger: Ledger, dataset_budget: str) -> None:
        """Ask the ledger before the data are read, where their size is known."""
        population = self.rows or POPULATIONS[self.dataset]
        if population is None or self.batch_size is None or self.epochs is None:
            return
        sampler, steps = make_schedule(
            population,
            batch_size=self.batch_size,
            epochs=self.epochs,
            steps=None,
            sampling=self.sampler,
            population=None,
            noise=(noise := self._noise(population, self.batch_size, self.epochs)),
        )
        plan = make_plan(Budget(self.epsilon, self.delta), sampler, steps, noise=noise)
        ledger.check(dataset_budget, plan.event(), adjacency=plan.adjacency, unit=plan.unit)

    @property
    def sampler(self) -> str:
        """The kind of sampling: sector clipping needs fixed-size batches."""
        return self.sampling or ("fixed-size" if self.clipping == "sector" else "poisson")

    def load(self, progress: Progress = silent) -> Data:
        """The data, with the rows to train on.

        Args:
            progress: Told how many images have their features, where these take long.
        """
        data, order = self._divided()
        first = None if order is None else order[: self.rows]
        if self.features is not None:
            return _scattered(data, first, progress)
        return data if first is None else _with_rows(data, first)

    def outline(self) -> Data:
        """As `load`, for a plan: zeros in place of features that take long, in their shape."""
        data, order = self._divided()
        if self.features is not None:
            data = replace(data, train=_blank_features(data.train), test=_blank_features(data.test))
        return data if order is None else _with_rows(data, order[: self.rows])

    def left_out(self) -> TensorDataset:
        """Rows that were not trained on: the rest of the training file, or the test set if none are left."""
        data, order = self._divided()
        if self.features is not None:
            data = _scattered(data)
        return data.test if order is None else _with_rows(data, order[self.rows :]).train

    def _divided(self) -> tuple[Data, Tensor | None]:
        """All rows, as the files have them, and the order whose first `rows` are trained on."""
        data = datasets.load(self.dataset, **({} if self.task is None else {"task": _TASKS[self.task]}))
        rng = np.random.default_rng(self.seed or 0)
        if self.random_labels:
            data = _relabelled(data, self.random_labels, rng)
        if self.rows is None:
            return data, None
        if self.rows >= len(data.train):
            raise InvalidInput(f"{self.dataset} has {len(data.train)} rows to train on: ask for fewer, or for all.")
        return data, torch.from_numpy(rng.permutation(len(data.train)))

    def build(self, data: Data) -> nn.Module:
        """The model, with its first weights; they do not depend on the data."""
        options: dict[str, Any] = {} if self.activation is None else {"activation": self.activation}
        if self.centred:
            options["centred"] = True
        if self.components_noise is not None:
            options["noise_multiplier"] = self.components_noise
        if self._whitens:
            return _whitened_model(data, self.seed or 0)
        return models.build_for(data, self._named_model, seed=self.seed or 0, **options)

    @property
    def _named_model(self) -> str | None:
        """None stands for the data set's own."""
        if self.model is None and self.features is not None:
            return "logistic"
        return _GROUP_NORM_CNN if self._unnamed_classifier else self.model

    @property
    def _unnamed_classifier(self) -> bool:
        return self.model is None and self.features is None and self.task == "classes"

    def trainer(self, data: Data, **rest: Any) -> Trainer:
        """A trainer for ``data``; ``rest`` goes to `Trainer`."""
        made = self.planned(data)
        views = made.views or 1
        return Trainer(
            made.build(data),
            _LOSSES[data.task],
            Budget(self.epsilon, self.delta),
            clipping=self._policy(),
            batch_size=made.batch_size,
            epochs=made.epochs,
            learning_rate=self._rate(data),
            sampling=self.sampler,
            optimizer=self.optimizer,
            averaging=self.averaging or ("tail" if self.settled else None),
            augment=_VIEWS[self.dataset] if views > 1 else None,
            views=views,
            microbatch=self.microbatch,
            seed=self.seed,
            **{"noise": made.correlated(data), **rest},
        )

    @property
    def settled(self) -> bool:
        """Whether threshold and step length follow from the norm of fixed features, which is public."""
        own = (self.clipping, self.threshold, self.learning_rate, self.model, self.optimizer)
        return self.features == SCATTERING and all(one is None for one in own)

    @property
    def _whitens(self) -> bool:
        """Not with noise or batches for which a release at the start is not accounted."""
        if not self.settled or self.whitened is False:
            return False
        return self.sampler == "poisson" and self.noise in (None, "independent")

    def _policy(self) -> Policy[Any] | None:
        if self.settled:
            return Fixed(_THRESHOLD)
        if self.clipping is None and self.threshold is None:
            return None
        return named(self.clipping or "typical-norm", self.threshold)

    def _rate(self, data: Data) -> float | Rate[Any] | None:
        """On features of a public scale: as long steps as `_TRAVEL` and `_WALK` allow."""
        if not self.settled or math.isinf(self.epsilon):
            return self.learning_rate
        plan = self._plan(data)
        noise = plan.noise_multiplier / plan.sampler.expected_batch_size
        if self._whitens:
            return SteadyRate(
                min(_TRAVEL * noise, _WALK * math.sqrt(plan.steps)), falls=self.averaging not in (None, "tail")
            )
        return SteadyRate(min(_FORMER_TRAVEL * noise, _FORMER_WALK * math.sqrt(plan.steps)))

    def _plan(self, data: Data) -> Plan:
        made = self.planned(data)
        noise = made.correlated(data)
        sampler, steps = make_schedule(
            len(data.train), batch_size=made.batch_size, epochs=made.epochs, steps=None, sampling=self.sampler,
            population=None, noise=noise,
        )  # fmt: skip
        budget = Budget(self.epsilon, self.delta)
        before = components_event(self.build(data), budget, sampler.adjacency, users=False)
        return make_plan(budget, sampler, steps, noise=noise, before=before)

    def correlated(self, data: Data) -> CorrelatedNoise | None:
        """Noise that is correlated over the steps, if it was asked for.

        Args:
            data: What is trained on; its size counts.
        """
        made = self.planned(data)
        return self._noise(len(data.train), made.batch_size, made.epochs)

    def _noise(self, population: int, batch_size: int | None, epochs: float | None) -> CorrelatedNoise | None:
        return planned_noise(
            self.noise, Budget(self.epsilon, self.delta), population, batch_size or 1, epochs or 1.0, bands=self.bands,
            decay=self.decay,
        )  # fmt: skip

    def planned(self, data: Data) -> TrainingRecipe:
        """The recipe with a batch size and epochs, from public facts where none were stated; views go with them.

        Args:
            data: What is trained on; its size counts, and the size of the model.
        """
        if self._unnamed_classifier:
            return replace(self, model=_GROUP_NORM_CNN).planned(data)
        if self.settled and self.whitened is None:
            return replace(self, whitened=self._whitens).planned(data)
        if self.batch_size is not None and self.epochs is not None:
            return self
        if self.features == SCATTERING:
            most = max(1, len(data.train) // 2)
            return replace(self, batch_size=self.batch_size or min(4096, most), epochs=self.epochs or 40.0)
        weights = sum(parameter.numel() for parameter in self.build(data).parameters())
        size, epochs = planned_schedule(
            Budget(self.epsilon, self.delta), len(data.train), weights, batch_size=self.batch_size, epochs=self.epochs
        )
        made = replace(self, batch_size=size, epochs=epochs)
        if (
            self.model not in _PLANNED_VIEWS
            or self.dataset not in _GREY
            or (self.batch_size or self.epochs) is not None
        ):
            return made
        views, times = _PLANNED_VIEWS[self.model]
        return replace(made, views=self.views or views, epochs=times * epochs, centred=True)


def _whitened_model(data: Data, seed: int) -> nn.Module:
    """Inputs of one norm, shortened where all are alike, and a linear model, its first weights drawn from ``seed``."""
    linear = models.build_for(data, "logistic", seed=seed)
    whitening = models.WhitenedInputs(data.train.tensors[0][0].numel(), basis=_usual_basis)
    return nn.Sequential(whitening, linear)


def _usual_basis() -> Tensor:
    return usual_directions(usual_features().numpy().tobytes())


@functools.cache
def usual_features() -> Tensor:
    """The mean scattering features of a *public* set of images, the digits of scikit-learn, in frames like MNIST's.

    What all centred drawings have in common is a quarter of the norm of their features and tells no class from
    another, but the threshold and so the noise have to allow for it.
    """
    images = datasets.load("digits").train.tensors[0][:600]
    framed = nn.functional.pad(nn.functional.interpolate(images, size=(20, 20), mode="bilinear"), [4] * 4)
    return scattering_features(framed).mean(0)


def _scattered(data: Data, rows: Tensor | None = None, progress: Progress = silent) -> Data:
    """``data`` with scattering features in place of images; every image is transformed on its own.

    Args:
        data: Grey images.
        rows: Numbers of the training rows that are wanted; None for all.
        progress: Told how many are done.
    """
    usual, images, judged = usual_features(), data.train.tensors[0], data.test.tensors[0]
    chosen = data if rows is None else _with_rows(data, rows)
    many = len(chosen.train)
    total = many + len(judged)
    trained = kept_features(images, usual, wanted=rows, progress=lambda done, _: progress(done, total))
    tested = kept_features(judged, usual, progress=lambda done, _: progress(many + done, total))
    return replace(
        chosen,
        train=TensorDataset(trained, chosen.train.tensors[1]),
        test=TensorDataset(tested, chosen.test.tensors[1]),
    )


def _blank_features(rows: TensorDataset) -> TensorDataset:
    images, labels = rows.tensors
    return TensorDataset(scattering_features(torch.zeros_like(images[:1])).mul(0).expand(len(images), -1), labels)


_MANY = 2000
"""Features of fewer images take a few seconds, and are not kept."""


def kept_features(
    images: Tensor, usual: Tensor, *, wanted: Tensor | None = None, progress: Progress = silent
) -> Tensor:
    """Scattering features of ``images``, computed once and kept in the user's cache, for its owner only.

    The file is named by a hash of the very images, of what is taken off them and of the version of the transform, so
    one of other images is never read. A cache that cannot be read or written changes nothing but the time.

    Args:
        images: Grey images (n, 1, h, w).
        usual: The public direction that is taken off.
        wanted: Numbers of the images whose features are wanted, and kept only if those of all are; None for all.
        progress: Told how many are done.
    """
    if len(images) < _MANY:
        return scattering_features(images if wanted is None else images[wanted], without=usual, progress=progress)
    key = hashlib.sha256(f"{scattering.VERSION} {torch.__version__} {tuple(images.shape)} {images.dtype}".encode())
    for part in (usual, *torch.split(images, 1000)):
        key.update(np.ascontiguousarray(part.numpy()).data)
    file = cache_folder().parent / "features" / f"{key.hexdigest()}.npy"
    with suppress(SordinaError, OSError, ValueError):
        if file.exists() and not file.is_symlink():
            kept = np.load(file, allow_pickle=False, mmap_mode=None if wanted is None else "r")
            if kept.dtype == np.float32 and kept.ndim == 2 and len(kept) == len(images):
                return torch.from_numpy(kept if wanted is None else np.array(kept[wanted.numpy()]))
    if wanted is not None:
        return scattering_features(images[wanted], without=usual, progress=progress)
    features = scattering_features(images, without=usual, progress=progress)
    with suppress(SordinaError, OSError):
        private_files.make_folder(file.parent)
        private_files.write(file, lambda out: np.save(out, features.numpy(), allow_pickle=False))
    return features


def _relabelled(data: Data, share: float, rng: np.random.Generator) -> Data:
    """``data`` with the labels of a random ``share`` of the training rows drawn uniformly."""
    if data.task is not Task.CLASSIFICATION:
        raise InvalidInput(f"{data.name} has no labels to draw at random.")
    inputs, labels = data.train.tensors
    anew = torch.from_numpy(rng.random(len(labels)) < share)
    drawn = torch.from_numpy(rng.integers(data.classes, size=len(labels))).to(labels)
    return replace(data, train=TensorDataset(inputs, torch.where(anew, drawn, labels)))


def _with_rows(data: Data, rows: Tensor) -> Data:
    """``data`` with these training rows only."""

    def column(one: Column) -> Column:
        return replace(one, train=one.train[rows])

    return replace(
        data,
        train=TensorDataset(*(tensor[rows] for tensor in data.train.tensors)),
        groups={name: column(one) for name, one in data.groups.items()},
        users=None if data.users is None else column(data.users),
    )


def train(
    recipe: TrainingRecipe,
    folder: Path | None = None,
    *,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    progress: bool | Progress = False,
    loading: Progress = silent,
) -> Run:
    """Do what ``recipe`` says; with a ``folder``, leave everything there that `open_run` needs.

    Args:
        recipe: What to do.
        folder: Where the run is kept.
        resume: Continue the run in ``folder``.
        ledger: Where it is booked.
        dataset_budget: The ledger's name of the data set.
        progress: As `Trainer` takes it.
        loading: Told how far the data are made, where that takes long.
    """
    if ledger is not None and dataset_budget is not None and not resume:
        recipe.refuse_early(ledger, dataset_budget)
    data = recipe.load(loading)
    recipe = recipe.planned(data)
    kept = asdict(recipe)
    for later in ("components_noise", "whitened"):
        if kept[later] is None:
            del kept[later]  # runs that were begun before there was one go on
    trainer = recipe.trainer(
        data, folder=folder, ledger=ledger, dataset_budget=dataset_budget, progress=progress, recipe=kept
    )
    done = trainer.fit(data.train, validation=data.test, resume=resume)
    if not done.validation and folder is not None:  # it had ended before: its scores are in its folder
        done.history.extend(json.loads(line) for line in private_files.read(Path(folder) / METRICS).splitlines())
    return done


def open_run(folder: str | Path) -> tuple[TrainingRecipe, Data, nn.Module, PrivacyClaim]:
    """A finished run by its folder alone: its recipe, its data, its trained model and its claim."""
    folder = Path(folder)
    try:
        recipe = TrainingRecipe.from_dict(read_json(folder / RECIPE))
        privacy = read_claim(folder)
        weights = private_files.read(folder / MODEL)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{folder} is not the folder of a finished `sordina train` run: {reason}") from error
    data = recipe.load()
    model = recipe.build(data)
    try:
        model.load_state_dict(read_tensors(weights) or {})
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{folder / MODEL} does not hold the weights of the model in {RECIPE}.") from error
    return recipe, data, model, privacy


def summary(run: Run) -> dict[str, Any]:
    """The numbers people ask for first."""
    scores = run.validation
    told = [name for name in scores if name != "loss"]
    quality = {f"test_{name}": scores[name] for name in told} if told else {"test_mse": scores["loss"]}
    weights = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    return {
        **quality,
        "epsilon": run.epsilon if run.plan.private else None,
        "delta": run.delta,
        "noise_multiplier": run.plan.noise_multiplier,
        "adjacency": str(run.plan.adjacency),
        "steps": run.steps,
        **({"lost_steps": run.lost_steps} if run.lost_steps else {}),
        "seconds": round(run.seconds, 3),
        "releasable": run.releasable and run.plan.private,
        "verdict": verdict(run.plan, weights),
        **({"warning": warning} if (warning := run.warning) else {}),
    }

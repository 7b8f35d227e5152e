"""Audit a model of any making from files: what was trained, who was in, who was not, and what is claimed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.auditing.findings import Audit
from sordina.auditing.membership.foreign_models import PredictorTarget, predictor_target
from sordina.auditing.membership.target import Samples
from sordina.auditing.one_run import Membership
from sordina.auditing.runs import AuditedRun, check_rows
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Guarantee, Unit
from sordina.progress import Progress, silent
from sordina.tables import ColumnKind, PreparedTable, Schema, read_table

PICKLE = (
    "is a pickle: opening it runs whatever code its maker put there. If you trust its maker as you trust a program you "
    "start, say so (--trust-pickle)."
)


def open_foreign(
    model: str,
    members: Path,
    non_members: Path,
    schema: Path,
    claim: Guarantee | None = None,
    *,
    trust_pickle: bool = False,
) -> AuditedRun:
    """A model by its file or import path, with the rows of two tables.

    Args:
        model: A file (.safetensors of `sordina`, .pt as TorchScript, .joblib or .pkl), or ``module:function`` giving
            probabilities or numbers for rows. A fitted scikit-learn pipeline whose input columns are the table's own is
            given the table; all others are given prepared rows.
        members: CSV or Parquet of rows that were trained on.
        non_members: One of rows that were not.
        schema: The TOML file that says what the columns are, and which is the target. If it names a person, one row
            stands for each, and the claim is one for persons.
        claim: What is claimed.
        trust_pickle: Whether a pickle may be opened.
    """
    what = Schema.load(str(schema))
    if what.target is None:
        raise InvalidInput(f"{schema} names no target: say which column the model predicts (target = ...).")
    regression = what[what.target].kind is ColumnKind.NUMBER
    path = Path(model)
    if path.suffix == ".safetensors":
        return _own(path, members, non_members, claim)
    tables = [read_table(str(part), what) for part in (members, non_members)]
    samples = [Samples(*table.dataset().tensors) for table in tables]
    claim, persons = _per_person(tables, claim)
    if path.suffix in (".pt", ".pth", ".ts"):
        return _audited(_torch(path, trust_pickle), persons(samples), claim)
    found = _joblib(path, trust_pickle) if path.suffix in (".joblib", ".pkl", ".pickle") else _imported(model)
    columns = [column.name for column in what.features]
    wanted = getattr(found, "feature_names_in_", None)
    wanted = [] if wanted is None or not set(wanted) <= set(columns) else list(wanted)
    known = None if regression else _known(found, what[what.target].values, coded=not wanted)
    if wanted:
        frame, rows = _frames(members, non_members, wanted, samples, what.target if regression else None)
        return _audited(predictor_target(found, regression=regression, rows=frame, known=known), persons(rows), claim)
    target = _checked(predictor_target(found, regression=regression, known=known), samples[0])
    return _audited(target, persons(samples), claim)


def audit_foreign(
    model: str,
    members: str | Path,
    non_members: str | Path,
    schema: str | Path,
    attacks: Sequence[str] = ("loss", "population"),
    *,
    claim: Guarantee | None = None,
    membership: str = "own",
    trust_pickle: bool = False,
    rows: int = 5000,
    shadows: int = 16,
    shadow_folder: str | Path | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Attack a model of any making from files: `open_foreign`, then `sordina.audit`.

    Args:
        model: A file, or ``module:function``.
        members: CSV or Parquet of rows that were trained on.
        non_members: One of rows that were not.
        schema: The TOML file that says what the columns are.
        attacks: Names of `ATTACKS`.
        claim: What is claimed.
        membership: How it was decided who was in: coins, fixed or own.
        trust_pickle: Whether a pickle may be opened.
        rows: The most members and non-members to look at.
        shadows: How many shadow models, for attacks that use them.
        shadow_folder: Keeps their answers, for another audit of the same rows with the same seed.
        confidence: That of all bounds together.
        seed: Makes the audit repeatable.
        progress: Told of every shadow model.
    """
    check_rows(rows)
    drawn = Membership.of(membership)
    opened = open_foreign(model, Path(members), Path(non_members), Path(schema), claim, trust_pickle=trust_pickle)
    opened = replace(opened, membership=drawn)  # rows of coins are left out without a look at the coins
    return opened.audited(
        attacks, rows, rows, seed=seed,
        confidence=confidence, shadows=shadows, shadow_folder=shadow_folder, progress=progress,
    )  # fmt: skip


def _audited(model: Any, samples: list[Samples], claim: Guarantee | None) -> AuditedRun:
    return AuditedRun(model, samples[0], samples[1], claim, 1e-5 if claim is None else claim.delta)


def _own(path: Path, members: Path, non_members: Path, claim: Guarantee | None) -> AuditedRun:
    from sordina.auditing.runs import EstimatorTarget
    from sordina.estimators.table_model import load

    fitted = load(path)
    tables = [read_table(str(part), fitted.schema) for part in (members, non_members)]
    claim, persons = _per_person(tables, claim)
    samples = [Samples(*table.dataset().tensors) for table in tables]
    return _audited(EstimatorTarget(fitted), persons(samples), claim)


def _per_person(
    tables: list[PreparedTable], claim: Guarantee | None
) -> tuple[Guarantee | None, Callable[[list[Samples]], list[Samples]]]:
    """Where rows have owners: the claim as one for persons, and how to let one row stand for each person.

    All rows of a person were in or out together: as coins of their own they would count one guess many times.
    """
    inside, outside = tables
    if inside.owners is None or outside.owners is None:
        return claim, lambda samples: samples
    both = len(set(inside.persons) & set(outside.persons))
    if both:
        raise InvalidInput(f"{both} persons have rows among members and non-members: a person was in, or was not.")
    first = [np.unique(table.owners.numpy(), return_index=True)[1] for table in tables if table.owners is not None]
    stated = None if claim is None else replace(claim, unit=Unit.USER)
    return stated, lambda samples: [part.take(rows) for part, rows in zip(samples, first, strict=True)]


def _torch(path: Path, trust_pickle: bool) -> Any:
    """A TorchScript archive; a pickled module only if it is trusted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript: people have such files
            return torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}.") from error
        if not trust_pickle:
            raise InvalidInput(f"{path} is no TorchScript archive (torch.jit.save); else it {PICKLE}") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise InvalidInput(f"{path} cannot be opened by torch.load.") from error
    if not isinstance(found, torch.nn.Module):
        raise InvalidInput(f"{path} holds a {type(found).__name__}, no module: save the module, or use TorchScript.")
    return found.eval()


def _joblib(path: Path, trust_pickle: bool) -> Any:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    if not trust_pickle:
        raise InvalidInput(f"{path} {PICKLE}")
    import joblib  # type: ignore[import-untyped]

    try:
        return joblib.load(path)
    except Exception as error:
        raise InvalidInput(
            f"{path} cannot be opened by joblib in this environment ({type(error).__name__})."
        ) from error


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise InvalidInput(
            f"{name} is no known model: a file .safetensors, .pt or .joblib, or module:function for one to import."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        raise InvalidInput(f"cannot import {attribute} from {module}: {type(error).__name__}.") from error


def _known(model: Any, values: Sequence[str], *, coded: bool) -> tuple[float, ...] | None:
    """Which code of the schema's ``values`` each class of a scikit-learn model is; None if it does not name classes.

    A model that takes the table's own columns was fitted to the values that the table writes; one of prepared rows,
    ``coded``, to their codes 0, 1, ..., as a rule.
    """
    classes = getattr(model, "classes_", None)
    if classes is None:
        return None
    names = [str(one) for one in np.asarray(classes).tolist()]
    codes = {str(value): float(code) for code, value in enumerate(values)}
    numbered = names == [str(code) for code in range(len(names))]
    if set(codes) <= set(names) and not (coded and numbered):
        return tuple(codes.get(name, -1.0) for name in names)
    if numbered:
        return tuple(map(float, range(len(names))))
    raise InvalidInput("the model's classes are neither the values of the schema's target nor their numbers 0, 1, ...")


def _frames(
    members: Path, non_members: Path, columns: list[str], samples: list[Samples], number: str | None = None
) -> tuple[Callable[[Tensor], Any], list[Samples]]:
    """The tables as they are, for a pipeline that prepares them itself; samples are numbers of their rows.

    A target that is a ``number`` is taken as the table has it, as the pipeline does: prepared ones are scaled.
    """
    try:
        import pandas
    except ImportError as error:
        raise Unsupported("tables for a pipeline need pandas: pip install 'sordina[tables]'.") from error
    frames = [
        pandas.read_parquet(path) if path.suffix in (".parquet", ".pq") else pandas.read_csv(path)
        for path in (members, non_members)
    ]
    for frame, part in zip(frames, samples, strict=True):
        if len(frame) != len(part):
            raise InvalidInput("rows were left out while the table was read: a pipeline needs them all.")
    together = pandas.concat(frames, ignore_index=True)
    whole = together[columns]
    first = len(frames[0])
    numbers = torch.arange(len(whole))
    labels = [part.labels for part in samples]
    if number is not None:
        raw = torch.from_numpy(together[number].to_numpy(dtype=np.float64, copy=True))
        labels = [raw[:first], raw[first:]]
    rows = [Samples(numbers[:first], labels[0]), Samples(numbers[first:], labels[1])]
    return lambda inputs: whole.iloc[inputs.numpy()], rows


def _checked(target: PredictorTarget, samples: Samples) -> PredictorTarget:
    """Ask once, so that a model which takes other rows is refused with the reason."""
    try:
        target.losses(samples.take(np.arange(min(4, len(samples)))))
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the model does not take prepared rows of {samples.inputs.shape[1]} numbers ({type(error).__name__}): "
            "give a pipeline that takes the table's own columns, or a function module:function that does."
        ) from error
    return target

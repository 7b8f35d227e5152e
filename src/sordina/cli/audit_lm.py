"""`sordina audit lm`: attack a fine-tuned language model, beside the base it started from."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import grouped
from sordina.cli.output import say, say_json

if TYPE_CHECKING:
    from sordina.auditing.extraction import Continuations
    from sordina.auditing.findings import Audit


@dataclass(frozen=True)
class AuditedTextOptions:
    """Model and texts."""

    members: Annotated[Path, typer.Option(help="Texts that were trained on: .txt (one per line), .csv or .jsonl.")]
    non_members: Annotated[Path, typer.Option(help="Texts of the same kind that were not.")]
    base: Annotated[
        Path | None,
        typer.Option(help="Folder of the model that was fine-tuned; by default the one the folder names."),
    ] = None
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer, if not beside the model.")] = None
    column: Annotated[str, typer.Option(help="Column or key that holds the text, in .csv and .jsonl.")] = "text"
    length: Annotated[int, typer.Option(help="Tokens of a text to look at, at most.")] = 128
    claim: Annotated[
        str | None, typer.Option(help="What is claimed, as epsilon,delta; by default the run's own claim.")
    ] = None
    membership: Annotated[
        str,
        typer.Option(help="How membership was decided: coins, coins:0.2 (probability of a member), fixed or own."),
    ] = "own"
    random_split: Annotated[
        bool, typer.Option("--random-split", hidden=True, help="Former name of --membership fixed.")
    ] = False


@dataclass(frozen=True)
class TextAttackOptions:
    """Attacks."""

    attacks: Annotated[
        str | None,
        typer.Option(help="Comma-separated; by default all that train no models. `--attacks list` lists them."),
    ] = None
    shadows: Annotated[int, typer.Option(help="Shadow models, for attacks that use them.")] = 8
    epochs: Annotated[int, typer.Option(help="Their passes over the texts: those of the fine-tuning.")] = 3
    learning_rate: Annotated[float, typer.Option(help="Their learning rate (AdamW).")] = 5e-5
    batch_size: Annotated[int, typer.Option(help="Their batch size.")] = 16
    neighbours: Annotated[int, typer.Option(help="Noisy copies of each text.")] = 10
    prefix: Annotated[int, typer.Option(help="Tokens to prompt with, to see which members come back verbatim.")] = 32
    confidence: Annotated[float, typer.Option(help="Confidence of the bounds, all attacks together.")] = 0.95
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.")] = None


@grouped
def lm(
    model: Annotated[Path, typer.Argument(help="Folder of a causal model or adapter, as save_pretrained leaves it.")],
    given: AuditedTextOptions,
    options: TextAttackOptions,
    out: Annotated[Path | None, typer.Option(help="Folder for the findings as JSON, and figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Was a text in the training set, and can it be extracted? Attacks a fine-tuned language model.

    Example: `sordina audit lm runs/letters --base gpt2 --members in.txt --non-members out.txt --claim 8,1e-5`
    """
    from sordina.auditing.language import language_attacks
    from sordina.auditing.runs import write_audit
    from sordina.cli.audit import stop_if

    if options.attacks == "list":
        if as_json:
            say_json(list(language_attacks()))
        for name in () if as_json else language_attacks():
            say(name)
        return
    found, came_back = _attacked(model, given, options, as_json)
    facts = found.to_dict() | {"verbatim": None if came_back is None else came_back.to_dict()}
    folder = None if out is None else write_audit(found, out, facts)
    _say(as_json, facts, found, came_back, folder)
    stop_if(found.exceeds_claim)


def _attacked(
    model: Path, given: AuditedTextOptions, options: TextAttackOptions, as_json: bool
) -> tuple[Audit, Continuations | None]:
    from sordina.auditing.language import audit_language_model, base_of_folder, open_causal_model, read_texts
    from sordina.auditing.membership.shadows import PlainTraining
    from sordina.cli.audit import bar, proved
    from sordina.plan import check_whole

    check_whole("length", given.length)
    attacks = options.attacks
    names = None if attacks is None else [name.strip() for name in attacks.split(",") if name.strip()]
    stated, drawn = _claimed(model, given)
    texts = [read_texts(path, given.column) for path in (given.members, given.non_members)]
    recipe = PlainTraining(options.epochs, options.batch_size, options.learning_rate, "adamw")
    _quiet()
    base = given.base or base_of_folder(model)
    if base is None and not as_json:
        say("No base model: attacks that compare with it are left out (--base).")
    opened = open_causal_model(model, given.tokenizer)
    before = None if base is None else open_causal_model(base, given.tokenizer or base).model
    inside, outside = (opened.tokens(part, given.length) for part in texts)
    with bar("shadow models", shown=not as_json) as tick:
        found = audit_language_model(
            opened.model, before, inside, outside, names, decode=opened.decode, neighbours=options.neighbours,
            recipe=recipe, seed=options.seed, progress=tick, claim=stated, membership=drawn,
            confidence=options.confidence, shadows=options.shadows,
        )  # fmt: skip
    found = replace(found, proved=given.claim is None and proved(model))
    return found, _continued(opened.model, inside, options.prefix)


def _claimed(model: Path, given: AuditedTextOptions) -> tuple[Any, str]:
    """What is claimed, and how membership was decided; refused if the two do not go together."""
    from sordina.auditing.findings import claim_from
    from sordina.errors import InvalidInput
    from sordina.privacy import Unit

    stated = claim_from(given.claim) if given.claim is not None else _claim_of(model)
    drawn = "fixed" if given.random_split else given.membership
    if stated is not None and stated.unit is not Unit.RECORD and drawn != "own":
        raise InvalidInput(
            "the claim is for whole users, and several texts of one user are not coins of their own: leave "
            "--membership at own, or give one text of each user and --claim."
        )
    return stated, drawn


def _quiet() -> None:
    """No bars of transformers for every file it reads."""
    with contextlib.suppress(ImportError):
        from transformers.utils import logging

        logging.disable_progress_bar()


def _claim_of(folder: Path) -> Any:
    from sordina.auditing.runs import claim_of
    from sordina.run_folder import PRIVACY, read_claim

    return claim_of(read_claim(folder)) if (folder / PRIVACY).exists() else None


def _continued(model: Any, tokens: Any, prefix: int) -> Continuations | None:
    from sordina.auditing.extraction import measure_continuations
    from sordina.errors import InvalidInput

    try:
        return measure_continuations(model, tokens[:200], prefix=prefix, length=16)
    except InvalidInput:  # the texts are short: nothing to continue
        return None


def _say(
    as_json: bool, facts: dict[str, Any], found: Audit, came_back: Continuations | None, folder: Path | None
) -> None:
    from sordina.cli.audit import say_results

    if not as_json and came_back is not None:
        say(
            f"Prompted with their beginnings, {came_back.verbatim:.1%} of {len(came_back.matched)} members came back "
            f"word for word for {came_back.length} tokens."
        )
    say_results(as_json, facts, found.results, found.verdict, folder, found.word)

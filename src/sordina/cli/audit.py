"""`sordina audit`: attack runs, models of others, updates, and the library itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import CommandWithFormerOptions, grouped, stated
from sordina.cli.audit_lm import lm
from sordina.cli.output import say, say_json
from sordina.errors import InvalidInput
from sordina.progress import Progress, StagedProgress, silent_stages

if TYPE_CHECKING:
    from sordina.auditing.findings import AttackResult, Audit


app = typer.Typer(
    help="Attack models and mechanisms: membership, canaries, gradient inversion, language models.",
    no_args_is_help=True,
)
USUAL = "loss,noisy"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Confidence = Annotated[float, typer.Option(help="Confidence of the lower bound on epsilon.")]
Seed = Annotated[int | None, typer.Option(help="Makes the audit repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the findings as JSON, and figures.")]


@dataclass(frozen=True)
class AttackOptions:
    """The attacks."""

    attacks: Annotated[
        str,
        typer.Option(
            help="Comma-separated: loss, noisy, population, quantile-regression, label-only; by shadow models: shadow, "
            "lira-online, lira-augmented, lira-offline, rmia, rmia-offline, bavaria, bavaria-offline, attack-r, "
            "attack-model."
        ),
    ] = USUAL
    rows: Annotated[int, typer.Option(help="Members and non-members to look at, at most.")] = 5000
    shadows: Annotated[int, typer.Option(help="Shadow models, for attacks that use them.")] = 16
    shadow_folder: Annotated[
        Path | None, typer.Option(help="Keeps their answers, for another audit with the same rows and --seed.")
    ] = None
    confidence: Confidence = 0.95
    seed: Seed = None


@dataclass(frozen=True)
class ForeignOptions:
    """For models trained elsewhere, and for runs on data of their own."""

    model: Annotated[
        str | None,
        typer.Option(
            help="A model trained elsewhere: m.safetensors, m.pt (TorchScript), m.joblib, or module:function to import."
        ),
    ] = None
    task: Annotated[
        Path | None, typer.Option(help="For a Flower app or a run on data of its own: its task.py, with model().")
    ] = None
    members: Annotated[
        Path | None, typer.Option(help="Rows that were in: CSV or Parquet with --model, .npz of x and y with --task.")
    ] = None
    non_members: Annotated[Path | None, typer.Option(help="Rows that were not, in the same form.")] = None
    schema: Annotated[Path | None, typer.Option(help="The TOML file that says what columns are.")] = None
    claim: Annotated[str | None, typer.Option(help="What is claimed, as epsilon,delta.")] = None
    drawn: Annotated[
        str,
        typer.Option(
            "--membership",
            help="How membership was decided: coins, coins:0.2 (probability of being a member), fixed or own.",
        ),
    ] = "own"
    trust_pickle: Annotated[
        bool,
        typer.Option("--trust-pickle", help="Open a pickled model, which RUNS ITS MAKER'S CODE on this machine."),
    ] = False


@app.command()
@grouped
def membership(
    options: AttackOptions,
    given: ForeignOptions,
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a `sordina train` or `sordina federate` run; or give --model.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for findings and figures; by default the run's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Was a record in the training set? Attacks the model of a run, or anybody's.

    Example: `sordina audit membership runs/digits --attacks loss,lira-online`
    """
    from sordina.auditing.runs import write_audit

    with bar("shadow models", shown=not as_json) as tick:
        attack = _audit_run if given.model is None else _audit_foreign
        found = attack(run, options, given, tick)
    folder = out or (run if given.model is None else None)
    written = None if folder is None else write_audit(found, folder)
    say_results(as_json, found.to_dict(), found.results, found.verdict, written, found.word)
    stop_if(found.exceeds_claim)


def _named(attacks: str) -> list[str]:
    return [name.strip() for name in attacks.split(",") if name.strip()]


def _audit_run(run: Path | None, options: AttackOptions, given: ForeignOptions, progress: Progress) -> Audit:
    from dataclasses import replace

    from sordina.auditing.runs import audit_run

    if run is None:
        raise InvalidInput("say what to attack: the folder of a run, or --model with --members and --non-members.")
    if stated(given, "claim", "schema", "drawn", "trust_pickle"):
        raise InvalidInput(
            "--claim, --membership, --schema and --trust-pickle go with --model: a run says itself what it claims and "
            "how its rows were drawn."
        )
    found = audit_run(
        run, _named(options.attacks), rows=options.rows, shadows=options.shadows, shadow_folder=options.shadow_folder,
        confidence=options.confidence, seed=options.seed, progress=progress, task=given.task, members=given.members,
        non_members=given.non_members,
    )  # fmt: skip
    return replace(found, proved=proved(run))


def _audit_foreign(run: Path | None, options: AttackOptions, given: ForeignOptions, progress: Progress) -> Audit:
    from sordina.auditing.findings import claim_from
    from sordina.auditing.foreign import audit_foreign

    if run is not None:
        raise InvalidInput("give the folder of a run or --model, not both.")
    if given.members is None or given.non_members is None or given.schema is None:
        raise InvalidInput("--model needs --members, --non-members and --schema.")
    attacks = "loss,population" if options.attacks == USUAL else options.attacks  # noise may not fit what a model takes
    return audit_foreign(
        str(given.model), given.members, given.non_members, given.schema, _named(attacks),
        claim=None if given.claim is None else claim_from(given.claim), membership=given.drawn,
        trust_pickle=given.trust_pickle, rows=options.rows, shadows=options.shadows,
        shadow_folder=options.shadow_folder, confidence=options.confidence, seed=options.seed, progress=progress,
    )  # fmt: skip


@app.command()
def canaries(
    epsilon: Annotated[float, typer.Option(help="Budget that the audited training claims.")] = 4.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    rate: Annotated[float, typer.Option(help="Sampling rate of a step; 1 takes all records.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Private steps of each training.")] = 1,
    runs: Annotated[int, typer.Option(help="Training runs, half of them with the canary.")] = 1000,
    one_run: Annotated[
        int | None,
        typer.Option(help="Instead: one training with this many canaries, each included with probability one half."),
    ] = None,
    clipping: Annotated[str, typer.Option(help="online, fixed, quantile, automatic or trailing.")] = "fixed",
    plant: Annotated[
        str | None,
        typer.Option(help="A fault to be found: no-noise, half-noise, no-clipping, raw-threshold, sticky-sampler."),
    ] = None,
    confidence: Confidence = 0.95,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Audit the private training itself, with canary gradients and full knowledge of what is released.

    Example: `sordina audit canaries --epsilon 4 --runs 1000 --plant half-noise`
    """
    from sordina.auditing.canaries import audit_training
    from sordina.auditing.findings import Audit
    from sordina.auditing.runs import write_audit

    with bar("training", shown=not as_json) as tick:
        result = audit_training(
            epsilon, delta, rate=rate, steps=steps, runs=runs, one_run=one_run, clipping=clipping, plant=plant,
            confidence=confidence, seed=seed, progress=tick,
        )  # fmt: skip
    found = Audit((result,), result.claim)
    folder = None if out is None else write_audit(found, out)
    say_results(as_json, result.to_dict(), found.results, found.verdict, folder)
    stop_if(found.exceeds_claim)


@app.command()
def soundness(
    audits: Annotated[int, typer.Option(help="Private runs to train and audit.")] = 200,
    canaries: Annotated[int, typer.Option(help="Canaries in each, each included by a coin toss.")] = 1000,
    confidence: Confidence = 0.95,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Audit the audits: a lower bound may exceed a true claim only as often as its confidence allows.

    Example: `sordina audit soundness --audits 200 --seed 0`
    """
    from sordina.auditing.self_audit import soundness_study

    with bar("audits", shown=not as_json) as tick:
        study = soundness_study(audits, canaries=canaries, confidence=confidence, seed=seed, progress=tick)
    if as_json:
        say_json(study.to_dict())
    else:
        for tally in study.tallies:
            say(
                f"{tally.above} of {tally.audits} bounds above the claim, at most {tally.allowed} are ordinary at "
                f"confidence {confidence:.0%}; on average {tally.share:.0%} of it: {tally.method}"
            )
    stop_if(not study.sound)


@app.command("self")
def self_(
    repeats: Annotated[int, typer.Option(help="How often every check runs, with fresh randomness.")] = 1,
    audits: Annotated[int, typer.Option(help="Private runs to audit for soundness; 0 leaves that out.")] = 50,
    canaries: Annotated[int, typer.Option(help="Canaries in each of those, each included by a coin toss.")] = 300,
    long: Annotated[bool, typer.Option("--long", help="5 repeats and 1000 audits: about half an hour.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Audit the library: send canaries through every part of it, and plant every known fault in turn to see it caught.

    Example: `sordina audit self --audits 50`
    """
    from sordina.auditing.self_audit import self_audit

    with _bars(shown=not as_json) as start:
        found = self_audit(
            repeats=5 if long else repeats, audits=1000 if long else audits, canaries=canaries, seed=seed,
            progress=start,
        )  # fmt: skip
    if as_json:
        say_json(found.to_dict())
    else:
        for result in found.checks:
            say(f"{'holds' if result.holds else 'FAILS':>7}  {result.name}: {result.detail}", alarm=not result.holds)
        for fault in found.faults:
            say(f"{'caught' if fault.caught else 'MISSED':>7}  {fault.name}. {fault.detail}", alarm=not fault.caught)
        for tally in found.soundness.tallies if found.soundness is not None else ():
            words = f"{tally.above} of {tally.audits} bounds above the claim, at most {tally.allowed} are ordinary"
            say(f"{'sound' if tally.sound else 'UNSOUND':>7}  {words}: {tally.method}", alarm=not tally.sound)
        say("All held, and all faults were caught." if found.passed else "Not everything held.", alarm=not found.passed)
    stop_if(not found.passed)


@app.command(cls=CommandWithFormerOptions)
def inversion(
    dataset: Annotated[str, typer.Argument(help="Square images: digits, mnist, fashion-mnist.")] = "mnist",
    attack: Annotated[str, typer.Option(help="dlg or inverting-gradients.")] = "dlg",
    images: Annotated[int, typer.Option(help="Test images to attack.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Images behind one update.")] = 1,
    noise_multiplier: Annotated[
        list[float] | None,
        typer.Option(help="Noise multiplier of the per-layer Laplace noise; may be repeated. 1e-3 to 3 by default."),
    ] = None,
    sigma: Annotated[list[float] | None, typer.Option(help="Gaussian noise; may be repeated.")] = None,
    clip: Annotated[list[float] | None, typer.Option(help="Clipping threshold; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Network, noise and starting points.")] = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What a server can reconstruct of the images behind one update, without defence and with noise (000 figure 2.5).

    Example: `sordina audit inversion digits --images 4 --noise-multiplier 1e-3 --noise-multiplier 1 --out runs/dlg`
    """
    from sordina.auditing.reconstruction import NUS, named_defences, reconstruction_study
    from sordina.auditing.runs import write_reconstructions

    nus = noise_multiplier or (() if sigma or clip else NUS)
    with bar("images", shown=not as_json) as tick:
        study = reconstruction_study(
            dataset, images=images, batch_size=batch_size, attack=attack, seed=seed, progress=tick,
            defences=named_defences(nus, sigma or (), clip or ()),
        )  # fmt: skip
    folder = None if out is None else write_reconstructions(study, out)
    facts = study.to_dict()
    if as_json:
        facts.pop("cases")
        say_json(facts)
        return
    for row in facts["defences"]:
        say(
            f"{row['defence']:>20}  median {row['median_psnr']:6.1f} dB, "
            f"{row['reconstructed']} of {images} above 25 dB, {row['failed']} below 12 dB"
        )
    if folder is not None:
        say(f"Saved in {folder}.")


app.command()(lm)


def say_results(
    as_json: bool,
    facts: dict[str, Any],
    results: tuple[AttackResult, ...],
    verdict: str,
    folder: Path | None,
    word: str = "",
) -> None:
    """The findings of an audit, as text or as JSON."""
    if as_json:
        say_json(facts)
        return
    from sordina.privacy import format_down

    for result in sorted(results, key=lambda one: -one.bound.epsilon):
        rates = ", ".join(f"TPR at {rate:.1%} FPR {estimate}" for rate, estimate in result.tpr.items())
        say(f"{result.name:>14}  AUC {result.auc}, {rates}, {result.seconds:.1f} s; the attacker knows {result.knows}")
        for bound in result.bounds:
            shown = format_down(bound.epsilon, 3)
            say(f"{'':>14}  epsilon >= {shown} by {bound.method}: {bound.detail} ({bound.assumes})")
    refuted = any(result.exceeds_claim for result in results)
    say(f"{word}. {verdict}" if word else verdict, alarm=refuted)
    if folder is not None:
        say(f"Saved in {folder}.")


def proved(run: Path) -> bool:
    """Whether the run's claim was computed here from the events that ran, and is about the model beside it."""
    from sordina.reports.reading import verify
    from sordina.run_folder import PRIVACY, read_claim

    if not (run / PRIVACY).is_file():
        return False
    claim = read_claim(run, check_model=False)
    return verify(run, claim).verified and claim.sound and claim.releasable is not False


def stop_if(refuted: bool) -> None:
    """Exit code 1 if a claim was refuted."""
    if refuted:
        raise typer.Exit(1)


@contextmanager
def _bars(*, shown: bool) -> Iterator[StagedProgress]:
    """Progress bars on standard error, one for each stage that is started."""
    if not shown:
        yield silent_stages
        return
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    # Where nobody watches, such as a log, a bar that vanishes would leave an empty line.
    progress = rich.Progress(console=console, transient=True, disable=not console.is_interactive)

    def start(stage: str) -> Progress:
        progress.start()
        task = progress.add_task(stage, total=None)
        return lambda done, total: progress.update(task, completed=done, total=total)

    try:
        yield start
    finally:
        if progress.live.is_started:  # an empty display would leave an empty line
            progress.stop()


@contextmanager
def bar(stage: str, *, shown: bool) -> Iterator[Progress]:
    """One bar, that appears with its first step."""
    with _bars(shown=shown) as start:
        ticks: list[Progress] = []

        def tick(done: int, total: int | None) -> None:
            if not ticks:
                ticks.append(start(stage))
            ticks[0](done, total)

        yield tick


# `sordina audit attribute` and `sordina audit classes`: what a run's model tells of people, and of its classes.


@app.command()
def attribute(
    run: Annotated[Path, typer.Argument(help="Folder of a `sordina train FILE` run that kept rows out.")],
    column: Annotated[str, typer.Option(help="The attribute to guess: a category of the schema.")],
    rows: Annotated[int, typer.Option(help="Members and non-members to look at, at most.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Does the model reveal an attribute of those it was trained on? Guesses it for members and for others.

    Example: `sordina audit attribute runs/p --column smoker`
    """
    from sordina.auditing.inference import infer_table_attribute

    found = infer_table_attribute(run, column, rows=rows, confidence=confidence, seed=seed)
    if as_json:
        say_json(found.to_dict())
        return
    say(found.verdict, alarm=found.leaks)


@app.command()
def classes(
    run: Annotated[Path, typer.Argument(help="Folder of a `sordina train` run on images.")],
    steps: Annotated[int, typer.Option(help="Steps to move each image.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the first images.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for classes.png; by default the run's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """What does the model think its classes look like? Model inversion, as a picture.

    Example: `sordina audit classes runs/digits`
    """
    from sordina.auditing.inference import invert_run

    found, picture = invert_run(run, out or run, steps=steps, seed=seed)
    if as_json:
        say_json(found.to_dict() | {"picture": str(picture)})
        return
    sure = ", ".join(f"{value:.0%}" for value in found.confidences)
    say(f"The model is sure of its own pictures to {sure}. See {picture}.")

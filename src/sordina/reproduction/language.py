"""Membership inference on a language model (000 chapter 4, figures 4.2 to 4.4), small enough for a laptop.

The thesis fine-tunes GPT-2 on 60 % of WikiText, takes the other 40 % as non-members, and calibrates with 10 shadow
models trained on the 10 parts of the training split, or with 10 noisy neighbours. Here the same protocol runs on a
GPT-2 of a few hundred thousand parameters, built from a configuration and trained from scratch: nothing is downloaded.
Costs are processor seconds, which other work on the machine does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sordina import datasets, random
from sordina.auditing.audit import Attempt, Judge, told_by
from sordina.auditing.bounds import check_confidence
from sordina.auditing.findings import Audit
from sordina.auditing.membership.attacks import (
    LossAttack,
    LowerCase,
    MembershipAttack,
    NeighbourMaker,
    NoisyNeighbours,
    ShadowDifference,
    WordSwap,
)
from sordina.auditing.membership.shadows import (
    PlainTraining,
    Shadows,
    ask,
    draw_halves,
    streams,
    train_loop,
)
from sordina.auditing.membership.target import LanguageModel, Samples
from sordina.auditing.one_run import Membership
from sordina.auditing.scores import BoolArray, Scores
from sordina.errors import InvalidInput
from sordina.plan import check_whole
from sordina.progress import Progress, StagedProgress, silent_stages

RECIPE = PlainTraining(epochs=12, batch_size=16, learning_rate=3e-3)
"""Until the model knows its training sequences better than others, but far from by heart."""


@dataclass(frozen=True)
class LanguageStudy:
    """The attacks side by side, with what each cost."""

    audit: Audit
    train_loss: float
    test_loss: float
    target_seconds: float
    parameters: int

    @property
    def cost_ratio(self) -> float:
        """Cost of noisy neighbours, its search included, over that of the shadow attack, its training included."""
        return self.audit["noisy"].seconds / self.audit["shadow"].seconds

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "train_loss": self.train_loss,
            "test_loss": self.test_loss,
            "parameters": self.parameters,
            "target_seconds": round(self.target_seconds, 3),
            "noisy_to_shadow_cost": self.cost_ratio,
            **self.audit.to_dict(),
        }


@dataclass(frozen=True)
class Corpus:
    """Sequences that were trained on, of which some are audited, and as many that were not."""

    members: Samples
    tuning: tuple[Samples, Samples]
    report: tuple[Samples, Samples]
    vocabulary: tuple[str, ...]

    @property
    def audited(self) -> Samples:
        """Members to report on, then non-members."""
        return self.report[0] + self.report[1]


def load_corpus(
    members: int, audited: int, tuned: int, length: int, vocabulary: int, rng: np.random.Generator
) -> Corpus:
    """WikiText-2 in sequences of ``length`` words; who is a member is drawn at random."""
    data = datasets.load("wikitext-2", length=length, vocabulary=vocabulary)
    inputs, targets = data.train.tensors
    tokens = torch.cat([inputs, targets[:, -1:]], dim=1)
    if members + audited + tuned > len(tokens) or audited + tuned > members:
        raise InvalidInput(f"of {len(tokens)} sequences {members} members and {audited + tuned} audited do not fit.")
    order = torch.from_numpy(rng.permutation(len(tokens)))
    inside, outside = tokens[order[:members]], tokens[order[members : members + audited + tuned]]
    return Corpus(
        Samples(inside),
        tuning=(Samples(inside[:tuned]), Samples(outside[:tuned])),
        report=(Samples(inside[tuned : tuned + audited]), Samples(outside[tuned : tuned + audited])),
        vocabulary=data.vocabulary,
    )


def small_gpt2(
    words: int, length: int, *, width: int = 64, layers: int = 2, heads: int = 4, seed: int = 0
) -> nn.Module:
    """A GPT-2 from a configuration, without dropout; needs the extra ``llm``."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise InvalidInput("language models need transformers: pip install 'sordina[llm]'.") from error
    config = GPT2Config(
        vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = GPT2LMHeadModel(config)
    return model


def language_study(
    *,
    members: int = 2400,
    audited: int = 300,
    tuned: int = 100,
    length: int = 64,
    vocabulary: int = 2000,
    width: int = 64,
    recipe: PlainTraining = RECIPE,
    shadows: int = 10,
    partition: bool = True,
    neighbours: int = 10,
    evaluations: int = 9,
    confidence: float = 0.95,
    delta: float = 1e-5,
    seed: int = 0,
    progress: StagedProgress = silent_stages,
) -> LanguageStudy:
    """Train a small GPT-2, and attack it by loss, shadow models, noisy, lower-cased and word-swapped neighbours.

    ``partition``: shadows on the parts of the training split, as in the thesis; else on random halves of the audited
    rows and others, a stronger adversary at several times the cost. ``tuned`` rows of each side serve the search for
    sigma and the thresholds; the attacks are reported on ``audited`` others.
    """
    for name, count in (("members", members), ("audited", audited), ("shadows", shadows), ("neighbours", neighbours)):
        check_whole(name, count)
    check_confidence(confidence)
    rng = random.seeded(seed)
    corpus = load_corpus(members, audited, tuned, length, vocabulary, rng)

    def build(index: int) -> nn.Module:
        return small_gpt2(len(corpus.vocabulary), length, width=width, seed=(1000 * seed + index) % (1 << 64))

    start = time.process_time()
    (model,) = train_loop([build(0)], [corpus.members], recipe, [rng], progress("target"))
    target_seconds = time.process_time() - start
    target = LanguageModel(model)

    def shadowed() -> MembershipAttack:
        everything = corpus.tuning[0] + corpus.tuning[1] + corpus.audited
        fit = _partition_shadows if partition else _half_shadows
        return ShadowDifference(fit(build, corpus, everything, recipe, shadows, rng, progress("shadows")))

    def noisy() -> MembershipAttack:
        return NoisyNeighbours(rng, neighbours=neighbours).tuned(target, *corpus.tuning, evaluations=evaluations)

    attacks: tuple[Callable[[], MembershipAttack], ...] = (
        LossAttack,
        shadowed,
        noisy,
        lambda: NeighbourMaker(LowerCase(corpus.vocabulary), rng, count=1, name="lower-case"),
        lambda: NeighbourMaker(WordSwap(corpus.vocabulary), rng, count=neighbours, name="word-swap"),
    )
    judge = Judge.of(Membership("fixed"), None, delta, confidence)
    results = judge([_attempt(make, target, corpus) for make in attacks])
    train_loss, test_loss = (float(target.losses(side).mean()) for side in corpus.report)
    size = sum(parameter.numel() for parameter in model.parameters())
    return LanguageStudy(Audit(results), train_loss, test_loss, target_seconds, size)


def _attempt(make: Callable[[], MembershipAttack], target: LanguageModel, corpus: Corpus) -> Attempt:
    """Make the attack ready, score, and stop the clock before the bounds."""
    start = time.process_time()
    attack = make()
    scores = attack.scores(target, corpus.tuning[0] + corpus.tuning[1] + corpus.audited)
    seconds = time.process_time() - start
    cuts = np.cumsum([len(part) for part in (*corpus.tuning, *corpus.report)])[:-1]
    tune_in, tune_out, report_in, report_out = np.split(scores, cuts)
    told = told_by(attack) | {"seconds": seconds}
    return Attempt(attack.name, Scores(tune_in, tune_out), Scores(report_in, report_out), told)


def _partition_shadows(
    build: Callable[[int], nn.Module], corpus: Corpus, samples: Samples, recipe: PlainTraining, count: int,
    rng: np.random.Generator, progress: Progress,
) -> Shadows:  # fmt: skip
    """One shadow per part of the training split (000 section 4.5). Each member is in one of them, and is counted."""
    parts = [corpus.members.take(rows) for rows in np.array_split(rng.permutation(len(corpus.members)), count)]
    models = [build(index + 1) for index in range(count)]
    trained = train_loop(models, parts, recipe, streams(count, rng), progress)
    everywhere: BoolArray = np.zeros((count, len(samples)), dtype=bool)
    return ask(trained, samples, everywhere)


def _half_shadows(
    build: Callable[[int], nn.Module], corpus: Corpus, samples: Samples, recipe: PlainTraining, count: int,
    rng: np.random.Generator, progress: Progress,
) -> Shadows:  # fmt: skip
    """Shadows on random halves of the audited rows, filled up with other members to the size of the training split."""
    inside = draw_halves(count, len(samples), rng)
    others = corpus.members.take(np.arange(len(corpus.tuning[0]) + len(corpus.report[0]), len(corpus.members)))
    parts = [samples.take(row) + others for row in inside]
    models = [build(index + 1) for index in range(count)]
    return ask(train_loop(models, parts, recipe, streams(count, rng), progress), samples, inside)

"""Attacks on a fine-tuned language model, without privacy and with: is 000's claim for noisy neighbours true there?

000 chapter 4 attacks a *fine-tuned* GPT-2. Here stories260K, a real pre-trained model, is fine-tuned on WikiText-2:
Each sequence of a pool is a member by a coin of chance 0.6. Twenty canaries with random secrets are
planted among the members. Three models are attacked: one fine-tuned gently (two epochs), one at the same rate but so
long that it knows its members (ten epochs, a smaller pool), and a private one on the gentle one's texts. All attacks
run on the same rows; costs are processor seconds.
"""

from __future__ import annotations

import copy
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import datasets, random
from sordina.auditing import findings
from sordina.auditing.extraction import (
    Continuations,
    Exposure,
    Secrets,
    measure_continuations,
    measure_exposure,
)
from sordina.auditing.findings import Audit
from sordina.auditing.language import audit_language_model, language_attacks
from sordina.auditing.membership.shadows import PlainTraining, train
from sordina.auditing.membership.target import LanguageModel, Samples
from sordina.datasets import tiny_lm
from sordina.models.losses import next_token
from sordina.privacy import Budget, Guarantee
from sordina.reproduction.experiment import ExperimentFindings, Job, Value
from sordina.training import Trainer

_DIGITS = "0123456789"
_INSIDE = 0.6
"""The chance of a sequence to be trained on. By coins of their own: a split of fixed size would prove less."""


@dataclass(frozen=True)
class FineTune:
    """One fine-tuned model and what was found.

    Args:
        train_loss: On members.
        test_loss: On non-members.
        audit: All attacks.
        exposure: Of the planted canaries.
        continuations: Members continued word for word.
        claim: What the training guarantees; None without privacy.
    """

    train_loss: float
    test_loss: float
    audit: Audit
    exposure: Exposure
    continuations: Continuations
    claim: Guarantee | None = None


@dataclass(frozen=True)
class _Texts:
    members: Tensor
    non_members: Tensor
    planted: Secrets

    @property
    def trained_on(self) -> Tensor:
        return torch.cat([self.members, self.planted.texts])


def load_texts(pool: int, length: int, canaries: int, rng: np.random.Generator) -> _Texts:
    """Sequences of WikiText-2 in pieces, each a member by a coin of `_INSIDE`, and canaries of the same length.

    Args:
        pool: Sequences in all.
        length: Tokens in each.
        canaries: Secrets to plant: eight digits each, after a common beginning.
        rng: Draws everything.
    """
    data = datasets.load("wikitext-2", length=length, pieces=True)
    inputs, targets = data.train.tensors
    tokens = torch.cat([inputs, targets[:, -1:]], dim=1)
    drawn = tokens[torch.from_numpy(rng.permutation(len(tokens))[: pool + 1])]
    words = tiny_lm.load_tokenizer()
    asked = torch.tensor(words.encode(" The secret number is "))
    prefix = torch.cat([drawn[pool][: length - 8 - len(asked)], asked])
    alphabet = torch.tensor([words.encode(digit)[-1] for digit in _DIGITS])
    inside = torch.from_numpy(rng.random(pool) < _INSIDE)
    return _Texts(drawn[:pool][inside], drawn[:pool][~inside], Secrets.draw(prefix, alphabet, rng, count=canaries))


GENTLE, HARD = "gentle", "hard"


def fine_tune_study(
    *,
    pool: int = 1000,
    length: int = 64,
    canaries: int = 20,
    recipe: PlainTraining,
    hard_epochs: int = 10,
    hard_pool: int = 600,
    shadows: int = 8,
    neighbours: int = 10,
    epsilon: float = 8.0,
    private_epochs: float = 20.0,
    private_batch: int = 64,
    attacks: tuple[str, ...] | None = None,
    seed: int = 0,
) -> dict[str, FineTune]:
    """Fine-tune gently, hard, and at ``epsilon``, and attack all three.

    Args:
        pool: Sequences, members and others, of the gentle and the private fine-tune.
        length: Tokens in each.
        canaries: Planted secrets.
        recipe: The gentle fine-tuning; shadow models follow it too, also those against the private model.
        hard_epochs: Of the hard one, which is otherwise the same.
        hard_pool: Its sequences.
        shadows: Shadow models, fine-tuned on random halves of the pool.
        neighbours: Noisy copies of each text.
        epsilon: The private model's budget, at delta 1 / (10 n).
        private_epochs: Its passes over the texts.
        private_batch: Its expected batch.
        attacks: Names of `language_attacks`; all if left out.
        seed: Of everything.
    """
    rng = random.seeded(seed)
    texts, few = (load_texts(size, length, canaries, rng) for size in (pool, hard_pool))
    base = tiny_lm.load_model()
    long = replace(recipe, epochs=hard_epochs)
    gentle, hard = (
        train(copy.deepcopy(base), Samples(one.trained_on), how, rng) for one, how in ((texts, recipe), (few, long))
    )
    delta = 1 / (10 * len(texts.trained_on))
    rows = (texts.trained_on[:, :-1], texts.trained_on[:, 1:])
    private = Trainer(
        copy.deepcopy(base), _loss, Budget(epsilon, delta), batch_size=private_batch, epochs=private_epochs,
        seed=seed, track_epsilon=False,
    ).fit(rows)  # fmt: skip
    claimed = Guarantee(private.guarantee.epsilon, delta, private.guarantee.adjacency, private.guarantee.unit)
    found: dict[str, FineTune] = {}
    cases: tuple[tuple[str, nn.Module, _Texts, PlainTraining, Guarantee | None], ...] = (
        (GENTLE, gentle, texts, recipe, None),
        (HARD, hard, few, long, None),
        (f"epsilon {epsilon:g}", private.model, texts, recipe, claimed),
    )
    with tempfile.TemporaryDirectory() as kept:  # the private model is asked about the gentle one's shadows
        for name, model, about, how, claim in cases:
            audit = audit_language_model(
                model, base, about.members, about.non_members, attacks or language_attacks(), recipe=how, claim=claim,
                shadows=shadows, shadow_folder=kept, neighbours=neighbours, membership=f"coins:{_INSIDE}", seed=seed,
                decode=tiny_lm.load_tokenizer().decode,
            )  # fmt: skip
            found[name] = _judged(model, about, audit, claim, rng)
    return found


def _loss(outputs: Any, targets: Tensor) -> Tensor:
    return next_token(outputs.logits, targets)


def _judged(
    model: nn.Module, texts: _Texts, audit: Audit, claim: Guarantee | None, rng: np.random.Generator
) -> FineTune:
    target = LanguageModel(model)
    train_loss, test_loss = (float(target.losses(Samples(side)).mean()) for side in (texts.members, texts.non_members))
    half = texts.members.shape[1] // 2
    return FineTune(
        train_loss,
        test_loss,
        audit,
        measure_exposure(model, texts.planted, rng, others=1023),
        measure_continuations(model, texts.members[:200], prefix=half, length=min(8, half)),
        claim,
    )


def fine_tune_attacks(job: Job) -> ExperimentFindings:
    """All attacks on the three models, exposure and verbatim continuation, and what became of 000's claim."""
    given = dict(job.settings)
    recipe = PlainTraining(**given.pop("recipe"))
    start = time.process_time()
    found = fine_tune_study(recipe=recipe, **given)
    values: list[Value] = []
    for trained, one in found.items():
        values += _values(trained, one)
    for trained, one in found.items():
        name = f"roc-{trained.replace(' ', '-')}.png"
        strongest = sorted(one.audit.results, key=lambda result: -result.auc.value)[:6]
        findings.roc_figure(strongest, job.folder / name)
    remarks = [said for name in (GENTLE, HARD) for said in _claim_of_000(name, found[name].audit)]
    remarks.append(f"{(time.process_time() - start) / 60:.1f} processor minutes in all.")
    pictures = [f"roc-{trained.replace(' ', '-')}.png" for trained in found]
    return ExperimentFindings("WikiText-2, stories260K", values, (), [*remarks, *job.caveats], pictures)


def _values(trained: str, one: FineTune) -> list[Value]:
    values = []
    for result in one.audit.results:
        seconds = f"{result.seconds:.1f} s"
        epsilon = Value({"model": trained, "attack": result.name, "quantity": "proven epsilon"}, result.bound.epsilon)
        rates = [
            Value({"model": trained, "attack": result.name, "quantity": f"TPR at {rate:.1%} FPR"}, estimate.value)
            for rate, estimate in result.tpr.items()
        ]
        area = Value({"model": trained, "attack": result.name, "quantity": "AUC"}, result.auc.value, note=seconds)
        values += [area, *rates, epsilon]
    facts: dict[str, Any] = {
        "loss on members": one.train_loss,
        "loss on others": one.test_loss,
        "mean exposure, bits": one.exposure.mean,
        "largest exposure possible, bits": one.exposure.most,
        "p-value of the exposure": one.exposure.p_value,
        "members continued verbatim": one.continuations.verbatim,
    }
    return [
        *values,
        *(Value({"model": trained, "attack": "", "quantity": name}, value) for name, value in facts.items()),
    ]


def _claim_of_000(trained: str, audit: Audit) -> list[str]:
    """000: noisy neighbours within 3.4 % of shadow models, at a fifth of the cost. On a fine-tune?"""
    names = {result.name: result for result in audit.results}
    if "shadow" not in names or "noisy" not in names:
        return []
    shadow, noisy = names["shadow"], names["noisy"]
    behind = 1 - noisy.auc.value / shadow.auc.value
    cost = noisy.seconds / max(shadow.seconds, 1e-9)
    said = [
        f"000's claim on the {trained} fine-tune: noisy neighbours' AUC is {100 * behind:.1f} % below the shadow "
        f"attack's (3.4 % claimed), at {cost:.0%} of its cost (a fifth claimed)."
    ]
    two = [names[name] for name in ("reference", "windows", "error-zone") if name in names]
    if two:
        best = max(two, key=lambda result: result.auc.value)
        said.append(
            f"The best attack of two forward passes on it ({best.name}) has AUC {best.auc.value:.3f}, noisy neighbours "
            f"{noisy.auc.value:.3f}, shadow models {shadow.auc.value:.3f}; the best of all is "
            f"{max(audit.results, key=lambda result: result.auc.value).name}."
        )
    return said

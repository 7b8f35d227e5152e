"""Run folders as the commands write them, made by hand in a moment."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sordina.accounting import Gaussian, PoissonSampled, Repeated, to_dict
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import RunFolder

PRIVACY = {
    "epsilon": 2.9999, "delta": 1e-5, "private": True, "statement": "(3, 1e-05)-DP per record.",
    "adjacency": "add-remove", "unit": "record", "model": "central", "accountant": "pld", "noise_multiplier": 2.07,
    "sampler": {"kind": "Poisson", "batch": 128, "population": 1437}, "clipping": "Online(threshold=100.0, memory=0.9)",
    "steps": 200, "planned_steps": 200, "releasable": True, "caveats": ["The population size is public."],
    "versions": {"sordina": "0.1.0", "torch": "2.13.0"},
    "event": to_dict(Repeated(PoissonSampled(128 / 1437, Gaussian(2.07)), 110)),
}  # fmt: skip
RECIPE = {"dataset": "digits", "model": None, "epsilon": 3.0, "clipping": "online", "threshold": 100.0, "seed": None}


def write(folder, name, facts):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(facts))


def finish(folder, facts):
    """A run's end as the commands bring it about: the model, and the claim that names it."""
    with RunFolder.begin(folder, "train", {"made": "by hand"}) as held:
        held.finish(b"weights", PrivacyClaim.from_dict(facts))


def metrics(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def audited(folder, claimed, shift):
    """Real scores through the real auditing code: members are ``shift`` standard deviations higher."""
    from sordina.auditing.bounds import TwoRates
    from sordina.auditing.findings import AttackResult, Audit
    from sordina.auditing.scores import Scores
    from sordina.privacy import Guarantee

    rng = np.random.default_rng(7)
    scores = Scores(rng.normal(shift, 1, 150), rng.normal(0, 1, 150))
    claim = Guarantee(claimed, 1e-5)
    bound = TwoRates().epsilon_lower(scores, scores, 1e-5, 0.95)
    found = Audit((AttackResult("loss", scores, (bound,), claim),), claim)
    write(folder, "audit.json", found.to_dict())


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "online"
    finish(folder, PRIVACY)
    write(folder, "recipe.json", RECIPE)
    metrics(
        folder,
        [
            {
                "step": step, "steps": 200, "epsilon": 3 * math.sqrt(step / 200), "threshold": 100 / step,
                "learning_rate": 0.1, "validation": {"loss": 2 - step / 200, "accuracy": step / 250},
            }
            for step in range(10, 201, 10)
        ],
    )  # fmt: skip
    audited(folder, 2.9999, 0.2)
    return folder


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    statement = "NOT PRIVATE: trained without clipping and noise."
    finish(folder, PRIVACY | {"epsilon": None, "private": False, "statement": statement})
    write(folder, "recipe.json", RECIPE | {"epsilon": math.inf, "threshold": None})
    lines = [
        {"step": step, "steps": 300, "epsilon": None, "threshold": 0.1, "validation": {"loss": 0.5, "accuracy": 0.95}}
        for step in (100, 200, 300)
    ]
    metrics(folder, lines)
    audited(folder, math.inf, 2.0)
    image = np.linspace(0, 1, 64).reshape(1, 8, 8)
    case = {"attack": "dlg", "original": image.tolist(), "reconstruction": (1 - image).tolist(), "ssim": 0.1}
    cases = [case | {"defence": "none", "psnr": "inf"}, case | {"defence": "laplace nu=1", "psnr": 6.4}]
    write(folder, "inversion.json", {"cases": cases})
    return folder


@pytest.fixture
def federation(tmp_path):
    folder = tmp_path / "federation"
    privacy = {
        "placement": "metric", "guarantee": "Metric privacy at the client, sound.", "sound": True, "unit": "user",
        "epsilon": None, "delta": None, "releasable": True, "rounds": 3, "details": {},
        "leakage_per_client": [0.6, 1.2, 1.2, 0.0], "leakage_limit": None,
    }  # fmt: skip
    group = {
        "count": 50, "positives": 20, "accuracy": 0.9, "selection_rate": 0.5, "true_positive_rate": 0.9,
        "false_positive_rate": None,
    }  # fmt: skip
    fairness = {
        "demographic_parity_difference": 0.1, "equalized_odds_difference": None, "equal_opportunity_difference": 0.2,
        "groups": [group | {"name": "majority"}, group | {"name": "minority", "selection_rate": 0.4}], "left_out": [],
    }  # fmt: skip
    write(folder, "privacy.json", privacy)
    write(folder, "recipe.json", {"data": "synthetic", "strategy": "metric-pfl", "noise": 5.0, "seed": None})
    write(folder, "result.json", {"clients": 4, "validation_loss": 0.5, "fairness": {"group": fairness}})
    metrics(folder, [{"round": number, "validation_loss": 3.0 / number, "leakage_max": 1.2} for number in (1, 2, 3)])
    return folder

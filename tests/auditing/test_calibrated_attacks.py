"""RMIA, BaVarIA, attack R, population, quantile regression, label only, rounds: against definitions, and in order."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import sordina as sd
from sordina.auditing.audit import ATTACKS
from sordina.auditing.membership.attacks import LiRA
from sordina.auditing.membership.query_attacks import LabelOnly, QuantileRegression, RoundsObserver
from sordina.auditing.membership.reference_attacks import RMIA, AttackR, BaVarIA, PopulationAttack
from sordina.auditing.membership.shadows import PlainTraining, Shadows, draw_halves, train
from sordina.auditing.membership.target import Classifier, Samples
from sordina.auditing.scores import Scores, auc, tpr_at
from sordina.errors import InvalidInput, Unsupported


class Told:
    """A target whose confidences are given."""

    def __init__(self, phi):
        self.phi = phi

    def confidences(self, samples):
        return self.phi

    def losses(self, samples):
        return np.logaddexp(0, -self.phi)


def world(rows, shadows, seed):
    """Samples of unlike difficulty, gain and spread, some shadow models, and who is a member of the target."""
    rng = np.random.default_rng(seed)
    hard, gain, spread = rng.normal(0, 3, rows), np.exp(rng.normal(-0.5, 1, rows)), np.exp(rng.normal(0, 0.4, rows))
    inside = draw_halves(shadows, rows, rng)
    seen = hard + gain * inside + spread * rng.normal(size=inside.shape)
    member = rng.random(rows) < 0.5
    phi = hard + gain * member + spread * rng.normal(size=rows)
    population = np.zeros(rows, dtype=bool)
    population[np.flatnonzero(~member)[: rows // 8]] = True
    return Shadows(inside, np.logaddexp(0, -seen), seen), Told(phi), member, population


def judged(attack, target, member, left_out=None):
    scores = attack.scores(target, Samples(torch.zeros(len(member), 1)))
    asked = ~left_out if left_out is not None else np.ones_like(member)
    return Scores(scores[member & asked], scores[~member & asked])


def test_rmia_is_the_share_of_the_population_that_gained_less():
    shadows, target, _, population = world(40, 4, 0)
    for online in (True, False):
        attack = RMIA(shadows, population, online=online, gamma=1.5)
        found = attack.scores(target, Samples(torch.zeros(40, 1)))
        p = np.exp(-shadows.losses)
        usual = np.zeros(40)
        for row in range(40):
            out = p[~shadows.inside[:, row], row].mean()
            seen = p[shadows.inside[:, row], row].mean()
            usual[row] = (out + seen) / 2 if online else (1.33 * out + 0.67) / 2
        ratio = np.exp(-target.losses(None)) / usual
        share = np.array([np.mean([ratio[x] / ratio[z] >= 1.5 for z in np.flatnonzero(population)]) for x in range(40)])
        step = 1 / population.sum()
        assert np.all((found >= share - 1e-12) & (found < share + step))


def test_bavaria_with_many_models_and_a_flat_prior_is_lira():
    """The posterior forgets its prior; what remains is Student's t with so many degrees that it is the normal."""
    rng = np.random.default_rng(1)
    inside = draw_halves(2000, 6, rng)
    seen = np.array([0.0, 3, -2, 5, 1, 0]) + np.where(inside, 1.0, 0) + rng.normal(size=inside.shape) * 0.7
    shadows = Shadows(inside, np.logaddexp(0, -seen), seen)
    target = Told(np.array([0.5, 4.0, -2.0, 5.5, 2.0, -0.5]))
    samples = Samples(torch.zeros(6, 1))
    exact = LiRA(shadows, global_variance=False).scores(target, samples)
    assert BaVarIA(shadows).scores(target, samples) == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("shadows", [2, 4])
def test_bavaria_is_ahead_of_lira_where_models_are_few(shadows):
    rates = {"lira": [], "bavaria": []}
    for seed in range(4):
        answers, target, member, _ = world(4000, shadows, seed)
        rates["lira"].append(tpr_at(judged(LiRA(answers), target, member), 0.01).value)
        rates["bavaria"].append(tpr_at(judged(BaVarIA(answers), target, member), 0.01).value)
    assert np.mean(rates["bavaria"]) > np.mean(rates["lira"])


def test_offline_attacks_do_not_look_at_models_that_saw_the_sample():
    answers, target, member, population = world(400, 8, 3)
    spoiled = Shadows(answers.inside, np.where(answers.inside, 99.0, answers.losses),
                      np.where(answers.inside, -99.0, answers.confidences))  # fmt: skip
    for make in (lambda s: RMIA(s, population, online=False), lambda s: BaVarIA(s, online=False), AttackR):
        samples = Samples(torch.zeros(400, 1))
        assert make(answers).scores(target, samples) == pytest.approx(make(spoiled).scores(target, samples))
        assert auc(judged(make(answers), target, member)).value > 0.55


def test_no_attack_tells_members_where_there_is_nothing_to_tell():
    rng = np.random.default_rng(7)
    inside = draw_halves(8, 3000, rng)
    seen = rng.normal(size=inside.shape)
    answers, member = Shadows(inside, np.logaddexp(0, -seen), seen), rng.random(3000) < 0.5
    target, population = Told(rng.normal(size=3000)), np.arange(3000) < 300
    for attack in (RMIA(answers, population & ~member), BaVarIA(answers), BaVarIA(answers, online=False),
                   AttackR(answers), PopulationAttack(population & ~member)):  # fmt: skip
        assert auc(judged(attack, target, member, population)).value == pytest.approx(0.5, abs=0.04)


@pytest.fixture(scope="module")
def overfitted():
    """A network that knows sixty rows with random labels by heart."""
    torch.manual_seed(0)
    x, y = torch.randn(160, 6), torch.randint(2, (160,))
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    train(model, Samples(x[:80], y[:80]), PlainTraining(150, 20, 5e-3), np.random.default_rng(0))
    return model, (x[:80], y[:80]), (x[80:], y[80:])


def test_every_named_attack_finds_an_overfitted_network(overfitted):
    model, members, others = overfitted
    recipe = PlainTraining(60, 20, 5e-3)
    found = sd.audit(model, members, others, ATTACKS, shadows=4, recipe=recipe, seed=0, membership="fixed")
    areas = {result.name: result.auc.value for result in found.results}
    assert len(areas) == len(ATTACKS)
    weak = {name: area for name, area in areas.items() if area < 0.57}
    assert not weak, areas


def test_label_only_asks_for_nothing_but_labels(overfitted):
    model, members, _ = overfitted

    class Sharpened(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.nn.functional.one_hot(self.inner(x).argmax(dim=1), 2).double()

    one, two = (
        LabelOnly(np.random.default_rng(0), sigma=0.3, queries=5).scores(Classifier(m), Samples(*members))
        for m in (model, Sharpened())
    )
    assert np.array_equal(one, two)
    with pytest.raises(InvalidInput, match="tuned"):
        LabelOnly(np.random.default_rng(0)).scores(Classifier(model), Samples(*members))
    with pytest.raises(Unsupported, match="classifier"):
        LabelOnly(np.random.default_rng(0), sigma=1.0).scores(Classifier(model), Samples(members[0]))


def test_quantile_regression_learns_from_non_members_only(overfitted):
    model, members, others = overfitted
    target = Classifier(model)
    fitted = QuantileRegression().tuned(target, Samples(*members), Samples(*others))
    again = QuantileRegression().tuned(target, Samples(*others), Samples(*others))
    assert np.array_equal(fitted.scores(target, Samples(*members)), again.scores(target, Samples(*members)))


def test_an_observer_of_rounds_sees_whose_gradient_was_followed():
    torch.manual_seed(1)
    x, y = torch.randn(60, 300), torch.randint(2, (60,))
    model = nn.Linear(300, 2)
    rounds = [copy.deepcopy(model)]
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(x[:30]), y[:30])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.5 * slope
        rounds.append(copy.deepcopy(model))
    scores = RoundsObserver(rounds).scores(Classifier(model), Samples(x, y))
    assert auc(Scores(scores[:30], scores[30:])).value > 0.75
    with pytest.raises(InvalidInput, match="two released models"):
        RoundsObserver(rounds[:1]).scores(Classifier(model), Samples(x, y))


def test_a_population_is_standardised_within_its_class():
    phi = np.concatenate([norm.rvs(size=200, random_state=0), 10 + 5 * norm.rvs(size=200, random_state=1)])
    labels = torch.tensor([0] * 200 + [1] * 200)
    known = np.arange(400) % 2 == 0
    found = PopulationAttack(known).scores(Told(phi), Samples(torch.zeros(400, 1), labels))
    for rows in (slice(0, 200), slice(200, 400)):
        assert abs(np.median(found[rows])) < 0.2
        assert np.std(found[rows]) == pytest.approx(1, abs=0.25)


def test_shadow_models_are_kept_and_serve_another_audit(overfitted, tmp_path):
    model, members, others = overfitted
    recipe, told = PlainTraining(20, 20, 5e-3), []

    def audit(attacks, seed):
        return sd.audit(
            model, members, others, attacks, shadows=2, recipe=recipe, seed=seed, shadow_folder=tmp_path,
            progress=lambda done, total: told.append(done),
        )  # fmt: skip

    first = audit(["noisy", "lira-online"], 0)
    trained = len(told)
    again = audit(["rmia", "lira-augmented", "lira-online"], 0)
    assert trained == len(told) > 0
    assert np.array_equal(first["lira-online"].scores.inside, again["lira-online"].scores.inside)
    audit(["rmia"], 1)
    assert len(told) > trained
    (kept, _) = sorted(tmp_path.iterdir())
    kept.write_bytes(b"torn")
    with pytest.raises(InvalidInput, match="remove it"):
        [audit(["rmia"], seed) for seed in (0, 1)]


def test_another_architecture_has_shadow_models_of_its_own(overfitted, tmp_path):
    model, members, others = overfitted
    wide = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    recipe = PlainTraining(2, 20, 5e-3)
    for one in (model, wide):
        sd.audit(one, members, others, ["rmia"], shadows=2, recipe=recipe, seed=0, shadow_folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2

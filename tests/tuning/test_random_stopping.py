"""A search that stops at random tells neither how many runs it made nor which of them won.

Papernot and Steinke 2022: the price holds for who sees the best of K runs that are alike, and nothing else. Each test
is an attack on that: on the first weights, the global generators, the files, their dates and sizes, the ledger, the
threads, and a kill in between.
"""

import json
import re

import pytest
import torch
from tests.tuning.world import BATCH, STEPS, mlp
from torch import nn

import sordina as sd
from sordina.accounting import from_dict
from sordina.errors import TrainingFailed, Unsupported
from sordina.tuning import Grid, Search, plan
from sordina.tuning import search as search_module
from sordina.tuning.runner import INTERNAL, private_randomness
from sordina.tuning.search import ChosenRun

CANDIDATES = 64


_SCHEMES = {}


@pytest.fixture(autouse=True)
def calibrated_once(monkeypatch):
    """Searches here differ in everything but their cost."""
    make = search_module.make_scheme

    def remember(*arguments, **rest):
        key = repr((arguments, rest))
        if key not in _SCHEMES:
            _SCHEMES[key] = make(*arguments, **rest)
        return _SCHEMES[key]

    monkeypatch.setattr(search_module, "make_scheme", remember)


def search(make=mlp, **rest):
    """Rates so small that a model stays next to its first weights: the easiest prey."""
    given = {"budget": sd.Budget(3, 1e-5), "method": "random-stopping", "accountant": "rdp", **rest}
    return Search(Grid({"learning_rate": (1e-6, 1e-7, 1e-8)}), make, **given)


def always(monkeypatch, runs):
    monkeypatch.setattr(plan, "draw_runs", lambda stop, rng: runs)


def nearest(model, candidates):
    """The number of the candidate whose first weights the model still has; None if there is none."""
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    for number, other in enumerate(candidates):
        first = torch.cat([one.detach().flatten() for one in other.parameters()])
        if (weights - first).abs().max() < 1e-2:
            return number
    return None


class TestWinner:
    def test_first_weights_do_not_give_the_number_of_the_run_away(self, train, held_out, monkeypatch):
        always(monkeypatch, 5)
        candidates = [mlp(number).model for number in range(CANDIDATES)]
        found = search().fit(train, held_out)
        assert nearest(found.model, candidates) is None

    def test_nor_does_the_place_in_a_common_stream(self, train, held_out, monkeypatch):
        """A trainer that leaves its first weights to PyTorch's global generator, whose start everybody knows."""

        def make(seed):
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            return sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(1, 1e-5), batch_size=BATCH, steps=STEPS)

        always(monkeypatch, 5)
        torch.manual_seed(0)
        candidates = [make(0).model for _ in range(CANDIDATES)]
        torch.manual_seed(0)
        found = search(make).fit(train, held_out)
        assert nearest(found.model, candidates) is None

    def test_runs_are_drawn_alike(self, monkeypatch):
        """Configuration and seed of a run have one law, whatever its number; no two are the same function of it."""
        scheme = search()._decide(sd.tuning.Selection("private"), 400).scheme
        always(monkeypatch, 3)
        space, rng = Grid({"learning_rate": (0.1, 0.2)}), sd.random.secure()
        drawn = [plan.decide(space, scheme, [], 1, rng, None).orders for _ in range(300)]
        for number in range(3):
            seeds = {orders[number].weights for orders in drawn}
            share = sum(orders[number].configuration["learning_rate"] == 0.1 for orders in drawn) / len(drawn)
            assert len(seeds) >= 299
            assert abs(share - 0.5) < 0.15
        assert all(order.seed is None for orders in drawn for order in orders)

    def test_global_generators_are_put_back(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        with private_randomness(11):
            first = torch.rand(3)
        assert torch.equal(torch.rand(3), expected)
        with private_randomness(11):
            assert torch.equal(torch.rand(3), first)


def shape(value):
    """Plain data with every number replaced: what it looks like, not what it says."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return re.sub(r"[0-9a-f]{12,}|[0-9][0-9.e+-]*", "#", value) if isinstance(value, str) else type(value).__name__


def pictures(folder):
    """All that lies in a finished search's folder, but for values that every run has of its own."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = shape(json.loads(path.read_text()))
        elif path.name != "run.lock":
            found[name] = path.stat().st_size
    return found


class TestNumberOfRuns:
    def test_folders_look_alike_however_many_runs_there_were(self, tmp_path, train, held_out, monkeypatch):
        seen = []
        for runs in (1, 6):
            always(monkeypatch, runs)
            search(folder=tmp_path / str(runs)).fit(train, held_out)
            seen.append(pictures(tmp_path / str(runs)))
        assert seen[0] == seen[1]
        assert INTERNAL not in seen[0]

    def test_nothing_written_or_returned_tells_a_time(self, tmp_path, train, held_out, monkeypatch):
        always(monkeypatch, 4)
        found = search(folder=tmp_path / "s").fit(train, held_out)
        assert not hasattr(found, "seconds")
        assert not hasattr(found.runs[0], "seconds")
        for path in (tmp_path / "s").glob("*.json"):
            assert "seconds" not in path.read_text(), path

    def test_all_dates_are_the_beginning(self, tmp_path, train, held_out, monkeypatch):
        always(monkeypatch, 4)
        folder = tmp_path / "s"
        search(folder=folder).fit(train, held_out)
        began = json.loads((folder / "plan.json").read_text())["started"]
        for path in (folder, *folder.rglob("*")):
            assert path.stat().st_mtime == pytest.approx(began, abs=1e-3), path

    def test_the_ledger_hears_nothing_after_the_first_run_has_begun(self, tmp_path, train, held_out, monkeypatch):
        ledger = sd.Ledger(tmp_path / "ledger.db")
        ledger.create("people", sd.Budget(3, 1e-5), accountant="rdp")
        told = []

        def make(seed):
            if seed:  # a run's; 0 only looks at what the trainer is like
                told.append([(str(entry.kind), entry.time) for entry in ledger.history("people")])
            return mlp(seed)

        always(monkeypatch, 3)
        made = search(make, ledger=ledger, dataset_budget="people", folder=tmp_path / "s")
        made.fit(train, held_out)
        after = [(str(entry.kind), entry.time) for entry in ledger.history("people")]
        assert [kind for kind, _ in after] == ["create", "reserve", "settle"]
        assert len(told) >= 3
        assert all(one == after for one in told), "booked before the first run"

    def test_the_way_of_computing_does_not_depend_on_it(self, train, held_out, monkeypatch):
        """Groups, workers and threads would round differently."""
        used = []
        carry_out = search_module.carry_out

        def record(brief, groups, source, workers):
            used.append(({len(group) for group in groups}, workers, brief.stacked))
            carry_out(brief, groups, source, 1)

        monkeypatch.setattr(search_module, "carry_out", record)
        for runs in (1, 4):
            always(monkeypatch, runs)
            search(workers=2).fit(train, held_out)
        assert used == [({1}, 2, False)] * 2

    def test_what_watches_runs_is_refused(self, train, held_out):
        def make(seed):
            trainer = mlp(seed)
            trainer.callbacks = (object(),)
            return trainer

        with pytest.raises(Unsupported, match="callbacks would see"):
            search(make).fit(train, held_out)

    def test_the_thesis_means_over_seeds_are_no_best_of_runs_alike(self, train, held_out):
        with pytest.raises(Unsupported, match="take composition"):
            search(selection="thesis-test-set").fit(train, held_out)

    def test_runs_that_cost_more_than_was_paid_for_are_refused_however_they_were_drawn(self, train, held_out):
        space = sd.tuning.Random({"steps": sd.tuning.Between(2, 9, log=False)}, 4)

        def cut(configuration):
            return {"steps": round(configuration["steps"]), "learning_rate": 0.1}

        made = Search(space, mlp, sd.Budget(3, 1e-5), strategy=cut, method="random-stopping", accountant="rdp")
        with pytest.raises(Unsupported, match="all cost the same"):
            made.fit(train, held_out)

    def test_that_all_runs_failed_does_not_show(self, train, held_out, monkeypatch):
        always(monkeypatch, 3)
        monkeypatch.setattr("sordina.tuning.watchers.better", lambda *_: False)
        monkeypatch.setattr("sordina.tuning.search.better", lambda *_: False)
        found = search(selection="public").fit(train, held_out)
        assert found.score is None
        assert len(found.runs) == 1


class Interrupt:
    """Stops everything when the ``at``-th trainer is made, as a kill would."""

    def __init__(self, at):
        self.made, self.at = 0, at

    def __call__(self, seed):
        self.made += 1
        if self.made == self.at:
            raise KeyboardInterrupt
        return mlp(seed)


class TestResume:
    @pytest.mark.parametrize("at", [4, 6, 9])
    def test_a_kill_neither_redraws_the_number_nor_shortens_a_run(self, tmp_path, train, held_out, monkeypatch, at):
        always(monkeypatch, 4)
        folder = tmp_path / "s"
        with pytest.raises(KeyboardInterrupt):
            search(Interrupt(at), folder=folder).fit(train, held_out)
        sealed = json.loads((folder / INTERNAL / "orders.json").read_text())["orders"]
        assert len(sealed) == 4
        assert "orders" not in json.loads((folder / "plan.json").read_text())
        monkeypatch.setattr(plan, "draw_runs", lambda *_: pytest.fail("K was drawn again"))
        found = search(folder=folder).fit(train, held_out, resume=True)
        assert found.configuration in [order["configuration"] for order in sealed]
        assert from_dict(found.runs[0].event).count == STEPS
        assert not (folder / INTERNAL).exists()

    def test_a_kill_between_the_outcome_and_the_erasure_is_mended_by_the_next_look(
        self, tmp_path, train, held_out, monkeypatch
    ):
        always(monkeypatch, 3)
        folder = tmp_path / "s"
        with monkeypatch.context() as patch:
            patch.setattr("sordina.tuning.runner.erase", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                search(folder=folder).fit(train, held_out)
        assert (folder / INTERNAL).exists()
        search(folder=folder).fit(train, held_out, resume=True)
        assert not (folder / INTERNAL).exists()

    def test_the_choice_is_made_once(self, tmp_path, train, held_out, monkeypatch):
        always(monkeypatch, 3)
        folder, chosen = tmp_path / "s", []
        save = ChosenRun.save

        def once(self, where, *, hidden):
            save(self, where, hidden=hidden)
            chosen.append(self.number)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ChosenRun, "save", once)
            with pytest.raises(KeyboardInterrupt):
                search(folder=folder).fit(train, held_out)
        monkeypatch.setattr(search_module, "choose", lambda *_: pytest.fail("chosen again"))
        search(folder=folder).fit(train, held_out, resume=True)
        assert len(chosen) == 1

    def test_no_runs_at_all_is_an_outcome_too_and_not_drawn_again(self, tmp_path, train, held_out, monkeypatch):
        always(monkeypatch, 0)
        with pytest.raises(TrainingFailed, match="came out as 0"):
            search(folder=tmp_path / "s").fit(train, held_out)
        always(monkeypatch, 3)
        with pytest.raises(sd.errors.InvalidInput, match="came out as 0"):
            search(folder=tmp_path / "s").fit(train, held_out, resume=True)
        assert not (tmp_path / "s" / INTERNAL).exists()


class Odd(nn.Module):
    """A use of parameters for which there is no rule: the engine says so, once in every run."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return torch.stack([torch.einsum("i,ij->j", row, self.weight) for row in x])


def test_the_log_is_the_same_however_many_runs_there_were(train, held_out, monkeypatch, caplog):
    def make(seed):
        loss = nn.functional.cross_entropy
        return sd.Trainer(Odd(), loss, sd.Budget(1, 1e-5), batch_size=BATCH, steps=2, learning_rate=0.1)

    said = []
    for runs in (1, 4):
        always(monkeypatch, runs)
        caplog.clear()
        search(make).fit(train, held_out)
        said.append([(record.name, record.getMessage()) for record in caplog.records])
    assert said[0] == said[1]
    assert any("one sample at a time" in words for _, words in said[0])


def test_what_samples_mix_in_costs_a_search_nothing(train, held_out, tmp_path):
    class Nosy(Odd):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    def make(seed):
        return sd.Trainer(Nosy(), nn.functional.cross_entropy, sd.Budget(1, 1e-5), batch_size=BATCH, steps=2)

    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(3, 1e-5), accountant="rdp")
    with pytest.raises(Unsupported, match="mix"):
        search(make, folder=tmp_path / "s", ledger=ledger, dataset_budget="people").fit(train, held_out)
    assert ledger.spends() == {}
    assert not (tmp_path / "s").exists()

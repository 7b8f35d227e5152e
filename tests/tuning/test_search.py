import json
import math

import pytest
import torch
from tests.tuning.world import STEPS, conv, mlp

import sordina as sd
from sordina import tuning
from sordina.accounting import Composed, from_dict
from sordina.errors import BudgetRefused, InvalidInput
from sordina.tuning import Grid, Random, Search
from sordina.tuning.space import Between
from sordina.tuning.watchers import Behind, Best, Diverging

BUDGET = sd.Budget(3, 1e-5)
RHO = Grid({"rho": (0.1, 1.0, 10.0)})


def search(space=RHO, make=mlp, **rest):
    return Search(space, make, **{"budget": BUDGET, "strategy": "online", "accountant": "rdp", **rest})


def texts(folder):
    return "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".jsonl"))


def test_25_runs_at_epsilon_3_cost_at_most_3_end_to_end(tmp_path, train, held_out):
    """Every event comes from what ran: the result files of all runs, and the choice."""
    space = tuning.STRATEGIES["fixed-threshold"].grid(5)
    found = Search(
        space, mlp, BUDGET, strategy="fixed-threshold", method="composition", folder=tmp_path / "search"
    ).fit(train, held_out)  # fmt: skip
    results = [json.loads(path.read_text()) for path in (tmp_path / "search").glob("runs/*/result.json")]
    assert len(results) == len(found.runs) == 25
    events = [from_dict(result["event"]) for result in results]
    assert all(event.count == STEPS for event in events)
    whole = Composed((*events, found.scheme.choice))
    epsilon = sd.accounting.accountant("pld").epsilon(whole, BUDGET.delta)
    assert 0.99 * 3 <= epsilon <= 3
    assert found.guarantee.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert found.releasable
    assert found.configuration in space.configurations()


def test_a_space_that_is_none_is_told_what_one_is(train, held_out):
    with pytest.raises(InvalidInput, match=r"Grid.*not as a dict"):
        search({"rho": (0.1, 1.0)}).fit(train, held_out)


@pytest.mark.parametrize("make", [mlp, conv])
def test_private_selection_leaves_no_score_behind(tmp_path, train, held_out, make):
    found = search(make=make, method="composition", folder=tmp_path / "s").fit(train, held_out)
    written = texts(tmp_path / "s")
    assert "validation" not in written.replace("validation records", "").replace("validate_every", "")
    assert '"accuracy"' not in written
    assert found.score is None
    assert all(run.score is None for run in found.runs)
    assert not list((tmp_path / "s/runs").rglob("privacy.json")), "a run must not state a guarantee of its own"


def test_random_stopping_leaves_nothing_but_the_outcome(tmp_path, train, held_out):
    folder = tmp_path / "s"
    found = search(method="random-stopping", seed=4, folder=folder).fit(train, held_out)
    kept = ["journal.jsonl", "model.pt", "plan.json", "privacy.json", "results.json", "run.json", "run.lock"]
    assert sorted(path.name for path in folder.rglob("*")) == kept
    assert "orders" not in json.loads((folder / "plan.json").read_text())
    assert len(found.runs) == 1
    assert found.runs[0].number == found.runs[0].repetition == 0
    assert found.guarantee.epsilon <= 3
    assert json.loads(json.dumps(found.facts(), allow_nan=False)) == json.loads((folder / "results.json").read_text())


def test_labels_are_in_every_output(tmp_path, train, held_out):
    for kind, word in (("public", "PUBLIC VALIDATION DATA"), ("thesis-test-set", "TEST SET, AS IN THE THESIS")):
        folder = tmp_path / kind
        found = search(selection=kind, method="composition", folder=folder).fit(train, held_out)
        assert word in found.statement()
        assert word in (folder / "results.json").read_text()
        assert found.metric == "accuracy"
        assert found.score == max(run.score for run in found.runs)
    assert not found.releasable
    assert "NOT FOR RELEASE" in found.statement()


def test_seeds_are_paid_for_except_in_the_thesis(train, held_out):
    once = search(method="composition").fit(train, held_out)
    thrice = search(method="composition", seeds=3).fit(train, held_out)
    thesis = search(method="composition", selection="thesis-test-set", seeds=3).fit(train, held_out)
    assert thrice.scheme.noise_multiplier > once.scheme.noise_multiplier
    assert len(thrice.runs) == len(thesis.runs) == 9
    assert len(thrice.events()) == 10
    assert len(thesis.events()) == 4
    assert thesis.spread is not None
    assert thesis.scheme.noise_multiplier < once.scheme.noise_multiplier  # its choice costs nothing


def test_a_seed_repeats_the_search(train, held_out):
    first, second = (search(seed=7, method="composition").fit(train, held_out) for _ in range(2))
    assert first.configuration == second.configuration
    assert not first.releasable
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_finished_search_is_not_chosen_again(tmp_path, train, held_out):
    for method in ("composition", "random-stopping"):
        folder = tmp_path / method
        made = search(method=method, seed=1, folder=folder)
        found = made.fit(train, held_out)
        again = made.fit(train, held_out, resume=True)
        assert again.facts() == found.facts()
        for one, other in zip(found.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, other)


def test_any_trainer_field_can_vary(train, held_out):
    space = Random({"learning_rate": Between(0.1, 1.0), "steps": (2, 4)}, runs=4)
    found = search(space, strategy=None, seed=0).fit(train, held_out)
    steps = {from_dict(run.event).count for run in found.runs}
    assert found.scheme.method == "composition"  # runs that cost differently
    assert steps <= {2, 4}
    assert found.guarantee.epsilon <= 3


def test_a_strategy_can_be_a_function(train, held_out):
    found = search(Grid({"x": (1, 2)}), strategy=lambda point: {"learning_rate": 0.1 * point["x"]}, seed=0).fit(
        train, held_out
    )
    assert found.configuration["x"] in (1, 2)


def test_without_privacy_only_exact_selection_and_it_says_so(train, held_out):
    found = search(budget=sd.Budget(math.inf, 1e-5), selection="public").fit(train, held_out)
    assert found.statement().startswith("NOT PRIVATE")
    assert found.facts()["epsilon"] is None


class TestLedger:
    def ledger(self, tmp_path, epsilon):
        ledger = sd.Ledger(tmp_path / "ledger.db")
        ledger.create("people", sd.Budget(epsilon, 1e-5), accountant="rdp")
        return ledger

    @pytest.mark.parametrize("method", ["composition", "random-stopping"])
    def test_one_reservation_covers_all_runs(self, tmp_path, train, held_out, method):
        ledger = self.ledger(tmp_path, 3)
        found = search(method=method, seed=2, ledger=ledger, dataset_budget="people").fit(train, held_out)
        entries = [str(entry.kind) for entry in ledger.history("people")]
        assert entries == ["create", "reserve", "settle"]
        assert ledger.spent("people") == pytest.approx(found.guarantee.epsilon)

    def test_a_search_that_does_not_fit_touches_nothing(self, tmp_path, train, held_out):
        ledger = self.ledger(tmp_path, 2.5)

        def never(seed):
            assert seed == 0
            return mlp(seed)

        with pytest.raises(BudgetRefused):
            search(make=never, ledger=ledger, dataset_budget="people", folder=tmp_path / "s").fit(train, held_out)
        assert not (tmp_path / "s").exists()
        assert ledger.spent("people") == 0


class TestStopping:
    def test_weights_that_explode_end_a_run_at_full_price(self, tmp_path, train, held_out):
        space = Grid({"rho": (1e6,), "C": (100.0,)})
        found = search(
            space, conv, strategy="fixed-threshold", selection="public", folder=tmp_path / "s"
        ).fit(train, held_out)  # fmt: skip
        assert found.runs[0].stopped == "diverged"
        assert from_dict(found.runs[0].event).count == STEPS

    def test_patience_ends_a_run_that_no_longer_improves(self, tmp_path):
        model = torch.nn.Linear(1, 1)
        best = Best(model, tmp_path / "best.pt", patience=2)
        for step, accuracy in enumerate((0.5, 0.6, 0.6)):
            best.report({"step": step, "validation": {"accuracy": accuracy}})
        with pytest.raises(sd.training.StopTraining):
            best.report({"step": 3, "validation": {"accuracy": 0.59}})
        assert (best.value, best.step, best.stopped) == (0.6, 1, True)

    def test_a_run_behind_half_of_the_others_at_the_same_step_is_ended(self, tmp_path):
        def leave(number, scores, inside=""):
            folder = tmp_path / f"{number:04d}" / inside
            folder.mkdir(parents=True)
            lines = [{"step": 10 * step, "validation": {"accuracy": one}} for step, one in enumerate(scores, 1)]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [{"step": 1}, *lines])) + '\n{"torn')

        for number, second in enumerate((0.5, 0.6, 0.7)):
            leave(number, (0.1, second))
        leave(3, (0.9, 0.4, 0.4), inside="training")  # goes on; its best score at step 20 is 0.9
        leave(4, (0.99,))  # has not come to step 20: counts for who was at step 10 before, where that one had 0.995
        leave(5, (0.995,))
        mine = Behind(tmp_path / "0005", 0.5)
        mine.report({"step": 20, "loss": 1.0})
        mine.report({"step": 20, "validation": {"accuracy": 0.3}})  # 0.995 at its best
        assert not mine.stopped
        other = Behind(tmp_path / "0006", 0.5)
        with pytest.raises(sd.training.StopTraining):
            other.report({"step": 20, "validation": {"accuracy": 0.55}})
        assert other.stopped
        Behind(tmp_path / "0007", 0.8).report({"step": 20, "validation": {"accuracy": 0.55}})
        Behind(tmp_path / "0008", 0.5).report({"step": 30, "validation": {"accuracy": 0.0}})  # one other came so far
        with pytest.raises(sd.training.StopTraining):
            Behind(tmp_path / "0008", 0.5, after=1).report({"step": 30, "validation": {"accuracy": 0.0}})

    def test_of_two_runs_in_step_the_one_ahead_in_steps_may_be_ended_too(self, tmp_path):
        for number, scores in enumerate([(0.5,), (0.4,)]):
            (tmp_path / f"{number}").mkdir()
            (tmp_path / f"{number}/metrics.jsonl").write_text(
                "\n".join(json.dumps({"step": 10, "validation": {"accuracy": one}}) for one in scores)
            )
        Behind(tmp_path / "0", 0.5, after=1).report({"step": 20, "validation": {"accuracy": 0.1}})
        with pytest.raises(sd.training.StopTraining):
            Behind(tmp_path / "1", 0.5, after=1).report({"step": 20, "validation": {"accuracy": 0.45}})

    @pytest.mark.parametrize("make", [conv, mlp])  # one by one, and stacked
    def test_a_pruned_search_pays_for_all_and_chooses_the_same(self, tmp_path, train, held_out, make):
        space = Grid({"rho": (0.001, 0.01, 0.03, 0.1, 0.3, 1.0), "C": (1.0,)})

        def found(**changes):
            return search(
                space, make, strategy="fixed-threshold", selection="public", metric="log_loss", validate_every=2,
                seed=3, **changes
            ).fit(train, held_out)  # fmt: skip

        whole, pruned = found(method="composition"), found(prune=0.5, folder=tmp_path / "s")
        ended = [run for run in pruned.runs if run.stopped]
        assert {run.stopped for run in ended} == {"behind the others"}
        assert 1 <= len(ended) <= 5
        assert all(from_dict(run.event).count == STEPS for run in pruned.runs)
        assert pruned.guarantee.epsilon == whole.guarantee.epsilon
        assert pruned.configuration == whole.configuration == {"rho": 1.0, "C": 1.0}

    def test_a_pruned_grid_begins_at_the_points_given(self, tmp_path, train, held_out):
        axes = Grid({"rho": (0.001, 0.01, 0.1, 1.0), "C": (1.0,)})
        space = tuning.GridFrom(axes, ({"rho": 0.9, "C": 1.0},))
        found = search(
            space, conv, strategy="fixed-threshold", selection="public", metric="log_loss", validate_every=2, seed=3,
            prune=0.25, folder=tmp_path / "s",
        ).fit(train, held_out)  # fmt: skip
        began = {path.parent: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("runs/*/result.json")}
        first = json.loads((min(began, key=began.get) / "result.json").read_text())
        assert first["configuration"] == {"rho": 1.0, "C": 1.0} == found.configuration
        assert first["stopped"] is None

    def test_best_remembers_across_a_kill(self, tmp_path):
        model = torch.nn.Linear(1, 1)
        Best(model, tmp_path / "best.pt").report({"step": 4, "validation": {"loss": 0.2}})
        kept = model.weight.clone()
        with torch.no_grad():
            model.weight.zero_()
        again = Best(model, tmp_path / "best.pt")
        again.report({"step": 5, "validation": {"loss": 0.3}})
        again.recall()
        assert (again.value, again.step) == (0.2, 4)
        assert torch.equal(model.weight, kept)

    def test_ordinary_training_is_no_divergence(self):
        model = torch.nn.Linear(100, 100)
        watcher = Diverging(model)
        with torch.no_grad():
            model.weight.mul_(50)
        watcher.report({})
        with torch.no_grad():
            model.weight.fill_(math.nan)
        with pytest.raises(sd.training.StopTraining):
            watcher.report({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selection": "peek"}, "unknown selection"),
        ({"strategy": "offline"}, "unknown strategy"),
        ({"seeds": 0}, "at least 1"),
        ({"workers": 0}, "at least 1"),
        ({"patience": 3}, "does not reveal"),
        ({"prune": 0.5}, "does not reveal"),
        ({"prune": 1.0, "selection": "public"}, "between 0 and 1"),
        (
            {"prune": 0.5, "selection": "public", "strategy": None, "space": Grid({"batch_size": (20, 50)})},
            "schedules of their own",
        ),
        ({"prune": 0.5, "selection": "public", "method": "random-stopping"}, "each run by itself"),
        ({"dataset_budget": "people"}, "go together"),
        ({"method": "hope"}, "no search method"),
    ],
)
def test_refusals(train, held_out, change, message):
    with pytest.raises(InvalidInput, match=message):
        search(**change).fit(train, held_out)


def test_folders_are_not_mixed_up(tmp_path, train, held_out):
    folder = tmp_path / "s"
    with pytest.raises(InvalidInput, match="holds no run to resume"):
        search(folder=folder).fit(train, held_out, resume=True)
    with pytest.raises(InvalidInput, match="needs the folder"):
        search().fit(train, held_out, resume=True)
    search(folder=folder, seed=1, method="composition").fit(train, held_out)
    with pytest.raises(InvalidInput, match="holds a run already"):
        search(folder=folder, seed=1).fit(train, held_out)
    with pytest.raises(InvalidInput, match="seed was 1, now 2"):
        search(folder=folder, seed=2, method="composition").fit(train, held_out, resume=True)


def test_lazy_names():
    assert sd.Search is Search
    assert sd.tuning is tuning

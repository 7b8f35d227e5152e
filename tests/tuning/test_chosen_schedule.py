"""A search whose trainer states no schedule: chosen once, from public facts, for what one run may cost."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tuning.world import ROWS, conv, mlp

import sordina as sd
from sordina.accounting import Composed, from_dict
from sordina.errors import InvalidInput
from sordina.sampling import Users
from sordina.training import planned_schedule
from sordina.tuning import Grid, Search, parallel_runs
from sordina.tuning.chosen_schedule import ChosenSchedule, choose_schedule, configured
from sordina.tuning.comparison import ComparisonPlan, NamedTask, compare
from sordina.tuning.plan import Decision
from sordina.tuning.selection import Selection

BUDGET = sd.Budget(3, 1e-5)
RHO = Grid({"rho": (0.1, 1.0, 10.0)})


def unstated(seed):
    return replace(mlp(seed), batch_size=None, epochs=None, steps=None)


def one_epoch(seed):
    """Few steps: only the batch size is open."""
    return replace(mlp(seed), batch_size=None, epochs=1, steps=None)


def one_epoch_apart(seed):
    return replace(conv(seed), batch_size=None, epochs=1, steps=None)


def search(make=unstated, space=RHO, **rest):
    return Search(space, make, **{"budget": BUDGET, "strategy": "online", "accountant": "rdp", "seed": 1, **rest})


def decided(size=20_000, **rest):
    made = search(**rest)
    return made._decide(Selection("private"), size)


def samplers(found):
    """Rate and number of steps of every run, from the events that ran."""
    events = [from_dict(run.event) for run in found.runs]
    return {(event.event.rate, event.count) for event in events}


class TestOneRunsShare:
    def test_the_schedule_is_that_of_the_share_and_not_of_the_whole_budget(self, monkeypatch):
        """The noise of the search, at this schedule, gives every run about the epsilon that it was chosen for."""
        asked = []

        def watched(budget, *facts, **rest):
            asked.append(budget.epsilon)
            return planned_schedule(budget, *facts, **rest)

        monkeypatch.setattr("sordina.tuning.chosen_schedule.planned_schedule", watched)
        scheme = decided(method="composition", space=Grid({"rho": tuple(0.1 * k for k in range(1, 17))})).scheme
        chosen = scheme.chosen
        assert asked[0] == BUDGET.epsilon
        assert asked[-1] == chosen.epsilon_of_a_run < BUDGET.epsilon / 3
        run = scheme.event.events[0].event
        assert sd.accounting.accountant("rdp").epsilon(run, BUDGET.delta) == pytest.approx(asked[-1], rel=0.1)

    def test_more_runs_get_less(self):
        shares = [
            decided(space=Grid({"rho": tuple(0.1 * k for k in range(1, count + 1))})).scheme.chosen.epsilon_of_a_run
            for count in (1, 5, 25)
        ]
        assert shares[0] > 0.9 * BUDGET.epsilon
        assert shares[0] > 1.2 * shares[1] > 1.4 * shares[2]

    def test_a_smaller_share_chooses_another_schedule(self):
        wide = replace(unstated(0), model=torch.nn.Linear(608, 10))
        assert choose_schedule(wide, BUDGET, 1293, 3.0).epochs == 40
        assert choose_schedule(wide, BUDGET, 1293, 1.9).epochs == 20

    def test_a_share_of_nothing_is_no_error(self):
        assert choose_schedule(unstated(0), BUDGET, 1000, 0.0).epsilon_of_a_run == BUDGET.epsilon / 1000

    def test_without_a_budget(self, train, held_out):
        found = search(one_epoch, budget=sd.Budget(float("inf"), 1e-5), selection="public").fit(train, held_out)
        assert found.scheme.chosen == ChosenSchedule(256, 1, None)
        assert str(found.scheme.chosen) == "batch size 256 over 1 epochs, chosen from public facts"
        json.dumps(found.facts(), allow_nan=False)

    def test_it_says_what_was_chosen_and_for_what(self):
        said = "batch size 64 over 20 epochs, chosen from public facts; one run may cost epsilon 1.92"
        assert str(ChosenSchedule(64, 20.0, 1.917)) == said
        assert str(ChosenSchedule(64, None, 1.0)).startswith("batch size 64, chosen")


class TestPublicFacts:
    def test_no_value_of_the_data_counts(self, train, held_out):
        other = (1000 * torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long))
        both = [search(one_epoch, method="composition").fit(rows, held_out).scheme for rows in (train, other)]
        assert both[0] == both[1]
        assert both[0].chosen is not None

    def test_of_a_stated_population_the_number_of_rows_does_not_count(self):
        def stated(seed):
            return replace(unstated(seed), population=20_000)

        few, many, unsaid = decided(300, make=stated), decided(90_000, make=stated), decided(90_000)
        assert few.scheme == many.scheme
        assert few.scheme.chosen != unsaid.scheme.chosen

    def test_of_users_their_number_counts(self):
        def persons(seed):
            owners = np.repeat(np.arange(2000), 10)
            return replace(unstated(seed), users=Users(owners, rows_per_user=10))

        own = search(persons, selection="public")._decide(Selection("public"), 20_000).scheme
        assert own.chosen.batch_size <= 1000
        assert own.event != decided().scheme.event


class TestEveryRun:
    @pytest.mark.parametrize(("make", "workers"), [(one_epoch, 1), (one_epoch_apart, 1), (one_epoch_apart, 2)])
    def test_stacked_runs_workers_and_runs_one_by_one_see_the_same(
        self, tmp_path, train, held_out, monkeypatch, make, workers
    ):
        """A schedule that no run would choose by itself, nor a worker, which is another process."""
        monkeypatch.setattr("sordina.tuning.chosen_schedule.planned_schedule", lambda *_, **__: (50, 1.0))
        found = search(make, method="composition", workers=workers, folder=tmp_path / "s").fit(train, held_out)
        assert len(found.runs) == 3
        assert samplers(found) == {(50 / ROWS, ROWS // 50)}
        assert found.facts()["schedule"] == json.loads((tmp_path / "s/results.json").read_text())["schedule"]
        assert found.facts()["schedule"]["batch_size"] == 50

    @pytest.mark.parametrize("method", ["composition", "random-stopping"])
    def test_the_events_that_ran_stay_within_the_budget(self, train, held_out, method):
        found = search(method=method, accountant="pld").fit(train, held_out)
        chosen = found.scheme.chosen
        assert samplers(found) == {(chosen.batch_size / ROWS, round(chosen.epochs * ROWS / chosen.batch_size))}
        assert 0.99 * 3 <= found.guarantee.epsilon <= 3
        if method == "composition":
            whole = Composed((*(from_dict(run.event) for run in found.runs), found.scheme.choice))
            assert 0.99 * 3 <= sd.accounting.accountant("pld").epsilon(whole, BUDGET.delta) <= 3


class TestStatedValuesWin:
    @pytest.mark.parametrize("stated", [{"batch_size": 37}, {"epochs": 3.0}, {"steps": 11}])
    def test_what_the_trainer_states_is_kept(self, stated):
        scheme = decided(make=lambda seed: replace(unstated(seed), **stated), method="composition").scheme
        run = scheme.event.events[0].event
        size = stated.get("batch_size", scheme.chosen.batch_size)
        assert run.event.rate == size / 20_000
        assert run.count == stated.get("steps", round(stated.get("epochs", scheme.chosen.epochs or 0) * 20_000 / size))

    def test_who_states_both_is_told_of_no_choice(self, tmp_path, train, held_out):
        found = search(mlp, folder=tmp_path / "s").fit(train, held_out)
        assert found.scheme.chosen is None
        assert "schedule" not in found.facts()
        assert "chosen" not in json.loads((tmp_path / "s/plan.json").read_text())["scheme"]

    def test_a_configuration_that_sets_its_own_wins_and_none_takes_the_chosen_one(self, train, held_out):
        space = Grid({"batch_size": (40, 80, None), "learning_rate": (0.1,)})
        found = search(one_epoch, space, strategy=None).fit(train, held_out)
        own = found.scheme.chosen.batch_size
        assert own not in (40, 80)
        assert samplers(found) == {(size / ROWS, round(ROWS / size)) for size in (40, 80, own)}
        assert found.guarantee.epsilon <= 3
        assert configured(mlp(0), None, {"batch_size": None}).batch_size == mlp(0).batch_size


class TestResuming:
    @pytest.mark.parametrize("method", ["composition", "random-stopping"])
    def test_a_search_that_was_stopped_goes_on_with_the_schedule_on_disk(
        self, tmp_path, train, held_out, monkeypatch, method
    ):
        """Even if the rule that chooses were another by then."""
        made = search(one_epoch_apart, method=method, folder=tmp_path / "s", seed=2)
        calls, perform = [], parallel_runs.perform

        def interrupted(*given):
            calls.append(given)
            if len(calls) == 2:
                raise KeyboardInterrupt
            perform(*given)

        monkeypatch.setattr(parallel_runs, "perform", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.fit(train, held_out)
        monkeypatch.setattr(parallel_runs, "perform", perform)
        begun = json.loads((tmp_path / "s/plan.json").read_text())["scheme"]["chosen"]
        monkeypatch.setattr("sordina.tuning.chosen_schedule.planned_schedule", lambda *_, **__: (17, 2.0))
        found = made.fit(train, held_out, resume=True)
        assert found.scheme.chosen == ChosenSchedule(**begun)
        assert found.scheme.chosen.batch_size != 17
        assert samplers(found) == {(begun["batch_size"] / ROWS, round(ROWS / begun["batch_size"]))}
        assert made.fit(train, held_out, resume=True).facts() == found.facts()

    def test_stating_what_was_chosen_is_another_search(self, tmp_path, train, held_out):
        found = search(one_epoch, method="composition", folder=tmp_path / "s").fit(train, held_out)
        stated = search(
            lambda seed: replace(one_epoch(seed), batch_size=found.scheme.chosen.batch_size),
            method="composition", folder=tmp_path / "s",
        )  # fmt: skip
        with pytest.raises(InvalidInput, match="trainer"):
            stated.fit(train, held_out, resume=True)

    def test_a_damaged_schedule_is_refused(self, tmp_path, train, held_out):
        made = search(one_epoch, method="composition", folder=tmp_path / "s")
        made.fit(train, held_out)
        path = tmp_path / "s/plan.json"
        for damage in ({"batch_size": "many"}, {"epochs": -1}, {"colour": 1}):
            plan = json.loads(path.read_text())
            plan["scheme"]["chosen"] |= damage
            changed = tmp_path / "changed"
            changed.mkdir(exist_ok=True)
            (changed / "plan.json").write_text(json.dumps(plan))

            class Folder:
                path, finished = changed, True

                def has(self, name):
                    return True

            with pytest.raises(InvalidInput):
                Decision.load(Folder())


class TestNamedTasks:
    @pytest.mark.parametrize("options", [(), (("averaging", "tail"),)])
    def test_what_is_left_open_is_the_searchs_to_choose(self, tmp_path, options):
        """A recipe, which techniques come from, would choose one as well, for a budget without end."""
        task = NamedTask("digits", "mlp", None, 1.0, hold_out=0.2, rows=300, options=options)
        assert (task.trainer(0).batch_size, task.trainer(0).epochs) == (None, 1.0)
        assert replace(task, epochs=None).trainer(0).epochs is None
        plan = ComparisonPlan(task, ["online", "automatic"], [3.0], granularity=2, method="composition", seed=1)
        found = compare(plan, tmp_path)
        online, automatic = (entry.outcome for entry in found.entries)
        assert online.scheme.chosen.epsilon_of_a_run < automatic.scheme.chosen.epsilon_of_a_run
        chosen = online.facts()["schedule"]
        assert chosen["epochs"] == 1.0
        assert {from_dict(run.event).count for run in online.runs} == {round(240 / chosen["batch_size"])}
        assert all(entry.outcome.guarantee.epsilon <= 3 for entry in found.entries)
        assert compare(plan, tmp_path, resume=True).facts() == found.facts()

    def test_the_defaults_stay(self):
        assert (NamedTask("digits").batch_size, NamedTask("digits").epochs) == (512, 10.0)
        for wrong in ({"batch_size": 0}, {"epochs": 0.0}):
            with pytest.raises(InvalidInput, match=next(iter(wrong))):
                NamedTask("digits", **wrong)

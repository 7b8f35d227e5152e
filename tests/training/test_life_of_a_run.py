"""What a run may not do in its life: resume as another, twice at once, with another ledger, fit twice, hide a loss."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from torch.nn import functional as F

import sordina as sd
from sordina.accounting.ledger import Status
from sordina.errors import InvalidInput, TrainingFailed
from sordina.journal import pack
from sordina.private_files import FolderInUse
from sordina.run_folder import CHECKPOINT, JOURNAL, MODEL, PRIVACY, RUN


def trainer(model, **rest):
    options = {
        "clipping": sd.clipping.Fixed(1.0),
        "batch_size": 20,
        "steps": 20,
        "learning_rate": 0.5,
        "noise_multiplier": 3.0,
    }
    budget = rest.pop("budget", sd.Budget(6, 1e-5))
    return sd.Trainer(model, F.cross_entropy, budget, **(options | rest))


class StopAt:
    """Ends a run by an error after ``step`` steps."""

    def __init__(self, step, error=KeyboardInterrupt):
        self.step, self.error = step, error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        if entry["step"] >= self.step:
            raise self.error


@pytest.fixture
def ledger(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(9, 1e-5))
    return ledger


def interrupted(model, data, step=5, **options):
    with pytest.raises(KeyboardInterrupt):
        trainer(model, callbacks=[StopAt(step)], **options).fit(data)


@pytest.mark.parametrize(
    "changed",
    [
        {"budget": sd.Budget(0.5, 1e-5), "noise_multiplier": None}, {"budget": sd.Budget(5, 1e-5)}, {"steps": 19},
        {"noise_multiplier": 4.0}, {"batch_size": 10}, {"clipping": sd.clipping.Fixed(2.0)}, {"learning_rate": 0.1},
        {"seed": 0},
        {"sampling": "fixed-size"}, {"population": 200}, {"accountant": "rdp"}, {"microbatch": 5}, {"raw": True},
        {"recipe": {"dataset": "other"}}, {"autocast": torch.bfloat16},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("saved", [False, True], ids=["before a checkpoint", "after"])
def test_changed_settings_are_refused_also_before_the_first_checkpoint(
    make_model, data, tmp_path, ledger, changed, saved
):
    options = {"folder": tmp_path / "run", "ledger": ledger, "dataset_budget": "people"}
    interrupted(make_model(), data, checkpoint_every=2 if saved else 1000, **options)
    assert (tmp_path / "run" / CHECKPOINT).exists() is saved
    before = ledger.spent("people")
    with pytest.raises(InvalidInput, match="belongs to another run"):
        trainer(make_model(), **(options | changed)).fit(data, resume=True)
    assert ledger.spent("people") == before


def test_other_data_are_another_run(make_model, data, tmp_path):
    interrupted(make_model(), data, folder=tmp_path / "run")
    with pytest.raises(InvalidInput, match="data was"):
        trainer(make_model(), folder=tmp_path / "run", population=100).fit((data[0][:90], data[1][:90]), resume=True)


def test_another_ledger_settles_nobody(make_model, data, tmp_path, ledger):
    folder = tmp_path / "run"
    interrupted(make_model(), data, folder=folder, ledger=ledger, dataset_budget="people")
    other = sd.Ledger(tmp_path / "other.db")
    other.create("people", sd.Budget(9, 1e-5))
    stranger = other.reserve("people", sd.accounting.Gaussian(1.0), what="somebody else's")
    for wrong in ({"ledger": other, "dataset_budget": "people"}, {}):
        with pytest.raises(InvalidInput, match=r"belongs to another run .ledger was"):
            trainer(make_model(), folder=folder, **wrong).fit(data, resume=True)
    assert not stranger.settled
    assert [str(spend.status) for spend in other.spends().values()] == ["open"]
    moved = (tmp_path / "ledger.db").rename(tmp_path / "moved.db")
    trainer(make_model(), folder=folder, ledger=sd.Ledger(moved), dataset_budget="people").fit(data, resume=True)


def test_a_run_without_a_ledger_is_not_given_one_later(make_model, data, tmp_path, ledger):
    interrupted(make_model(), data, folder=tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"belongs to another run .ledger was None"):
        trainer(make_model(), folder=tmp_path / "run", ledger=ledger, dataset_budget="people").fit(data, resume=True)
    assert ledger.spent("people") == 0


def test_a_reservation_made_just_before_the_kill_is_found_again(make_model, data, tmp_path, ledger, monkeypatch):
    from sordina.run_folder import RunFolder

    options = {"folder": tmp_path / "run", "ledger": ledger, "dataset_budget": "people"}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "keep_reservation", killed)
    monkeypatch.setattr(RunFolder, "forget", RunFolder.close)
    with pytest.raises(KeyboardInterrupt):
        trainer(make_model(), **options).fit(data)
    monkeypatch.undo()
    run = trainer(make_model(), **options).fit(data, resume=True)
    assert len(ledger.spends()) == 1
    assert ledger.spent("people") == pytest.approx(run.epsilon)


def test_a_released_reservation_ends_the_run(make_model, data, tmp_path, ledger):
    options = {"folder": tmp_path / "run", "ledger": ledger, "dataset_budget": "people"}
    interrupted(make_model(), data, **options)
    ledger.release(2, why="thought to be dead")
    with pytest.raises(InvalidInput, match="was released"):
        trainer(make_model(), **options).fit(data, resume=True)


class TryToJoin(StopAt):
    """Resumes the same folder from inside the run."""

    def __init__(self, start):
        self.start, self.refused = start, []

    def report(self, entry):
        with pytest.raises(FolderInUse) as refused:
            self.start()
        self.refused.append(refused.value)


def test_two_cannot_hold_one_folder(make_model, data, tmp_path):
    join = TryToJoin(lambda: trainer(make_model(), folder=tmp_path / "run").fit(data, resume=True))
    run = trainer(make_model(), folder=tmp_path / "run", callbacks=[join]).fit(data)
    assert run.steps == 20
    assert len(join.refused) == 20
    assert join.refused[0].exit_code == 2


def test_a_trainer_fits_once(model, data):
    one = trainer(model)
    one.fit(data)
    with pytest.raises(InvalidInput, match="fitted already"):
        one.fit(data)


def test_a_second_run_on_the_same_model_says_so(model, data, make_model):
    first = trainer(model).fit(data)
    second = trainer(model).fit(data)
    assert "for the last run alone" in second.statement()
    assert any(str(first.guarantee) in caveat for caveat in second.caveats)
    assert "for the last run alone" not in first.statement()
    assert "for the last run alone" not in trainer(make_model()).fit(data).statement()


def test_a_torn_journal_never_gives_steps_back(make_model, data, tmp_path):
    folder = tmp_path / "run"
    interrupted(make_model(), data, folder=folder, steps=200)
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"claim')
    drawn = []
    for step in (50, 100, 300):
        torn = trainer(make_model(), folder=folder, steps=200, callbacks=[StopAt(step)])
        try:
            run = torn.fit(data, resume=True)
        except KeyboardInterrupt:
            with (folder / JOURNAL).open("ab") as file:
                file.write(pack({"claimed": 1})[:9])
            continue
        drawn.append(run.steps)
    assert drawn == [200]


def test_what_was_lost_is_said(make_model, data, tmp_path, caplog):
    folder = tmp_path / "run"
    interrupted(make_model(), data, step=60, folder=folder, steps=200, checkpoint_every=50)
    with caplog.at_level(logging.WARNING):
        run = trainer(make_model(), folder=folder, steps=200, checkpoint_every=50).fit(data, resume=True)
    assert 10 <= run.lost_steps <= 35
    assert f"{run.lost_steps} of 200 steps were lost" in caplog.text
    assert json.loads((folder / PRIVACY).read_text())["lost_steps"] == run.lost_steps
    assert any("lost" in caveat for caveat in run.caveats)


@pytest.mark.parametrize("steps", [28, 100, 449])
def test_a_short_run_loses_little(make_model, data, tmp_path, steps):
    folder = tmp_path / "run"
    options = {"steps": steps, "noise_multiplier": 9.0, "track_epsilon": False, "tensorboard": False}
    interrupted(make_model(), data, step=steps // 2, folder=folder, **options)
    run = trainer(make_model(), folder=folder, **options).fit(data, resume=True)
    assert run.steps == steps
    assert run.lost_steps <= max(2, 0.1 * steps)


def test_no_untrained_model_at_full_price(make_model, data, tmp_path, ledger):
    folder = tmp_path / "run"
    options = {"folder": folder, "ledger": ledger, "dataset_budget": "people", "checkpoint_every": 1000}
    interrupted(make_model(), data, step=20, **options)
    assert not (folder / CHECKPOINT).exists()
    with pytest.raises(TrainingFailed, match="there is no model"):
        trainer(make_model(), **options).fit(data, resume=True)
    assert not (folder / MODEL).exists()
    assert not ledger.statement("people").having(Status.OPEN)
    assert ledger.spent("people") > 0
    with pytest.raises(InvalidInput, match="there is no model"):
        trainer(make_model(), **options).fit(data, resume=True)


def test_a_finished_run_is_read_and_not_taken_further(make_model, data, tmp_path, ledger):
    options = {"folder": tmp_path / "run", "ledger": ledger, "dataset_budget": "people"}
    first = make_model()
    run = trainer(first, **options).fit(data)
    journal, model = (tmp_path / "run" / JOURNAL).read_bytes(), make_model()
    again = trainer(model, **options).fit(data, resume=True)
    assert again.epsilon == run.epsilon
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), model.parameters(), strict=True))
    assert (tmp_path / "run" / JOURNAL).read_bytes() == journal


@pytest.mark.parametrize("damage", [b"", b"\x80\x04junk", b"PK\x03\x04 broken"])
def test_a_damaged_checkpoint_is_told_in_one_line(make_model, data, tmp_path, damage):
    folder = tmp_path / "run"
    interrupted(make_model(), data, folder=folder, checkpoint_every=2)
    (folder / CHECKPOINT).write_bytes(damage)
    with pytest.raises(InvalidInput, match="the checkpoint is damaged"):
        trainer(make_model(), folder=folder, checkpoint_every=2).fit(data, resume=True)


def test_a_checkpoint_of_another_run_is_refused(make_model, data, tmp_path):
    for name in ("a", "b"):
        interrupted(make_model(), data, folder=tmp_path / name, checkpoint_every=2)
    (tmp_path / "a" / CHECKPOINT).replace(tmp_path / "b" / CHECKPOINT)
    with pytest.raises(InvalidInput, match="another run"):
        trainer(make_model(), folder=tmp_path / "b", checkpoint_every=2).fit(data, resume=True)


def test_a_refused_budget_leaves_the_folder_free(make_model, data, tmp_path, ledger):
    with pytest.raises(sd.errors.BudgetRefused):
        trainer(
            make_model(), budget=sd.Budget(50, 1e-5), noise_multiplier=0.6, folder=tmp_path / "run", ledger=ledger,
            dataset_budget="people",
        ).fit(data)  # fmt: skip
    assert not (tmp_path / "run" / RUN).exists()


@pytest.mark.parametrize("saved", [False, True], ids=["before a checkpoint", "after"])
def test_a_copied_folder_is_not_a_second_run_on_one_reservation(make_model, data, tmp_path, ledger, saved):
    """Both copies would draw the remaining steps with fresh noise, and one reservation would pay for both."""
    options = {"ledger": ledger, "dataset_budget": "people", "checkpoint_every": 2 if saved else 1000, "steps": 100}
    interrupted(make_model(), data, folder=tmp_path / "run", **options)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    trainer(make_model(), folder=tmp_path / "run", **options).fit(data, resume=True)
    before = (tmp_path / "copy" / JOURNAL).read_bytes()
    with pytest.raises(InvalidInput, match="settled already"):
        trainer(make_model(), folder=tmp_path / "copy", **options).fit(data, resume=True)
    assert (tmp_path / "copy" / JOURNAL).read_bytes() == before
    assert not (tmp_path / "copy" / PRIVACY).exists()


def test_a_copy_that_ran_at_the_same_time_gives_out_no_model(make_model, data, tmp_path, ledger):
    options = {"ledger": ledger, "dataset_budget": "people", "steps": 100}
    interrupted(make_model(), data, folder=tmp_path / "run", **options)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    class OtherEnds(StopAt):
        def report(self, entry):
            if entry["step"] == self.step:
                trainer(make_model(), folder=tmp_path / "run", **options).fit(data, resume=True)

    with pytest.raises(InvalidInput, match="settled already"):
        trainer(make_model(), folder=tmp_path / "copy", callbacks=[OtherEnds(90)], **options).fit(data, resume=True)
    assert not (tmp_path / "copy" / MODEL).exists()
    assert not (tmp_path / "copy" / PRIVACY).exists()


def test_a_forked_process_does_not_draw_the_runs_steps_too():
    """Both would go on, each with noise of its own, and the account would know of one."""
    model = torch.nn.Linear(5, 2)
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.zeros(20, 5), torch.zeros(20).long()),
        budget=sd.Budget(3, 1e-5), batch_size=5, steps=3, noise_multiplier=9.0,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(InvalidInput, match="forked"):
            next(iter(private))
    assert private.steps_taken == 0

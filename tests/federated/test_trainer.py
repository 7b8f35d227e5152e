"""`FederatedTrainer`: any module, loss and form of data; the command line's path; a folder, a ledger, a guarantee."""

import json
import logging
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import sordina as sd
from sordina import federated as fed
from sordina.federated.run_keeper import FederationKeeper
from sordina.run_folder import FolderState, state_of

LAW = torch.tensor([[1.0], [-2.0], [0.5]])


def rows(number, seed=0):
    x = torch.randn(number, 3, generator=torch.Generator().manual_seed(seed))
    return x, x @ LAW


def hospitals(count=6, number=30):
    return {f"hospital {index}": rows(number + index, index) for index in range(count)}


def trainer(privacy=None, **options):
    torch.manual_seed(0)
    options = {"algorithm": fed.FedAvg(learning_rate=0.1, batch_size=8), "rounds": 4, **options}
    model = options.pop("model", None) or nn.Linear(3, 1)
    return fed.FederatedTrainer(
        model, loss=options.pop("loss", F.mse_loss), privacy=privacy or fed.NoPrivacy(), **options
    )


ALGORITHMS = (
    fed.FedSGD, fed.FedAvg, fed.FedProx, fed.Scaffold, fed.FedDyn, fed.FSVRG, fed.SubFedAvg, fed.MeanRegularised,
    fed.PerFedAvg, fed.GraphRegularised, fed.FedEM, fed.IFCA, fed.MetricPFL,
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.__name__)
def test_every_algorithm_trains_and_gives_every_client_a_model(algorithm):
    result = trainer(algorithm=algorithm(), rounds=3, model=nn.Linear(3, 1, bias=False)).fit(
        hospitals(), validation=rows(20, 99)
    )
    assert [entry["round"] for entry in result.history] == [1, 2, 3]
    assert all(math.isfinite(entry["validation_loss"]) for entry in result.history)
    assert set(result.personal_models) == set(hospitals())
    assert result.personal_models["hospital 3"](rows(5)[0]).shape == (5, 1)
    assert result.models[0](rows(5)[0]).shape == (5, 1)
    assert "No privacy" in str(result.guarantee)


@pytest.mark.parametrize(
    "privacy",
    [
        fed.CentralDP(sd.Budget(8, 1e-3)),
        fed.CentralDP(sd.Budget(8, 1e-3), clipping=sd.clipping.Quantile(threshold=1.0)),
        fed.LocalDP(sd.Budget(8, 1e-3)),
        fed.RecordDP(sd.Budget(8, 1e-3), records=30),
        fed.MetricDP(5.0, radius=1.0, leakage_limit=2.0),
    ],
    ids=["central", "quantile", "local", "record", "metric"],
)
def test_every_privacy_states_its_guarantee_and_keeps_accounts_by_name(privacy):
    result = trainer(privacy).fit(hospitals())
    assert result.releasable
    if privacy.name == "central":
        assert result.epsilon <= 8
        assert result.accounts == {}, "who took part is a secret"
        assert not any("answered" in entry for entry in result.history)
        return
    assert set(result.accounts) == set(hospitals())
    one = result.accounts["hospital 0"]
    if privacy.name == "metric":
        assert one.leakage == pytest.approx(2 * 4 / 5), "two participations of 4/5; a third would pass 2"
        assert sum(entry["withheld"] for entry in result.history) == 12
    else:
        assert one.participations == 4
        assert one.epsilon == result.epsilon <= 8


def test_one_path_with_the_command_line():
    """The same choices, as objects and as a recipe: the same noise, bit for bit, from the same seed."""
    from sordina.federated.recipe import FederatedRecipe, run

    recipe = FederatedRecipe("synthetic", "fedavg", privacy="central", rounds=3, clients_per_round=6, patience=0,
    seed=5,
                    options={"clients": 12, "validation": 4}, learning_rate=0.1, batch_size=10)  # fmt: skip
    from sordina import random
    from sordina.federated.setup import conduct

    told = run(recipe)
    rng = random.generator(5)
    problem = recipe.problem(rng)
    ours = fed.FederatedTrainer(
        nn.Linear(2, 1), F.mse_loss, fed.CentralDP(sd.Budget(3, 1e-5)), fed.FedAvg(learning_rate=0.1, batch_size=10),
        rounds=3, clients_per_round=6, seed=5,
    )  # fmt: skip
    setup = ours._setup(12)
    again = conduct(setup, problem, problem.initial(1, rng), {"data": "synthetic"}, rng)
    assert torch.equal(told.result.models, again.result.models)
    assert told.result.statement == again.result.statement


class Tokens(nn.Module):
    """Whole-number inputs, frozen weights, an LSTM, a decision by value (no vmap), dropout, a constant buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.embed.weight.requires_grad_(False)
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        if float(self.scale) < 0:
            raise AssertionError
        return self.head(self.drop(self.rnn(self.embed(x))[0][:, -1])) * self.scale


def test_any_module_trains_and_what_is_frozen_stays():
    def some(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(11, (24, 6), generator=generator)
        return x, x[:, 0] % 3

    model = Tokens()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = trainer(model=model, loss=nn.CrossEntropyLoss(), algorithm=fed.Scaffold(learning_rate=0.3)).fit(
        [some(seed) for seed in range(4)], validation=some(9)
    )
    assert torch.equal(result.model.embed.weight, before["embed.weight"])
    assert not torch.equal(result.model.head.weight, before["head.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), (
        "the user's is left alone"
    )
    assert "validation_accuracy" in result.history[-1]
    private = trainer(fed.RecordDP(sd.Budget(8, 1e-3), records=24), model=Tokens(), loss=F.cross_entropy, rounds=1)
    assert private.fit([some(0), some(1)]).epsilon <= 8


def test_dropout_is_off_where_models_are_judged():
    net = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.9), nn.Linear(64, 1))
    from sordina.federated import losses
    from sordina.federated.objective import flat_parameters, of_module

    objective = of_module(net, losses.mse)
    x = rows(5)[0]
    assert torch.allclose(objective.predict(flat_parameters(net), x), net.eval()(x), atol=1e-6)


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@pytest.mark.parametrize("form", ["arrays", "tensors", "dataset"])
def test_data_in_any_form_train_the_same(form):
    clients = [rows(12, seed) for seed in range(3)]
    turned = {
        "arrays": [(x.double().numpy(), y.double().numpy()) for x, y in clients],
        "tensors": [TensorDataset(x, y) for x, y in clients],
        "dataset": [Pairs(x, y) for x, y in clients],
    }[form]
    whole = trainer(seed=1).fit(clients).model.weight
    assert torch.allclose(trainer(seed=1).fit(turned).model.weight, whole, atol=1e-6)


def test_frames_with_a_schema():
    import pandas as pd

    schema = {"target": "sick", "columns": {
        "age": {"kind": "number", "low": 0, "high": 100}, "ward": {"kind": "category", "values": ["A", "B"]},
        "sick": {"kind": "category", "values": ["no", "yes"]},
    }}  # fmt: skip
    frame = pd.DataFrame(
        {"age": [10, 20, 80, 90] * 5, "ward": list("ABAB") * 5, "sick": ["no", "no", "yes", "yes"] * 5}
    )
    width = len(sd.tables.feature_names(sd.tables.Schema.load(schema)))
    result = trainer(
        model=nn.Linear(width, 2),
        loss=F.cross_entropy,
        schema=schema,
        algorithm=fed.FedAvg(learning_rate=2.0),
        rounds=15,
    ).fit({"north": frame, "south": frame}, validation=frame)
    assert result.history[-1]["validation_accuracy"] == 1.0


def test_rows_of_one_person_are_not_sold_as_privacy_per_record():
    schema = {"target": "sick", "person": "who", "columns": {
        "who": {"kind": "person"}, "sick": {"kind": "category", "values": ["no", "yes"]},
        "age": {"kind": "number", "low": 0, "high": 100},
    }}  # fmt: skip
    with pytest.raises(sd.SordinaError, match="protects a row"):
        trainer(fed.RecordDP(sd.Budget(1, 1e-5), records=9), schema=schema).fit([None])


def test_leakage_in_words():
    told = str(trainer(fed.MetricDP(noise_multiplier=0.1)).fit(hospitals()).guarantee)
    assert "In 4 participations 160" in told
    assert "practically no protection" in told
    mild = str(trainer(fed.MetricDP(noise_multiplier=100.0)).fit(hospitals()).guarantee)
    assert "right at most 54 % of the time" in mild


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, "at least one client"),
        ("hello", {}, "a list or a dict"),
        ([rows(4), (torch.zeros(4, 2), torch.zeros(4, 1))], {}, "client '1'"),
        ([(torch.zeros(4, 2), torch.zeros(4, 1))], {}, "cannot take these data"),
        ([(torch.zeros(4, 3), torch.zeros(3, 1))], {}, "as many targets as inputs"),
        ([rows(4)], {"algorithm": "fedavg"}, "FedAvg"),
        ([rows(4)], {"privacy": "central"}, "CentralDP"),
        ([rows(4)], {"clients_per_round": 2}, "clients per round"),
        ([rows(4)], {"rounds": 0}, "rounds"),
        ([rows(4)], {"engine": "cloud"}, "unknown engine"),
        ([rows(4)], {"resume": True}, "folder="),
        ([rows(4)], {"loss": lambda out, y: (out - y).square().mean()}, "one per sample"),
        ([rows(4)], {"privacy": fed.RecordDP(sd.Budget(1, 1e-5))}, "public number of records"),
        ([rows(4)], {"privacy": fed.RecordDP(sd.Budget(1, 1e-5), records=4), "algorithm": fed.FedDyn()}, "FedSGD"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_drawn(clients, options, message):
    resume = options.pop("resume", False)
    with pytest.raises(sd.SordinaError, match=message):
        trainer(**options).fit(clients, resume=resume)


def test_a_label_out_of_range_is_found_before_and_not_quoted():
    clients = [(torch.zeros(4, 3), torch.tensor([0, 1, 0, 77]))]
    with pytest.raises(sd.SordinaError, match="outside the range") as error:
        trainer(model=nn.Linear(3, 2), loss=F.cross_entropy).fit(clients)
    assert "77" not in str(error.value)


def test_a_folder_is_the_command_line_s_with_ledger_report_and_resume(tmp_path, monkeypatch):
    books = sd.Ledger(tmp_path / "books.db")
    books.create("patients", sd.Budget(10, 1e-3), unit="user")
    options = {"folder": tmp_path / "run", "ledger": books, "dataset_budget": "patients", "clients_per_round": 3}
    keep, seen = FederationKeeper.keep, []

    def dying(self, progress, accounts):
        seen.append(progress.number)
        if progress.number == 2:
            raise KeyboardInterrupt
        keep(self, progress, accounts)

    monkeypatch.setattr(FederationKeeper, "keep", dying)
    with pytest.raises(KeyboardInterrupt):
        trainer(fed.CentralDP(sd.Budget(3, 1e-4)), **options).fit(hospitals())
    monkeypatch.setattr(FederationKeeper, "keep", keep)
    with pytest.raises(sd.SordinaError, match="rounds"):
        trainer(fed.CentralDP(sd.Budget(3, 1e-4)), rounds=5, **options).fit(hospitals(), resume=True)
    result = trainer(fed.CentralDP(sd.Budget(3, 1e-4)), **options).fit(hospitals(), resume=True)
    assert result.facts["rounds"] == 3, "one was lost"
    assert state_of(tmp_path / "run").state is FolderState.FINISHED
    assert [str(one.status) for one in books.spends().values()] == ["settled"]
    again = trainer(fed.CentralDP(sd.Budget(3, 1e-4)), **options).fit(hospitals(), resume=True)
    assert torch.equal(again.model.weight, result.model.weight)
    assert again.guarantee.words == result.guarantee.words
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["epsilon"] == result.epsilon <= 3
    page = sd.report([tmp_path / "run"])
    assert page.exists()
    loaded = fed.load_models(tmp_path / "run", nn.Linear(3, 1))
    assert torch.equal(loaded[0].weight, result.model.weight)
    with pytest.raises(sd.SordinaError, match="of the kind"):
        fed.load_models(tmp_path / "run", nn.Linear(4, 1))


def test_a_result_is_saved_whole(tmp_path):
    result = trainer(fed.MetricDP(5.0)).fit(hospitals(), validation=rows(10))
    result.save(tmp_path / "run")
    back = fed.FederatedResult.load(tmp_path / "run", nn.Linear(3, 1))
    assert back.accounts == result.accounts
    assert back.history == result.history
    assert torch.equal(back.model.weight, result.model.weight)
    with pytest.raises(sd.SordinaError, match="holds a run"):
        result.save(tmp_path / "run")


def test_several_models_have_no_one_model():
    result = trainer(algorithm=fed.IFCA(models=3)).fit(hospitals())
    assert len(result.models) == 3
    assert not torch.equal(result.models[0].weight, result.models[1].weight)
    with pytest.raises(sd.SordinaError, match="personal_models"):
        result.model  # noqa: B018


def test_too_few_clients_are_named_before_anything_is_spent(caplog):
    five = {name: rows(40, seed) for seed, name in enumerate("abcde")}
    net = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, 1))
    asked = trainer(fed.CentralDP(sd.Budget(3, 1e-5)), model=net, rounds=20)
    told = asked.forecast(five)
    assert told.noise_share > 1
    with caplog.at_level(logging.WARNING, logger="sordina"):
        spoilt = asked.fit(five, validation=rows(50, 9))
    assert "too much noise" in caplog.text
    assert "clients" in told.warning
    assert spoilt.history[-1]["validation_loss"] > spoilt.history[0]["validation_loss"], "it was true"
    caplog.clear()
    many = [rows(10, seed) for seed in range(1000)]
    enough = trainer(fed.CentralDP(sd.Budget(3, 1e-5)), rounds=20)
    with caplog.at_level(logging.WARNING, logger="sordina"):
        good = enough.fit(many, validation=rows(50, 9))
    assert "too much noise" not in caplog.text
    assert good.history[-1]["validation_loss"] < 0.5 * good.history[0]["validation_loss"]


def test_record_level_training_hides_a_record_and_its_noise_is_right():
    """Two data sets that differ in one outlier: the updates' laws are as near as one clipped record allows; a record
    that is not finite adds nothing; a client without rows sends the same noise."""
    from sordina.federated import losses
    from sordina.federated.algorithms.algorithm import LocalSteps
    from sordina.federated.objective import of_module
    from sordina.federated.population import Population
    from sordina.federated.privacy.records import PrivateLocalTraining
    from sordina.sampling import Poisson

    objective = of_module(nn.Linear(200, 1, bias=False).double(), losses.mse)
    sampler = Poisson(10, 10)
    work = PrivateLocalTraining(objective, LocalSteps(0.5, 10), sampler, 1, threshold=2.0, noise_multiplier=3.0)
    sent = {"model": torch.zeros(200, dtype=torch.float64)}
    rng = np.random.default_rng(0)

    def updates(x, y, times):
        cohort = Population.of([(x, y)] * times).cohort(np.arange(times))
        return work.run_private(sent, cohort, {}, rng)[0].vectors.numpy()

    nobody = np.concatenate([work.run_private(sent, None, {}, rng)[0].vectors.numpy() for _ in range(100)])
    scale = 0.5 * 3.0 * 2.0 / 10
    assert nobody.std() == pytest.approx(scale, rel=0.04)
    assert abs(nobody.mean()) < 4 * scale / math.sqrt(nobody.size)
    loud = torch.zeros(1, 200, dtype=torch.float64)
    loud[0, 0] = 1e6
    moved = updates(loud, torch.full((1, 1), 1e6, dtype=torch.float64), 400).mean(axis=0)
    assert moved[0] == pytest.approx(0.5 * 2.0 / 10, abs=4 * scale / 20), "clipped to the threshold, divided by 10"
    assert abs(moved[1:].mean()) < 4 * scale / math.sqrt(400 * 199)
    loud[0, 1] = math.nan
    broken = updates(loud, torch.ones(1, 1, dtype=torch.float64), 100)
    assert np.isfinite(broken).all()
    assert abs(broken.mean()) < 4 * scale / math.sqrt(broken.size)


def test_accounts_of_sampled_training_add_up_as_the_accountant_does():
    from fractions import Fraction

    from sordina.accounting import Gaussian, PoissonSampled, Repeated, accountant
    from sordina.federated.privacy.accounts import Leakage

    event = Repeated(PoissonSampled(0.05, Gaussian(1.1)), 20)
    total = Leakage()
    for _ in range(10):
        total += Leakage(sampled=((0.05, 1.1, 20),))
    assert total.epsilon(1e-5) == pytest.approx(accountant("pld").epsilon(Repeated(event, 10), 1e-5), rel=1e-9)
    mixed = total + Leakage(record=Fraction(1, 4))
    assert mixed.epsilon(1e-5) > total.epsilon(1e-5)
    assert Leakage.from_dict(json.loads(json.dumps(mixed.to_dict()))) == mixed
    for wrong in ([0.0, 1.0, 1], [0.5, -1.0, 1], [0.5, 1.0, 0.5], [0.5, 1.0]):
        with pytest.raises((ValueError, TypeError)):
            Leakage.from_dict(mixed.to_dict() | {"sampled": [wrong]})
    old = dict.fromkeys(("gaussian", "record", "per_distance", "heuristic", "clear"), "0")
    assert Leakage.from_dict(old) == Leakage(), "accounts of earlier versions still open"

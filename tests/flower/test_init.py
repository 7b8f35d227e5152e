"""`sordina flower init`: an app that Flower takes, and refusals before anything is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sordina.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def call(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sordina", "flower", *arguments])
    with pytest.raises(SystemExit) as stop:
        main.main()
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_what_it_writes_is_a_flower_app_with_the_choices_in_it(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "Our Hospitals"
    code, out, _ = call(
        capsys, monkeypatch, "init", str(folder), "--strategy", "fedavg", "--privacy", "central", "--epsilon", "2",
        "--clients", "40", "--clients-per-round", "10", "--rounds", "7", "--json",
    )  # fmt: skip
    assert code == 0
    assert set(json.loads(out)["files"]) == {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "our_hospitals.server_app:app",
        "clientapp": "our_hospitals.client_app:app",
    }
    config = project["tool"]["flwr"]["app"]["config"]
    assert (config["strategy"], config["privacy"], config["epsilon"], config["rounds"]) == ("fedavg", "central", 2.0, 7)
    assert "must be trusted" in (folder / "README.md").read_text()


def test_flower_accepts_the_app_and_both_halves_load(tmp_path, capsys, monkeypatch):
    pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")
    from flwr.cli.config_utils import load_and_validate

    from sordina.federated.flower.deployment import recipe_of
    from sordina.federated.recipe import FederatedRecipe

    code, _, err = call(capsys, monkeypatch, "init", str(tmp_path / "fleet"), "--rounds", "3", "--radius", "public:1")
    assert code == 0, err
    config, warnings = load_and_validate(tmp_path / "fleet" / "pyproject.toml")
    assert not warnings
    written = recipe_of(config["tool"]["flwr"]["app"]["config"])
    asked = FederatedRecipe(
        "own",
        "metric-pfl",
        privacy="metric",
        radius="public:1",
        rounds=3,
        clients_per_round=3,
        learning_rate=0.1,
        batch_size=32,
        engine="flower",
    )
    assert written == asked, "the app trains what was asked for"
    load = "import fleet.server_app, fleet.client_app; print(type(fleet.server_app.app), type(fleet.client_app.app))"
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=tmp_path / "fleet", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "ServerApp" in done.stdout
    assert "ClientApp" in done.stdout


def test_the_default_is_sound_and_the_readme_says_what_holds(capsys, monkeypatch, tmp_path):
    """The heuristic radius must be asked for, and then the README does not call the server harmless."""
    call(capsys, monkeypatch, "init", str(tmp_path / "plain"))
    project = tomllib.loads((tmp_path / "plain" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["radius"].startswith("public:")
    assert "need not be trusted" in " ".join((tmp_path / "plain" / "README.md").read_text().split())
    call(capsys, monkeypatch, "init", str(tmp_path / "paper"), "--radius", "update")
    words = " ".join((tmp_path / "paper" / "README.md").read_text().split())
    assert "need not be trusted" not in words
    assert "HEURISTIC" in words


def test_nothing_is_installed_that_cannot_be(capsys, monkeypatch, tmp_path):
    """Sordina is on no index: an app that lists it cannot be started by a SuperLink that installs dependencies."""
    call(capsys, monkeypatch, "init", str(tmp_path / "app"))
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []


@pytest.mark.parametrize("privacy", ["metric", "local", "central", "none"])
def test_the_proposed_policy_accepts_the_app_and_nothing_weaker(privacy, capsys, monkeypatch, tmp_path):
    from sordina.errors import BudgetRefused
    from sordina.federated.flower.client_policy import ClientPolicy
    from sordina.federated.flower.deployment import recipe_of

    strategy = "metric-pfl" if privacy == "metric" else "fedavg"
    call(capsys, monkeypatch, "init", str(tmp_path / "app"), "--strategy", strategy, "--privacy", privacy)
    policy = ClientPolicy.from_dict(json.loads((tmp_path / "app" / "client-policy.json").read_text()))
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    policy.check(recipe_of(config))
    if privacy != "none":
        with pytest.raises(BudgetRefused):
            policy.check(recipe_of(config | {"privacy": "none", "strategy": "fedavg"}))


def test_nothing_is_overwritten(capsys, monkeypatch, tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    code, out, err = call(capsys, monkeypatch, "init", str(tmp_path))
    assert code == 2
    assert "not empty" in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "magic"], "unknown strategy"),
        (["--privacy", "central"], "IFCA"),
        (["--clients", "0"], "at least one client"),
        (["--deadline", "0"], "deadline"),
        (["--radius", "public:-1"], "radius"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_is_written(capsys, monkeypatch, tmp_path, arguments, message):
    code, _, err = call(capsys, monkeypatch, "init", str(tmp_path / "app"), *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "app").exists()


def test_a_name_that_would_hide_a_package_gets_another(tmp_path):
    from sordina.federated.flower.app_template import write
    from sordina.federated.recipe import FederatedRecipe

    files = write(tmp_path / "numpy", FederatedRecipe("own", "fedavg"), clients=2)
    assert "numpy_app/task.py" in files
    files = write(tmp_path / "2026 trial", FederatedRecipe("own", "fedavg"), clients=2)
    assert "app_2026_trial/task.py" in files
    assert all((tmp_path / "2026 trial" / Path(file)).exists() for file in files)

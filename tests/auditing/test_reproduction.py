import pytest

from sordina.auditing import reconstruction
from sordina.auditing.reconstruction import DLG
from sordina.reproduction import Experiment, Job
from sordina.reproduction.attacks import attack_003, reconstruction_figure


def job(folder, **settings):
    return Job(Experiment("small", "Small", "nowhere", "x:y", {"smoke": settings}), "smoke", folder)


def test_the_shadow_attack_is_reported_for_both_models(tmp_path):
    options = {
        "rows": 60, "hidden": 32, "shadows": 2, "private_epochs": 2.0, "attacks": ["loss", "attack-model"],
    }  # fmt: skip
    found = attack_003(job(tmp_path, dataset="digits", options=options))
    assert [(value.what["model"], value.what["attack"]) for value in found.values] == [
        ("overfitted", "loss"), ("overfitted", "attack-model"), ("private", "loss"), ("private", "attack-model"),
    ]  # fmt: skip
    assert all(0 <= value.ours <= 1 for value in found.values)
    assert any("Smoke" in remark for remark in found.remarks)


def test_the_grid_of_reconstructions_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(reconstruction.ATTACKS, "dlg", DLG(iterations=100, restarts=1))
    found = reconstruction_figure(job(tmp_path, dataset="digits", options={"images": 1}))
    assert found.values[0].what["defence"] == "none"
    assert found.values[0].ours == pytest.approx(max(value.ours for value in found.values))
    assert (tmp_path / "figure-2.5.png").exists()

"""`sordina federate` with the zoo, with faults, robust means and compression."""

import json
import sys

import pytest

from sordina.cli import main


def call(capsys, monkeypatch, *arguments):
    common = ("--rounds", "3", "--patience", "0", "--seed", "0", "--json")
    monkeypatch.setattr(sys, "argv", ["sordina", "federate", "synthetic", *arguments, *common])
    with pytest.raises(SystemExit) as stop:
        main.main()
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


ZOO = ("feddyn", "fsvrg", "sub-fedavg", "mean-regularised", "per-fedavg", "graph-regularised")


@pytest.mark.parametrize("strategy", ZOO)
def test_every_strategy_runs_by_name(capsys, monkeypatch, strategy):
    code, out, err = call(capsys, monkeypatch, "--strategy", strategy)
    assert code == 0, err
    assert json.loads(out)["rounds"] == 3


def test_weather_and_bytes_are_in_the_metrics(capsys, monkeypatch, tmp_path):
    storm = ("--dropout", "0.3", "--late", "0.2", "--hostile", "nan:0,huge:1,duplicate:2", "--clients-per-round", "90")
    folder = tmp_path / "f"
    code, _, err = call(capsys, monkeypatch, "--strategy", "fedavg", *storm, "--out", str(folder))
    assert code == 0, err
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {one["sender"] for line in lines for one in line["refused"]} & {0, 1, 2}
    assert all(line["bytes_down"] == 90 * 8 and line["dropped"] > 0 for line in lines)
    assert all(line["bytes_up"] == (line["answered"] + len(line["refused"])) * 12 for line in lines)


def test_under_central_privacy_the_metrics_do_not_tell_who_took_part(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "f"
    storm = ("--dropout", "0.3", "--hostile", "nan:0", "--clients-per-round", "90", "--out", str(folder))
    code, _, err = call(capsys, monkeypatch, "--strategy", "fedavg", "--privacy", "central", *storm)
    assert code == 0, err
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        assert not {"answered", "refused", "dropped", "bytes_up", "bytes_down"} & set(json.loads(line))
        assert json.loads(line)["bytes_up_each"] == 8


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--strategy", "fedavg", "--privacy", "central", "--aggregate", "median"), "calibrated"),
        (("--strategy", "fedavg", "--privacy", "central", "--compress", "8bit"), "calibrated"),
        (("--strategy", "graph-regularised", "--privacy", "central"), "one by one"),
        (("--strategy", "fedem", "--aggregate", "krum"), "models of their own"),
        (("--strategy", "metric-pfl", "--compress", "top:0.5"), "whole models"),
        (("--strategy", "fedavg", "--aggregate", "mode"), "unknown aggregation"),
        (("--strategy", "fedavg", "--compress", "zip"), "compression is"),
        (("--strategy", "fedavg", "--dropout", "1"), "dropout"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(capsys, monkeypatch, arguments, word):
    code, out, err = call(capsys, monkeypatch, *arguments)
    assert code == 2
    assert not out
    assert word in err
    assert len(err.strip().splitlines()) == 1


def test_robust_means_and_compression_run(capsys, monkeypatch):
    for privacy in ("none", "local"):
        code, out, err = call(
            capsys,
            monkeypatch,
            "--strategy",
            "fedavg",
            "--privacy",
            privacy,
            "--aggregate",
            "median",
            "--compress",
            "8bit",
        )
        assert code == 0, err
        assert json.loads(out)["strategy"] == "fedavg"

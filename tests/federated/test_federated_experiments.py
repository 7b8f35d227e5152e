"""What the founding documents show, in the small: recovery, fairness, hospital leakage and error."""

import os

import numpy as np
import pytest
import torch

from sordina.reproduction import bounded, federated_studies, zoo

needs_data = pytest.mark.skipif("SORDINA_DATA" not in os.environ, reason="needs the real data")

TABLE_2_3 = {
    0.1: ((517.0, 1551.0), (418.0, 1342.0), (473.0, 1386.0), (528.0, 1540.0)),
    1.0: ((36.3, 126.5), (40.7, 127.6), (44.0, 138.6), (49.5, 147.4)),
    2.0: ((15.4, 57.8), (14.3, 54.5), (22.0, 69.3), (21.5, 66.6)),
    3.0: ((7.7, 32.3), (8.4, 36.7), (12.5, 40.0), (12.1, 40.0)),
    5.0: ((5.7, 21.3), (5.9, 22.0), (5.5, 21.6), (5.3, 20.9)),
}


def test_two_hypotheses_find_both_optima_without_noise_and_one_cannot():
    quiet = {"strategy": "metric-pfl", "privacy": "none", "root": False}
    assert federated_studies.recovery([0, 1], **quiet)["found"] == 2
    assert federated_studies.recovery([0], hypotheses=1, **quiet)["found"] == 0


def test_the_steady_server_finds_them_at_nu_5_within_the_leakage_of_the_paper():
    report = federated_studies.recovery(range(4), noise_multiplier=5.0, leakage_limit=2.4, **federated_studies.STEADY)
    assert report["found"] >= 3
    assert report["largest_leakage"] == 2.4


def test_a_personalised_model_is_fairer_on_all_three_counts():
    single, personal = federated_studies.compare_fairness([1.0], [0])
    assert (single["hypotheses"], personal["hypotheses"]) == (1, 2)
    assert all(personal[metric] < single[metric] for metric in federated_studies.METRICS)


@pytest.mark.parametrize("nu", TABLE_2_3)
def test_leakage_agrees_with_table_2_3_at_the_same_number_of_participations(nu):
    """Rounds are matched to what is printed (means over runs of different lengths); then both columns must fit."""
    for median, largest in TABLE_2_3[nu]:
        _, ours, most = federated_studies.closest_rounds(nu, median, largest, range(2))
        assert ours == pytest.approx(median, rel=0.2)
        assert most == pytest.approx(largest, rel=0.2)


@needs_data
def test_hospital_errors_fall_with_more_hypotheses():
    rows = federated_studies.rows_of_table_2_3(
        [1.0], [1, 3, 5], [0], strategy="metric-pfl-steady", rounds=60, patience=0
    )
    one, three, five = (row["rmse"] for row in rows)
    assert one > three > five
    finished = federated_studies.hospital_trial(0, 1, 1.0, rounds=1)
    assert len(finished.problem.train) + len(finished.problem.held_out) == 2947


def test_mean_cosine_of_equal_and_of_independent_rows():
    assert bounded.mean_cosine(torch.ones(5, 3)) == pytest.approx(1.0)
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 4000)))
    assert abs(bounded.mean_cosine(rows)) < 5 / np.sqrt(4000 * 50 * 49 / 2)


@needs_data
def test_updates_agree_more_than_gradients():
    cosines = bounded.cosines_of_updates(rounds=4, model="small-cnn", rows=4000, batch=16)
    assert np.mean(cosines["updates"]) > np.mean(cosines["gradients"]) + 0.1


@needs_data
def test_the_bounded_model_runs_with_sectors_at_the_stated_budget():
    arms = bounded.compared_policies(0.5, [60])
    rows = bounded.utility(arms, [0], clients=500, per_round=50, rounds=3, options={"inputs": 784, "hidden": 8})
    assert {row["arm"].split()[0] for row in rows} == {"unbounded", "bounded"}
    assert all(2.9 < row["epsilon"] <= 3.0 for row in rows)


def test_scaffold_beats_fedavg_on_strongly_skewed_clients_at_equal_rounds():
    rows = zoo.compare_on_skewed_labels(("fedavg", "scaffold"), [0, 1], alpha=0.05, rounds=10, every=10)
    last = {(row["strategy"], row["seed"]): row for row in rows}
    for seed in (0, 1):
        assert last["scaffold", seed]["loss"][-1] < 0.8 * last["fedavg", seed]["loss"][-1]
        assert last["scaffold", seed]["accuracy"][-1] > last["fedavg", seed]["accuracy"][-1]

"""Federated learning: clients keep their rows, and what leaves them is private by a choice of its own.

    trainer = sd.federated.FederatedTrainer(model, loss=F.cross_entropy, algorithm=sd.federated.FedAvg(local_epochs=1),
                                            privacy=sd.federated.CentralDP(sd.Budget(3, 1e-5)), rounds=100)
    result = trainer.fit(clients, validation=held_out)

Four independent choices make a run:

=============  ==================================================  ================================================
choice         what it decides                                     public names
=============  ==================================================  ================================================
algorithm      what server and clients compute                     FedSGD, FedAvg, FedProx, Scaffold, FedDyn, FSVRG,
                                                                   SubFedAvg, MeanRegularised, PerFedAvg,
                                                                   GraphRegularised, FedEM, IFCA, MetricPFL,
                                                                   SteadyMetricPFL
privacy        what is done to an update, and where                NoPrivacy, CentralDP, DistributedDP, LocalDP,
                                                                   RecordDP, MetricDP
engine         where it runs                                       "in-process", "flower"
aggregation    what stands for the clients' mean                   "mean", "median", "trimmed-mean", "krum"
=============  ==================================================  ================================================

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina._renamed import lazily

if TYPE_CHECKING:
    from sordina.federated.algorithms.registry import (
        FSVRG,
        IFCA,
        FedAvg,
        FedDyn,
        FedEM,
        FederatedAlgorithm,
        FedProx,
        FedSGD,
        GraphRegularised,
        MeanRegularised,
        MetricPFL,
        PerFedAvg,
        Scaffold,
        SteadyMetricPFL,
        SubFedAvg,
    )
    from sordina.federated.decentralized.gopa import GOPA
    from sordina.federated.decentralized.peer_run import GossipTrainer
    from sordina.federated.privacy.central import CentralDP
    from sordina.federated.privacy.distributed import DistributedDP
    from sordina.federated.privacy.local import LocalDP
    from sordina.federated.privacy.metric import MetricDP
    from sordina.federated.privacy.placement import FederatedPrivacy, NoPrivacy
    from sordina.federated.privacy.records import RecordDP
    from sordina.federated.problem import RandomizedMetrics
    from sordina.federated.result import FederatedResult, load_models, load_personal_model
    from sordina.federated.setup import Forecast
    from sordina.federated.trainer import FederatedTrainer

_METHODS = (
    "FSVRG", "IFCA", "FedAvg", "FedDyn", "FedEM", "FedProx", "FedSGD", "FederatedAlgorithm", "GraphRegularised",
    "MeanRegularised", "MetricPFL", "PerFedAvg", "Scaffold", "SteadyMetricPFL", "SubFedAvg",
)  # fmt: skip
_TRAINER = ("FederatedResult", "FederatedTrainer", "Forecast", "load_models", "load_personal_model")
_NAMES: dict[str, str] = {
    **dict.fromkeys(_METHODS, "sordina.federated.algorithms.registry"),
    **dict.fromkeys(_TRAINER, "sordina.federated.trainer"),
    "CentralDP": "sordina.federated.privacy.central",
    "DistributedDP": "sordina.federated.privacy.distributed",
    "FederatedPrivacy": "sordina.federated.privacy.placement",
    "GOPA": "sordina.federated.decentralized.gopa",
    "GossipTrainer": "sordina.federated.decentralized.peer_run",
    "LocalDP": "sordina.federated.privacy.local",
    "MetricDP": "sordina.federated.privacy.metric",
    "NoPrivacy": "sordina.federated.privacy.placement",
    "RandomizedMetrics": "sordina.federated.problem",
    "RecordDP": "sordina.federated.privacy.records",
}

__all__ = [
    "FSVRG",
    "GOPA",
    "IFCA",
    "CentralDP",
    "DistributedDP",
    "FedAvg",
    "FedDyn",
    "FedEM",
    "FedProx",
    "FedSGD",
    "FederatedAlgorithm",
    "FederatedPrivacy",
    "FederatedResult",
    "FederatedTrainer",
    "Forecast",
    "GossipTrainer",
    "GraphRegularised",
    "LocalDP",
    "MeanRegularised",
    "MetricDP",
    "MetricPFL",
    "NoPrivacy",
    "PerFedAvg",
    "RandomizedMetrics",
    "RecordDP",
    "Scaffold",
    "SteadyMetricPFL",
    "SubFedAvg",
    "load_models",
    "load_personal_model",
]


__getattr__ = lazily(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)

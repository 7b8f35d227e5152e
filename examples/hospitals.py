"""Five hospitals train one model; every patient is protected from everybody outside their own hospital."""

import torch

import sordina as sd

x, y = sd.datasets.load("digits").train.tensors  # stands for records; a dict of data frames with schema= works too
hospitals = {name: (x[part::6], y[part::6]) for part, name in enumerate(["Basel", "Bern", "Genf", "Chur", "Lugano"])}

trainer = sd.federated.FederatedTrainer(
    torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
    loss=torch.nn.functional.cross_entropy,
    algorithm=sd.federated.FedAvg(local_epochs=1, learning_rate=0.5),
    privacy=sd.federated.RecordDP(sd.Budget(epsilon=3, delta=1e-5), records=200),
    rounds=20,
)
result = trainer.fit(hospitals, validation=(x[5::6], y[5::6]))

print(result.guarantee)
print(f"accuracy {result.history[-1]['validation_accuracy']:.2f}")
for name, account in result.accounts.items():
    print(f"{name}: took part {account.participations} times, epsilon {account.epsilon:.2f} for each of its patients")

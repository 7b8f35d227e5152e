"""Attack a model that anybody trained: were these rows in it, and what does the attack prove about its epsilon?"""

import torch

import sordina as sd

torch.manual_seed(0)
x, y = sd.datasets.load("digits").train.tensors
wrong = (y + 1 + torch.randint(9, y.shape)) % 10  # labels that only memory explains
coin = torch.rand(len(x)) < 0.5  # chance alone decides who is in
model = sd.models.build("digits-cnn", seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):  # no privacy at all
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[coin]), wrong[coin]).backward()
    optimizer.step()

claim = sd.Guarantee(epsilon=1.0, delta=1e-5)  # what somebody says of it
found = sd.audit(model, (x[coin], wrong[coin]), (x[~coin], wrong[~coin]), claim=claim, membership="coins", seed=0)
for result in found.results:
    print(result.name, result.auc)
print(found.verdict)

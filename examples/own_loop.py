"""An ordinary PyTorch loop made private: the batches and the step are Sordina's, the rest is yours."""

import torch
import torch.nn.functional as F

import sordina as sd

digits = sd.datasets.load("digits")
model = sd.models.build("digits-cnn")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)

private = sd.make_private(
    model, optimizer, digits.train, budget=sd.Budget(epsilon=3, delta=1e-5), batch_size=256, epochs=3
)
for x, y in private:
    private.step(F.cross_entropy(model(x), y, reduction="none"))  # one loss per sample: clipped, added up, noised

run = private.finish()
x, y = digits.test.tensors
print(run.statement())
print(f"accuracy {(model.eval()(x).argmax(1) == y).float().mean():.2f}")

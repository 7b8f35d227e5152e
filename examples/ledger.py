"""One budget for a data set, whoever trains on it: reserved before a row is read, settled after, refused beyond."""

import torch

import sordina as sd

digits = sd.datasets.load("digits")
books = sd.Ledger("books.db")
books.create("digits", sd.Budget(epsilon=3, delta=1e-5))


def train(epsilon: float) -> None:
    """One more model from the same data."""
    trainer = sd.Trainer(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        loss=torch.nn.functional.cross_entropy,
        budget=sd.Budget(epsilon, 1e-6),
        batch_size=256,
        epochs=2,
        ledger=books,
        dataset_budget="digits",
    )
    print(trainer.fit(digits.train).guarantee)


train(3)
print(f"{books.spent('digits'):.2f} of 3 spent")
try:
    train(3)
except sd.SordinaError as refusal:
    print("refused:", refusal)

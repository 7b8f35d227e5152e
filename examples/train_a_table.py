"""Train on a table of one's own: say what is public in a schema, state a budget, read the guarantee."""

import pandas as pd
import torch

import sordina as sd

frame = pd.DataFrame(
    {
        "patient": [f"p{row // 2}" for row in range(2000)],  # two visits each
        "age": [(37 * row) % 100 for row in range(2000)],
        "ward": ["ABC"[row % 3] for row in range(2000)],
        "outcome": ["ill" if (37 * row) % 100 > 60 else "well" for row in range(2000)],
    }
)
schema = {
    "target": "outcome",
    "person": "patient",  # whose row it is: people are protected, not rows
    "rows_per_person": 2,
    "columns": {
        "patient": {"kind": "person"},
        "age": {"kind": "number", "low": 0, "high": 110},  # what everybody knows, never read off the rows
        "ward": {"kind": "category", "values": ["A", "B", "C"]},
        "outcome": {"kind": "category", "values": ["well", "ill"]},
    },
}

table = sd.tables.read_table(frame, schema)
trainer = sd.Trainer(
    torch.nn.Linear(table.inputs.shape[1], 2),
    loss=torch.nn.functional.cross_entropy,
    budget=sd.Budget(epsilon=3, delta=1e-5),
    users=table.users,
    batch_size=128,
    epochs=10,
)
run = trainer.fit(table.dataset())
right = (run.model(table.inputs).argmax(1) == table.targets).float().mean()
print(run.guarantee)
print(f"right on {right:.0%} of the rows")

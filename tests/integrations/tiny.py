"""Tiny random models of `transformers`, a tokenizer and texts, built in place: nothing is downloaded."""

from __future__ import annotations

import random

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    TrainingArguments,
)  # fmt: skip

WORDS, LONGEST = 40, 24
PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
BERT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": LONGEST, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def classifier(labels=2):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**BERT, num_labels=labels))


def tagger():
    torch.manual_seed(0)
    return BertForTokenClassification(BertConfig(**BERT, num_labels=3))


def masked():
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**BERT))


def causal():
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=LONGEST, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=2, eos_token_id=3,
        )
    )  # fmt: skip


def translator():
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [PAD, UNKNOWN, START, END, MASK, *(f"w{index}" for index in range(WORDS - 5))]
    built = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token=PAD, unk_token=UNKNOWN, cls_token=START, sep_token=END, mask_token=MASK,
        eos_token=END, bos_token=START, model_max_length=LONGEST,
    )  # fmt: skip


def texts(count, kind="class", seed=0):
    """Items as a tokenizer gives them: the words of the second class come from the second half of the vocabulary."""
    rng = random.Random(seed)
    items = []
    for _ in range(count):
        size, label = rng.randint(4, 12), rng.randrange(2)
        tokens = [rng.randrange(5, WORDS // 2) + label * (WORDS // 2 - 3) for _ in range(size)]
        item = {"input_ids": tokens, "attention_mask": [1] * size}
        if kind == "class":
            item["labels"] = label
        elif kind == "tags":
            item["labels"] = [token % 3 for token in tokens]
        elif kind == "pairs":
            item["labels"] = tokens[: rng.randint(3, size)]
        elif kind == "tokens":
            item["labels"] = list(tokens)
        items.append(item)
    return items


def padded(items, to=None):
    """One row per item, padded with zeros, and labels with -100."""
    batch = {}
    for name in items[0]:
        values = [item[name] for item in items]
        if isinstance(values[0], int):
            batch[name] = torch.tensor(values)
            continue
        width = max(max(map(len, values)), to or 0) if name != "labels" or to is None else None
        width = width or max(max(map(len, values)), to)
        blank = -100 if name == "labels" else 0
        batch[name] = torch.tensor([value + [blank] * (width - len(value)) for value in values])
    return batch


def arguments(folder, **options):
    defaults = {
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 3, "learning_rate": 1e-2,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
    }  # fmt: skip
    return TrainingArguments(str(folder), **{**defaults, **options})

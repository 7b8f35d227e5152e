"""Fine-tune a Hugging Face model under a privacy budget: `transformers.Trainer`, with a budget.

Run it as it is for a toy model, or give the folder of a model of your own: python fine_tune.py path/to/model
"""

import random
import sys

from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

import sordina as sd
from sordina.integrations.huggingface import PrivateTrainer

# The texts, and who wrote them. Nothing here is downloaded.
chance = random.Random(0)
TOPICS = {
    "health": ["pain", "fever", "better", "worse", "doctor", "pill"],
    "money": ["bill", "paid", "late", "bank", "loan", "tax"],
}
authors = [number // 2 for number in range(1200)]  # everybody wrote two notes
topics = [chance.choice(list(TOPICS)) for _ in authors]
notes = [" ".join(chance.choices(TOPICS[topic], k=chance.randint(3, 8))) for topic in topics]

# The model: yours, or a toy one that was never trained.
if len(sys.argv) > 1:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=2)
else:
    words = ["[PAD]", "[UNK]", *(word for words in TOPICS.values() for word in words)]
    toy = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    toy.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=toy, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=2, **sizes))

# Only small adapters learn: what is frozen costs neither noise nor memory.
model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"]))

data = [
    {**tokenizer(note, truncation=True, max_length=64), "labels": list(TOPICS).index(topic)}
    for note, topic in zip(notes, topics, strict=True)
]
trainer = PrivateTrainer(
    model=model,
    args=TrainingArguments(
        "notes-model",
        per_device_train_batch_size=64,  # in memory at once
        gradient_accumulation_steps=2,  # 128 people in a batch, on average
        num_train_epochs=4,
        learning_rate=2e-2,
        report_to=[],  # or "tensorboard", "wandb", "mlflow"
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=data[:1000],
    eval_dataset=data[1000:],
    processing_class=tokenizer,
    compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    budget=sd.Budget(epsilon=8, delta=1e-4),  # the whole run costs this
    users=sd.sampling.Users(authors[:1000], rows_per_user=2),  # a person is protected, not a note
)
trainer.train()
trainer.save_model()  # adapter, privacy.json, and a model card with the guarantee

print(trainer.run.statement())
print(f"accuracy on other people's notes {trainer.evaluate()['eval_accuracy']:.2f}")

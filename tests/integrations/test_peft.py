"""Adapters of `peft` train privately, and what is saved opens with stock `peft` and `transformers` elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from tests.integrations import tiny
from tests.integrations.test_private_trainer import trainer

import sordina as sd
from sordina.errors import InvalidInput, TrainingFailed
from sordina.integrations.huggingface import PrivateTrainer
from sordina.integrations.refusals import MovedCheck

ADAPTERS = {
    "lora": (tiny.causal, lambda: LoraConfig(task_type="CAUSAL_LM", r=2, fan_in_fan_out=True)),
    "dora": (tiny.classifier, lambda: LoraConfig(task_type="SEQ_CLS", r=2, use_dora=True)),
    "ia3": (tiny.classifier, lambda: IA3Config(task_type="SEQ_CLS")),
    "prompt": (tiny.causal, lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
    "prefix": (tiny.causal, lambda: PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
}
ELSEWHERE = """
import json, sys, torch
from transformers import AutoModel, AutoModelForSequenceClassification
ids, answers = torch.tensor([[5, 6, 7, 8]]), {}
mask = torch.ones_like(ids)
for name, folder in json.loads(sys.argv[1]).items():
    if name == "full":
        whole = AutoModelForSequenceClassification.from_pretrained(folder)
        body = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        answers[name] = whole.eval()(ids, attention_mask=mask).logits.tolist()
        answers["embeddings"] = body.eval()(ids, attention_mask=mask).last_hidden_state.mean(1).tolist()
        continue
    use = open(folder + "/README.md").read().split("```python")[1].split("```")[0]  # as the card says
    exec(use.replace("path/to/this/folder", folder))
    model.eval()
    answers[name] = model(input_ids=ids, attention_mask=mask).logits.tolist()
    if name == "lora":
        answers["text"] = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, do_sample=False).tolist()
print(json.dumps(answers))
"""


def trained(folder, model):
    kind = "tokens" if "Causal" in type(model).__name__ else "class"
    ours = PrivateTrainer(
        model=model, args=tiny.arguments(folder, max_steps=2), data_collator=tiny.padded,
        train_dataset=tiny.texts(40, kind), budget=sd.Budget(8, 1e-3),
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    ours.train()
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) != value.requires_grad, name
    ours.save_model()
    return model.eval()


def test_every_adapter_trains_and_opens_in_another_process(tmp_path):
    ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.ones_like(ids)
    folders, wanted = {}, {}
    for name, (make, config) in ADAPTERS.items():
        if name == "ia3":  # an encoder without a head, whose folder knows nothing of three classes
            make().bert.save_pretrained(tmp_path / f"base-{name}")
        else:
            make().save_pretrained(tmp_path / f"base-{name}")
        given = {"num_labels": 3} if name == "ia3" else {}
        base = type(make()).from_pretrained(tmp_path / f"base-{name}", **given)
        model = trained(tmp_path / name, get_peft_model(base, config()))
        wanted[name] = model(input_ids=ids, attention_mask=mask).logits
        if name == "lora":
            text = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
        folders[name] = str(tmp_path / name)
        assert "differential-privacy" in (tmp_path / name / "README.md").read_text()
    full = trained(tmp_path / "full", tiny.classifier())
    folders["full"], wanted["full"] = str(tmp_path / "full"), full(ids, attention_mask=mask).logits
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE, json.dumps(folders)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    for name, value in wanted.items():
        torch.testing.assert_close(torch.tensor(answers[name]), value.detach(), rtol=1e-4, atol=1e-5)
    assert answers["text"] == text.tolist()
    embeddings = full.bert(ids, attention_mask=mask).last_hidden_state.mean(1)
    torch.testing.assert_close(torch.tensor(answers["embeddings"]), embeddings.detach(), rtol=1e-4, atol=1e-5)


def test_an_adapter_that_cannot_train_is_named_before_anything_is_spent(tmp_path):
    """As people meet it: the adapter is there and trainable, but the model runs without it."""
    model = get_peft_model(tiny.classifier(), LoraConfig(task_type="SEQ_CLS", r=2))
    model.base_model.disable_adapter_layers()
    for name, value in model.named_parameters():
        value.requires_grad_("lora" in name or "classifier" in name)
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("notes", sd.Budget(8, 1e-3))
    ours = PrivateTrainer(
        model=model, args=tiny.arguments(tmp_path / "run"), data_collator=tiny.padded, train_dataset=tiny.texts(20),
        budget=sd.Budget(8, 1e-3), ledger=ledger, dataset_budget="notes",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r"lora_A.*the loss does not depend on it"):
        ours.train()
    assert not ledger.spends()
    assert not (tmp_path / "run" / "_sordina").exists()


def test_moves_that_cancel_are_moves_and_none_is_named():
    """Adam's first step is +-learning_rate everywhere: a sum of the values may well stay where it was."""
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 1), "two": torch.nn.Linear(2, 1, bias=False)})
    check = MovedCheck(model)
    with torch.no_grad():
        model["one"].weight += torch.tensor([[0.5, -0.5]])
        model["one"].bias += 1
    with pytest.raises(TrainingFailed, match=r"'two.weight' is trainable, but did not move"):
        check.after_step(0.1)
    check = MovedCheck(model)
    with torch.no_grad():
        for each in model.parameters():
            each += 1
    check.after_step(0.1)


def test_a_trained_weight_that_the_adapter_would_not_save_is_refused(tmp_path):
    model = get_peft_model(tiny.classifier(), LoraConfig(task_type="SEQ_CLS", r=2))
    model.base_model.model.bert.embeddings.LayerNorm.requires_grad_(True)
    with pytest.raises(InvalidInput, match="save_model would leave it out: name its module in modules_to_save"):
        trainer(tmp_path, model).train()
    assert not (tmp_path / "_sordina").exists()

"""Tiny members of architectures people bring, built from a configuration: nothing is downloaded."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.brute_force import Losses
from torch import Tensor, nn

TEXT = {
    "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
KEYS = {"num_key_value_heads": 1, "head_dim": 4}
IMAGE = {
    "image_size": 8, "patch_size": 4, "num_channels": 2, "hidden_size": 8, "num_hidden_layers": 2, "num_labels": 3,
    "num_attention_heads": 2, "intermediate_size": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
}  # fmt: skip
AUDIO = {
    "vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "conv_dim": (8, 8), "conv_kernel": (4, 3), "conv_stride": (3, 2), "num_feat_extract_layers": 2, "num_labels": 3,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "layerdrop": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0,
    "apply_spec_augment": False, "classifier_proj_size": 6, "mask_time_prob": 0.0,
}  # fmt: skip
ENCODER_DECODER = {
    "vocab_size": 13, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 16,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
ROUTED = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
WINDOWED = {
    "embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "patch_size": 1, "image_size": 4,
    "num_channels": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0,
    "num_labels": 3,
}  # fmt: skip

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": (
        "causal",
        "gpt2",
        {
            "vocab_size": 13,
            "n_positions": 16,
            "n_embd": 8,
            "n_layer": 2,
            "n_head": 2,
            "resid_pdrop": 0,
            "embd_pdrop": 0,
            "attn_pdrop": 0,
        },
    ),
    "GPT-Neo": (
        "causal",
        "gpt_neo",
        {
            **TEXT,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
        },
    ),
    "GPT-J": (
        "causal",
        "gptj",
        {
            "vocab_size": 13,
            "n_positions": 16,
            "n_embd": 8,
            "n_layer": 2,
            "n_head": 2,
            "rotary_dim": 4,
            "resid_pdrop": 0,
            "embd_pdrop": 0,
            "attn_pdrop": 0,
        },
    ),
    "GPT-NeoX": ("causal", "gpt_neox", TEXT),
    "OPT": ("causal", "opt", {**TEXT, "ffn_dim": 12, "dropout": 0.0, "word_embed_proj_dim": 8}),
    "BLOOM": (
        "causal",
        "bloom",
        {
            "vocab_size": 13,
            "hidden_size": 8,
            "n_layer": 2,
            "n_head": 2,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "Falcon": ("causal", "falcon", TEXT),
    "MPT": ("causal", "mpt", {"vocab_size": 13, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_seq_len": 16}),
    "Llama": ("causal", "llama", {**TEXT, **KEYS}),
    "Mistral": ("causal", "mistral", {**TEXT, **KEYS}),
    "Mixtral": ("causal", "mixtral", {**TEXT, **KEYS, **ROUTED}),
    "Qwen2": ("causal", "qwen2", {**TEXT, **KEYS}),
    "Qwen3": ("causal", "qwen3", {**TEXT, **KEYS}),
    "Qwen2-MoE": ("causal", "qwen2_moe", {**TEXT, **KEYS, **ROUTED, "shared_expert_intermediate_size": 6}),
    "Phi": ("causal", "phi", {**TEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "Phi-3": ("causal", "phi3", {**TEXT, **KEYS, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "Gemma": ("causal", "gemma", {**TEXT, **KEYS}),
    "Gemma-2": ("causal", "gemma2", {**TEXT, **KEYS, "query_pre_attn_scalar": 4}),
    "OLMo-2": ("causal", "olmo2", {**TEXT, **KEYS}),
    "StableLM": ("causal", "stablelm", {**TEXT, "num_key_value_heads": 2}),
    "Mamba": (
        "causal",
        "mamba",
        {"vocab_size": 13, "hidden_size": 8, "state_size": 3, "num_hidden_layers": 1, "pad_token_id": 0},
    ),
    "XLNet": (
        "classify",
        "xlnet",
        {
            "vocab_size": 13,
            "d_model": 8,
            "n_layer": 2,
            "n_head": 2,
            "d_inner": 12,
            "dropout": 0.0,
            "summary_last_dropout": 0.0,
            "num_labels": 3,
            "pad_token_id": 0,
        },
    ),
    "BERT": ("classify", "bert", TEXT),
    "RoBERTa": ("classify", "roberta", TEXT),
    "ALBERT": ("classify", "albert", {**TEXT, "embedding_size": 6, "classifier_dropout_prob": 0.0}),
    "DistilBERT": (
        "classify",
        "distilbert",
        {
            "vocab_size": 13,
            "dim": 8,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 12,
            "max_position_embeddings": 16,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "seq_classif_dropout": 0.0,
            "num_labels": 3,
            "pad_token_id": 0,
        },
    ),
    "ELECTRA": ("classify", "electra", {**TEXT, "embedding_size": 6}),
    "DeBERTa-v2": (
        "classify",
        "deberta-v2",
        {
            **TEXT,
            "relative_attention": True,
            "position_buckets": 4,
            "pos_att_type": ["c2p", "p2c"],
            "pooler_dropout": 0.0,
            "pooler_hidden_size": 8,
        },
    ),
    "MPNet": ("classify", "mpnet", TEXT),
    "FNet": ("classify", "fnet", TEXT),
    "ModernBERT": (
        "classify",
        "modernbert",
        {**TEXT, "embedding_dropout": 0.0, "mlp_dropout": 0.0, "classifier_dropout": 0.0, "local_attention": 4},
    ),
    "T5": (
        "translate",
        "t5",
        {
            "vocab_size": 13,
            "d_model": 8,
            "d_kv": 4,
            "d_ff": 12,
            "num_layers": 1,
            "num_heads": 2,
            "dropout_rate": 0.0,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        },
    ),
    "BART": ("translate", "bart", ENCODER_DECODER),
    "Pegasus": ("translate", "pegasus", ENCODER_DECODER),
    "ViT": ("image", "vit", IMAGE),
    "DeiT": ("image", "deit", IMAGE),
    "DINOv2": ("image", "dinov2", {**IMAGE, "mlp_ratio": 2}),
    "BEiT": ("image", "beit", {**IMAGE, "use_relative_position_bias": True, "use_mask_token": False}),
    "Swin": ("image", "swin", WINDOWED),
    "ConvNeXT": (
        "image",
        "convnext",
        {
            "num_channels": 2,
            "patch_size": 2,
            "hidden_sizes": [4, 6],
            "depths": [1, 1],
            "num_stages": 2,
            "image_size": 8,
            "drop_path_rate": 0.0,
            "num_labels": 3,
        },
    ),
    "ResNet (batch norm)": (
        "image",
        "resnet",
        {"num_channels": 2, "embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "num_labels": 3},
    ),
    "Wav2Vec2": ("audio", "wav2vec2", {**AUDIO, "feat_extract_norm": "layer"}),
    "HuBERT": ("audio", "hubert", {**AUDIO, "feat_extract_norm": "group"}),
}


class Logits(nn.Module):
    """Takes the tensors, gives the logits."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.inner, self.name = inner, name

    def forward(self, x: Tensor) -> Tensor:
        inputs = {self.name: x}
        if self.name == "input_ids" and self.inner.config.model_type in ("t5", "bart", "pegasus"):
            inputs["decoder_input_ids"] = x.flip(1)
        return self.inner(**inputs).logits


def architecture(name: str) -> tuple[nn.Module, Losses, Any]:
    """A tiny model in training mode, its losses and a batch of six records."""
    import transformers

    task, kind, options = ARCHITECTURES[name]
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **options)
        config.architectures = []
        config._attn_implementation = config._experts_implementation = "eager"
        auto = {
            "causal": transformers.AutoModelForCausalLM,
            "classify": transformers.AutoModelForSequenceClassification,
            "translate": transformers.AutoModelForSeq2SeqLM,
            "image": transformers.AutoModelForImageClassification,
            "audio": transformers.AutoModelForAudioClassification,
        }[task]
        inner = auto.from_config(config)
        with torch.no_grad():
            for parameter in inner.parameters():
                parameter += 0.05 * torch.randn(parameter.shape)
    if task in ("causal", "classify", "translate"):
        x = torch.randint(3, 13, (6, 5), generator=g)
    elif task == "image":
        side = options.get("image_size", 8)
        x = torch.randn(6, 2, side, side, generator=g)
    else:
        x = torch.randn(6, 60, generator=g)
    y = torch.randint(0, 3, (6,), generator=g)
    names = {"image": "pixel_values", "audio": "input_values"}
    model = Logits(inner, names.get(task, "input_ids")).train()

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        out = model(x)
        if out.dim() == 2:
            return F.cross_entropy(out, y, reduction="none")
        return F.cross_entropy(out.transpose(1, 2), x % out.shape[-1], reduction="none").sum(1)

    return model, losses, (x, y)

"""Architectures of transformers that were refused ("samples mix") although they are sound: now exact."""

from __future__ import annotations

import pytest
import torch
from tests.gradients.brute_force import Outcome, judge
from torch import nn

transformers = pytest.importorskip("transformers")
SMALL = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def opt() -> nn.Module:
    config = transformers.OPTConfig(
        vocab_size=13, hidden_size=8, ffn_dim=12, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, word_embed_proj_dim=8, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config)


def swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=8, patch_size=2, num_channels=1, embed_dim=4, depths=[1, 1], num_heads=[1, 2], window_size=2,
        drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    return transformers.SwinForImageClassification(config)


def deberta() -> nn.Module:
    config = transformers.DebertaV2Config(
        **SMALL, **NO_DROPOUT, max_position_embeddings=8, relative_attention=True, pos_att_type=["p2c", "c2p"],
        num_labels=3, pooler_dropout=0.0,
    )  # fmt: skip
    return transformers.DebertaV2ForSequenceClassification(config)


def xlnet() -> nn.Module:
    config = transformers.XLNetConfig(vocab_size=13, d_model=8, n_layer=1, n_head=2, d_inner=12, dropout=0.0)
    return transformers.XLNetLMHeadModel(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **SMALL, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=8,
        experts_implementation="eager",
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


class Logits(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).logits


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    return ((logits + 0.5).square() * torch.linspace(0.5, 2, logits[0].numel()).view_as(logits[0])).flatten(1).sum(1)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(2, 13, shape, generator=torch.Generator().manual_seed(2))


def picture(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


CASES = {
    "OPT": (opt, words(5, 6)),
    "Swin": (swin, picture(5, 1, 8, 8)),
    "DeBERTa-v2": (deberta, words(5, 6)),
    "XLNet": (xlnet, words(5, 6)),
    "Mixtral": (mixtral, words(5, 6)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_sound_transformer_is_answered_exactly(name):
    maker, batch = CASES[name]
    torch.manual_seed(0)
    verdict = judge(Logits(maker()).train(), losses, batch, sizes=(2, 4), all_records=False)
    print(name, verdict.told)
    assert verdict.outcome is Outcome.EXACT, verdict

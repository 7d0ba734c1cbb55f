"""Tiny random transformers models of every family, and batches with rows of different lengths."""

import pytest
import torch
from torch.nn import functional

from thinpipe.models.hf import token_loss, token_targets

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")

SIZES = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 12}
WORDS = {"vocab_size": 30, "max_position_embeddings": 24}
LABELS = {"num_labels": 3}

CONFIGS = {
    "bert": ("BertConfig", {**SIZES, **WORDS, **LABELS}),
    "roberta": ("RobertaConfig", {**SIZES, **WORDS, **LABELS}),
    "xlm-roberta": ("XLMRobertaConfig", {**SIZES, **WORDS, **LABELS}),
    "camembert": ("CamembertConfig", {**SIZES, **WORDS, **LABELS}),
    "distilbert": ("DistilBertConfig", {"dim": 8, "n_layers": 4, "n_heads": 2, "hidden_dim": 12, **WORDS, **LABELS}),
    "mpnet": ("MPNetConfig", {**SIZES, **WORDS, **LABELS}),
    "vit": ("ViTConfig", {**SIZES, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.1, **LABELS}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 30,
            "n_positions": 24,
            "n_embd": 8,
            "n_layer": 4,
            "n_head": 2,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
            **LABELS,
        },
    ),
}
PREFIX = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
    "vit": "ViT",
    "gpt2": "GPT2",
}
HEADS = dict.fromkeys(PREFIX, "ForSequenceClassification") | {
    "vit": "ForImageClassification",
    "gpt2": "LMHeadModel",
}
"""The head with which each family is trained in the tests."""
ATTENTION = {"mpnet": "eager"}
"""Of families that have one kind of attention only."""


def make(family, head=None, *, attention="sdpa", dtype=torch.float64):
    """Makes a model, the same each time, in training, with dropout."""
    torch.manual_seed(1)
    name, settings = CONFIGS[family]
    if head == "ForQuestionAnswering":
        settings = {**settings, "num_labels": 2}  # where an answer begins, and where it ends
    config = getattr(transformers, name)(**settings)
    cls = getattr(transformers, PREFIX[family] + (HEADS[family] if head is None else head))
    model = cls._from_config(config, attn_implementation=ATTENTION.get(family, attention)).to(dtype).train()
    if family == "mpnet":
        model.base_model.encoder.relative_attention_bias.requires_grad_(False)  # as a cut asks for
    return model


def quiet(model):
    """Turns all dropout off, and leaves the model in training."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout_prob", "attention_dropout", "attn_pdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def batch(family, rows, *, length=7, dtype=torch.float64, seed=2):
    """Draws a batch in which rows have different lengths, with its targets for the family's head."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (rows,), generator=generator)
    if family == "vit":
        return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=generator).to(dtype)}, targets
    ids = torch.randint(3, 30, (rows, length), generator=generator)
    lengths = torch.arange(rows) % (length - 1) + 2
    mask = (torch.arange(length) < lengths[:, None]).long()
    inputs = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    if family == "bert":
        inputs["token_type_ids"] = torch.randint(2, (rows, length), generator=generator)
    if family == "gpt2":
        targets = token_targets(ids.masked_fill(mask == 0, -100), causal=True)
    return inputs, targets


def loss_of(family):
    """The loss of the family's head, a mean over rows."""
    return token_loss if family == "gpt2" else functional.cross_entropy

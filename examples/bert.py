"""A tiny BERT for ``thinpipe check``: random weights, rows of different lengths."""

import torch
from transformers import BertConfig, BertForSequenceClassification


def tiny() -> tuple[BertForSequenceClassification, dict[str, torch.Tensor]]:
    """Returns the model and a batch."""
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64
    )
    mask = (torch.arange(12) < torch.arange(4, 13)[:, None]).long()
    return BertForSequenceClassification(config), {"input_ids": torch.randint(100, (9, 12)), "attention_mask": mask}

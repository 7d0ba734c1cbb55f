"""A Hugging Face classifier of your own in three stages: what crosses the two cuts is packed into 4 bits a value."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import RobertaConfig, RobertaForSequenceClassification

import thinpipe


def model() -> RobertaForSequenceClassification:
    # Instead of all this: return RobertaForSequenceClassification.from_pretrained("roberta-base")
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    return RobertaForSequenceClassification(RobertaConfig(vocab_size=100, **sizes))


def batches(count: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    # Yours: tokenizer(texts, padding=True, return_tensors="pt"). Here a word from 10 to 29 tells a text's class.
    for _ in range(count):
        labels, words = torch.randint(2, (32,)), torch.randint(30, 100, (32, 12))
        words[:, :4] = 10 + 10 * labels[:, None] + torch.randint(10, (32, 4))
        yield {"input_ids": words, "attention_mask": torch.ones_like(words)}, labels


if __name__ == "__main__":
    torch.manual_seed(0)
    stages = thinpipe.split(model(), at=["encoder.layer.1", "encoder.layer.3"])
    pipe = thinpipe.Pipe(stages, devices=["cpu"] * 3, chunks=4, codec="wave:4", grad_codec="wave:4")
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)
    for step, (texts, labels) in enumerate(batches(40), 1):
        loss = torch.nn.functional.cross_entropy(pipe(texts), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            flows = [flow for cut in pipe.traffic() for flow in cut]  # there, and back
            packed, raw = sum(flow.packed for flow in flows), sum(flow.raw for flow in flows)
            print(f"step {step}: loss {loss:.3f}, {packed / step:,.0f} bytes a batch, {raw / step:,.0f} unpacked")

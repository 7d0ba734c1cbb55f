"""A Hugging Face classifier of your own whose middle a server has; both machines have this file, one of them the texts.

One: ``thinpipe serve --offer text=examples/own_text_served.py:offer``; the other, with its address:
``python examples/own_text_served.py 127.0.0.1:5555``.
"""

import sys
from functools import partial

import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

import thinpipe

adam = partial(torch.optim.AdamW, lr=1e-3)


def stages() -> thinpipe.Split:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    # Instead of this line: model = RobertaForSequenceClassification.from_pretrained("roberta-base")
    model = RobertaForSequenceClassification(RobertaConfig(vocab_size=100, **sizes))
    return thinpipe.split(model, at=["encoder.layer.1", "encoder.layer.3"])  # what begins the middle and the end


def offer() -> thinpipe.Offer:
    return thinpipe.Offer(make=lambda: stages()[1], optimizer=adam)


if __name__ == "__main__":
    first, _, last = stages()
    how = {"loss_fn": torch.nn.functional.cross_entropy, "optimizer": adam, "codec": "wave:4", "grad_codec": "wave:4"}
    with thinpipe.Client(first, last, connect=sys.argv[1], offer="text", chunks=4, **how) as client:
        for _ in range(40):  # yours: tokenizer(texts, ...). Here a word from 10 to 29 tells a text's class
            labels, words = torch.randint(2, (32,)), torch.randint(30, 100, (32, 12))
            words[:, :4] = 10 + 10 * labels[:, None] + torch.randint(10, (32, 4))
            loss, cost = client.step({"input_ids": words}, labels), client.cost
            if client.committed % 10 == 0:
                packed, raw = cost.sent + cost.received, cost.raw_sent + cost.raw_received
                print(f"step {client.committed}: loss {loss:.3f}, {packed:,} bytes a batch, {raw:,} unpacked")

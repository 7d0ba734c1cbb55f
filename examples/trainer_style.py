"""A transformers model cut into stages, trained and saved by a loop with the words of transformers' ``Trainer``.

Run: ``python examples/trainer_style.py DIR``. The ``Trainer`` itself needs accelerate, which places models in its own
way; this one has its arguments, ``train``, ``evaluate`` and ``save_model``, and little else.
"""

import sys
from dataclasses import dataclass

import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

import thinpipe


@dataclass
class Arguments:
    output_dir: str
    learning_rate: float = 1e-3
    num_train_epochs: int = 2
    train_batch_size: int = 50


class Trainer:
    def __init__(self, split: thinpipe.Split, args: Arguments, train_dataset: tuple, eval_dataset: tuple) -> None:
        self.split, self.args, self.train_dataset, self.eval_dataset = split, args, train_dataset, eval_dataset
        self.pipe = thinpipe.Pipe(split, devices=["cpu"] * len(split), chunks=4, codec="wave:4", grad_codec="wave:4")

    def train(self) -> None:
        optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=self.args.learning_rate)
        for _ in range(self.args.num_train_epochs):
            for rows in torch.randperm(len(self.train_dataset[0])).split(self.args.train_batch_size):
                texts, labels = (column[rows] for column in self.train_dataset)
                loss = torch.nn.functional.cross_entropy(self.pipe.train()({"input_ids": texts}), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            print(f"loss {loss:.3f}", self.evaluate())

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        texts, labels = self.eval_dataset
        right = self.pipe.eval()({"input_ids": texts}).argmax(1) == labels
        return {"eval_accuracy": right.float().mean().item()}

    def save_model(self) -> None:
        self.split.to_model().save_pretrained(self.args.output_dir)


if __name__ == "__main__":
    torch.manual_seed(0)
    # Texts of two topics: a third of the words are the topic's own, the others belong to both.
    labels, common = torch.randint(2, (1200,)), torch.randint(50, 100, (1200, 16))
    texts = common.where(torch.rand(1200, 16) > 0.3, 10 + 20 * labels[:, None] + torch.randint(20, (1200, 16)))
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    split = thinpipe.split(RobertaForSequenceClassification(RobertaConfig(vocab_size=100, **sizes)), stages=2)
    trainer = Trainer(split, Arguments(sys.argv[1]), (texts[:1000], labels[:1000]), (texts[1000:], labels[1000:]))
    trainer.train()
    trainer.save_model()

"""The batches of ``thinpipe bench data-parallel``: rows that lie in memory, made into tensors as a loader does it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinpipe.bench.shapes import ROBERTA, Shape

_BATCHES = 4
_PAD = 1
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
"""Of CIFAR-10."""


class Source:
    """Makes one batch after the other: images of bytes are normalised, texts of different lengths are padded.

    Args:
        shape: of the model.
        rows: of a batch.
        device: where the model is.
        seed: of the rows.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device, seed: int) -> None:
        self._shape, self._rows, self._device = shape, rows, device
        self._draw = torch.Generator().manual_seed(seed)
        inputs, self._targets = shape.batch(_BATCHES * rows, self._draw)
        self._texts: list[Tensor] = []
        if shape.name == ROBERTA:
            least = -(-shape.size // 2)
            lengths = torch.randint(least, shape.size + 1, (len(self._targets),), generator=self._draw)
            self._texts = [ids[:length] for ids, length in zip(inputs["input_ids"], lengths.tolist(), strict=True)]
        else:
            self._images = torch.randint(256, inputs.shape, dtype=torch.uint8, generator=self._draw)

    def batch(self) -> tuple[Any, Tensor]:
        """Makes inputs and targets where the model is."""
        chosen = torch.randperm(len(self._targets), generator=self._draw)[: self._rows]
        inputs = self._padded(chosen) if self._texts else self._normalised(chosen)
        return inputs, self._targets[chosen].to(self._device)

    def _normalised(self, chosen: Tensor) -> Tensor:
        mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (_MEAN, _DEVIATION))
        return ((self._images[chosen].float() / 255 - mean) / deviation).to(self._device)

    def _padded(self, chosen: Tensor) -> dict[str, Tensor]:
        ids = torch.full((len(chosen), self._shape.size), _PAD)
        for row, index in enumerate(chosen.tolist()):
            ids[row, : len(self._texts[index])] = self._texts[index]
        ids = ids.to(self._device)
        return {"input_ids": ids, "attention_mask": ids.ne(_PAD).long()}

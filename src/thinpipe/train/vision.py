"""The recipes that train networks on images: fine-tuned at 224 pixels, or from scratch at 32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.data.augment import CIFAR, IMAGENET, Augment, CentreCrop, Normalise, RandomCrop, RandomResizedCrop
from thinpipe.data.folders import list_images
from thinpipe.data.images import ImageSet
from thinpipe.data.named import load_images
from thinpipe.extras import need
from thinpipe.train.data import Data, Samples
from thinpipe.train.files import NONE, weights_file
from thinpipe.train.networks import NETWORKS
from thinpipe.train.recipe import Recipe, RecipeError
from thinpipe.train.subject import Subject
from thinpipe.train.weights import built

_CLASSES = {"cifar10": 10, "cifar100": 100, "food101": 101}
_OWN = "imagefolder"
_CORNER_SIZES = range(97, 225)
"""Edges of the images whose last map is of 4 x 4 to 7 x 7."""
_MARGIN = 256 / 224
"""How much larger than the square that is looked at an image is in a test, as Epipe and most others have it."""


def _model(recipe: Recipe) -> nn.Sequential:
    network = NETWORKS[recipe.model]
    model = built(lambda: network.make(_classes(recipe), recipe.dropout), recipe.seed, draw=network.draw)
    if recipe.pool == "corner":
        _pool_corner(model, recipe)
    file = weights_file(recipe)
    if file is not None:
        _load(model, file)
    return model


def _pool_corner(model: nn.Sequential, recipe: Recipe) -> None:
    """Puts Epipe's pooling in place of the mean; of a map of 7 x 7, 33 of 49 places have no gradient then.

    The ReLU changes nothing but what a codec has made negative.
    """
    if recipe.model != "mobilenet_v2" or recipe.pixels not in _CORNER_SIZES:
        raise RecipeError(
            f"pool=corner is for mobilenet_v2 on images of {_CORNER_SIZES[0]} to {_CORNER_SIZES[-1]} pixels, got "
            f"{recipe.model} and {recipe.pixels}; use pool=mean"
        )
    model._modules["avgpool"] = nn.Sequential(nn.ReLU(), nn.AvgPool2d(4))


def _classes(recipe: Recipe) -> int:
    if recipe.classes or recipe.dataset in _CLASSES:
        return recipe.classes or _CLASSES[recipe.dataset]
    if not recipe.data_dir:
        raise RecipeError(f"{recipe.name} trains on your own images: say where they are, --data-dir DIR")
    return len(list_images(Path(recipe.data_dir)).classes)


def _load(model: nn.Sequential, file: Path) -> None:
    """Gives a network the weights of a file, but for its last layer, whose classes are others."""
    need("weights in files", "safetensors")
    from safetensors.torch import load_file

    try:
        state = load_file(file)
    except Exception as error:
        raise RecipeError(f"{file} cannot be read as safetensors: {error}") from error
    name, head = list(model.named_children())[-1]
    # Without its head the network tells which tensors of the file would have been the head's.
    model._modules[name] = nn.Identity()
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise RecipeError(f"the weights of {file} do not fit the network: {error}") from error
    finally:
        model._modules[name] = head
    strange = [key for key in found.unexpected_keys if not key.startswith(f"{name}.")]
    if found.missing_keys or strange:
        raise RecipeError(f"{file} has weights of another network; look at {(found.missing_keys + strange)[0]}")


@dataclass(frozen=True)
class _Prepare:
    """Makes a batch's inputs of bytes, on the device where they are.

    Args:
        train: for steps; None if they are prepared as in a test.
        test: for tests.
        seed: of what is drawn.
    """

    train: Augment | None
    test: CentreCrop
    seed: int

    def __call__(self, images: Tensor, step: int | None) -> Tensor:
        """Prepares some rows."""
        if step is None or self.train is None:
            return self.test(images)
        return self.train(images, seed=self.seed, step=step)


def _prepare(recipe: Recipe, pixels: int) -> _Prepare:
    known = IMAGENET if recipe.dataset == _OWN else CIFAR  # Epipe has CIFAR's for Food-101, too
    normalise = Normalise(mean=known.mean, std=known.std, channels_last=recipe.layout == "channels_last")
    wide = recipe.augment == "crop"
    test = CentreCrop(size=recipe.pixels, resize=round(recipe.pixels * (_MARGIN if wide else 1)), normalise=normalise)
    if wide:
        return _Prepare(RandomResizedCrop(size=recipe.pixels, normalise=normalise), test, recipe.seed)
    if recipe.augment == "none":
        return _Prepare(None, test, recipe.seed)
    if pixels != recipe.pixels:
        raise RecipeError(
            f"augment pad4 moves images as they are, and these have {pixels} pixels; use pixels={pixels}, or crop"
        )
    return _Prepare(RandomCrop(normalise=normalise), test, recipe.seed)


def _data(recipe: Recipe) -> Data:
    found = load_images(
        recipe.dataset,
        Path(recipe.data_dir) if recipe.data_dir else None,
        decode_pixels=round(recipe.pixels * _MARGIN),
        partial=bool(recipe.limit),
        max_damaged=recipe.max_damaged,
    )
    known = recipe.classes or _CLASSES.get(recipe.dataset, len(found.classes))
    if len(found.classes) > known:
        raise RecipeError(f"the images have {len(found.classes)} classes, and the model is told of {known} (classes)")
    return Data.of(
        recipe,
        Samples(found.train_images, found.train_labels),
        Samples(found.test_images, found.test_labels),
        _prepare(recipe, found.train_images.shape[-1]),
        classes=found.classes,
        notes=(*found.notes, *_not_as_published(recipe, found)),
    )


def _not_as_published(recipe: Recipe, found: ImageSet) -> Iterator[str]:
    rows = len(found.train_labels), len(found.test_labels)
    if recipe.dataset in _CLASSES and not found.official and not 0 < recipe.limit <= min(rows):
        yield (
            f"{rows[0]:,} images to train on and {rows[1]:,} to test with are not {recipe.dataset} as it is published: "
            "no accuracy can be compared with those of others"
        )


def _subject(about: str, defaults: Recipe) -> Subject:
    return Subject(
        about=about,
        defaults=defaults,
        cuts=tuple(NETWORKS[defaults.model].cuts),
        place=lambda recipe, _: NETWORKS[recipe.model].cuts[recipe.cut],
        model=_model,
        example=lambda recipe: torch.zeros(1, 3, recipe.pixels, recipe.pixels),
        data=_data,
        uses=frozenset(
            {
                *("model", "weights", "pool", "dropout", "layout"),
                *("dataset", "data_dir", "classes", "pixels", "augment", "limit", "max_damaged", "untrained_classes"),
            }
        ),
        sizes=range(32, 513),
        networks={name: tuple(network.cuts) for name, network in NETWORKS.items()},
        datasets=(*_CLASSES, _OWN),
        packages=lambda recipe: () if recipe.dataset in ("cifar10", "cifar100") else ("PIL",),
    )


def _finetune(dataset: str, **changes: Any) -> Recipe:
    """Writes down Epipe's way to fine-tune: 40 epochs at 224 pixels, whatever the images have.

    Its pipelines sum the mean gradients of 8 micro-batches at a rate of 0.01; ours take their mean, hence 0.08.
    """
    said: dict[str, Any] = {
        "name": f"{dataset}-finetune",
        "cut": "after-relu",
        "batch": 256,
        "chunks": 8,
        "epochs": 40,
        "lr": 0.08,
        "lr_schedule": "cosine",
        "warmup": 0.1,
        "last_batch": "drop",
        "layout": "channels_last",
        "model": "mobilenet_v2",
        "weights": "mobilenet_v2_torchvision_v1.safetensors",
        "pool": "corner",
        "dropout": 0.2,
        "dataset": dataset,
        "pixels": 224,
        "augment": "crop",
    }
    return Recipe(**said | changes)


_OWN_IMAGES = _finetune(
    _OWN,
    name=_OWN,
    cut="pooled",
    chunks=1,
    epochs=10,
    lr=0.01,
    momentum=0.9,
    last_batch="keep",
    precision="bfloat16",
    pool="mean",
)


_SCRATCH = Recipe(
    name="cifar10-scratch",
    cut="before-norm",
    batch=1024,
    epochs=200,
    lr=0.4,
    lr_schedule="cosine",
    warmup=20.0,
    momentum=0.9,
    weight_decay=1e-4,
    precision="float32",
    layout="channels_last",
    chunks=4,
    last_batch="drop",
    model="mobilenet_v2_cifar",
    weights=NONE,
    dataset="cifar10",
    pixels=32,
    augment="pad4",
)
"""Document 003's."""

VISION = (
    _subject("MobileNetV2, pretrained, on CIFAR-10 at 224 px", _finetune("cifar10")),
    _subject("MobileNetV2, pretrained, on CIFAR-100 at 224 px", _finetune("cifar100")),
    _subject("MobileNetV2, pretrained, on Food-101 at 224 px", _finetune("food101")),
    _subject("MobileNetV2 on CIFAR-10 at 32 px, from scratch", _SCRATCH),
    _subject("MobileNetV2, pretrained, on a folder of images a class", _OWN_IMAGES),
)

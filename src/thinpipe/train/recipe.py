"""A recipe: all that a training run's numbers depend on, as plain data that is printed, saved and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from thinpipe.bottleneck.spec import ConvSpec, parse_cuts
from thinpipe.errors import SpecError, ThinpipeError
from thinpipe.suggest import instead_of


class RecipeError(ThinpipeError, ValueError):
    """A recipe that does not exist, or a value that it cannot have."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how. Two runs of equal recipes see the same samples in the same order.

    The fields of ``PERMISSIONS`` alone change no number: they decide whether a run may begin, or go on.

    A field that a recipe has no use for is as neutral as its default here, and cannot be changed.

    Args:
        name: of the recipe, which decides about the kind of model and of data.
        cut: where the model is cut for a client and a server; the recipe lists its cuts.
        batch: samples in a batch.
        epochs: how often every sample is seen.
        lr: the learning rate, the highest that the schedule reaches.
        lr_schedule: what becomes of it after the warm-up: ``constant``, or down to zero by a ``cosine`` or by a
            straight line, ``polynomial``.
        warmup: how long the rate grows before that: from 1 on in epochs, below 1 as a share of all steps; 0 for none.
        warmup_steps: the same as a number of steps, however many there are; 0 for what ``warmup`` says.
        optimizer: ``sgd``, ``adam`` or ``adamw``. Weight decay is part of the gradient of ``adam``, and scaled with it;
            that of ``adamw`` is apart from it.
        momentum: of SGD; 0 for none.
        weight_decay: of all parameters; 0 for none.
        adam_betas: of Adam and AdamW, how long they remember gradients and their squares; on a command line
            ``0.9,0.98``.
        adam_eps: of Adam and AdamW, added to the root of the squares.
        clip: the largest norm that all gradients together may have; 0 for any.
        precision: of convolutions and matrix products: ``float32``, or ``bfloat16`` by autocast, the weights being
            float32 all the same.
        layout: of images in memory, ``channels_first`` or ``channels_last``; the second is faster on GPUs, above all in
            bfloat16.
        seed: of the weights, the order of samples and all that is drawn in training.
        chunks: micro-batches in a batch.
        model: the network's name; of a text recipe the folder of a Hugging Face encoder, or ``tiny``.
        weights: a safetensors file that an image network begins with, but for its last layer; ``none`` for none.
        pool: what an image network's last map becomes before its last layers: the ``mean`` of all of it, or its
            ``corner``, which is the mean of the first 4 x 4 places after a ReLU, as Epipe has it.
        dropout: the share of a network's numbers that it drops in training, wherever it does; 0 for none.
        lora: the rank of what is trained beside the frozen attention of a text encoder; 0 to train everything.
        lora_alpha: what LoRA's part is multiplied with, times its rank.
        dataset: the name under which the samples are found.
        data_dir: the folder in which they are looked for, before the usual places.
        classes: how many there are; 0 for as many as the data has.
        pixels: the edge of an image.
        augment: what happens to images in training: ``none``; ``pad4``, which moves them by up to 4 pixels and flips
            them; or ``crop``, which takes a part of any size and flips it.
        max_length: the most tokens of a text; what is longer is cut off.
        padding: the length of a batch's texts: that of the longest one, ``batch``, or ``full``, the most there may be,
            as Epipe had it. Padding is masked: it costs time and bytes and changes nothing else.
        limit: the most samples that are trained on, and tested with; 0 for all, which must then be there.
        last_batch: of an epoch in training, where the samples do not fill it: ``keep`` it smaller, or ``drop`` it, so
            that BatchNorm never sees micro-batches of a few samples.
        batch_norm: of processes that train data parallel, whose rows BatchNorm's statistics are of: those of ``all`` of
            them, as on one device, or each one's ``own``, as DistributedDataParallel has it. Other ways are the same.
        bottleneck: learned bottlenecks, as ``conv:20k4s4/conv:320``: one for each cut, or one for all of them; ``none``
            for none.
        bottleneck_fit: how many batches bottlenecks are fitted to before the first step, by least squares; 0 to begin
            with what the texts and the seed say.
        bottleneck_file: a safetensors file of weights that bottlenecks begin with, instead of a fit; ``none`` for none.
        max_damaged: the largest share of the images to train on, or to test with, that may be unreadable, and of texts
            that may be empty; with more, a run is refused.
        untrained_classes: whether a run is refused whose test has classes that nothing is trained on: ``refuse`` or
            ``allow``. With a ``limit`` it never is.
        on_nan: what a run does when its loss is not finite: ``stop``, with the last good weights saved, or
            ``continue``, to record how it ends.
    """

    name: str
    cut: str
    batch: int
    epochs: int
    lr: float
    lr_schedule: str = "constant"
    warmup: float = 0.0
    warmup_steps: int = 0
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    clip: float = 0.0
    precision: str = "float32"
    layout: str = "channels_first"
    seed: int = 0
    chunks: int = 1
    model: str = ""
    weights: str = "none"
    pool: str = "mean"
    dropout: float = 0.0
    lora: int = 0
    lora_alpha: int = 16
    dataset: str = ""
    data_dir: str = ""
    classes: int = 0
    pixels: int = 0
    augment: str = "none"
    max_length: int = 0
    padding: str = "batch"
    limit: int = 0
    last_batch: str = "keep"
    batch_norm: str = "all"
    bottleneck: str = "none"
    bottleneck_fit: int = 4
    bottleneck_file: str = "none"
    max_damaged: float = 0.01
    untrained_classes: str = "refuse"
    on_nan: str = "stop"

    def __post_init__(self) -> None:
        # A server takes these values from strangers: none may make it reserve memory without bound.
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if not (math.isfinite(number) and low <= number <= high):
                    raise RecipeError(f"{name} is a number from {low} to {high}, got {number}")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise RecipeError(f"{name} cannot be {value!r:.40}; {instead_of(value, choices)}")
        if self.warmup and self.warmup_steps:
            raise RecipeError(
                f"how long is the warm-up? warmup says {self.warmup:g} and warmup_steps {self.warmup_steps}; set one "
                "of them to 0"
            )
        _verify_bottlenecks(self.bottleneck)

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self) | {"adam_betas": list(self.adam_betas)}

    def numbers(self) -> dict[str, Any]:
        """Lists the fields that a run's numbers depend on; where samples lie is none of them."""
        return {name: value for name, value in self.to_json().items() if name not in ("data_dir", *PERMISSIONS)}

    @classmethod
    def from_json(cls, value: Any) -> Recipe:
        """Reads what ``to_json`` wrote; what an older version did not know yet is neutral.

        Raises:
            RecipeError: a field is missing, unknown, or of the wrong kind.
        """
        if not isinstance(value, Mapping):
            raise RecipeError(f"a recipe is an object with fields, got {value!r:.100}")
        known = field_names()
        for name in value:
            if name not in known:
                raise RecipeError(f"a recipe has no field {name!r:.40}; {instead_of(str(name), known)}")
        lost = [name for name in _NEEDED if name not in value]
        if lost:
            raise RecipeError(f"a recipe needs {', '.join(_NEEDED)}; this one lacks {', '.join(lost)}")
        return cls(**{name: _converted(name, value[name]) for name in value})

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """Returns the recipe with other values; texts are read as the field's type, as they come from a command line.

        Raises:
            RecipeError: there is no such field, or the value is none of its.
        """
        known = [name for name in field_names() if name != "name"]
        for name in changes:
            if name not in known:
                raise RecipeError(f"a recipe has no field {name!r:.40}; {instead_of(str(name), known)}")
        return replace(self, **{name: _converted(name, value) for name, value in changes.items()})


PERMISSIONS = ("max_damaged", "untrained_classes", "on_nan")
"""The fields that decide whether a run may begin or go on, and none of its numbers."""

CHOICES: dict[str, tuple[str, ...]] = {
    "lr_schedule": ("constant", "cosine", "polynomial"),
    "optimizer": ("sgd", "adam", "adamw"),
    "precision": ("float32", "bfloat16"),
    "layout": ("channels_first", "channels_last"),
    "pool": ("mean", "corner"),
    "augment": ("none", "pad4", "crop"),
    "padding": ("batch", "full"),
    "last_batch": ("keep", "drop"),
    "batch_norm": ("all", "own"),
    "untrained_classes": ("refuse", "allow"),
    "on_nan": ("stop", "continue"),
}
"""The texts that a field can be."""

_NEEDED = ("name", "cut", "batch", "epochs", "lr")
_RANGES: dict[str, tuple[float, float]] = {
    "batch": (1, 1_000_000),
    "epochs": (0, 1_000_000),
    "lr": (0, 1e6),
    "warmup": (0, 1_000_000),
    "warmup_steps": (0, 2**62),
    "momentum": (0, 1),
    "weight_decay": (0, 1e6),
    "adam_betas": (0, 1),
    "adam_eps": (0, 1),
    "clip": (0, 1e12),
    "seed": (0, 2**62),
    "chunks": (1, 4096),
    "dropout": (0, 1),
    "lora": (0, 1024),
    "lora_alpha": (0, 1e6),
    "classes": (0, 100_000),
    "pixels": (0, 1024),
    "max_length": (0, 4096),
    "limit": (0, 2**62),
    "bottleneck_fit": (0, 10_000),
    "max_damaged": (0, 1),
}
_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    tuple[float, float]: "two numbers, as 0.9,0.98",
}


_MOST_SETS = 4
_MOST_WEIGHTS = 16_384
"""Numbers in the kernels of a bottleneck's convolution, for each channel that it gets."""


def _verify_bottlenecks(text: str) -> None:
    try:
        specs = parse_cuts(text)
    except SpecError as error:
        raise RecipeError(str(error)) from error
    for spec in specs:
        if spec is None:
            continue
        if len(spec.sets) > _MOST_SETS:
            raise RecipeError(f"a bottleneck has at most {_MOST_SETS} sets, got {len(spec.sets)}: {text!r:.100}")
        if isinstance(spec, ConvSpec) and spec.sets[0].channels * spec.sets[0].kernel ** 2 > _MOST_WEIGHTS:
            raise RecipeError(f"{spec}: channels x kernel x kernel is at most {_MOST_WEIGHTS:,}; use a smaller kernel")


def field_names() -> list[str]:
    """Lists the fields of a recipe."""
    return [each.name for each in fields(Recipe)]


def _converted(name: str, value: Any) -> Any:
    kind = get_type_hints(Recipe)[name]
    try:
        return _pair(value) if kind == tuple[float, float] else _plain(kind, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecipeError(f"{name} is {_KINDS[kind]}, got {value!r:.100}") from error


def _plain(kind: Any, value: Any) -> Any:
    # A number is never taken from true or false, nor a whole one from 1.5.
    fits = isinstance(value, str) or (type(value) in (int, float) and kind is not str)
    converted = kind(value)
    if not fits or (kind is int and not isinstance(value, str) and converted != value):
        raise ValueError
    return converted


def _pair(value: Any) -> tuple[float, float]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise TypeError
    first, second = (_plain(float, part) for part in parts)
    return first, second

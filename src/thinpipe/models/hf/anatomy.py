"""Takes a transformers model apart: which of its modules come one after the other, and which only hold others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from thinpipe.errors import SplitError
from thinpipe.models.hf.families import FAMILIES, HEADS, Family


@dataclass(frozen=True)
class Organ:
    """Modules that stay together.

    Args:
        name: that of the module a stage begins with if it begins here; empty if none can.
        modules: the names of all of them.
    """

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Anatomy:
    """A transformers model, taken apart. All names are those in the whole model.

    Args:
        model: the model.
        family: what is known about it.
        prefix: of the names in the base model: ``bert.``, or empty if the model is nothing but a base model.
        organs: what the rows of a batch pass, in order: the embeddings, each layer, and the rest.
        containers: the modules whose children go to several stages.
        copied: the modules of which every stage has a copy.
        rides: the arguments that go from stage to stage, if they are given.
        reads_first: whether the head reads the first token of a row, and no other.
    """

    model: nn.Module
    family: Family
    prefix: str
    organs: tuple[Organ, ...]
    containers: tuple[str, ...]
    copied: tuple[str, ...]
    rides: tuple[str, ...]
    reads_first: bool

    @property
    def cuttable(self) -> list[str]:
        """The names at which a stage can begin."""
        return [organ.name for organ in self.organs[1:] if organ.name]

    @property
    def costs(self) -> list[int]:
        """The number of parameters of each layer."""
        layers = self.organs[1:-1]
        return [sum(p.numel() for p in self.model.get_submodule(layer.name).parameters()) for layer in layers]

    @classmethod
    def of(cls, model: Any) -> Anatomy:
        """Takes a model apart.

        Raises:
            SplitError: its family or its head is not known, or it was changed in a way that no stage would notice.
        """
        family = _family(model)
        needs = _head_needs(model)
        base = model.base_model
        prefix = "" if base is model else f"{model.base_model_prefix}."
        where = _list_of_layers(base, family)
        before, after = (
            [prefix + name for name in names if base._modules.get(name) is not None]
            for names in (family.before, family.after)
        )
        head = [name for name, child in model.named_children() if child is not base] if prefix else []
        heavy = [name for name in head if next(model.get_submodule(name).parameters(), None) is not None]
        layers = [f"{prefix}{where}.{name}" for name in base.get_submodule(where)._modules]
        path = where.split(".")
        anatomy = cls(
            model=model,
            family=family,
            prefix=prefix,
            organs=(
                Organ("", tuple(before)),
                *(Organ(layer, (layer,)) for layer in layers),
                Organ(next(iter((*after, *heavy)), ""), (*after, *head)),
            ),
            containers=tuple(
                dict.fromkeys(["", prefix[:-1], *(prefix + ".".join(path[: k + 1]) for k in range(len(path)))])
            ),
            copied=tuple(prefix + name for name in family.copied),
            rides=tuple(dict.fromkeys((*family.rides, *needs))),
            reads_first=_class_name(model).endswith(family.reads_first),
        )
        _verify(anatomy)
        return anatomy


def _family(model: Any) -> Family:
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise SplitError(
            f"{type(model).__name__} is of the family '{kind}', for which there is no adapter; there are some for "
            f"{', '.join(FAMILIES)}. Give an example to have the model traced: split(model, at=[...], example=batch)"
        )
    return FAMILIES[kind]


def _head_needs(model: Any) -> tuple[str, ...]:
    """Finds what the head needs of the batch."""
    cls = _known_class(model)
    if cls is None or type(model).forward is not vars(cls).get("forward"):
        raise SplitError(
            f"{type(model).__name__} has a forward of its own, which no stage would call; put what it does into a "
            "module around the model, or into the loss function"
        )
    name = cls.__name__
    kind = name.removeprefix(type(model.base_model).__name__.removesuffix("Model"))
    if name not in HEADS and kind not in HEADS:
        raise SplitError(
            f"there is no adapter for {name}; there are some for classes whose names end in {', '.join(HEADS)}"
        )
    return HEADS.get(name, HEADS.get(kind, ()))


def _known_class(model: Any) -> type | None:
    """Finds the class of transformers that a model is of, or is made from."""
    return next((cls for cls in type(model).__mro__ if cls.__module__.startswith("transformers.models.")), None)


def _class_name(model: Any) -> str:
    cls = _known_class(model)
    return "" if cls is None else cls.__name__


def _list_of_layers(base: nn.Module, family: Family) -> str:
    for where in family.layers:
        try:
            base.get_submodule(where)
        except AttributeError:
            continue
        return where
    raise SplitError(
        f"{type(base).__name__} has its layers in none of {', '.join(family.layers)}: transformers 5 or newer is needed"
    )


def _verify(anatomy: Anatomy) -> None:
    model = anatomy.model
    known = {*anatomy.containers, *anatomy.copied, *(name for organ in anatomy.organs for name in organ.modules)}
    for name in anatomy.containers:
        container = model.get_submodule(name)
        for child, _ in container.named_children():
            full = f"{name}.{child}" if name else child
            if full not in known:
                raise SplitError(f"thinpipe does not know what '{full}' is for, and where it belongs; is it yours?")
        own = [*container._parameters, *container._buffers]
        if own:
            raise SplitError(f"'{name}' itself holds '{own[0]}', which no stage would have; move it into a layer")
        hooks = container._forward_hooks or container._forward_pre_hooks or container._backward_hooks
        if hooks or container._backward_pre_hooks or "forward" in container.__dict__:
            raise SplitError(
                f"{'the model' if not name else repr(name)} has hooks, or a forward that was put in its place (as a "
                "device_map does), which no stage would call; split the model without them"
            )
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise SplitError(
            "the model recomputes by itself, inside of the stages; call model.gradient_checkpointing_disable() and let "
            "the pipe do it: checkpoint='always'"
        )

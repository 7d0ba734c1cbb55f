"""Computes one stage of a transformers model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from thinpipe.errors import BatchError
from thinpipe.models.hf.anatomy import Anatomy
from thinpipe.models.hf.husk import Entrance, Inside, Nothing, Passage, entered, husk
from thinpipe.stages.part import settle

HIDDEN = "hidden_states"
"""The name under which a stage finds what the one before it has computed."""


class HfStage:
    """Makes of what enters a stage what leaves it.

    The first stage takes a batch as the model does, in a dictionary, or its most important tensor alone. Between stages
    goes a dictionary: the hidden states, and what else of the batch every stage needs, a mask of two dimensions as
    booleans. The last stage gives the logits, or the last hidden state of a model without a head.

    Args:
        anatomy: the whole model.
        modules: the names of those that the stage has.
        first: whether it is the first stage.
        last: whether it is the last one.
        first_token: whether only the first token of a row goes on: nothing that comes after the stage reads another.
    """

    def __init__(
        self, anatomy: Anatomy, modules: Sequence[str], *, first: bool, last: bool, first_token: bool = False
    ) -> None:
        self._family, self._rides, self._first_token = anatomy.family, anatomy.rides, first_token
        self._first, self._last = first, last
        self._husks: list[nn.Module] = []
        self._base: nn.Module
        self.body = self._husk(anatomy, "", set(modules), _stand_ins(anatomy, set(modules)))
        self._always = settings_of(self._base)

    def _husk(self, anatomy: Anatomy, name: str, kept: set[str], stand_ins: dict[str, Any]) -> nn.Module:
        """Makes the husk of a container, and of those inside of it."""
        module = anatomy.model.get_submodule(name)
        children: dict[str, nn.Module] = {}
        instead: dict[str, Any] = {}
        for child_name, child in module.named_children():
            full = f"{name}.{child_name}" if name else child_name
            if full in anatomy.containers:
                inner = self._husk(anatomy, full, kept, stand_ins)
                if full == anatomy.prefix[:-1]:
                    instead[child_name] = Inside(inner)
                elif not inner._modules:
                    instead[child_name] = inner
                if inner._modules:
                    children[child_name] = inner
            elif full in kept:
                children[child_name] = child
            elif full in anatomy.copied:
                # The first stage has the model's own. No two stages may have one module: each is on its own device.
                children[child_name] = child if self._first else copy.deepcopy(child)
            elif full in stand_ins:
                instead[child_name] = stand_ins[full]
        made = husk(module, children, instead)
        self._husks.append(made)
        if name == anatomy.prefix[:-1]:
            self._base = made
        return made

    def __call__(self, value: Any) -> Any:
        """Computes the stage."""
        for each in self._husks:  # the innermost first
            settle(each)
        given = self._batch(value) if self._first else dict(value)
        hidden = given.pop(HIDDEN, None)
        going = {name: given[name] for name in self._rides if name in given}
        arguments = {name: given[name] for name in self._family.takes if name in given and hidden is None}
        if hidden is not None:
            arguments = {name: given[name] for name in self._family.rides if name in given}
            arguments[self._family.enters_as] = hidden
        with entered(hidden, arguments | self._always):
            if not self._last:
                output = self._base(**arguments, **self._always).last_hidden_state
                # What rides is for layers, of which none are left. A copy: a view would keep the whole row alive.
                return {HIDDEN: output[:, :1].contiguous()} if self._first_token else {HIDDEN: output, **going}
            if self.body is self._base:
                return output_of(self.body(**arguments, **self._always))
            needed = {name: going[name] for name in going if name not in self._family.rides}
            return output_of(self.body(**needed, return_dict=True))

    def _batch(self, value: Any) -> dict[str, Any]:
        takes = self._family.takes
        given = {takes[0]: value} if isinstance(value, Tensor) else value
        if not isinstance(given, dict):
            raise BatchError(f"the first stage takes a dictionary with {', '.join(takes)}, got {type(value).__name__}")
        strange = [name for name in given if name not in takes]
        if strange:
            raise BatchError(
                f"the first stage takes {', '.join(takes)}, got '{strange[0]}' as well; labels are targets, of the loss"
            )
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        mask = given.get("attention_mask")
        if mask is not None and mask.dim() == 2:
            given["attention_mask"] = mask.to(torch.bool)  # as the model itself would, and an eighth of the bytes
        return given


def settings_of(model: nn.Module) -> dict[str, bool]:
    """Says how a model is called for training: without a cache of keys, which is for generating, and crosses no cut."""
    accepted = inspect.signature(model.forward).parameters
    return {"return_dict": True} | ({"use_cache": False} if "use_cache" in accepted else {})


def output_of(outputs: Any) -> Any:
    """Takes from the outputs of a transformers model what a pipeline has for an output."""
    if "logits" in outputs:
        return outputs["logits"]
    if "start_logits" in outputs:
        return outputs["start_logits"], outputs["end_logits"]
    return outputs["last_hidden_state"]


def _stand_ins(anatomy: Anatomy, kept: set[str]) -> dict[str, Any]:
    """Chooses what stands in for the modules that a stage has not."""
    first, last = anatomy.organs[0].modules, anatomy.organs[-1].modules
    found: dict[str, Any] = dict.fromkeys(last, Passage())
    found |= dict.fromkeys(first[:-1], Nothing()) | {first[-1]: Entrance()}
    return {name: stand_in for name, stand_in in found.items() if name not in kept}

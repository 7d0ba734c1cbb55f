"""A transformer's layer in two, so that a cut may go between its attention and the rest of it.

::

    layer 0                          layer 0        layer 0_rest
      attention ─► feed forward   =    attention ─┆─► feed forward

Epipe's Conditions 2 and 3 leave the first layer's attention with the client and give the rest to the server.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from thinpipe.train.recipe import RecipeError

REST = "_rest"
"""What the second half's name has after the layer's."""


class Attention(nn.Module):
    """The first half of a layer of BERT or RoBERTa, which returns a tensor.

    Args:
        layer: the layer, whose modules it takes.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.attention = layer.get_submodule("attention")

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: Any, **others: Any) -> Any:
        """Attends."""
        known = {name: others[name] for name in others if not name.startswith("encoder_")}
        output: Tensor = self.attention(hidden, mask, **known)[0]
        return output


class Rest(nn.Module):
    """The second half.

    Args:
        layer: the layer, whose modules it takes.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.intermediate, self.output = layer.get_submodule("intermediate"), layer.get_submodule("output")

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Any:
        """Feeds forward."""
        output: Tensor = self.output(self.intermediate(hidden), hidden)
        return output


class BiasedAttention(Attention):
    """The first half of a layer of MPNet, which takes a position bias and returns a tuple."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *others: Any, **_: Any) -> tuple[Tensor]:
        """Attends, with the bias that all layers are called with."""
        return (self.attention(hidden, mask, others[0])[0],)


class RestInTuple(Rest):
    """The second half of a layer of MPNet."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        """Feeds forward."""
        return (super().forward(hidden),)


_HALVES: dict[str, tuple[type[Attention], type[Rest]]] = {"mpnet": (BiasedAttention, RestInTuple)}
"""By family, where its layers are not called as BERT's are."""


def halve_first(layers: nn.Module, family: str) -> None:
    """Puts both halves of the first layer in its place.

    Args:
        layers: a list of layers.
        family: that the model is of.

    Raises:
        RecipeError: it is no layer of BERT, RoBERTa or MPNet.
    """
    (name, first), *others = layers._modules.items()
    if first is None or not all(hasattr(first, part) for part in ("attention", "intermediate", "output")):
        raise RecipeError(
            f"a {type(first).__name__} is not cut after its attention, only layers of BERT, RoBERTa and MPNet are; use "
            "the cut condition-1 or condition-4"
        )
    attention, rest = _HALVES.get(family, (Attention, Rest))
    halves = {name: attention(first), f"{name}{REST}": rest(first)}
    # A list of layers is run in the order in which it has them; their names are for people and files.
    layers._modules.clear()
    layers._modules.update({**halves, **dict(others)})

"""A transformer's layer in two, so that a cut may go between its attention and the rest of it.

::

    layer 0                          layer 0        layer 0_rest
      attention ─► feed forward   =    attention ─┆─► feed forward

The documents' Conditions 2 and 3 leave the first layer's attention with the client and give the rest to the server.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from thinpipe.train.recipe import RecipeError

REST = "_rest"
"""What the second half's name has after the layer's."""


class Attention(nn.Module):
    """The first half of a layer of BERT or RoBERTa.

    Args:
        layer: the layer, whose modules it takes.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.attention = layer.get_submodule("attention")

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: Any, **others: Any) -> Tensor:
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

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """Feeds forward."""
        output: Tensor = self.output(self.intermediate(hidden), hidden)
        return output


def halve_first(layers: nn.Module) -> None:
    """Puts both halves of the first layer in its place, in a list of layers.

    Raises:
        RecipeError: it is no layer of BERT or RoBERTa.
    """
    (name, first), *others = layers._modules.items()
    if first is None or not all(hasattr(first, part) for part in ("attention", "intermediate", "output")):
        raise RecipeError(
            f"a {type(first).__name__} is not cut after its attention, only layers of BERT and RoBERTa are; use the "
            "cut condition-1 or condition-4"
        )
    halves = {name: Attention(first), f"{name}{REST}": Rest(first)}
    # A list of layers is run in the order in which it has them; their names are for people and files.
    layers._modules.clear()
    layers._modules.update({**halves, **dict(others)})

"""The two halves of a bottleneck: the sender's, which ends a stage, and the receiver's, which begins the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from thinpipe.bottleneck.conv import ConvNarrow, ConvWiden
from thinpipe.bottleneck.error import BottleneckError
from thinpipe.bottleneck.linear import LinearNarrow, LinearWiden
from thinpipe.bottleneck.place import Place, changed

Narrow: TypeAlias = ConvNarrow | LinearNarrow
Widen: TypeAlias = ConvWiden | LinearWiden
Sizes: TypeAlias = tuple[int | None, ...]
"""The sizes of a row, ``None`` where any will do."""


class Half(nn.Sequential):
    """What both have: the number of their cut, and the place of the tensor that they change.

    Args:
        sets: in the order in which they run.
        cut: between the stages ``cut`` and ``cut + 1``.
        place: of the tensor, in all that crosses the cut.
        sizes: of a row of it.
    """

    def __init__(self, sets: Sequence[nn.Module], *, cut: int, place: Place, sizes: Sizes) -> None:
        super().__init__(*sets)
        self.cut, self.place, self.sizes = cut, place, sizes

    def forward(self, input: Any) -> Any:
        """Changes one tensor, and passes on all others."""
        return changed(input, self.place, self.through)

    def through(self, x: Tensor) -> Tensor:
        """Changes the tensor.

        Raises:
            BottleneckError: it has another size than the one that the bottleneck was made for.
        """
        row = tuple(x.shape[1:])
        fits = len(row) == len(self.sizes) and all(
            wanted in (None, size) for wanted, size in zip(self.sizes, row, strict=True)
        )
        if not fits:
            wanted = " x ".join("any" if size is None else str(size) for size in self.sizes)
            raise BottleneckError(
                f"the {type(self).__name__.lower()} of cut {self.cut} takes rows of {wanted}, got "
                f"{' x '.join(map(str, row))}; insert a bottleneck with an example of that size"
            )
        for each in self:
            x = each(x)
        return x


class Sender(Half):
    """Makes small what leaves a stage."""

    @property
    def sets(self) -> list[Narrow]:
        """Its sets, from the model to the wire."""
        return list(self)  # type: ignore[arg-type]


class Receiver(Half):
    """Makes of it what it was, nearly; it knows the size from when it was made."""

    @property
    def sets(self) -> list[Widen]:
        """Its sets, from the model to the wire: the other way round than they run."""
        return list(self)[::-1]  # type: ignore[return-value]

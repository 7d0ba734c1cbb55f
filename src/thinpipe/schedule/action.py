"""One thing a worker does: compute a micro-batch forward, recompute it, or send its gradient backward.

A backward is one action, ``B``, or two: ``I`` for the gradient of the input, which the stage before waits for, and
``W`` for that of the weights, which nobody waits for.

An action prints as it is spoken of, ``F2.3`` being the forward of stage 2 on micro-batch 3, and the text parses back,
so a schedule can be read in an error message, stored in a file and compared in a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

_TEXT = re.compile(r"([FRBIW])(\d+)\.(\d+)\Z")


class Kind(Enum):
    """What an action computes."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


@dataclass(frozen=True)
class Action:
    """One computation of one stage on one micro-batch.

    Args:
        kind: forward, recompute, backward, or a part of a backward.
        stage: the stage ``j``.
        micro: the micro-batch ``i``.
    """

    kind: Kind
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}.{self.micro}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Reads what ``str`` wrote.

        Raises:
            ValueError: the text is no action.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"{text!r} is no action; write F, R, B, I or W, a stage, a dot and a micro-batch: 'F2.3'")
        return cls(Kind(match[1]), int(match[2]), int(match[3]))


ActionList: TypeAlias = list[Action]
"""What one worker does, in order."""

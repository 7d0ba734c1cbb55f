"""What a training loop needs of whoever trains: a client with its server, or this process alone."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Cost(Protocol):
    """What a step cost."""

    def to_json(self) -> dict[str, Any]:
        """Says it in plain values."""
        ...


class Trainer(Protocol):
    """Trains a model batch by batch, optimizer included."""

    @property
    def committed(self) -> int:
        """How many steps are behind it for good."""
        ...

    @property
    def cost(self) -> Cost | None:
        """What the last step cost; None where nothing is cut."""
        ...

    def step(self, inputs: Any, targets: Any, *, lr: float | None = None, clip: float | None = None) -> Tensor:
        """Trains on one batch, and returns its loss.

        Args:
            inputs: of the whole batch, whoever computes it.
            targets: of the whole batch.
            lr: the learning rate from now on (default: what the optimizer has).
            clip: the largest norm that all gradients together may have (default: any).
        """
        ...

    def evaluate(self, inputs: Any) -> Any:
        """Returns the outputs for inputs, and leaves the model as it is."""
        ...

    def save(self) -> None:
        """Saves a state to go on from."""
        ...

    def close(self) -> None:
        """Ends it; nothing is trained afterwards."""
        ...

"""What torchrun tells the processes that it starts, in variables of their environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch

from thinpipe.train.recipe import RecipeError

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Torchrun:
    """This process among those of torchrun.

    Args:
        rank: its number among all.
        world: how many there are.
        local: its number among those of this machine.
    """

    rank: int
    world: int
    local: int

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Torchrun | None:
        """Finds out whether torchrun has started this process; None if it has not.

        Args:
            environment: where to look (default: this process's own).

        Raises:
            RecipeError: a variable is no number.
        """
        found = os.environ if environment is None else environment
        if not all(name in found for name in _NEEDED):
            return None
        try:
            return cls(int(found["RANK"]), int(found["WORLD_SIZE"]), int(found["LOCAL_RANK"]))
        except ValueError as error:
            raise RecipeError(f"torchrun's RANK, WORLD_SIZE and LOCAL_RANK are numbers: {error}") from error

    def device(self, device: str, devices: tuple[str, ...] | None) -> torch.device:
        """Chooses this rank's device.

        Args:
            device: for all; of several GPUs each rank of a machine has its own.
            devices: one for each rank of a machine, which says it instead.

        Raises:
            RecipeError: there are too few.
        """
        if devices is not None:
            if self.local >= len(devices):
                raise RecipeError(f"--devices has {len(devices)}, and this machine more ranks; name one for each")
            return torch.device(devices[self.local])
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is None:
            return torch.device("cuda", self.local % torch.cuda.device_count())
        return chosen


def leave(status: int) -> NoReturn:
    """Ends a rank's process."""
    # Gloo's threads let go of the last tensors when it suits them; once the interpreter is half gone, that aborts.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

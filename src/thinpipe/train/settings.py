"""How a recipe is run: on which device, over which network, packed how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from thinpipe.codecs import codec as codec_of
from thinpipe.links.throttle import parse_rate
from thinpipe.schedule import SCHEDULES
from thinpipe.train.recipe import RecipeError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run's speed depends on, and with a codec its numbers.

    Args:
        connect: the server, as ``host:port`` (default: none; everything is trained here).
        key: the file of this client's keys (default: none, for a server on this machine).
        server: the file of the server's public key (default: none).
        codec: packs activations (default: nothing does).
        grad_codec: packs gradients (default: nothing does).
        schedule: of the micro-batches.
        bandwidth: of an emulated link each way, as ``50mbit`` (default: what the network has).
        every: steps between two saved states.
        device: of the client's parts, or of everything.
    """

    connect: str | None = None
    key: str | None = None
    server: str | None = None
    codec: str | None = None
    grad_codec: str | None = None
    schedule: str = "1f1b"
    bandwidth: str | None = None
    every: int = 50
    device: str = "cpu"

    def verify(self) -> Settings:
        """Checks that a run with these settings can be begun on this machine, and returns them.

        Raises:
            RecipeError: it cannot.
            SpecError: there is no such codec.
        """
        remote = {"--key": self.key, "--codec": self.codec, "--grad-codec": self.grad_codec}
        remote |= {"--server": self.server, "--bandwidth": self.bandwidth}
        given = [name for name, value in remote.items() if value is not None]
        if self.connect is None and given:
            raise RecipeError(f"{given[0]} concerns the network to a server; add --connect host:port, or leave it out")
        if (self.key is None) != (self.server is None):
            raise RecipeError("--key and --server belong together: this client's keys, and whom they may talk to")
        if self.schedule not in SCHEDULES:
            raise RecipeError(f"no schedule is called {self.schedule!r:.40}; there are {', '.join(SCHEDULES)}")
        for text in filter(None, (self.codec, self.grad_codec)):
            codec_of(text)
        self.rate()
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise RecipeError(f"there is no device {self.device!r:.40} here; use cpu or cuda") from error
        return self

    def rate(self) -> float | None:
        """Returns the bandwidth in bits a second."""
        try:
            return None if self.bandwidth is None else parse_rate(self.bandwidth)
        except ValueError as error:
            raise RecipeError(str(error)) from error

    def to_json(self) -> dict[str, Any]:
        """Says the same in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Settings:
        """Reads what ``to_json`` wrote; what it does not say is as usual."""
        return cls(**{each.name: value[each.name] for each in fields(cls) if each.name in value})

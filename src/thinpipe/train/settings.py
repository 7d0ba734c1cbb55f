"""How a recipe is run: on which device, over which network, cut and packed how."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from thinpipe.links.throttle import parse_rate
from thinpipe.schedule import SCHEDULES
from thinpipe.schedule.job import parse_workers
from thinpipe.suggest import instead_of
from thinpipe.train.per_cut import codecs_in
from thinpipe.train.recipe import RecipeError
from thinpipe.train.way import Way

_USUAL = {Way.IN_PROCESS: "gpipe", Way.CONNECTED: "stream"}
_ORDER = "1f1b"
_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run's speed depends on, and with a codec its numbers.

    Args:
        connect: the server, as ``host:port`` (default: none; everything is trained here).
        key: the file of this client's keys (default: none, for a server on this machine).
        server: the file of the server's public key (default: none).
        stages: into how many the model is cut (default: as many as cuts, map or ranks say).
        cuts: where stages begin, names or numbers of layers, as ``wide,head`` (default: three stages are cut where the
            recipe says, others into stages with as many parameters as the next).
        map: the rank of each stage, as ``0,1,0`` (default: dealt out in turn).
        ranks: how many processes torchrun has started (default: it has started none).
        replicas: how many pipelines the ranks are, each with its rows of every batch (default: one).
        data_parallel: whether each rank has the whole model and its rows of a batch.
        codec: packs activations; as ``power:3/power:7`` one for each cut (default: nothing does).
        grad_codec: packs gradients, likewise (default: nothing does).
        schedule: of the micro-batches (default: ``1f1b``; with a server ``stream``, which keeps both directions of a
            thin link busy; in process ``gpipe``, which is all that there is).
        bandwidth: of an emulated link each way, as ``50mbit`` (default: what the network has).
        give_up: seconds to try to reach a server that was lost (default: a client's own).
        compile: whether stages are compiled before the first step, which takes minutes; for GPUs, which wait for
            launches otherwise (default: they are not).
        every: steps between two saved states (default: 50 where others save with this process; else some seconds).
        device: of the client's parts, or of everything.
        devices: one for each stage in process, or for each rank of a machine, as ``cuda:0,cuda:1`` (default:
            ``device`` for all).
    """

    connect: str | None = None
    key: str | None = None
    server: str | None = None
    stages: int | None = None
    cuts: str | None = None
    map: str | None = None
    ranks: int | None = None
    replicas: int | None = None
    data_parallel: bool = False
    codec: str | None = None
    grad_codec: str | None = None
    schedule: str | None = None
    bandwidth: str | None = None
    give_up: float | None = None
    compile: bool | None = None
    every: int | None = None
    device: str = "cpu"
    devices: str | None = None

    @property
    def way(self) -> Way:
        """Who computes what."""
        if self.connect is not None:
            return Way.CONNECTED
        if self.data_parallel:
            return Way.DATA_PARALLEL
        if self.ranks is not None:
            return Way.RANKS
        return Way.ONE_DEVICE if self.stages is None and self.cuts is None else Way.IN_PROCESS

    @property
    def team(self) -> int:
        """The number of ranks that one pipeline has."""
        return (self.ranks or 1) // (self.replicas or 1)

    @property
    def order(self) -> str:
        """The schedule, where nobody has chosen one the usual one."""
        return _USUAL.get(self.way, _ORDER) if self.schedule is None else self.schedule

    @property
    def steps_between(self) -> int:
        """The steps between two saved states, where several processes save the same ones."""
        return self.every or _EVERY

    @property
    def workers(self) -> tuple[int, ...] | None:
        """The rank of each stage; None if they are dealt out in turn."""
        try:
            return None if self.map is None else parse_workers(self.map)
        except ValueError as error:
            raise RecipeError(f"--map: {error}") from error

    def device_list(self) -> tuple[str, ...] | None:
        """The devices of ``devices``; None if it is not said."""
        return None if self.devices is None else tuple(word.strip() for word in self.devices.split(","))

    def verify(self) -> Settings:
        """Checks that a run with these settings can be begun on this machine, and returns them.

        Raises:
            RecipeError: it cannot.
            SpecError: there is no such codec.
        """
        if self.order not in SCHEDULES:
            raise RecipeError(f"no schedule is called {self.order!r:.40}; {instead_of(self.order, SCHEDULES)}")
        self._verify_way()
        if (self.key is None) != (self.server is None):
            raise RecipeError("--key and --server belong together: this client's keys, and whom they may talk to")
        for text in (self.codec, self.grad_codec):
            if text is not None:
                codecs_in(text)
        if self.connect is not None:
            with suppress(ImportError):  # a package that is missing is named later, with all others that are
                from thinpipe.links.net.addresses import Address

                Address.parse(self.connect)
        self.rate()
        _ = self.workers
        for device in self.device_list() or (self.device,):
            try:
                torch.empty(0, device=device)
            except (RuntimeError, AssertionError) as error:
                raise RecipeError(f"there is no device {device!r:.40} here; use cpu or cuda") from error
        return self

    def _verify_way(self) -> None:
        """Checks that every setting is of use in the way that was chosen."""
        if self.connect is not None and self.ranks is not None:
            raise RecipeError("a client is one process, and torchrun has started several; leave torchrun or --connect")
        if self.data_parallel and self.ranks is None:
            raise RecipeError(
                "--data-parallel needs several processes: torchrun --nproc-per-node 2 -m thinpipe train ... "
                "--data-parallel"
            )
        for option in self._given():
            if self.way not in _USE[option]:
                raise RecipeError(f"--{option.replace('_', '-')} {_REASONS[option]}; {_hint(option, self.way)}")
        self._verify_replicas()
        if self.way is Way.IN_PROCESS and self.order != "gpipe":
            raise RecipeError(
                f"--schedule {self.order} is one for ranks and servers; in process all micro-batches go forward, then "
                "all backward: leave it out, or use torchrun"
            )

    def _verify_replicas(self) -> None:
        """Checks that the ranks can be so many pipelines, and that one of them has a rank for each stage."""
        if self.replicas is None:
            return
        ranks, replicas = self.ranks or 1, self.replicas
        if ranks % replicas:
            near = replicas * max(ranks // replicas, 1)
            raise RecipeError(
                f"--replicas {replicas} cannot be made of {ranks} processes; start a multiple of it, as torchrun "
                f"--nproc-per-node {near}, or say another number"
            )
        if self.workers is not None and max(self.workers) >= self.team:
            raise RecipeError(
                f"--map {self.map} names rank {max(self.workers)}, and each of {replicas} replicas has {self.team} of "
                f"{ranks} ranks; count them from 0 to {self.team - 1}"
            )

    def _given(self) -> list[str]:
        """Lists the settings that only some ways have a use for, of those that are not as usual."""
        return [name for name in _USE if getattr(self, name) is not None]

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


_CUT = (Way.IN_PROCESS, Way.RANKS)
_SENT = (*_CUT, Way.CONNECTED)
_USE: dict[str, tuple[Way, ...]] = {
    "key": (Way.CONNECTED,),
    "server": (Way.CONNECTED,),
    "stages": _CUT,
    "cuts": _CUT,
    "map": (Way.RANKS,),
    "replicas": (Way.RANKS,),
    "codec": _SENT,
    "grad_codec": _SENT,
    "schedule": _SENT,
    "bandwidth": (Way.RANKS, Way.CONNECTED),
    "give_up": (Way.CONNECTED,),
    "compile": (Way.ONE_DEVICE, Way.IN_PROCESS),
    "devices": (*_CUT, Way.DATA_PARALLEL),
}
"""The ways that have a use for a setting; those not listed are for all."""

_NETWORK = "concerns the network to a server"
_PACKS = "concerns the network or a cut, and here is neither"
_REASONS = {
    "key": _NETWORK,
    "server": _NETWORK,
    "stages": "cuts the model here, and this way cuts it otherwise or not at all",
    "cuts": "cuts the model here, and this way cuts it otherwise or not at all",
    "map": "gives stages to the ranks of torchrun",
    "replicas": "makes several pipelines of the ranks of torchrun",
    "codec": _PACKS,
    "grad_codec": _PACKS,
    "schedule": "orders micro-batches among stages, and here are none",
    "bandwidth": "concerns the network, and nothing leaves this process over one",
    "give_up": "is the time to look for a server that was lost, and here is none",
    "compile": "is for what one process trains alone",
    "devices": "has one device for each stage or rank; use --device",
}


def _hint(option: str, way: Way) -> str:
    hints = {
        Way.CONNECTED: "add --connect host:port",
        Way.IN_PROCESS: "add --stages 2",
        Way.RANKS: "start it with torchrun",
    }
    if way is Way.CONNECTED and Way.CONNECTED not in _USE[option]:
        return "leave it out, or leave out --connect"
    if way is Way.DATA_PARALLEL:
        return "leave it out, or leave out --data-parallel"
    found = [hint for each, hint in hints.items() if each in _USE[option]]
    return f"{', '.join(found)}, or leave it out"

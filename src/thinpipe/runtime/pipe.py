"""``Pipe``: a sequential model cut into stages on several devices, that behaves like the model on one.

::

    model = nn.Sequential(a, b, c, d)
    pipe = Pipe(model, balance=[2, 2], devices=["cuda:0", "cuda:1"], chunks=8)
    loss = F.cross_entropy(pipe(x), y)
    loss.backward()
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, overload

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only, tree_unflatten

from thinpipe import arguments
from thinpipe.errors import BalanceError, DeviceError, MoveError
from thinpipe.runtime.crew import Crew
from thinpipe.runtime.crossing import CodecChoice, Crossing, Flow, crossings, load_state, state_of, verify_choice
from thinpipe.runtime.parcel import Edge
from thinpipe.runtime.randomness import DrawingHabits
from thinpipe.runtime.spent import Spent
from thinpipe.runtime.step import Step, Team
from thinpipe.runtime.worker import Station
from thinpipe.stages.batchnorm import defer_batch_norm, deferred_layers, one_batch
from thinpipe.stages.microbatch import Batch
from thinpipe.stages.part import grafted
from thinpipe.stages.parts import Split
from thinpipe.stages.profile import Device, balance_by_time
from thinpipe.stages.split import (
    indexed,
    shared_parameters,
    split,
    verified_parts,
    verify_devices,
    verify_sequential,
)

CHECKPOINT_MODES = ("always", "except_last", "never")
RECOMPUTE_MODES = ("all", "cheap")


class Pipe(nn.Module):
    """Trains a sequential model as a pipeline: its stages work on different micro-batches of a batch at once.

    It has the model's layers under the model's names: ``state_dict``, ``named_parameters`` and ``pipe[0]`` are those of
    the ``nn.Sequential``. What it takes and returns are the model's input and output, for the whole batch.

    Args:
        module: the model: an ``nn.Sequential``, cut between its layers, or a ``Split``. Its layers are used, not
            copied.
        balance: the number of layers of each stage. Default: automatic, from the time each layer takes on the first
            batch; ``rebalance`` chooses earlier. Of a ``Split``, the number of its parts; default: one each.
        devices: a device for each stage; a device may be listed more than once. Default: all GPUs; without any, the
            CPU for every stage (two of them, if the balance is automatic).
        chunks: the number of micro-batches; more of them keep the stages busier, each being smaller. Default: 1.
        checkpoint: which micro-batches are recomputed in the backward instead of keeping their activations: ``always``
            all, ``except_last`` all but the last, whose backward comes first anyway, ``never`` none. Default:
            ``except_last``. In evaluation none are.
        recompute: what is repeated when a micro-batch is recomputed: ``all`` of the forward, or only what is ``cheap``;
            then the results of convolutions and matrix products are kept, about half of the activations, and the
            recomputation takes next to no time. Default: ``all``.
        deferred_batch_norm: whether BatchNorm moves its running statistics once a batch, as one device would, instead
            of once a micro-batch. Default: ``False``.
        codec: how activations are packed at the cuts, in evaluation too: a codec's text, as ``block:4``, or a mapping
            from the number of a cut to one; cut 0 is between stages 0 and 1. Default: not at all.
        grad_codec: how gradients are packed, likewise. Default: not at all.

    Raises:
        SplitError: the module cannot be cut.
        BalanceError: the balance does not fit the module.
        DeviceError: there are too few devices.
        SharedStateError: two stages share a buffer, a layer with parameters, or a parameter and no device.
        SkipError: skips do not pair up.
        SpecError: there is no such codec.
    """

    def __init__(
        self,
        module: nn.Sequential | Split,
        balance: Iterable[int] | None = None,
        *,
        devices: Iterable[Device] | None = None,
        chunks: int = 1,
        checkpoint: str = "except_last",
        recompute: str = "all",
        deferred_batch_norm: bool = False,
        codec: CodecChoice = None,
        grad_codec: CodecChoice = None,
    ) -> None:
        super().__init__()
        self._parts: dict[str, nn.Module] | None = None
        if isinstance(module, Split):
            balance = [1] * len(module) if balance is None else balance
            module = self._take(module)
        verify_sequential(module)
        self.chunks = arguments.whole("chunks", chunks)
        self.checkpoint = arguments.choice("checkpoint", checkpoint, CHECKPOINT_MODES)
        self.recompute = arguments.choice("recompute", recompute, RECOMPUTE_MODES)
        self.codec, self.grad_codec = codec, grad_codec
        verify_choice(codec)
        verify_choice(grad_codec)
        deferred = arguments.flag("deferred_batch_norm", deferred_batch_norm)
        self.balance: list[int] | None = None
        if balance is not None:
            self.balance = arguments.whole_numbers("balance", balance, error=BalanceError)
        self.devices = _devices(devices, self.balance, len(module))
        if self.balance is not None:
            verified_parts(module, self.balance, self.devices)  # before anything is changed
        else:
            verify_devices(self.devices, 1)
        if deferred:
            defer_batch_norm(module)
        self.training = module.training
        if self._parts is None:
            self._register(module)
        self._team: Team | None = None
        self._shared: list[nn.Parameter] = []
        self._crossings: dict[Edge, Crossing] = {}
        self._compiling: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        if self.balance is not None:
            self._assemble(self.balance)

    # -- the stages ------------------------------------------------------------------------------------------------

    def _register(self, module: nn.Sequential) -> None:
        """Makes the layers children of the pipe, under their own names."""
        # Not through `add_module`, which would refuse a layer called "chunks" or "forward".
        self._modules.update(module._modules)
        # A model that loads weights under other names than its own does so in a pipe as well.
        for hook in module._load_state_dict_pre_hooks.values():
            self.register_load_state_dict_pre_hook(hook.hook)  # type: ignore[no-untyped-call, attr-defined]

    def _take(self, split: Split) -> nn.Sequential:
        """Makes the modules of a split model children of the pipe, under their own names; returns what is to be run."""
        whole = grafted(split)
        self._modules.update(whole._modules)
        self._parameters.update(whole._parameters)
        self._buffers.update(whole._buffers)
        self._non_persistent_buffers_set |= whole._non_persistent_buffers_set
        sequence = split.sequential()
        self._parts = dict(sequence.named_children())
        return sequence

    def _sequence(self) -> nn.Sequential:
        sequence = nn.Sequential()
        sequence._modules.update(self._layers())
        sequence.training = self.training
        return sequence

    def _layers(self) -> Mapping[str, nn.Module]:
        return self._modules if self._parts is None else self._parts  # type: ignore[return-value]

    def _assemble(self, balance: list[int]) -> Team:
        stages = split(self._sequence(), balance, self.devices)
        self._shared = shared_parameters([stage.module for stage in stages])
        if self._team is not None:
            self._team.crew.dismiss()
        self.balance = balance
        self.devices = self.devices[: len(balance)]
        self._crossings = crossings(stages, self.codec, self.grad_codec)
        thrifty = self.recompute == "cheap"
        stations = [Station(stage, self._crossings, thrifty=thrifty) for stage in stages]
        if self._compiling is not None:
            args, kwargs = self._compiling
            for station in stations:
                station.compile(*args, **kwargs)
        self._team = Team(stations, DrawingHabits(len(stages)), Crew(len(stages)), threading.Lock())
        return self._team

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles every stage by itself, with the arguments of ``torch.compile``; in later balances, too.

        What is between the stages stays as it is: threads, streams and codecs are nothing that a compiler could join.
        One shape is compiled, the first that comes, unless ``dynamic=True``. Stages on CPU cores that have several
        micro-batches run as they are, as long as their random numbers are led.
        """
        self._compiling = (args, kwargs)
        if self.balance is not None:
            self._assemble(self.balance)

    def rebalance(self, sample: Any, *, timeout: float = 1.0) -> list[int]:
        """Chooses the balance anew from the time each layer takes, and moves the layers accordingly.

        Args:
            sample: an example batch; it is cut into micro-batches as in training.
            timeout: about how many seconds to measure (default: 1).

        Returns:
            The number of layers of each stage.
        """
        batch = Batch.of(sample, self.chunks)
        micro = tree_unflatten(batch.micro_batches()[0], batch.spec)
        sequence = self._sequence()
        stages = min(len(self.devices), len(sequence))
        with torch.random.fork_rng():
            chosen = balance_by_time(stages, sequence, micro, timeout=timeout, device=self.devices[0])
        self._assemble(chosen)
        return chosen

    @property
    def partitions(self) -> list[nn.Sequential]:
        """The stages, as sequences of the model's own layers; empty until the balance is chosen."""
        return [] if self._team is None else [stage.module for stage in self._team.stages]

    # -- running -----------------------------------------------------------------------------------------------------

    def forward(self, input: Any) -> Any:
        """Runs the batch through the stages.

        Args:
            input: what the model's first layer takes: a tensor, or a nesting of tuples, lists and dictionaries. Tensors
                are cut along their first dimension (``NoChunk`` exempts one), everything else goes along whole.

        Returns:
            What the model's last layer returns, put together again for the whole batch.
        """
        if not self._layers():
            return input
        batch = Batch.of(input, self.chunks)
        team = self._current_team(input)
        _watch(self._shared)
        m = len(batch.rows)
        recomputed = self._recomputed(m)
        deferred = [layer for stage in team.stages for layer in deferred_layers(stage.module)] if self.training else []
        team.crew.check_caller()
        with team.busy, one_batch(deferred):
            if len(team.stages) == 1 and m == 1 and not recomputed:
                return self._directly(batch)
            return self._piped(team, batch, recomputed)

    def _current_team(self, input: Any) -> Team:
        """Finds who runs the stages; chooses the balance if nobody did, and cuts again if a layer was replaced."""
        if self._team is None:
            self.rebalance(input, timeout=0.5)
        assert self._team is not None and self.balance is not None
        staged = [layer for stage in self._team.stages for layer in stage.module._modules.values()]
        if not all(map(operator.is_, staged, self._layers().values())) or len(staged) != len(self):
            return self._assemble(self.balance)
        return self._team

    def _recomputed(self, m: int) -> frozenset[int]:
        if not self.training or not torch.is_grad_enabled():
            return frozenset()
        return frozenset(range({"always": m, "except_last": m - 1, "never": 0}[self.checkpoint]))

    def _directly(self, batch: Batch) -> Any:
        """One stage, one micro-batch, nothing to recompute: that is the model itself."""
        assert self._team is not None
        station = self._team.stations[0]
        device = station.stage.device
        return station.compute(tree_map_only(Tensor, lambda x: x.to(device), batch.whole()))

    def _piped(self, team: Team, batch: Batch, recomputed: frozenset[int]) -> Any:
        devices = [stage.device for stage in team.stages]
        randomness = team.drawing.step(devices, len(batch.rows), training=self.training)
        wants_graph = torch.is_grad_enabled()
        step = Step(team, batch, recomputed=recomputed, randomness=randomness, wants_graph=wants_graph)
        output = step.forward()
        randomness.settle(recomputes=bool(recomputed))
        return output

    # -- what crosses the cuts ---------------------------------------------------------------------------------------

    def traffic(self) -> list[tuple[Flow, Flow]]:
        """Tells for each cut what crossed it so far, forward and backward; a skip counts where it leaves."""
        flows = [(Flow(), Flow()) for _ in self.partitions[1:]]
        for edge, crossing in self._crossings.items():
            for total, lane in zip(flows[edge.source], (crossing.there, crossing.back), strict=True):
                total.packed += lane.flow.packed
                total.raw += lane.flow.raw
                total.elements += lane.flow.elements
        return flows

    def spent(self) -> list[Spent | None]:
        """Tells for each stage how its thread has spent its time so far; a backward counts, too.

        None for a stage on a GPU, which computes long after its thread has told it to, and for all where the model is
        run as it is: as one stage, in one micro-batch.
        """
        stations = [] if self._team is None else self._team.stations
        return [replace(station.spent) if _tells_time(station) else None for station in stations]

    def codec_state_dict(self) -> dict[str, Any]:
        """Returns what the codecs remember from one batch to the next, to be saved beside ``state_dict``."""
        return state_of(self._crossings)

    def load_codec_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what the codecs of a pipe with the same cuts remembered."""
        load_state(self._crossings, state)

    # -- like the nn.Sequential it was made of -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._layers())

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> nn.Sequential: ...
    def __getitem__(self, index: int | slice) -> nn.Module:
        return self._sequence()[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._sequence())

    # -- placement belongs to the pipe -------------------------------------------------------------------------------

    def cuda(self, device: Any = None) -> Self:
        """Refuses; the stages stay where ``devices`` put them."""
        raise _move_error()

    def cpu(self) -> Self:
        """Refuses; the stages stay where ``devices`` put them."""
        raise _move_error()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Casts, as ``nn.Module.to`` does; refuses to move to a device."""
        moves = any(isinstance(x, (torch.device, int, str, Tensor)) for x in args[:1])
        if moves or "device" in kwargs or "tensor" in kwargs:
            raise _move_error()
        return super().to(*args, **kwargs)

    # -- copies and pickles have threads of their own ----------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_team"] = None
        state["_crossings"] = self.codec_state_dict()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        remembered = state.pop("_crossings")
        super().__setstate__({**state, "_crossings": {}})  # type: ignore[no-untyped-call]
        if self.balance is not None:
            self._assemble(self.balance)
            self.load_codec_state_dict(remembered)


def _watch(shared: list[nn.Parameter]) -> None:
    """Keeps stages in several threads from adding to one gradient in place: where there is a hook, nobody does."""
    for parameter in shared:
        if parameter.requires_grad and _as_it_is not in (parameter._backward_hooks or {}).values():
            parameter.register_hook(_as_it_is)


def _tells_time(station: Station) -> bool:
    return station.stage.device.type == "cpu" and station.spent.computed > 0


def _as_it_is(grad: Tensor) -> Tensor:
    return grad


def _move_error() -> MoveError:
    return MoveError(
        "denied to move parameters and buffers, because Pipe should manage device placement; "
        "pass devices=[...] when making the Pipe"
    )


def _devices(devices: Iterable[Device] | None, balance: list[int] | None, layers: int) -> list[torch.device]:
    if devices is not None:
        if isinstance(devices, str) or not isinstance(devices, Iterable):
            raise DeviceError(f"devices must be a list, one for each stage, as ['cuda:0', 'cuda:1'], got {devices!r}")
        return [indexed(arguments.device("each of devices", device)) for device in devices]
    gpus = torch.cuda.device_count()
    if gpus:
        return [torch.device("cuda", k) for k in range(gpus)]
    return [torch.device("cpu")] * (min(2, layers) if balance is None else len(balance))

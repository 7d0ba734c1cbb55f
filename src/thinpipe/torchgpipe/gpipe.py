"""``torchgpipe.gpipe``: a Pipe that registers its layers as torchgpipe did, partition by partition::

    Pipe     0.weight               1.weight               2.weight
    GPipe    partitions.0.0.weight  partitions.0.1.weight  partitions.1.2.weight      balance [2, 1]

The balance is part of a checkpoint's keys, but the names of layers are unique without it; so ``GPipe`` loads what any
balance saved, and what the plain module saved as well.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from thinpipe import arguments
from thinpipe.errors import BalanceError, SharedStateError
from thinpipe.runtime.pipe import Pipe
from thinpipe.runtime.step import Team
from thinpipe.stages.microbatch import NoChunk
from thinpipe.stages.profile import Device
from thinpipe.stages.split import verify_sequential
from thinpipe.torchgpipe.batchnorm import DeferredBatchNorm

__all__ = ["GPipe"]

_PARTITIONED = re.compile(r"partitions\.\d+\.(.+)")


class GPipe(Pipe):
    """Trains a sequential model as a pipeline, under torchgpipe's names and rules.

    Args:
        module: the model, an ``nn.Sequential`` without layers or parameters that occur twice.
        balance: the number of layers of each partition; required.
        devices: a device for each partition; a device may be listed more than once. Default: all GPUs, and nothing
            else: a machine without any must say ``devices=["cpu", ...]``.
        chunks: the number of micro-batches. Default: 1.
        checkpoint: which micro-batches are recomputed in the backward: ``always``, ``except_last`` or ``never``.
            Default: ``except_last``.
        deferred_batch_norm: whether BatchNorm moves its running statistics once a batch instead of once a micro-batch.
            Default: ``False``.

    Raises:
        TypeError: the module is no ``nn.Sequential``, or its skips do not pair up.
        ValueError: the balance does not fit the module, a layer or a parameter occurs twice, or an argument is out of
            range.
        IndexError: there are too few devices.
    """

    def __init__(
        self,
        module: nn.Sequential,
        balance: Iterable[int] | None = None,
        *,
        devices: Iterable[Device] | None = None,
        chunks: int = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
    ) -> None:
        if balance is None:
            raise _recommending_a_helper("balance is required")
        verify_sequential(module)
        _verify_unshared(module)
        if devices is None:
            devices = [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
        try:
            # torchgpipe took 42.0 for 42, and whatever says "always" as a text.
            chunks = int(chunks) if isinstance(chunks, float) and float(chunks).is_integer() else chunks
            super().__init__(module, balance, devices=devices, chunks=chunks, checkpoint=str(checkpoint))
        except BalanceError as error:
            raise _recommending_a_helper(str(error)) from None
        if arguments.flag("deferred_batch_norm", deferred_batch_norm):
            DeferredBatchNorm.convert_deferred_batch_norm(self, self.chunks)

    # -- the partitions ----------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> nn.ModuleList:  # type: ignore[override]
        """The stages, as a registered list of sequences of the model's layers."""
        partitions = self._modules["partitions"]
        assert isinstance(partitions, nn.ModuleList)
        return partitions

    def _register(self, module: nn.Sequential) -> None:
        self._hold([module])

    def _layers(self) -> Mapping[str, nn.Module]:
        return {name: layer for partition in self.partitions for name, layer in partition.named_children()}

    def _assemble(self, balance: list[int]) -> Team:
        team = super()._assemble(balance)
        self._hold([stage.module for stage in team.stages])
        if team.stages:
            team.stages[-1].module.register_forward_hook(_verify_output)
        return team

    def _hold(self, partitions: list[nn.Sequential]) -> None:
        held = nn.ModuleList(partitions)
        held.training = self.training
        self._modules["partitions"] = held

    # -- running -----------------------------------------------------------------------------------------------------

    def forward(self, input: Any) -> Any:
        """Runs the batch through the partitions.

        Args:
            input: a tensor or a tuple of tensors, which may be nested; cut along the first dimension, unless wrapped
                as ``NoChunk``.

        Returns:
            What the model returns for the whole batch, a tensor or a tuple of tensors.

        Raises:
            TypeError: the input or the output is anything else.
        """
        _verify_tensors(input, "GPipe takes")
        return super().forward(input)

    # -- checkpoints of torchgpipe and of the plain module -----------------------------------------------------------

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - by position, as nn.Module takes it
        assign: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Loads what this or another balance saved, here or in torchgpipe, or what the plain module saved.

        Args:
            state_dict: the checkpoint.
            strict: whether every key must find its place and every place a key (default: ``True``).
            assign: whether to take the checkpoint's tensors instead of copying them (default: ``False``).
        """
        renamed = OrderedDict(state_dict)
        # The versions of the layers' formats are kept beside the keys, under the layers' names.
        metadata = getattr(state_dict, "_metadata", {})
        renamed._metadata = {self._own_key(name): entry for name, entry in metadata.items()}  # type: ignore[attr-defined]
        return super().load_state_dict(renamed, strict, assign)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Here and not above, since a module around the pipe loads its children by this method.
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[prefix + self._own_key(key.removeprefix(prefix))] = state_dict.pop(key)
        for name, layer in self.named_modules():
            if isinstance(layer, _BatchNorm):
                # torchgpipe saved the sums of its deferred layers too, which mean nothing between two batches.
                for leaked in ("sum", "sum_squares"):
                    state_dict.pop(f"{prefix}{name}.{leaked}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _own_key(self, key: str) -> str:
        """Names an entry of a checkpoint as this balance does; leaves alone what belongs to no layer."""
        owners = {name: j for j, partition in enumerate(self.partitions) for name, _ in partition.named_children()}
        partitioned = _PARTITIONED.fullmatch(key)
        for plain in [partitioned[1], key] if partitioned else [key]:
            layer = plain.split(".", 1)[0]
            if layer in owners:
                return f"partitions.{owners[layer]}.{plain}"
        return key


def _verify_unshared(module: nn.Sequential) -> None:
    if len(list(module.named_children())) != len(module):
        raise SharedStateError(
            "module with duplicate children is not supported; give each place a layer of its own, or use thinpipe.Pipe "
            "and keep the places in one stage"
        )
    owners: dict[int, str] = {}
    for layer, child in module.named_children():
        for name, parameter in child.named_parameters():
            other = owners.setdefault(id(parameter), layer)
            if other != layer:
                raise SharedStateError(
                    f"module with duplicate parameters in distinct children is not supported ('{layer}.{name}' is also "
                    f"a parameter of '{other}'); use thinpipe.Pipe and keep both in one stage"
                )


def _verify_tensors(value: Any, subject: str) -> None:
    if isinstance(value, tuple):
        for item in value:
            _verify_tensors(item, subject)
    elif not isinstance(value, (Tensor, NoChunk)):
        raise TypeError(
            f"{subject} a tensor or a tuple of tensors, got {type(value).__name__}; thinpipe.Pipe allows lists, "
            "dictionaries and other values too"
        )


def _verify_output(_last: nn.Module, _inputs: Any, output: Any) -> None:
    _verify_tensors(output, "the last layer in GPipe must return")


def _recommending_a_helper(message: str) -> BalanceError:
    return BalanceError(
        f"{message}; count the layers of each partition, or let thinpipe.torchgpipe.balance do it:\n\n"
        "  from thinpipe.torchgpipe.balance import balance_by_time\n\n"
        "  balance = balance_by_time(2, module, sample)\n"
        "  model = GPipe(module, balance, ...)\n"
    )

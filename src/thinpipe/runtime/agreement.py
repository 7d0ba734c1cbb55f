"""Brings the ranks of a pipeline together, and compares what they were started with, before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from thinpipe.errors import DisagreementError, PacketError, PeerError, StallError
from thinpipe.links import hang_up

_MOST = 1 << 20
"""Bytes that a rank may tell about its pipeline."""


def meet(
    group: dist.ProcessGroup, name: str, *, timeout: float, ranks: Sequence[int] | None = None
) -> dist.ProcessGroup:
    """Makes a gloo group that nobody else uses.

    Not by ``new_group``: it waits for ever for a rank that does not come, and its names depend on how many groups a
    process has made, so that ranks which were in different pipelines before would never meet.

    Args:
        group: the ranks; its store counts how often each of them has come.
        name: what the group is for.
        timeout: seconds to wait for the others.
        ranks: those that are to meet, this one among them (default: all).

    Raises:
        StallError: a rank did not come.
    """
    store = group.get_group_store()
    if ranks is None:
        ranks = list(range(group.size()))
    else:
        # Each company counts for itself: its ranks may have been in others, not all of them in the same.
        name = f"{name}/{'-'.join(map(str, ranks))}"
    turns = {rank: f"thinpipe/{name}/{rank}" for rank in ranks}
    turn = store.add(turns[group.rank()], 1)
    place = ranks.index(group.rank())
    try:
        made = dist.ProcessGroupGloo(
            PrefixStore(f"thinpipe/{name}/{turn}", store), place, len(ranks), timedelta(seconds=timeout)
        )
    except RuntimeError as error:
        missing = [f"rank {rank}" for rank, each in turns.items() if store.add(each, 0) < turn]
        raise _absent(group, timeout, error, " and ".join(missing)) from error
    return cast(dist.ProcessGroup, made)  # a backend by itself: it sends and receives as a group does


@contextmanager
def explained(group: dist.ProcessGroup, *, timeout: float) -> Iterator[None]:
    """Surrounds what a rank does by itself before ``agree``: the others are told why it will not come there."""
    try:
        yield
    except Exception as error:
        with suppress(StallError):  # the others may be gone, and this rank's own error says more
            gathered(group, {"error": f"{type(error).__name__}: {error}"[:2000]}, timeout=timeout)
        part(group)
        raise


def part(group: dist.ProcessGroup) -> None:
    """Lets go of a group, and of whatever still waits in it."""
    for peer in range(group.size()):
        if peer != group.rank():
            hang_up(group, peer)  # each: where one connection is broken already, nothing happens to the others


def fingerprint(modules: Sequence[nn.Module]) -> str:
    """Digests the names, shapes and types of all parameters and buffers of a model."""
    digest = hashlib.blake2b(digest_size=8)
    for module in modules:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(b"|")
    return digest.hexdigest()


def agree(
    group: dist.ProcessGroup, values: Mapping[str, Any], *, timeout: float, beside: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Compares values with those of all other ranks.

    Args:
        group: the ranks.
        values: what must be the same everywhere, by names for people; plain JSON values.
        timeout: seconds to wait for the others.
        beside: what is told along with them, and may be different (default: nothing).

    Returns:
        What each rank has told.

    Raises:
        DisagreementError: a rank has another value; the message has both.
        PeerError: a rank failed before it came here.
        StallError: a rank did not come.
    """
    theirs = gathered(group, {**values, **(beside or {})}, timeout=timeout)
    for rank, other in enumerate(theirs):
        if "error" in other:
            raise PeerError(f"rank {rank} could not make its part of the pipeline: {other['error']}")
    for rank, other in enumerate(theirs):
        for name, value in values.items():
            if other.get(name) != json.loads(json.dumps(value)):
                raise DisagreementError(
                    f"rank {group.rank()} and rank {rank} disagree about the {name}: {value!r} here, "
                    f"{other.get(name)!r} there; start all ranks with the same"
                )
    return theirs


def gathered(group: dist.ProcessGroup, values: Mapping[str, Any], *, timeout: float) -> list[dict[str, Any]]:
    """Collects plain values from all ranks.

    Raises:
        PacketError: what a rank sent is no such thing, or longer than anybody has reason to send.
        StallError: a rank did not come.
    """
    own = torch.frombuffer(bytearray(json.dumps(dict(values)).encode()), dtype=torch.uint8)
    sizes = [int(size) for size in _all(group, torch.tensor([own.numel()]), timeout)]
    for rank, size in enumerate(sizes):
        if not 0 <= size <= _MOST:
            raise PacketError(f"rank {rank} wants to tell {size} bytes about its pipeline; {_MOST} are the most")
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: own.numel()] = own
    found = _all(group, padded, timeout)
    return [_read(rank, each[:size]) for rank, (each, size) in enumerate(zip(found, sizes, strict=True))]


def _read(rank: int, told: Tensor) -> dict[str, Any]:
    try:
        values = json.loads(bytes(told.numpy().data))
    except ValueError as error:
        raise PacketError(f"rank {rank} sent settings that cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PacketError(f"rank {rank} sent settings that cannot be read: {values!r:.200}")
    return values


def _all(group: dist.ProcessGroup, own: Tensor, timeout: float) -> list[Tensor]:
    out = [torch.empty_like(own) for _ in range(group.size())]
    try:
        group.allgather([out], [own]).wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        raise _absent(group, timeout, error) from error
    return out


def _absent(group: dist.ProcessGroup, timeout: float, error: RuntimeError, missing: str = "") -> StallError:
    who = f"{missing} did not come" if missing else f"not all of {group.size()} ranks came"
    reason = str(error).splitlines()[0]
    return StallError(f"{who} to make the pipeline within {timeout:g} s ({reason})")

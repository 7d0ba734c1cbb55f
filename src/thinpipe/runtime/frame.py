"""One micro-batch on one edge as it crosses a wire; docs/wire-format.md draws it.

::

    "TPFR" version kind flags 0 | step | edge micro | lengths: structure, leaves, checksum | structure | packets
       4      1      1    1   1    8      2     4                4           4        4        JSON      9 + 0s + length

The structure is the nesting of what a stage returned, in JSON: tuples, lists, dictionaries and plain values; tensors
are numbers in it, and follow as packets. Before each packet are so many zeros that its first section begins at a
multiple of 16: a tensor that came as it is need not be copied to where its type may be. Nothing on a wire is ever
executed: a class of the user's own cannot travel.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from thinpipe.codecs import Packet
from thinpipe.errors import BatchError, PacketError
from thinpipe.runtime.parcel import Cargo

MAGIC = b"TPFR"
VERSION = 2
MOST_STRUCTURE = 1 << 20
MOST_LEAVES = 1 << 12
MOST_DEPTH = 32

_FIXED = struct.Struct("<4sBBBxQHIIII")
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = _FIXED.size - _CHECKSUM.size
_ENTRY = struct.Struct("<QB")
_ALIGNED = 16
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Frame:
    """One message between two ranks.

    Args:
        cargo: activations or gradients.
        step: the step it belongs to.
        edge: the number of its edge, the same on all ranks.
        micro: the micro-batch.
        leaves: packets, and plain values.
        spec: the nesting of the leaves.
        wants_grad: for each leaf of an activation, whether its sender wants a gradient for it.
        stashed: see ``Parcel``.
    """

    cargo: Cargo
    step: int
    edge: int
    micro: int
    leaves: Sequence[Any]
    spec: TreeSpec
    wants_grad: Sequence[bool]
    stashed: bool = False

    def parts(self) -> list[Tensor]:
        """Lists the message's parts, flat ``uint8`` tensors on the CPU.

        Raises:
            BatchError: the nesting holds something that cannot travel.
        """
        packets = [leaf for leaf in self.leaves if isinstance(leaf, Packet)]
        if len(packets) == len(self.leaves):
            # Nothing but tensors: the same text in every step.
            structure = _text_of_tensors(self.spec, tuple(map(bool, self.wants_grad)))
        else:
            structure = _text(list(self.leaves), self.spec, self.wants_grad)
        if len(structure) > MOST_STRUCTURE or len(packets) > MOST_LEAVES:
            raise BatchError(
                f"at most {MOST_LEAVES} tensors and {MOST_STRUCTURE} bytes of other values cross a wire at once, got "
                f"{len(packets)} and {len(structure)}; put what is large into tensors"
            )
        where = (MAGIC, VERSION, self.cargo, int(self.stashed), self.step, self.edge, self.micro)
        head = bytearray(_FIXED.pack(*where, len(structure), len(packets), 0) + structure)
        _CHECKSUM.pack_into(head, _CHECKSUM_AT, zlib.crc32(head))
        parts = [torch.frombuffer(head, dtype=torch.uint8)]
        at = len(head)
        for packet in packets:
            zeros = -(at + _ENTRY.size + packet.header_size) % _ALIGNED
            entry = bytearray(_ENTRY.pack(packet.nbytes, zeros) + bytes(zeros))
            parts += [torch.frombuffer(entry, dtype=torch.uint8), *packet.parts()]
            at += len(entry) + packet.nbytes
        return parts

    @classmethod
    def read(cls, message: Tensor) -> Frame:
        """Reads a message, whose memory the packets then share.

        Raises:
            PacketError: it is none.
        """
        data = message.numpy().data
        if len(data) < _FIXED.size:
            raise PacketError(f"a frame has at least {_FIXED.size} bytes, got {len(data)}")
        magic, version, cargo, stashed, step, edge, micro, length, packed, checksum = _FIXED.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise PacketError(f"not a frame of version {VERSION}: it begins with {bytes(magic)!r}, version {version}")
        if cargo not in set(Cargo) or length > MOST_STRUCTURE or packed > MOST_LEAVES:
            raise PacketError(f"a damaged frame: cargo {cargo}, a structure of {length} bytes, {packed} packets")
        at = _FIXED.size + length
        head = bytearray(data[:at])
        _CHECKSUM.pack_into(head, _CHECKSUM_AT, 0)
        if zlib.crc32(head) != checksum:
            raise PacketError("the frame was damaged on its way: its checksum is wrong")
        packets: list[Packet] = []
        for _ in range(packed):
            if at + _ENTRY.size > len(data):
                raise PacketError(f"a frame of {len(data)} bytes ends before its packet {len(packets)} of {packed}")
            size, zeros = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size + zeros
            if zeros >= _ALIGNED or any(data[at - zeros : at]):
                raise PacketError(f"a frame whose packet {len(packets)} of {packed} follows something else than zeros")
            packets.append(Packet.from_tensor(message[at : min(at + size, len(data))]))
            at += size
        if at != len(data):
            raise PacketError(f"a frame of {at} bytes has {len(data)}")
        leaves, spec, wants = _structure(bytes(head[_FIXED.size :]), packets)
        return cls(Cargo(cargo), step, edge, micro, leaves, spec, wants, bool(stashed))


class _Tensor:
    """Stands for a tensor in a nesting."""


@lru_cache(maxsize=64)
def _text_of_tensors(spec: TreeSpec, wants_grad: tuple[bool, ...]) -> bytes:
    return _text([_Tensor()] * spec.num_leaves, spec, wants_grad)


def _text(leaves: list[Any], spec: TreeSpec, wants_grad: Sequence[bool]) -> bytes:
    """Writes a nesting, its tensors numbered in order."""
    numbers = count()

    def written(leaf: Any) -> Any:
        if isinstance(leaf, Packet | _Tensor):
            return {"x": next(numbers)}
        if not isinstance(leaf, _PLAIN):
            raise BatchError(
                f"a {type(leaf).__name__} cannot cross a wire; a stage of a distributed pipeline returns tensors, "
                "numbers and texts in tuples, lists and dictionaries"
            )
        return {"v": leaf}

    tree = _written(tree_unflatten(leaves, spec), written, MOST_DEPTH)
    return json.dumps([tree, [int(wanted) for wanted in wants_grad]]).encode()


def _structure(text: bytes, packets: list[Packet]) -> tuple[list[Any], TreeSpec, list[bool]]:
    try:
        tree, wants = json.loads(text)
        leaves, spec = tree_flatten(_read(tree, packets, MOST_DEPTH))
        _verify_all_there(leaves, packets)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        raise PacketError(f"a frame whose structure makes no sense: {error}") from error
    if not isinstance(wants, list) or len(wants) not in (0, len(leaves)):
        raise PacketError(f"a frame of {len(leaves)} leaves says which of them want a gradient as {wants!r:.80}")
    return leaves, spec, [bool(wanted) for wanted in wants]


def _written(tree: Any, leaf: Callable[[Any], Any], depth: int) -> Any:
    if depth == 0:
        raise BatchError(f"what crosses a wire is nested at most {MOST_DEPTH} deep")
    # Exact types: a named tuple or a dictionary of another class would come out as something else.
    if type(tree) is tuple:
        return {"t": [_written(x, leaf, depth - 1) for x in tree]}
    if type(tree) is list:
        return {"l": [_written(x, leaf, depth - 1) for x in tree]}
    if type(tree) is dict:
        if not all(type(key) in (str, int) for key in tree):
            raise BatchError(f"only texts and integers may be keys of what crosses a wire, got {list(tree)}")
        return {"d": [[key, _written(x, leaf, depth - 1)] for key, x in tree.items()]}
    return leaf(tree)


def _read(tree: Any, packets: list[Packet], depth: int) -> Any:
    if depth == 0:
        raise ValueError(f"nested deeper than {MOST_DEPTH}")
    ((kind, value),) = tree.items()
    if kind == "x":
        return packets[_place(value)]
    if kind == "v" and isinstance(value, _PLAIN):
        return value
    if kind in ("t", "l"):
        found = [_read(x, packets, depth - 1) for x in value]
        return tuple(found) if kind == "t" else found
    if kind == "d":
        return {_key(key): _read(x, packets, depth - 1) for key, x in value}
    raise ValueError(f"{kind!r} is nothing that travels")


def _verify_all_there(leaves: list[Any], packets: list[Packet]) -> None:
    """Refuses a nesting in which a packet is missing, or stands twice: each is decoded wherever it stands."""
    found = [leaf for leaf in leaves if isinstance(leaf, Packet)]
    if len(found) != len(packets) or any(a is not b for a, b in zip(found, packets, strict=True)):
        raise ValueError(f"it holds {len(found)} tensors, or in another order, where {len(packets)} packets came")


def _place(value: Any) -> int:
    """Returns a number that may be a place in a list, and refuses any other value."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} numbers no tensor")
    return value


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise ValueError(f"{key!r} is no key")
    return key  # type: ignore[no-any-return]

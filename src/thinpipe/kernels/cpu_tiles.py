"""What the kernels for the CPU are made of: tiles of codes, packed and unpacked, and the rounding of values to codes.

Loops run over slices, from 0 up: numba guards any other index against being negative, and a guarded loop does not
vectorise, which is a factor of ten. Floats are compared as integers that order alike, because compilers vectorise
integer minima and not those of floats, and because NaN and the infinities are then simply the ends of the order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
import numpy as np
from numba.core import event
from torch import Tensor

_log = logging.getLogger("thinpipe")

TILE = 1024
"""Values whose codes are computed and packed while they stay in the first-level cache."""

INFINITY = np.int32(0x7F800000)


def compiled(function: Any, **options: Any) -> Any:
    """Compiles a function that releases the GIL, once for all processes where there is a folder to keep it in."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's may be written
        return numba.njit(**options)(function)
    cache = getattr(made, "_cache", None)
    if cache is not None:  # numba can be told to compile nothing
        cache.save_overload = _unless_the_disk_is_full(cache.save_overload)
    return made


def _unless_the_disk_is_full(save: Callable[..., None]) -> Callable[..., None]:
    """Lets a function be used that was compiled and cannot be kept: numba would raise from the call that needed it."""

    def saved(*args: Any) -> None:
        with suppress(OSError):
            save(*args)

    return saved


class _Compilations(event.Listener):  # type: ignore[misc]
    """Says once that kernels are being compiled, and for how long they are kept."""

    said = False

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"]
        if self.said or not function.py_func.__module__.startswith("thinpipe."):
            return
        self.said = True
        folder = function.stats.cache_path
        kept = f"once: they are kept in {folder}"
        if folder is None:
            kept = "in every process: no folder can keep them; set NUMBA_CACHE_DIR to one that can be written"
        _log.warning("compiling codecs for this CPU, which takes some seconds, %s", kept)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Compilations())


def inlined(function: Any) -> Any:
    """Compiles a function into those that call it."""
    return compiled(function, inline="always")


@inlined
def key(bits: Any) -> Any:
    """Maps the bits of a float to an integer that orders as the float does."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled
def pack_tile(codes: Any, size: int, bits: int, out: Any, count: int, start: int) -> None:
    """Packs a tile of codes, which begins at element ``start``, a multiple of 8, of ``count``.

    Several codes are taken at once, as one integer: they are 16 bits apart in it, and are shifted next to each other.
    """
    codes[size : size + (-size % 8)] = 0
    pairs = codes.view(np.uint32)
    fours = codes.view(np.uint64)
    nibbles = np.empty(2 * ((size + 7) // 8), np.uint8)
    offset = 0
    shift = 0
    for width in (8, 8, 4, 2, 1):
        if width > bits - shift:
            continue
        each = 8 // width
        first = offset + start // each
        target = out[first : first + (size + each - 1) // each]
        if width == 8:
            for k in range(target.size):
                target[k] = np.uint8(codes[k] >> np.uint16(shift))
        elif width == 4:
            for k in range(target.size):
                lanes = (pairs[k] >> np.uint32(shift)) & np.uint32(0x000F000F)
                target[k] = np.uint8(lanes | (lanes >> np.uint32(12)))
        elif width == 2:
            for k in range(target.size):
                lanes = (fours[k] >> np.uint64(shift)) & np.uint64(0x0003000300030003)
                lanes |= lanes >> np.uint64(14)
                target[k] = np.uint8(lanes | (lanes >> np.uint64(28)))
        else:
            for k in range(nibbles.size):
                lanes = (fours[k] >> np.uint64(shift)) & np.uint64(0x0001000100010001)
                lanes |= lanes >> np.uint64(15)
                nibbles[k] = np.uint8((lanes | (lanes >> np.uint64(30))) & np.uint64(15))
            couples = nibbles.view(np.uint16)
            for k in range(target.size):
                target[k] = np.uint8(couples[k] | (couples[k] >> np.uint16(4)))
        offset += (count * width + 7) // 8
        shift += width


@compiled
def unpack_tile(packed: Any, size: int, bits: int, codes: Any, count: int, start: int) -> None:
    """Unpacks a tile of codes; the inverse of ``pack_tile``."""
    pairs = codes.view(np.uint32)
    fours = codes.view(np.uint64)
    nibbles = np.empty(2 * ((size + 7) // 8), np.uint8)
    codes[: size + (-size % 8)] = 0
    offset = 0
    shift = 0
    for width in (8, 8, 4, 2, 1):
        if width > bits - shift:
            continue
        each = 8 // width
        first = offset + start // each
        source = packed[first : first + (size + each - 1) // each]
        if width == 8:
            for k in range(source.size):
                codes[k] |= np.uint16(source[k]) << np.uint16(shift)
        elif width == 4:
            for k in range(source.size):
                byte = np.uint32(source[k])
                pairs[k] |= ((byte | (byte << np.uint32(12))) & np.uint32(0x000F000F)) << np.uint32(shift)
        elif width == 2:
            for k in range(source.size):
                wide = np.uint64(source[k])
                wide |= wide << np.uint64(28)
                fours[k] |= ((wide | (wide << np.uint64(14))) & np.uint64(0x0003000300030003)) << np.uint64(shift)
        else:
            couples = nibbles.view(np.uint16)
            for k in range(source.size):
                short = np.uint16(source[k])
                couples[k] = (short | (short << np.uint16(4))) & np.uint16(0x0F0F)
            for k in range(2 * source.size):
                nibble = np.uint64(nibbles[k])
                nibble |= nibble << np.uint64(30)
                fours[k] |= ((nibble | (nibble << np.uint64(15))) & np.uint64(0x0001000100010001)) << np.uint64(shift)
        offset += (count * width + 7) // 8
        shift += width


@inlined
def _hash(index: Any, seed: Any) -> Any:
    # numba widens products of 32-bit integers to 64 bits: each is cut back.
    h = np.uint32((np.uint32(index) ^ seed) * np.uint32(0x9E3779B1))
    h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x85EBCA77))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE3D))
    return np.uint32(h ^ (h >> np.uint32(16)))


@inlined
def _die(index: Any, seed: Any) -> Any:
    return np.float32(_hash(index, seed) >> np.uint32(16)) * np.float32(2.0**-16)


@compiled
def codes_of(x: Any, half_base: Any, scale: Any, bits: int, seed: int, first: int, codes: Any) -> None:
    """Rounds values to codes on the grid that begins at a base; ``first`` is the index of the first, for its die."""
    half = np.float32(0.5)
    zero = np.float32(0)
    top = np.float32((1 << bits) - 1)
    if seed < 0:
        for k in range(x.size):
            grid = np.rint((x[k] * half - half_base) * scale)
            codes[k] = np.uint16(np.int32(min(max(grid, zero), top)))
    else:
        dice = np.uint32(seed)
        for k in range(x.size):
            grid = np.floor((x[k] * half - half_base) * scale + _die(first + k, dice))
            codes[k] = np.uint16(np.int32(min(max(grid, zero), top)))


def bits_of(x: Tensor) -> Any:
    """Returns the bits of a float32 tensor."""
    return x.numpy().view(np.int32)

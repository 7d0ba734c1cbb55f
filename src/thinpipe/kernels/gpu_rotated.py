"""The kernels for rotated blocks on NVIDIA GPUs; same functions and same bytes as ``reference_blocks``.

A rotation is a product with a matrix of 1 and -1, which the tensor cores do: factors are integers of at most 11 bits,
which a float16 holds, and sums stay below 2**24, so that a float32 holds them whatever the order. Blocks of sizes
that they do not take are left to the reference.

Floats become integers by an addition: ``1.5 * 2**23 + k`` has the integer k, rounded, in its lowest bits. Conversions
would take four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinpipe.kernels import reference_blocks
from thinpipe.kernels.gpu import _EXACT, _ROUNDER
from thinpipe.kernels.gpu_blocks import _INFINITY, _MOST, _POISON, _half_step
from thinpipe.kernels.gpu_rows import _ROUNDER_BITS, _float_bytes, _found, _load_codes, _span, _store_codes
from thinpipe.kernels.planes import packed_size


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a kernel is laid out on the GPU; changes its time and nothing else.

    Args:
        rows: blocks in a tile; at least 64 for the fastest tensor-core instructions.
        tiles: that a program works on, one after the other, once it has the matrix.
        warps: of a program; twice as many for blocks of 256 values, whose sums have no room in the registers of fewer.
        stages: how many tiles are in flight; with more than one, the next is loaded while one is worked on.
        registers: the most that a thread may have; None leaves it to the compiler.
    """

    rows: int
    tiles: int
    warps: int
    stages: int
    registers: int | None = None

    def options(self, group: int) -> dict[str, Any]:
        """Returns what triton's compiler takes, for blocks of a size."""
        warps = self.warps * max(1, group // 128)
        return {"num_warps": warps, "num_stages": self.stages, "maxnreg": self.registers, **_EXACT}


ENCODE = Launch(rows=64, tiles=2, warps=4, stages=1, registers=168)
DECODE = Launch(rows=64, tiles=4, warps=4, stages=1)

_MUCH_MEMORY = 224 * 1024

_FARTHEST = 17 * reference_blocks.LEVEL_UNIT
"""No place is farther from 0: a block of 256 values whose deviation is 1 has none above 16, but for roundings."""

_ROTATED = tl.constexpr(reference_blocks.ROTATED)
_LEAST_PEAK = tl.constexpr(reference_blocks.LEAST_PEAK)
_UNIT = tl.constexpr(1.0 * reference_blocks.LEVEL_UNIT)


@triton.jit
def _encode(
    x,
    edges,
    steps,
    matrix,
    meta,
    out,
    count,
    total,
    CELL: tl.constexpr,
    CELLS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
):
    WIDE: tl.constexpr = 64 if GROUP > 64 else GROUP
    last = tl.load(x + count - 1)
    # Sixteen neighbours in the last dimension: so four threads share a block, and not a whole warp.
    row = tl.arange(0, ROWS)
    inside = tl.arange(0, GROUP // 16)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    inside += row[:, None, None] * GROUP
    across = tl.arange(0, GROUP)[:, None] * GROUP + tl.arange(0, WIDE)[None, :]
    for tile in range(TILES):
        first = (tl.program_id(0).to(tl.int64) * TILES + tile) * ROWS
        there = count - first * GROUP
        used = row * GROUP < there
        values = tl.load(x + first * GROUP + inside, mask=inside < there, other=last)

        low = tl.min(tl.min(values, axis=1), axis=1)
        high = tl.max(tl.max(values, axis=1), axis=1)
        step_bits, reciprocal, multiple, peak, finite = _span(low, high, BITS)
        half_step = _half_step(step_bits)
        base = multiple * (half_step * 0.0625)
        # Fusing is for products that are exact.
        places = tl.fma(values, 0.5, -base[:, None, None]) * (reciprocal * 2.0)[:, None, None]
        if BITS == 1:  # else no step is so large that it had to be cut short, and all places are on the grid
            places = tl.clamp(places, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
        biased = places + _ROUNDER
        near = biased - _ROUNDER
        rest = places - near
        rest = (rest + 24576.0) - 24576.0  # to multiples of 1/512
        even_sum = tl.sum(tl.sum(rest * rest, axis=1), axis=1)
        finite = finite & (even_sum == even_sum)  # a NaN is neither the least nor the greatest, but is in the sum
        ONE: tl.constexpr = BITS == 1 or BITS == 2 or BITS == 4
        if ONE:
            even = _float_bytes(near, BITS, ROWS, GROUP)
        else:
            even = tl.reshape(biased.to(tl.int32, bitcast=True).to(tl.uint8), [ROWS, GROUP])

        power = (tl.maximum(peak, _LEAST_PEAK).to(tl.int32, bitcast=True) & _INFINITY).to(tl.float32, bitcast=True)
        zoom = tl.div_rn(1024.0, power)
        biased = tl.fma(values, zoom[:, None, None], _ROUNDER)
        number = biased.to(tl.int32, bitcast=True) - _ROUNDER_BITS
        square = tl.sum(tl.sum(number * number, axis=1), axis=1).to(tl.float32)
        whole = biased - _ROUNDER
        lack = (tl.fma(values, -zoom[:, None, None], whole) + 12288.0) - 12288.0  # to multiples of 1/1024
        whole = tl.reshape(whole.to(tl.float16), [ROWS, GROUP])
        lack = tl.reshape(lack.to(tl.float16), [ROWS, GROUP])
        root = tl.maximum(tl.sqrt_rn(square) * (16.0 / GROUP), 1.0)
        inverse = tl.div_rn(_UNIT * 16.0 / GROUP, root)

        error = tl.zeros([ROWS], tl.int32)
        along = tl.zeros([ROWS], tl.int32)
        norm = tl.zeros([ROWS], tl.int32)
        # In parts, because a whole block's sums would fill the registers.
        for part in tl.static_range(GROUP // WIDE):
            factors = tl.load(matrix + across + part * WIDE)
            turned = tl.dot(whole, factors)
            if BITS > 4:
                # Taken away and not added: triton makes a sum of two products one, whose sums have too many bits.
                turned -= tl.dot(lack, factors)
            places = tl.abs(turned) * inverse[:, None]
            found = _found(places, edges, steps, BITS, CELL, CELLS)
            codes = (found ^ (turned.to(tl.int32, bitcast=True) >> 31)).to(tl.uint8)  # those below 0 count backwards
            chosen = found >> 8
            beyond = (places + _ROUNDER).to(tl.int32, bitcast=True) - _ROUNDER_BITS - chosen
            error += tl.sum(beyond * beyond, axis=1)
            along += tl.sum(beyond * chosen, axis=1)
            norm += tl.sum(chosen * chosen, axis=1)
            _store_codes(codes, out, first, part * WIDE, used, total, BITS, ROWS, GROUP, WIDE)

        ratio = tl.div_rn((along + norm).to(tl.float32), norm.to(tl.float32))
        scale = ratio * (root * 0.0625) * tl.div_rn(1.0, zoom)
        scale_bits = tl.minimum((scale.to(tl.int32, bitcast=True) + 0x8000) >> 16, 0x7F7F)
        excess = 1.0 - tl.div_rn((scale_bits << 16).to(tl.float32, bitcast=True) * zoom * 16.0, root)
        turned_sum = error.to(tl.float32) + excess * (along.to(tl.float32) * 2.0 + excess * norm.to(tl.float32))
        even_step = half_step * 2.0 * zoom
        # The rest of a step is squared in whole steps here, and in 512ths in the reference.
        unit = GROUP / (_UNIT * 16.0 * _UNIT * 16.0)
        turned_error = tl.maximum(turned_sum, 0.0) * (root * root) * unit
        turns = finite & (peak >= _LEAST_PEAK) & (turned_error < even_sum * (even_step * even_step))

        head = tl.where(turns, scale_bits, tl.where(finite, step_bits, _POISON))
        second = tl.where(turns, _ROTATED, tl.where(finite, multiple, 0.0).to(tl.int32))
        tl.store(meta + first * 2 + row * 2, head.to(tl.int16), mask=used)
        tl.store(meta + first * 2 + row * 2 + 1, second.to(tl.int16), mask=used)
        # Other threads wrote the codes of rotated blocks where those of the others now go.
        tl.debug_barrier()
        even = tl.where(finite[:, None], even, 0)
        unturned = used & (turns == 0)
        if ONE:
            EACH: tl.constexpr = GROUP * BITS // 8
            at = row[:, None] * EACH + tl.arange(0, EACH)[None, :]
            tl.store(out + first * EACH + at, even, mask=unturned[:, None])
        else:
            _store_codes(even, out, first, 0, unturned, total, BITS, ROWS, GROUP, GROUP)


@triton.jit
def _decode(
    meta,
    packed,
    levels,
    matrix,
    out,
    count,
    total,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
):
    one = tl.arange(0, GROUP)
    factors = tl.load(matrix + one[:, None] * GROUP + one[None, :])
    row = tl.arange(0, ROWS)
    inside = row[:, None] * GROUP + one[None, :]
    for tile in range(TILES):
        first = (tl.program_id(0).to(tl.int64) * TILES + tile) * ROWS
        there = count - first * GROUP
        used = row * GROUP < there
        scale = (tl.load(meta + first * 2 + row * 2, mask=used, other=0).to(tl.int32) << 16).to(
            tl.float32, bitcast=True
        )
        multiple = tl.load(meta + first * 2 + row * 2 + 1, mask=used, other=0).to(tl.int32)
        codes = _load_codes(packed, first, used, total, BITS, ROWS, GROUP)
        chosen = (tl.load(levels + codes.to(tl.int32)) + _ROUNDER_BITS).to(tl.float32, bitcast=True) - _ROUNDER
        turned = tl.dot(chosen.to(tl.float16), factors)
        # An integer in the lowest bits of 2**23 is that float more.
        number = (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
        rotated = multiple == _ROTATED
        half = scale * 0.5
        factor = tl.where(rotated, half * (1.0 / _UNIT), half)
        base = tl.where(rotated, 0.0, multiple.to(tl.float32) * (half * 0.0625))
        base = tl.where(rotated & (scale * 0.0 != 0.0), float("nan"), base)
        values = (base[:, None] + tl.where(rotated[:, None], turned, number) * factor[:, None]) * 2.0
        values = tl.clamp(values, -_MOST, _MOST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + first * GROUP + inside, values, mask=inside < there)


@cache
def _matrix(group: int, device: torch.device, *, back: bool) -> Tensor:
    """Makes the matrix that gives random signs and rotates, or the one that turns back."""
    matrix = reference_blocks.rotated(torch.diag(reference_blocks.signs(group)))
    return (matrix.T if back else matrix).to(device, torch.float16).contiguous()


@cache
def _levels(bits: int, device: torch.device) -> Tensor:
    return reference_blocks.tables(bits)[0].to(device)


@cache
def _search(bits: int, device: torch.device) -> tuple[int, Tensor, Tensor]:
    """Makes what ``_found`` looks levels up in.

    Returns:
        The width of a cell, the border in each, or infinity, and the level at which each begins, with its code in the
        lowest 8 bits. Cells have their middles at multiples of the width. For codes of few bits, no cells: the borders
        and levels above 0.
    """
    levels, borders = reference_blocks.tables(bits)
    half = 1 << (bits - 1)
    if bits <= 4:
        steps = (levels[half:] << 8) | torch.arange(half, 2 * half, dtype=torch.int32)
        return 1, borders[half:].to(device), steps.to(device)
    above = borders[half:].double()
    width = 1 << int(torch.cat([above[:1], above.diff()]).min()).bit_length() - 1
    cells = int(_FARTHEST / width) + 2
    edges = torch.full((cells,), torch.inf)
    where = torch.round(above / width).long()
    edges[where] = borders[half:]
    number = torch.searchsorted(where, torch.arange(cells + 1))
    steps = (levels[half:][number] << 8) | (half + number.to(torch.int32))
    return width, edges.to(device), steps.to(device)


def fits(group: int, device: torch.device) -> bool:
    """Tells whether blocks of a size are for these kernels; few GPUs have the memory for the largest matrix."""
    if group < 256 or device.type != "cuda":
        return 16 <= group <= 256
    properties = torch.cuda.get_device_properties(device)
    return group == 256 and getattr(properties, "shared_memory_per_block_optin", 0) >= _MUCH_MEMORY


def hadamard_encode(x: Tensor, bits: int, group: int, launch: Launch = ENCODE) -> tuple[Tensor, Tensor]:
    """See ``reference_blocks.hadamard_encode``."""
    if not fits(group, x.device):
        return reference_blocks.hadamard_encode(x, bits, group)
    blocks = -(-x.numel() // group)
    meta = torch.empty((blocks, 2), dtype=torch.int16, device=x.device)
    out = torch.empty(packed_size(blocks * group, bits), dtype=torch.uint8, device=x.device)
    matrix = _matrix(group, x.device, back=False)
    cell, edges, steps = _search(bits, x.device)
    _encode[(triton.cdiv(blocks, launch.rows * launch.tiles),)](
        x, edges, steps, matrix, meta, out, x.numel(), blocks * group, cell, edges.numel(), bits, group, launch.rows,
        launch.tiles,
        **launch.options(group),
    )  # fmt: skip
    return meta, out


def hadamard_decode(meta: Tensor, packed: Tensor, count: int, bits: int, group: int, launch: Launch = DECODE) -> Tensor:
    """See ``reference_blocks.hadamard_decode``."""
    if not fits(group, packed.device):
        return reference_blocks.hadamard_decode(meta, packed, count, bits, group)
    blocks = meta.shape[0]
    out = torch.empty(count, device=packed.device)
    matrix = _matrix(group, packed.device, back=True)
    _decode[(triton.cdiv(blocks, launch.rows * launch.tiles),)](
        meta, packed, _levels(bits, packed.device), matrix, out, count, blocks * group, bits, group, launch.rows,
        launch.tiles,
        **launch.options(group),
    )  # fmt: skip
    return out

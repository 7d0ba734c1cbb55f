"""Which crop each image of a batch gets: drawn on the CPU from (seed, step), and the same on every device."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

TRIES = 10
"""How often a crop that fits is drawn for before the middle is taken, as everybody does."""


def generator(seed: int, step: int) -> torch.Generator:
    """Returns the source of a step's randomness: no two pairs of numbers share one, nor does an order of rows."""
    digest = hashlib.blake2b(f"augment {seed} {step}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def resized_crops(
    rows: int,
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    source: torch.Generator,
) -> Tensor:
    """Draws crops of random area and shape.

    Args:
        rows: how many.
        height: of the images.
        width: of the images.
        scale: the least and the greatest part of an image's area; areas are drawn evenly.
        ratio: the least and the greatest width by height; their logarithms are drawn evenly.
        source: of the randomness.

    Returns:
        rows x 4: top, left, height and width, in whole pixels.
    """
    drawn = torch.rand(rows, 2 * TRIES + 2, generator=source, dtype=torch.float64)
    areas, shapes, places = drawn.split([TRIES, TRIES, 2], dim=1)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * areas)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * shapes)
    widths, heights = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    # argmax is the first of the greatest: the first try that fits, or try 0 where none does, which is replaced.
    chosen = fits.long().argmax(1, keepdim=True)
    found = fits.any(1)
    middle = _middle(height, width, ratio)
    crop_height = torch.where(found, heights.gather(1, chosen)[:, 0], middle[0])
    crop_width = torch.where(found, widths.gather(1, chosen)[:, 0], middle[1])
    room = torch.stack([height - crop_height, width - crop_width], 1)
    # The number drawn is less than 1, so its product with room + 1 is at most room when rounded down.
    corner = torch.where(found[:, None], (places * (room + 1)).long(), room // 2)
    return torch.cat([corner, crop_height[:, None], crop_width[:, None]], 1)


def shifted_crops(rows: int, pad: int, *, source: torch.Generator) -> Tensor:
    """Draws by how much each image is moved, of 0 to twice ``pad`` pixels: rows x 2, top and left."""
    return (torch.rand(rows, 2, generator=source, dtype=torch.float64) * (2 * pad + 1)).long()


def flips(rows: int, share: float, *, source: torch.Generator) -> Tensor:
    """Draws which images are turned round, a share of them on average."""
    return torch.rand(rows, generator=source, dtype=torch.float64) < share


def _middle(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """The largest crop of an allowed shape."""
    if width / height < ratio[0]:
        return round(width / ratio[0]), width
    if width / height > ratio[1]:
        return height, round(height * ratio[1])
    return height, width

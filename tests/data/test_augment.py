"""Augmentation in batches: the crops, and the pixels, of the usual transforms; the same for a seed and a step."""

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from thinpipe.data.augment import CIFAR, IMAGENET, CentreCrop, Normalise, RandomCrop, RandomResizedCrop
from thinpipe.data.crops import flips, generator, resized_crops, shifted_crops
from thinpipe.errors import BatchError

PLAIN = Normalise(mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)
"""Leaves pixels as numbers from 0 to 255."""
NOT_FLIPPED = torch.zeros(1, dtype=torch.bool)


def photos(rows, height=32, width=32, seed=0):
    return torch.randint(0, 256, (rows, 3, height, width), generator=generator(seed, 0), dtype=torch.uint8)


def usual_crop(height, width, scale, ratio, draw):
    """The algorithm of torchvision's ``RandomResizedCrop.get_params``, image by image: top, left, height, width."""
    for _ in range(10):
        area = height * width * draw.uniform(*scale)
        shape = math.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    shape = width / height
    if shape < min(ratio):
        w, h = width, round(width / min(ratio))
    elif shape > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def distance(ours, theirs):
    """The largest difference between two distributions (Kolmogorov and Smirnov's)."""
    values = torch.cat([ours, theirs]).unique()
    shares = [torch.searchsorted(each.sort().values, values, right=True) / len(each) for each in (ours, theirs)]
    return (shares[0] - shares[1]).abs().max().item()


def looks(boxes):
    """All that can be asked of a crop."""
    top, left, height, width = boxes.double().unbind(1)
    return {
        "area": height * width,
        "shape": width / height,
        "height": height,
        "width": width,
        "top": top,
        "left": left,
        "middle": top + height / 2 + 1000 * (left + width / 2).round(),
    }


COUNT = 20_000
ALIKE = 1.95 * math.sqrt(2 / COUNT)
"""Samples of one distribution differ by more once in a thousand times; with these seeds, not at all."""


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, (0.08, 1.0), (3 / 4, 4 / 3)),
        (256, 256, (0.08, 1.0), (3 / 4, 4 / 3)),
        (48, 100, (0.08, 1.0), (3 / 4, 4 / 3)),
        (90, 60, (0.5, 1.0), (3 / 4, 4 / 3)),  # a tenth of all find no crop, and take the middle
        (32, 32, (0.2, 0.4), (0.5, 1.0)),
        (10, 100, (0.9, 1.0), (3 / 4, 4 / 3)),  # none ever fits
        (100, 10, (0.9, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_crops_are_drawn_as_the_usual_transform_draws_them(height, width, scale, ratio):
    draw = random.Random(1)
    theirs = torch.tensor([usual_crop(height, width, scale, ratio, draw) for _ in range(COUNT)])
    ours = resized_crops(COUNT, height, width, scale=scale, ratio=ratio, source=generator(0, 0))
    expected = looks(theirs)
    for name, values in looks(ours).items():
        assert distance(values, expected[name]) < ALIKE, name
    assert (ours[:, :2] >= 0).all() and (ours[:, 2:] > 0).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all() and (ours[:, 1] + ours[:, 3] <= width).all()


def test_the_comparison_of_distributions_notices_little():
    draw = random.Random(1)
    theirs = torch.tensor([usual_crop(64, 64, (0.08, 1.0), (3 / 4, 4 / 3), draw) for _ in range(COUNT)])
    for scale, ratio, look in (((0.12, 1.0), (3 / 4, 4 / 3), "area"), ((0.08, 1.0), (0.7, 4 / 3), "shape")):
        ours = resized_crops(COUNT, 64, 64, scale=scale, ratio=ratio, source=generator(0, 0))
        assert distance(looks(ours)[look], looks(theirs)[look]) > ALIKE


def test_shifts_and_flips_are_drawn_evenly():
    shifts = shifted_crops(COUNT, 4, source=generator(0, 0))
    for axis in shifts.unbind(1):
        assert (axis.bincount(minlength=9) / COUNT - 1 / 9).abs().max() < 0.01 and axis.max() == 8
    assert abs(flips(COUNT, 0.5, source=generator(0, 1)).double().mean() - 0.5) < 0.01
    assert not flips(COUNT, 0.0, source=generator(0, 1)).any() and flips(COUNT, 1.0, source=generator(0, 1)).all()


box = st.tuples(*[st.integers(1, 40)] * 4).map(
    lambda drawn: ((40 - drawn[2]) * drawn[0] // 40, (40 - drawn[3]) * drawn[1] // 40, drawn[2], drawn[3])
)


@given(box, st.sampled_from([1, 7, 32, 96]), st.booleans())
def test_a_crop_has_the_pixels_of_crop_then_resize(crop, size, flipped):
    """Enlarged or reduced, and never with a pixel from outside of the crop."""
    image = photos(1, 40, 40)
    top, left, height, width = crop
    part = image[:, :, top : top + height, left : left + width].float()
    expected = functional.interpolate(part, (size, size), mode="bilinear", antialias=True)
    made = RandomResizedCrop(size=size, normalise=PLAIN).cropped(image, torch.tensor([crop]), torch.tensor([flipped]))
    torch.testing.assert_close(made, expected.flip(3) if flipped else expected, atol=2e-3, rtol=0)


def test_enlarging_is_plain_bilinear():
    image = photos(2)
    made = RandomResizedCrop(size=224, normalise=PLAIN).cropped(
        image, torch.tensor([[3, 5, 20, 9], [0, 0, 32, 32]]), NOT_FLIPPED.expand(2)
    )
    for row, part in enumerate((image[:1, :, 3:23, 5:14], image[1:])):
        expected = functional.interpolate(part.float(), (224, 224), mode="bilinear", align_corners=False)
        torch.testing.assert_close(made[row : row + 1], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("size", [24, 96])
def test_pixels_are_those_of_pillow_but_for_its_rounding(size):
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'thinpipe[data]'")
    image, crop = photos(1, 64, 64), (5, 9, 50, 40)
    theirs = pillow.fromarray(image[0].permute(1, 2, 0).numpy()).crop((9, 5, 49, 55))
    theirs = theirs.resize((size, size), pillow.Resampling.BILINEAR)
    made = RandomResizedCrop(size=size, normalise=PLAIN).cropped(image, torch.tensor([crop]), NOT_FLIPPED)[0]
    pixels = torch.tensor(list(theirs.tobytes())).view(size, size, 3).permute(2, 0, 1).float()
    assert (made - pixels).abs().max() <= 1.01


def test_a_small_image_moves_over_black():
    image, pad = photos(3), 4
    crop = RandomCrop(normalise=CIFAR, pad=pad)
    shifts, flipped = torch.tensor([[0, 0], [8, 3], [4, 4]]), torch.tensor([False, True, False])
    made = crop.cropped(image, shifts, flipped)
    padded = functional.pad(image.float() / 255, (pad,) * 4)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR.mean, CIFAR.std))
    for row, ((top, left), flip) in enumerate(zip(shifts.tolist(), flipped.tolist(), strict=True)):
        expected = (padded[row, :, top : top + 32, left : left + 32] - mean) / std
        torch.testing.assert_close(made[row], expected.flip(2) if flip else expected)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 64), (300, 300), (48, 70), (70, 48)])
def test_an_evaluation_resizes_and_takes_the_middle(height, width):
    image = photos(2, height, width)
    short = min(height, width)
    resized = (256 * height // short, 256 * width // short)
    expected = functional.interpolate(image.float(), resized, mode="bilinear", antialias=True)
    top, left = (round((side - 224) / 2) for side in resized)
    expected = expected[:, :, top : top + 224, left : left + 224]
    torch.testing.assert_close(CentreCrop(normalise=PLAIN)(image), expected, atol=5e-3, rtol=0)


def test_an_evaluation_at_the_images_own_size_is_exact():
    image = photos(2)
    made = CentreCrop(size=32, resize=32, normalise=PLAIN)(image)
    torch.testing.assert_close(made, image.float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("augment", [RandomResizedCrop(size=48), RandomCrop()])
def test_a_batch_depends_on_seed_and_step_alone(augment):
    images = photos(16)
    torch.manual_seed(1)
    first = augment(images, seed=3, step=7)
    torch.manual_seed(2)
    assert torch.equal(augment(images, seed=3, step=7), first)
    for seed, step in ((3, 8), (4, 7), (7, 3)):
        assert not torch.equal(augment(images, seed=seed, step=step), first)


@pytest.mark.parametrize("augment", [RandomResizedCrop(size=48), RandomCrop()])
def test_parts_of_a_batch_are_the_batch(augment):
    """A replica has some rows, and sees them as one device does."""
    images = photos(11)
    whole = augment(images, seed=0, step=5)
    parts = [
        augment(images[first:last], seed=0, step=5, first=first, rows=11) for first, last in ((0, 4), (4, 11), (11, 11))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=0)
    with pytest.raises(BatchError, match="4 images from place 9 are no part of a batch of 11"):
        augment(images[:4], seed=0, step=5, first=9, rows=11)


@pytest.mark.parametrize("make", [RandomResizedCrop(size=40), RandomCrop(), CentreCrop(size=40, resize=44)])
def test_inputs_come_in_the_models_dtype_and_layout(make):
    images = photos(4)

    def made(**options):
        changed = dataclasses.replace(make, normalise=dataclasses.replace(IMAGENET, **options))
        return changed(images) if isinstance(make, CentreCrop) else changed(images, seed=0, step=0)

    plain = made()
    assert plain.dtype == torch.float32 and plain.is_contiguous()
    half = made(dtype=torch.bfloat16, channels_last=True)
    assert half.dtype == torch.bfloat16 and half.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(half, plain.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(), plain)


def test_a_mean_image_becomes_nothing():
    images = torch.tensor([round(255 * value) for value in IMAGENET.mean], dtype=torch.uint8).view(1, 3, 1, 1)
    made = RandomResizedCrop(size=224, normalise=IMAGENET)(images.expand(2, 3, 32, 32), seed=0, step=0)
    assert made.abs().max() < 0.01


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", [RandomResizedCrop(size=96), RandomCrop()])
def test_a_gpu_sees_the_same_pixels(augment):
    images = photos(16)
    made = augment(images.cuda(), seed=0, step=3)
    assert made.is_cuda
    torch.testing.assert_close(made.cpu(), augment(images, seed=0, step=3), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8).byte(), torch.zeros(3, 3, 8, 8).byte()[0]]
)
def test_other_images_are_refused(images):
    with pytest.raises(BatchError, match="takes uint8 of rows x 3 x height x width, got torch"):
        CentreCrop()(images)
    with pytest.raises(BatchError, match="takes uint8 of rows x 3 x height x width, got torch"):
        RandomCrop()(images, seed=0, step=0)
    with pytest.raises(BatchError, match="takes uint8 of rows x 3 x height x width, got torch"):
        RandomResizedCrop(size=8)(images, seed=0, step=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(size=0),
        lambda: RandomResizedCrop(size=8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(size=8, ratio=(0.0, 1.0)),
        lambda: RandomResizedCrop(size=8, flip=2.0),
        lambda: RandomCrop(pad=-1),
        lambda: CentreCrop(size=300),
        lambda: Normalise(mean=(0.5,), std=(0.1, 0.2)),
        lambda: Normalise(mean=(0.5,), std=(0.0,)),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ValueError, match=r"got|does not fit"):
        make()

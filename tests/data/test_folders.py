"""Folders of images, one folder a class: found in every usual layout, decoded once, damaged files left out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from thinpipe.data.decoded import CacheError, decode, decoded
from thinpipe.data.folders import list_images, load_folders
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.data.named import load_images

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'thinpipe[data]'")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def paint(path, colour=(200, 100, 50), size=(12, 9), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)
    return path


def split_folder(root, tested="test"):
    for place, part in enumerate(("train", tested)):
        for number, name in enumerate(("ant", "bee")):
            for image in range(3 - place):
                paint(root / part / name / f"{image}.png", (100 * number, 10 * image, 50 * place))
    return root


@pytest.mark.parametrize("tested", ["test", "val", "valid", "validation"])
def test_train_and_test_folders(tmp_path, tested):
    data = load_folders(split_folder(tmp_path, tested), decode_pixels=8)
    assert data.classes == ("ant", "bee")
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1] and data.test_labels.tolist() == [0, 0, 1, 1]
    assert data.train_images.shape == (6, 3, 8, 8) and data.train_images.dtype == torch.uint8
    assert data.train_images[5, :, 3, 3].tolist() == [100, 20, 0]
    assert data.test_images[1, :, 0, 7].tolist() == [0, 10, 50]
    assert data.skipped == 0 and not data.official


def test_food_101_is_split_by_its_lists(tmp_path):
    root = tmp_path / "food-101"
    for name in ("apple_pie/1", "apple_pie/2", "waffles/7", "waffles/8"):
        paint(root / "images" / f"{name}.jpg")
    (root / "meta").mkdir()
    (root / "meta" / "train.txt").write_text("waffles/8\napple_pie/2\n")
    (root / "meta" / "test.txt").write_text("apple_pie/1\r\nwaffles/7\r\n")
    data = load_images("food101", tmp_path, decode_pixels=4)
    assert data.classes == ("apple_pie", "waffles")
    assert data.train_labels.tolist() == [1, 0] and data.test_labels.tolist() == [0, 1]
    assert not data.official  # four images are not the hundred and one thousand


@pytest.mark.parametrize("line", ["../../secret/1", "/etc/passwd", "apple_pie", "a/b/c"])
def test_a_list_leads_nowhere_else(tmp_path, line):
    (tmp_path / "images").mkdir()
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "train.txt").write_text(f"apple_pie/1\n{line}\n")
    with pytest.raises(DamagedDataError, match="line 2: should be CLASS/NAME"):
        list_images(tmp_path)


def test_a_folder_without_a_split_is_split_by_names(tmp_path):
    for name in ("ant", "bee"):
        for image in range(200):
            (tmp_path / name / "more").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "more" / f"{image}.JPG").touch()
    before = list_images(tmp_path)
    assert len(before.train) + len(before.test) == 400
    assert 50 < len(before.test) < 110
    (tmp_path / "ant" / "new.jpeg").touch()
    after = list_images(tmp_path)
    assert set(before.train) <= set(after.train) and set(before.test) <= set(after.test)
    assert after == list_images(tmp_path)
    assert len(list_images(tmp_path, test_share=0.5).test) > 150


def test_what_is_no_image_is_not_listed(tmp_path):
    root = split_folder(tmp_path)
    for name in (".DS_Store", "._0.png", "notes.txt", "Thumbs.db"):
        (root / "train" / "ant" / name).touch()
    (root / "train" / ".cache").mkdir()
    assert len(list_images(root).train) == 6


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda root: None, "is no folder"),
        (lambda root: root.mkdir(), "no images to train on"),
        (lambda root: paint(root / "train" / "ant" / "0.png"), "nothing to test with"),
        (
            lambda root: (paint(root / "train/ant/0.png"), (root / "test/ant").mkdir(parents=True)),
            "images to test with",
        ),
    ],
)
def test_a_folder_without_images_says_so(tmp_path, make, expected):
    make(tmp_path / "root")
    with pytest.raises(DataError, match=expected):
        load_folders(tmp_path / "root")


def test_a_class_that_nobody_trained_on_cannot_be_tested(tmp_path):
    paint(split_folder(tmp_path) / "test" / "wasp" / "0.png")
    with pytest.raises(DamagedDataError, match=r"classes that .* has not: wasp"):
        list_images(tmp_path)


def test_images_of_ones_own_need_their_folder(tmp_path):
    with pytest.raises(DataError, match="give their folder"):
        load_images("imagefolder")
    assert len(load_images("imagefolder", split_folder(tmp_path), decode_pixels=2).train_labels) == 6


def test_the_square_in_the_middle_is_kept(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 8:22] = 255  # two pixels wider than the square, since its border is resized with its neighbours
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    Image.fromarray(pixels.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    for name in ("wide.png", "tall.png"):
        assert decode(tmp_path / name, 5).min() == 255


def test_an_image_of_the_right_size_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "same.png")
    assert (decode(tmp_path / "same.png", 16) == pixels.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK"])
def test_every_kind_of_image_becomes_three_channels(tmp_path, mode):
    file = paint(tmp_path / ("image.tif" if mode == "CMYK" else "image.png"), (255, 255, 255), mode=mode)
    assert (decode(file, 3) == np.full((3, 3, 3), 255)).all()


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = Image.new("P", (4, 4))
    image.putpalette([9, 8, 7] * 2)
    image.save(tmp_path / "image.png", transparency=b"\x00\x80")
    assert decode(tmp_path / "image.png", 2)[:, 0, 0].tolist() == [9, 8, 7]


def test_a_very_long_image_takes_no_more_memory_than_itself(tmp_path):
    """Resized before it was cut, one of 1 x 60,000 pixels became one of 256 x 15,360,000."""
    paint(tmp_path / "long.png", size=(60_000, 1))
    assert decode(tmp_path / "long.png", 256).shape == (3, 256, 256)


def test_damaged_files_are_left_out_and_counted(tmp_path):
    root = split_folder(tmp_path / "root")
    whole = (root / "train/ant/1.png").read_bytes()
    (root / "train/ant/1.png").write_bytes(whole[: len(whole) // 2])
    (root / "train/bee/0.png").write_bytes(b"not an image at all")
    (root / "test/bee/0.png").write_bytes(b"")
    data = load_folders(root, decode_pixels=4, max_damaged=0.4)
    assert data.skipped == 3
    assert data.train_labels.tolist() == [0, 0, 1, 1] and data.test_labels.tolist() == [0, 0, 1]
    assert data.train_images[:, 1, 0, 0].tolist() == [0, 20, 10, 20]
    train, test = data.notes
    assert f"2 of 6 images to train on cannot be read: {root / 'train/ant/1.png'}, {root / 'train/bee/0.png'}" in train
    assert f"1 of 4 images to test with cannot be read: {root / 'test/bee/0.png'}" in test and test in str(data)
    assert load_folders(root, decode_pixels=4, max_damaged=0.4).notes == data.notes  # from the cache


def damaged_eighth(root, damaged):
    for number in range(8):
        paint(root / "train" / "ab"[number % 2] / f"{number}.png", (number, 0, 0))
        paint(root / "test" / "ab"[number % 2] / f"{number}.png", (number, 0, 0))
    for number in range(damaged):
        (root / "train" / "ab"[number % 2] / f"{number}.png").write_bytes(b"not an image at all")
    return root


def test_too_many_damaged_files_are_refused_with_their_names_and_what_allows_them(tmp_path):
    root = damaged_eighth(tmp_path / "root", 2)
    for _ in range(2):  # decoded, and from the cache, where the damage is the same
        with pytest.raises(DamagedDataError) as refused:
            load_folders(root, decode_pixels=4)
        for words in ("2 of 8 images", "a/0.png", "b/1.png", "cannot identify", "25.0%", "--set max_damaged=0.25"):
            assert words in str(refused.value)
    data = load_folders(root, decode_pixels=4, max_damaged=0.25)
    assert len(data.train_labels) == 6 and len(data.test_labels) == 8 and len(data.notes) == 1


def test_a_few_damaged_files_of_many_are_told_and_left_out(tmp_path):
    for number in range(200):
        paint(tmp_path / "root" / "train" / "a" / f"{number}.png")
    paint(tmp_path / "root" / "test" / "a" / "0.png")
    (tmp_path / "root/train/a/7.png").write_bytes(b"?")
    data = load_folders(tmp_path / "root", decode_pixels=4)
    assert len(data.train_labels) == 199 and "1 of 200 images to train on cannot be read" in data.notes[0]


def test_a_file_that_could_not_be_read_once_is_tried_again(tmp_path):
    """A disk that fails for a moment, or a missing right, changes neither the size nor the time of a file."""
    root = damaged_eighth(tmp_path / "root", 0)
    file = root / "train/a/0.png"
    whole, state = file.read_bytes(), file.stat()
    file.write_bytes(b"x" * len(whole))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert load_folders(root, decode_pixels=4, max_damaged=0.5).skipped == 1
    file.write_bytes(whole)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert load_folders(root, decode_pixels=4).skipped == 0


@pytest.mark.parametrize("ending", ["bmp", "gif", "jpg", "png", "ppm", "tif", "webp"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_an_image_that_was_cut_short_is_never_taken_in_part(tmp_path, ending, share):
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    file = tmp_path / f"0.{ending}"
    Image.fromarray(pixels).save(file)
    os.truncate(file, int(file.stat().st_size * share))
    other = paint(tmp_path / "1.png")
    found = decoded([file, other], 8, cache=tmp_path / "cache")
    assert found.lost == (0,) and found.kept.tolist() == [1] and found.reason


def test_files_that_are_passed_over_are_told(tmp_path):
    root = split_folder(tmp_path / "root")
    (root / "train" / "ant" / "photo.heic").touch()
    paint(root / "train" / "loose.png")
    (note,) = load_folders(root, decode_pixels=4).notes
    assert "2 files are left out" in note and "photo.heic" in note and "loose.png" in note


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path):
    root = split_folder(tmp_path / "root")
    (root / "train" / "ant" / "more").mkdir(mode=0)
    with pytest.raises(DamagedDataError, match="cannot be listed"):
        list_images(root)


def test_nothing_but_damaged_files_is_an_error(tmp_path):
    root = split_folder(tmp_path / "root")
    for file in root.rglob("test/*/*.png"):
        file.write_bytes(b"?")
    with pytest.raises(DamagedDataError, match=r"no image of .* to test with can be read"):
        load_folders(root, decode_pixels=4)
    for file in root.rglob("*.png"):
        file.write_bytes(b"?")
    with pytest.raises(DamagedDataError, match="none of 10 files can be read"):
        load_folders(root, decode_pixels=4)


def test_images_are_decoded_once_until_a_file_changes(tmp_path):
    root, calls = split_folder(tmp_path / "root"), []

    def load(pixels=4):
        calls.clear()
        return load_folders(root, decode_pixels=pixels, progress=lambda done, total: calls.append((done, total)))

    first = load()
    assert calls == [(number, 10) for number in range(1, 11)]
    again = load()
    assert not calls and torch.equal(again.train_images, first.train_images)
    load(pixels=5)
    assert len(calls) == 10
    paint(root / "train" / "ant" / "0.png", (1, 2, 3), size=(20, 20))
    assert load().train_images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert len(calls) == 10


def test_a_damaged_cache_is_made_again(tmp_path):
    root = split_folder(tmp_path / "root")
    first = load_folders(root, decode_pixels=4).train_images.clone()
    (kept,) = (tmp_path / "cache/thinpipe/decoded").iterdir()
    for damage in (lambda: os.truncate(kept / "images.npy", 200), (kept / "kept.npy").unlink):
        damage()
        assert torch.equal(load_folders(root, decode_pixels=4).train_images, first)
    assert [each.name for each in kept.parent.iterdir()] == [kept.name]  # and nothing unfinished beside it


def test_what_is_trained_on_never_reaches_the_cache(tmp_path):
    root = split_folder(tmp_path / "root")
    data = load_folders(root, decode_pixels=4)
    data.train_images.fill_(7)
    assert load_folders(root, decode_pixels=4).train_images[0, 0, 0, 0] == 0


def test_an_interrupted_decoding_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_folders(split_folder(tmp_path / "root"), decode_pixels=4, progress=stop)
    assert not list((tmp_path / "cache/thinpipe/decoded").iterdir())


def test_no_room_is_said_before_anything_is_decoded(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CacheError, match="take a smaller decode_pixels"):
        load_folders(split_folder(tmp_path / "root"))


def test_a_cache_that_cannot_be_written_says_where_else(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="set XDG_CACHE_HOME"):
        decoded([paint(tmp_path / "0.png")], 4, cache=tmp_path / "file")


def test_without_pillow_the_error_names_the_extra(tmp_path, monkeypatch):
    root = split_folder(tmp_path / "root")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'thinpipe\[data\]'"):
        load_folders(root)


@pytest.mark.skipif(
    not (DATA / "food101/food101_64px.npz").exists(), reason="the Food-101 images are not here; set THINPIPE_DATA"
)
def test_real_photos_of_food(tmp_path):
    with np.load(DATA / "food101/food101_64px.npz") as archive:
        pack = dict(archive)
    rows = np.flatnonzero(pack["y"] < 3)
    pieces = [pack["jpeg"][pack["offsets"][row] : pack["offsets"][row + 1]] for row in rows]
    some = {name: pack[name][rows] for name in ("y", "is_test", "image_id")}
    some |= {"jpeg": np.concatenate(pieces), "offsets": np.cumsum([0, *map(len, pieces)])}
    (tmp_path / "food101").mkdir()
    np.savez(tmp_path / "food101/food101_64px.npz", class_names=pack["class_names"], **some)
    shutil.copy(DATA / "unpack.py", tmp_path)
    subprocess.run([sys.executable, "unpack.py", "out", "food101"], cwd=tmp_path, check=True, capture_output=True)
    data = load_images("food101", tmp_path / "out", decode_pixels=64)
    assert data.classes == tuple(pack["class_names"][:3])
    assert data.train_labels.bincount().tolist() == [75] * 3 and data.test_labels.bincount().tolist() == [25] * 3
    assert data.skipped == 0 and 60 < data.train_images.float().mean() < 180

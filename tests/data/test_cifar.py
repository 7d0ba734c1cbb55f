"""CIFAR's official binary files: rows are read as they lie, and a file of another size is refused."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.data import cifar
from thinpipe.data.cifar import load_cifar10, load_cifar100
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.data.named import load_images
from thinpipe.errors import ThinpipeError

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]


def rows(count, *, labels, classes, seed):
    draw = np.random.default_rng(seed)
    numbers = draw.integers(0, classes, (count, labels))
    return np.concatenate([numbers, draw.integers(0, 256, (count, 3072))], 1).astype(np.uint8)


def write10(folder, counts):
    target = folder / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    made = {name: rows(count, labels=1, classes=10, seed=place) for place, (name, count) in enumerate(counts.items())}
    for name, values in made.items():
        values.tofile(target / name)
    return target, made


def test_rows_are_images_and_labels_in_the_order_of_the_files(tmp_path):
    _, made = write10(tmp_path, {**dict.fromkeys(TRAIN, 3), "test_batch.bin": 2})
    data = load_cifar10(tmp_path, partial=True)
    assert data.train_images.shape == (15, 3, 32, 32) and data.train_images.dtype == torch.uint8
    assert data.train_labels.dtype == torch.int64
    row = made["data_batch_4.bin"][1]
    assert data.train_labels[10] == row[0]
    # The first 1,024 bytes are the red ones, row by row.
    assert data.train_images[10, 0, 2, 5] == row[1 + 2 * 32 + 5]
    assert data.train_images[10, 2, 31, 31] == row[3072]
    assert data.test_labels.tolist() == made["test_batch.bin"][:, 0].tolist()
    assert data.classes == tuple("0123456789") and not data.official
    assert "15 + 2 images of 32 x 32 pixels in 10 classes, not an official" in str(data)


def test_names_of_classes_are_read_where_they_are(tmp_path):
    folder, _ = write10(tmp_path, {**dict.fromkeys(TRAIN, 1), "test_batch.bin": 1})
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert load_cifar10(tmp_path, partial=True).classes == tuple(names)


def test_a_part_is_refused_unless_it_is_asked_for(tmp_path):
    write10(tmp_path, {"data_batch_2.bin": 4, "test_batch.bin": 2})
    with pytest.raises(DataError, match=r"lacks data_batch_1.bin, data_batch_3.bin.*partial=True"):
        load_cifar10(tmp_path)
    assert len(load_cifar10(tmp_path, partial=True).train_labels) == 4
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"lacks test_batch.bin: unpack the archive again$"):
        load_cifar10(tmp_path, partial=True)


def test_fewer_rows_than_official_are_refused_unless_asked_for(tmp_path):
    write10(tmp_path, {**dict.fromkeys(TRAIN, 2), "test_batch.bin": 2})
    with pytest.raises(DamagedDataError, match=r"data_batch_1.bin has 2 rows instead of 10000.*partial=True"):
        load_cifar10(tmp_path)


def test_the_whole_set_is_official(tmp_path, monkeypatch):
    """With files of three rows for ten thousand: sixty megabytes prove no more."""
    monkeypatch.setattr(cifar, "_TEN", replace(cifar._TEN, rows=dict.fromkeys(cifar._TEN.rows, 3)))
    write10(tmp_path, {**dict.fromkeys(TRAIN, 3), "test_batch.bin": 3})
    assert load_cifar10(tmp_path).official
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes(3073 * 4))
    with pytest.raises(DamagedDataError, match=r"has 4 rows instead of 3: unpack the archive again$"):
        load_cifar10(tmp_path, partial=True)


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    made = rows(6, labels=2, classes=20, seed=0)
    made[:, 1] += 80
    for name in ("train.bin", "test.bin"):
        made.tofile(folder / name)
    fine = load_images("cifar100", tmp_path, partial=True)
    coarse = load_cifar100(tmp_path, coarse=True, partial=True)
    assert fine.train_labels.tolist() == made[:, 1].tolist() and len(fine.classes) == 100
    assert coarse.train_labels.tolist() == made[:, 0].tolist() and len(coarse.classes) == 20
    assert fine.train_images[3, 0, 0, 0] == made[3, 2]


def wrong(content):
    return len(content) % 3073 != 0 or content[:1] > b"\x09" or not content


@given(st.binary(max_size=3073 * 2 + 2).filter(wrong) | st.integers(0, 3).map(lambda count: b"\x0b" * 3073 * count))
def test_garbage_and_short_files_end_in_an_error_with_a_name(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*TRAIN, "test_batch.bin"):
        (folder / name).write_bytes(content)
    with pytest.raises(ThinpipeError, match=r"data_batch_1\.bin"):
        load_cifar10(folder, partial=True)


@pytest.mark.skipif(
    not (DATA / "cifar10/train-00.webp").exists(), reason="the CIFAR-10 sheets are not here; set THINPIPE_DATA"
)
def test_real_images_have_the_published_means(tmp_path):
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'thinpipe[data]'")
    (tmp_path / "cifar10").mkdir()
    shutil.copy(DATA / "unpack.py", tmp_path)
    for name in ("labels.npz", "train-00.webp", "test-00.webp"):
        (tmp_path / "cifar10" / name).symlink_to(DATA / "cifar10" / name)
    subprocess.run([sys.executable, "unpack.py", "out", "cifar10"], cwd=tmp_path, check=True, capture_output=True)
    data = load_images("cifar10", tmp_path / "out", partial=True)
    assert (len(data.train_labels), len(data.test_labels)) == (2500, 2500)
    assert data.classes[6] == "frog" and data.train_labels[0] == 6  # the first image of all is a frog
    means = data.train_images.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.01, rtol=0)
    assert data.train_labels.bincount(minlength=10).min() > 200

"""TinyImageNet as a tree, as an archive and as JPEGs without headers."""

from __future__ import annotations

import shutil

import data_files as files
import numpy as np
import pytest

from rbue.lab import data

CODES = ("n00000001", "n00000002")


@pytest.fixture
def jpegs(shrink):
    arrays = shrink("tiny-imagenet", 24, 12, known=False, classes=("cat", "dog"), codes=CODES, downloads=())
    made = {}
    for split, (images, _) in arrays.items():
        labels = [number * 2 // len(images) for number in range(len(images))]
        made[split] = [(files.jpeg(image), label) for image, label in zip(images, labels, strict=True)]
        made[split][1] = (files.jpeg(images[1, ..., 0]), labels[1])  # a grey one
        made[split][2] = (files.jpeg(images[2], quality=40), labels[2])  # one with another header
    return made


def _same(jpegs, root):
    for split, pairs in jpegs.items():
        got = data.load("tiny-imagenet", split, root)
        assert np.array_equal(got.images, np.stack([files.decoded(image) for image, _ in pairs]))
        assert got.labels.tolist() == [label for _, label in pairs]
        assert got.classes == ("cat", "dog")
    assert np.ptp(data.load("tiny-imagenet", "train", root).images[1], axis=2).max() == 0


def test_tree_archive_and_parts_give_the_same(jpegs, tmp_path):
    tree = files.tiny_tree(tmp_path / "tiny-imagenet-200", CODES, jpegs)
    data.import_("tiny-imagenet", tree, tmp_path / "a")
    _same(jpegs, tmp_path / "a")
    shutil.make_archive(str(tree), "zip", tmp_path, tree.name)
    data.import_("tiny-imagenet", tmp_path / "tiny-imagenet-200.zip", tmp_path / "b")
    _same(jpegs, tmp_path / "b")
    parts = files.tiny_parts(tmp_path / "parts", CODES, jpegs)
    data.import_("tiny-imagenet", parts, tmp_path / "c")
    _same(jpegs, tmp_path / "c")
    assert len({tuple(entry.found for entry in data.check("tiny-imagenet", tmp_path / root)) for root in "abc"}) == 1


def test_damage_is_named(jpegs, tmp_path, nothing_left):
    tree = files.tiny_tree(tmp_path / "tree", CODES, jpegs)
    image = tree / "train" / CODES[1] / "images" / f"{CODES[1]}_3.JPEG"
    whole = image.read_bytes()
    for content, message in ((whole[:-200], "not a whole JPEG"), (b"hello", "not a whole JPEG")):
        image.write_bytes(content)
        with pytest.raises(data.DataError, match=rf"{image.name} is {message}"):
            data.import_("tiny-imagenet", tree, tmp_path / "root")
    image.write_bytes(files.jpeg(np.zeros((32, 32, 3), np.uint8)))
    with pytest.raises(data.DataError, match=rf"{image.name} is 32x32 instead of 64x64"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    image.unlink()
    with pytest.raises(data.DataError, match="23 images for tiny-imagenet train instead of 24"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    (tree / "train" / "n99999999" / "images").mkdir(parents=True)
    with pytest.raises(data.DataError, match="n99999999 is not one of the 2 classes"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    nothing_left(tmp_path / "root")


def test_annotations_are_checked(jpegs, tmp_path):
    tree = files.tiny_tree(tmp_path / "tree", CODES, jpegs)
    annotations = tree / "val" / "val_annotations.txt"
    lines = annotations.read_text().splitlines(keepends=True)
    annotations.write_text("".join(lines[1:]))
    with pytest.raises(data.DataError, match=r"val_0.JPEG has no line"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    annotations.write_text("val_0.JPEG\tn77777777\n")
    with pytest.raises(data.DataError, match="line 1: 'n77777777' is not one of the 2 classes"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")


def test_damaged_parts_are_named(jpegs, tmp_path):
    parts = files.tiny_parts(tmp_path / "parts", CODES, jpegs)
    body = (parts / "train-0.bin").read_bytes()
    for content in (body[:-10], body + b"x"):
        (parts / "train-0.bin").write_bytes(content)
        with pytest.raises(data.DataError, match=r"train-0.bin"):
            data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text('["n00000001", "n55555555"]')
    with pytest.raises(data.DataError, match=r"index.json names a class"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text('["cat"]')
    with pytest.raises(data.DataError, match="no class code in the entry 'cat'"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")

"""Corrupted sets: published files read and checked, generated ones kept."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import corruption_references as references
import numpy as np
import pytest
from PIL import Image

from rbue.errors import InvalidInput
from rbue.lab.corruptions import corrupt, corrupted, sets
from rbue.lab.data import CannotWrite, DataError, ImageSet, registry


@pytest.fixture
def cifar(tmp_path):
    """A test split of ten images that calls itself CIFAR-10, and a published set that belongs to it."""
    test_set = ImageSet(
        references.scenes()[:10],
        np.arange(10)[::-1].copy(),
        tuple("abcdefghij"),
        "cifar10",
        "test",
        (0.5,) * 3,
        (0.2,) * 3,
    )
    folder = tmp_path / "root" / "CIFAR-10-C"
    folder.mkdir(parents=True)
    severities = [np.clip(test_set.images + np.uint8(s), s, 255).astype(np.uint8) for s in range(1, 6)]
    np.save(folder / "fog.npy", np.concatenate(severities))
    np.save(folder / "labels.npy", np.tile(test_set.labels, 5).astype(np.uint8))
    return test_set, folder


def test_published_arrays_are_used_when_there(cifar, monkeypatch):
    test_set, folder = cifar
    stored = np.load(folder / "fog.npy")
    for severity in (1, 5):
        found = corrupted(test_set, "fog", severity, root=folder.parent)
        assert found.variant == f"published CIFAR-10-C: fog, severity {severity}"
        assert np.array_equal(found.images, stored[10 * (severity - 1) : 10 * severity])
        assert np.array_equal(found.labels, test_set.labels)
        assert (found.name, found.split, found.mean) == (test_set.name, "test", test_set.mean)
    monkeypatch.setenv("RBUE_DATA", os.pathsep.join([str(folder.parent / "nothing"), str(folder.parent)]))
    assert corrupted(test_set, "fog", 2).variant.startswith("published")
    assert corrupted(test_set, "snow", 2, cache=False).variant.startswith("generated")
    assert corrupted(test_set, "fog", 2, published=False, cache=False).variant.startswith("generated")
    train = replace(test_set, split="train")
    assert corrupted(train, "fog", 2, cache=False).variant.startswith("generated")


def test_they_may_lie_in_the_folder_of_the_clean_set(cifar):
    test_set, folder = cifar
    (folder.parent / "cifar10").mkdir()
    folder.rename(folder.parent / "cifar10" / "CIFAR-10-C")
    assert corrupted(test_set, "fog", 2, root=folder.parent).variant.startswith("published")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "fog.npy",
            np.zeros((49, 32, 32, 3), np.uint8),
            r"fog\.npy holds uint8 \(49, 32, 32, 3\) instead of uint8 \(50,",
        ),
        ("fog.npy", np.zeros((50, 32, 32, 3)), r"holds float64"),
        ("labels.npy", np.zeros(10, np.uint8), r"labels\.npy holds uint8 \(10,\)"),
        ("labels.npy", np.zeros(50), r"labels\.npy holds float64 \(50,\) instead of whole numbers \(50,\)"),
        (
            "labels.npy",
            np.repeat(np.arange(10)[::-1], 5).astype(np.uint8),
            r"has label 9 at place 1, .* have 8 \(44 lab",
        ),
        ("fog.npy", np.array([{}], dtype=object), r"fog\.npy is missing or damaged"),
        ("fog.npy", b"\x93NUMPY", r"fog\.npy is missing or damaged"),
        ("labels.npy", None, r"labels\.npy is missing or damaged"),
    ],
)
def test_wrong_published_files_are_refused(cifar, file, content, message):
    test_set, folder = cifar
    (folder / file).unlink()
    if isinstance(content, bytes):
        (folder / file).write_bytes(content)
    elif content is not None:
        np.save(folder / file, content, allow_pickle=True)
    with pytest.raises(DataError, match=message):
        corrupted(test_set, "fog", 2, root=folder.parent)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    codes = ("n01443537", "n01629819", "n01641577")
    entry = replace(registry.get("tiny-imagenet"), classes=("a", "b", "c"), codes=codes)
    monkeypatch.setitem(registry._SETS, "tiny-imagenet", entry)
    images = references.scenes(side=64)[:4]
    clean = ImageSet(images, np.array([2, 1, 0, 0]), ("a", "b", "c"), "tiny-imagenet", "test", (0.5,) * 3, (0.2,) * 3)
    folder = tmp_path / "root" / "Tiny-ImageNet-C"
    for code in codes:
        place = folder / "snow" / "3" / code
        place.mkdir(parents=True)
        for number in range(2):
            Image.fromarray(images[number]).save(place / f"val_{number}.JPEG", quality=95)
    return clean, folder


def test_published_folders_bring_their_own_labels(tiny):
    clean, folder = tiny
    seen = []
    found = corrupted(clean, "snow", 3, root=folder.parent, progress=lambda *said: seen.append(said))
    assert found.variant == "published Tiny-ImageNet-C: snow, severity 3"
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.abs(found.images[::2].astype(int) - clean.images[0]).mean() < 5
    assert seen == [("snow severity 3", 6, 6)]


def test_wrong_published_folders_are_refused(tiny):
    clean, folder = tiny
    with pytest.raises(DataError, match=r"snow.4 is missing; get Tiny-ImageNet-C again"):
        corrupted(clean, "snow", 4, root=folder.parent)
    place = folder / "snow" / "3" / "n01629819"
    Image.new("RGB", (32, 64)).save(place / "val_7.JPEG")
    with pytest.raises(DataError, match=r"val_7\.JPEG is 32x64 instead of 64x64"):
        corrupted(clean, "snow", 3, root=folder.parent)
    (place / "val_7.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"val_7\.JPEG is not a whole JPEG"):
        corrupted(clean, "snow", 3, root=folder.parent)
    place.rename(folder / "snow" / "3" / "n99999999")
    with pytest.raises(DataError, match=r"n99999999 is not one of the 3 classes"):
        corrupted(clean, "snow", 3, root=folder.parent)


def test_generated_sets_are_kept_and_found_again(small_set, tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "_MADE_AT_ONCE", 4)
    seen = []
    first = corrupted(small_set, "snow", 2, seed=5, progress=lambda *said: seen.append(said))
    assert seen == [("snow severity 2", 4, 10), ("snow severity 2", 8, 10), ("snow severity 2", 10, 10)]
    assert np.array_equal(first.images, corrupt(small_set.images, "snow", 2, seed=5))
    assert np.array_equal(first.images, corrupted(small_set, "snow", 2, seed=5, cache=False).images)
    assert first.variant == "generated: snow, severity 2, seed 5, scheme 1"
    assert isinstance(first.images, np.memmap)
    folder = tmp_path / "cache" / "rbue" / "data" / "small-c-generated"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".npy"]
    record = json.loads(next(folder.glob("*.json")).read_text())
    assert record["facts"]["constants"] == [0.1, 0.2, 1, 0.5, 10, 4, 0.9]

    seen.clear()
    again = corrupted(small_set, "snow", 2, seed=5, progress=lambda *said: seen.append(said))
    assert seen == []
    assert np.array_equal(again.images, first.images)
    for change in ({"seed": 6}, {"severity": 3}, {"name": "fog"}):
        corrupted(small_set, **{"name": "snow", "severity": 2, "seed": 5, **change})
    darker = replace(small_set, images=small_set.images // 2)
    corrupted(darker, "snow", 2, seed=5)
    assert len(list(folder.glob("*.npy"))) == 5


def _truncate(folder):
    path = next(folder.glob("*.npy"))
    path.write_bytes(path.read_bytes()[:-1])


def _change_a_pixel(folder):
    path = next(folder.glob("*.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")


def _lose_the_record(folder):
    next(folder.glob("*.json")).unlink()


def _break_the_record(folder):
    next(folder.glob("*.json")).write_text("{")


@pytest.mark.parametrize("damage", [_truncate, _change_a_pixel, _lose_the_record, _break_the_record])
def test_what_is_not_whole_is_made_again(small_set, tmp_path, damage):
    before = corrupted(small_set, "contrast", 2, root=tmp_path).images.copy()
    damage(tmp_path / "small-c-generated")
    seen = []
    after = corrupted(small_set, "contrast", 2, root=tmp_path, progress=lambda *said: seen.append(said))
    assert seen
    assert np.array_equal(before, after.images)


def test_what_another_process_has_just_made_stays_whole(small_set, tmp_path, monkeypatch):
    """It was not there when this one looked, and is done before this one begins."""
    clear = sets.clear_leftovers

    def clear_late(folder):
        monkeypatch.setattr(sets, "clear_leftovers", clear)
        made.append(corrupted(small_set, "contrast", 2, root=tmp_path))
        clear(folder)

    def generate(*words):
        (record,) = (tmp_path / "small-c-generated").glob("*.json")
        assert json.loads(record.read_text())["sha256"]
        return write(*words)

    made, write = [], sets._write_generated
    monkeypatch.setattr(sets, "clear_leftovers", clear_late)
    monkeypatch.setattr(sets, "_write_generated", lambda *words: (generate if made else write)(*words))
    found = corrupted(small_set, "contrast", 2, root=tmp_path)
    assert np.array_equal(found.images, made[0].images)


def test_interrupted_work_leaves_nothing_half_written(small_set, tmp_path):
    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupted(small_set, "contrast", 2, root=tmp_path, progress=interrupt)
    assert not list((tmp_path / "small-c-generated").iterdir())


def test_a_place_that_cannot_be_written_to(small_set, tmp_path):
    (tmp_path / "small-c-generated").write_text("in the way")
    with pytest.raises(CannotWrite, match="a file is in the way"):
        corrupted(small_set, "contrast", 2, root=tmp_path)


def test_grey_sets_become_rgb_with_three_means(small_set):
    grey = replace(small_set, images=small_set.images[..., :1].copy(), mean=(0.4,), std=(0.1,), name="folder:/a/b c")
    found = corrupted(grey, "contrast", 2)
    assert found.images.shape == (10, 32, 32, 3)
    assert (found.mean, found.std) == ((0.4,) * 3, (0.1,) * 3)


def test_bad_names_are_refused_first(small_set):
    with pytest.raises(InvalidInput, match="did you mean 'contrast'"):
        corrupted(small_set, "contrasts", 2)
    with pytest.raises(InvalidInput, match="got 0"):
        corrupted(small_set, "contrast", 0)

"""Images from elsewhere in the size of a run, without its classes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.data import outside as outsiders
from rbue.lab.data.outside import at_most, like, outside, resized, shared_classes


def images_of(name, size=(4, 4, 3), classes=None, count=0):
    """A set of random images with the classes of a registered one."""
    classes = data.get(name).classes if classes is None else classes
    random = np.random.RandomState(0)
    labels = np.arange(count or len(classes)) % len(classes)
    mean = (0.5,) * size[2]
    pixels = random.randint(0, 256, (len(labels), *size)).astype(np.uint8)
    return data.ImageSet(pixels, labels, tuple(classes), name, "test", mean, mean)


@pytest.mark.parametrize("size", [(32, 32), (8, 12), (100, 80)])
def test_sizes_change_as_a_library_for_images_does_it(size):
    smooth = resized(np.random.RandomState(0).randint(0, 256, (2, 8, 8, 3)).astype(np.uint8), (64, 64))
    found = resized(smooth, size)
    for before, after in zip(smooth, found, strict=True):
        expected = Image.fromarray(before).resize(size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(after.astype(int) - np.asarray(expected)).max() <= 1


def test_half_the_size_is_antialiased():
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), 32)[None, None, :, None].repeat(64, 1)
    assert np.abs(resized(stripes, (32, 32))[:, :, 1:-1].astype(int) - 127).max() <= 1  # a plain one has 0 and 255


def test_channels_become_those_of_the_run():
    colour, grey = images_of("cifar10"), images_of("digits", (4, 4, 1))
    as_grey = like(colour, grey)
    assert as_grey.images.shape == (10, 4, 4, 1)
    assert np.abs(as_grey.images[0, :, :, 0] - np.asarray(Image.fromarray(colour.images[0]).convert("L"))).max() <= 1
    widened = like(grey, colour)
    assert (widened.images == grey.images).all()
    assert widened.images.shape == (10, 4, 4, 3)
    assert widened.mean == colour.mean
    assert (as_grey.variant, widened.variant) == ("official, as grey", "official, in 3 channels")


def test_the_list_of_shared_classes_is_of_classes_that_there_are():
    tiny = data.get("tiny-imagenet")
    names = dict(zip(tiny.codes, tiny.classes, strict=True))
    text = (outsiders.Path(outsiders.__file__).parent / "sets/tiny_imagenet_overlaps.txt").read_text()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, kind, code, what = line.split(" ", 3)
            assert names[code] == what
            assert kind.replace("_", " ") in data.get(name).classes
    assert {name: len(pairs) for name, pairs in outsiders._overlaps().items()} == {"cifar10": 23, "cifar100": 46}


def test_shared_classes_are_left_out(monkeypatch):
    tiny, small = images_of("tiny-imagenet", (8, 8, 3), count=400), images_of("cifar10")
    monkeypatch.setattr(outsiders, "load", lambda name, split: {"tiny-imagenet": tiny, "cifar10": small}[name])
    found = outside("tiny-imagenet", small)
    assert len(found.images) == 400 - 2 * 23
    assert {"golden retriever", "goose", "lifeboat"} <= set(found.left_out)
    assert not {"lion", "gazelle", "school bus"} & set(found.left_out)
    left = {tiny.classes.index(name) for name in found.left_out}
    assert not left & set(found.images.labels.tolist())
    assert found.images.images.shape[1:] == (4, 4, 3)
    back = outside("cifar10", tiny)
    assert set(back.left_out) == {"automobile", "bird", "cat", "dog", "frog", "ship", "truck"}
    assert shared_classes(images_of("cifar100"), small) == set()


def test_other_sets_are_compared_by_the_names_of_their_classes():
    mine, other = images_of("mine", classes=("Cat", "moon")), images_of("other", classes=("cat", "sun", "star"))
    assert shared_classes(other, mine) == {0}
    assert shared_classes(images_of("svhn"), images_of("digits")) == set()  # digits too, but other pictures


def test_a_part_of_the_classes_is_no_other_set(monkeypatch):
    mine, part = images_of("mine", classes=("cat", "dog", "moon")), images_of("part", classes=("Cat", "dog"))
    assert shared_classes(part, mine) == {0, 1}
    monkeypatch.setattr(outsiders, "load", lambda *_: part)
    with pytest.raises(InvalidInput, match="part has only classes that mine has too; choose sets with others"):
        outside("part", mine)


@pytest.mark.parametrize(
    "name", ["folder:./photos:8", "folder:photos:16", "folder:photos:test=0.5", "folder:photos/train"]
)
def test_a_folder_is_the_same_however_it_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos/train").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=f"{name} is the data set that the run was trained on, or lies in it"):
        outside(name, images_of("folder:photos:8", classes=("cat", "dog")))


def test_fewer_images_are_evenly_spaced():
    images = images_of("cifar10", count=100)
    few = at_most(images, 7)
    assert (few.images == images.images[[0, 14, 28, 42, 57, 71, 85]]).all()
    assert few.variant == "official, 7 of them"
    assert at_most(images, 100) is images
    with pytest.raises(InvalidInput, match="cifar10 is the data set that the run was trained on"):
        outside("cifar10", images)

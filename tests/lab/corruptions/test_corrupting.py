"""The same pixels in any batch, order and number of threads; any size; and what is refused."""

from __future__ import annotations

import sys

import corruption_references as references
import numpy as np
import pytest

from rbue.errors import InvalidInput, RbueError
from rbue.lab.corruptions import CORRUPTIONS, EXTRA, corrupt, corrupting

RANDOM = [
    name
    for name in CORRUPTIONS
    if name.endswith("noise") or name in ("glass_blur", "motion_blur", "snow", "frost", "fog", "spatter")
] + ["elastic_transform"]
NUMBERS = np.random.default_rng(5).permutation(10_000)[:24]


def test_there_are_nineteen():
    assert len(set(CORRUPTIONS)) == 19
    assert len(set(CORRUPTIONS) - set(EXTRA)) == 15


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_batch_order_and_threads_do_not_matter(name, monkeypatch):
    images = references.scenes()
    whole = corrupt(images, name, 4, seed=3, index=NUMBERS)
    assert whole.dtype == np.uint8
    assert whole.shape == images.shape
    pieces = [
        corrupt(images[first:last], name, 4, seed=3, index=NUMBERS[first:last])
        for first, last in ((0, 1), (1, 2), (2, 9), (9, 24))
    ]
    assert np.array_equal(np.concatenate(pieces), whole)
    order = np.random.default_rng(0).permutation(24)
    assert np.array_equal(corrupt(images[order], name, 4, seed=3, index=NUMBERS[order]), whole[order])
    monkeypatch.setattr(corrupting, "_VALUES_AT_ONCE", 5 * 32 * 32 * 3)
    for threads in (1, 3):
        assert np.array_equal(corrupt(images, name, 4, seed=3, index=NUMBERS, threads=threads), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_number_and_severity_matter_only_to_chance(name):
    images = np.repeat(references.scenes()[5:6], 3, axis=0)
    first = corrupt(images, name, 3)
    others = [corrupt(images, name, 3, seed=1), corrupt(images, name, 3, index=[7, 1 << 40, 9])]
    given = corrupt(images, name, 3, constants="cifar")
    assert np.array_equal(first, given)
    for other in others:
        assert np.array_equal(first, other) == (name not in RANDOM)
    assert np.array_equal(first[0], first[1]) == (name not in RANDOM)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(2, 16, 16, 1), (1, 21, 37, 3), (1, 97, 70, 3), (0, 32, 32, 3)])
def test_any_size_from_16(name, shape):
    images = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    for severity in (1, 3, 5):
        damaged = corrupt(images, name, severity)
        assert damaged.shape == (*shape[:3], 3)
        assert damaged.dtype == np.uint8


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_black_and_white_images(name):
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    images[1] = 255
    with np.errstate(all="raise"):
        for severity in (1, 5):
            corrupt(images, name, severity)


def test_grey_is_widened_and_floats_are_rounded():
    images = references.scenes()
    grey = images[..., :1]
    assert np.array_equal(corrupt(grey, "fog", 2), corrupt(np.repeat(grey, 3, axis=3), "fog", 2))
    assert np.array_equal(corrupt((images / 255).astype(np.float32), "snow", 2), corrupt(images, "snow", 2))


def test_the_input_is_left_alone():
    images = references.scenes().copy()
    images.flags.writeable = False
    for name in CORRUPTIONS:
        corrupt(images, name, 5)
    assert np.array_equal(images, references.scenes())


def test_own_constants_replace_the_severity():
    images = references.scenes()
    assert np.abs(corrupt(images, "contrast", 1, constants=1.0).astype(int) - images).max() <= 1
    assert np.array_equal(corrupt(images, "contrast", 1, constants=(0.15,)), corrupt(images, "contrast", 5))
    assert not np.array_equal(corrupt(images, "contrast", 1, constants="tiny-imagenet"), corrupt(images, "contrast", 1))


GOOD = np.zeros((2, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((GOOD, "gausian_noise", 1), r"no corruption called 'gausian_noise' \(did you mean 'gaussian_noise'\?\)"),
        ((GOOD, "jpeg", 1), r"no corruption called 'jpeg'.*jpeg_compression"),
        ((GOOD, "fog", 0), r"1, 2, 3, 4 or 5, got 0; severity 0 is the clean image"),
        ((GOOD, "fog", True), r"got True"),
        ((np.zeros((2, 32, 32, 4), np.uint8), "fog", 1), r"four channels \(RGBA\?\); give RGB"),
        ((np.zeros((2, 3, 32, 32), np.uint8), "fog", 1), r"looks like \(B, C, H, W\)"),
        ((np.zeros((32, 32, 3), np.uint8), "fog", 1), r"got \(32, 32, 3\); for one image give image\[None\]"),
        ((np.zeros((2, 32, 15, 3), np.uint8), "fog", 1), r"at least 16 pixels .* got 32x15"),
        ((np.full((2, 32, 32, 3), 1.5), "fog", 1), r"between 0 and 1, got 1\.5 to 1\.5"),
        ((np.full((2, 32, 32, 3), np.nan), "fog", 1), r"between 0 and 1, got nan"),
        ((GOOD.astype(np.int64), "fog", 1), r"uint8, or floats between 0 and 1, got int64"),
        ((GOOD, "fog", 1, -1), r"seed is a whole number from 0 to 2\*\*64 - 1, got -1"),
        ((GOOD, "fog", 1, 0, [1]), r"one whole number an image, \(2,\), got int64 \(1,\)"),
        ((GOOD, "fog", 1, 0, [0.5, 1]), r"one whole number an image"),
        ((GOOD, "fog", 1, 0, [-1, 1]), r"0\.\.2\*\*48 - 1, got -1\.\.1"),
        ((GOOD, "fog", 1, 0, None, "imagenet"), r"no constants called 'imagenet' \(did you mean 'tiny-imagenet'\?\)"),
        ((GOOD, "fog", 1, 0, None, (1.0,)), r"fog takes 2 finite numbers \(amount, decay\), got \(1\.0,\)"),
        ((GOOD, "fog", 1, 0, None, (1.0, float("inf"))), r"fog takes 2 finite numbers .* got \(1\.0, inf\)"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        corrupt(*arguments)


@pytest.mark.parametrize("threads", [0, 1.5, True])
def test_bad_numbers_of_threads_are_refused(threads):
    with pytest.raises(InvalidInput, match=rf"threads must be a whole number of at least 1.*, got {threads!r}\."):
        corrupt(GOOD, "fog", 1, threads=threads)


def test_without_opencv_spatter_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(RbueError, match=r"spatter needs OpenCV.*pip install 'rbue\[lab\]'"):
        corrupt(GOOD, "spatter", 1)
    for name in CORRUPTIONS:
        if name != "spatter":
            corrupt(GOOD, name, 1)

"""Every corruption against another way to make it, which every other corruption must fail."""

from __future__ import annotations

import colorsys
import hashlib
import json
from functools import cache

import corruption_references as references
import numpy as np
import pytest
from scipy import ndimage

from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES, constants_of, corrupt

UNORDERED = ("elastic_transform", "saturate")
# Ordered in part. glass_blur: with one round more the damage grows, but a stronger blur of what was shuffled alike
# brings it nearer to the clean image. motion_blur: 3 and 4 differ only where the trail has faded. spatter: water, then
# mud.
PARTLY = {
    ("glass_blur", 32): ((2, 4), (3, 5)),
    ("glass_blur", 64): ((2, 3, 5), (4, 5)),
    ("motion_blur", 32): ((1, 2, 3, 5), (4, 5)),
    ("spatter", 32): ((1, 2, 3), (4, 5)),
}


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_it_is_what_the_reference_says(name, side):
    for severity in SEVERITIES if side == 32 else (2, 4, 5):
        references.check(name, corrupt(references.scenes(side=side), name, severity), severity)


@cache
def damaged_by(name):
    return corrupt(references.scenes(), name, 3)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_other_corruption_passes_the_check(name):
    for other in CORRUPTIONS:
        if other != name:
            with pytest.raises(AssertionError):
                references.check(name, damaged_by(other), 3)
    with pytest.raises(AssertionError):
        references.check(name, references.scenes(), 3)


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in UNORDERED])
def test_damage_grows_with_severity(name, side):
    images = references.scenes(16 if side == 32 else 6, side)
    errors = {
        severity: np.square(corrupt(images, name, severity).astype(float) - images).mean() for severity in SEVERITIES
    }
    for severities in PARTLY.get((name, side), (SEVERITIES,)):
        assert np.all(np.diff([errors[severity] for severity in severities]) > 0), errors


@pytest.mark.parametrize(
    ("name", "severity", "cifar", "tiny_imagenet"),
    [
        ("gaussian_noise", 4, (0.09,), (0.15,)),
        ("shot_noise", 2, (250,), (100,)),
        ("impulse_noise", 5, (0.07,), (0.14,)),
        ("speckle_noise", 3, (0.12,), (0.25,)),
        ("defocus_blur", 4, (1, 0.2), (2.5, 0.01)),
        ("gaussian_blur", 4, (0.8,), (1.25,)),
        ("glass_blur", 4, (0.25, 1, 2), (0.7, 2, 1)),
        ("motion_blur", 5, (9, 2.5), (12, 3)),
        ("zoom_blur", 3, (1.16,), (1.16,)),
        ("snow", 4, (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65)),
        ("frost", 3, (0.9, 0.4, 0.2), (0.8, 0.45, 0.3)),
        ("fog", 5, (1.5, 1.75), (2, 1.75)),
        ("spatter", 5, (0.65, 0.1, 0.5, 0.68, 0.6, 1), (0.65, 0.1, 0.5, 0.67, 0.6, 1)),
        ("brightness", 5, (0.3,), (0.5,)),
        ("contrast", 5, (0.15,), (0.05,)),
        ("saturate", 4, (2, 0.1), (5, 0.1)),
        ("elastic_transform", 2, (0.05, 0.2, 0.07), (0.05, 0.3, 0.06)),
        ("pixelate", 5, (0.65,), (0.5,)),
        ("jpeg_compression", 5, (40,), (25,)),
    ],
)
def test_constants_go_by_size(name, severity, cifar, tiny_imagenet):
    assert constants_of(name, severity, 32) == constants_of(name, severity, 48) == cifar
    assert constants_of(name, severity, 49) == constants_of(name, severity, 64) == tiny_imagenet


@pytest.mark.parametrize(("side", "checksum"), [(32, "2d58736f52d93aa8"), (64, "a4e917f3e222d55a")])
def test_no_constant_changes_unseen(side, checksum):
    constants = [constants_of(name, severity, side) for name in CORRUPTIONS for severity in SEVERITIES]
    text = json.dumps([[float(value) for value in one] for one in constants])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == checksum


def test_brightness_and_saturation_by_the_standard_library():
    images = references.scenes()[:4, ::3, ::3]
    images = np.concatenate([images, images], axis=1)[:, :16]
    images = np.concatenate([images, images], axis=2)[:, :, :16]
    brighter, paler = corrupt(images, "brightness", 2), corrupt(images, "saturate", 1)
    for pixel, bright, pale in zip(*(array.reshape(-1, 3) for array in (images, brighter, paler)), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255.0))
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.1, 1))
        assert np.abs(np.array(expected) * 255 - bright - 0.5).max() < 0.51
        expected = colorsys.hsv_to_rgb(hue, saturation * 0.3, value)
        assert np.abs(np.array(expected) * 255 - pale - 0.5).max() < 0.51


def test_pixels_of_twice_the_side_are_means_of_four():
    images = references.scenes(side=64)
    coarse = corrupt(images, "pixelate", 5)
    means = images.reshape(-1, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.array_equal(coarse[:, ::2, ::2], coarse[:, 1::2, 1::2])
    assert np.abs(coarse[:, ::2, ::2] - means).max() <= 1.0


def test_a_flat_image_stays_flat_under_every_blur():
    flat = np.full((2, 32, 32, 3), 200, dtype=np.uint8)
    for name in ("defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"):
        assert np.abs(corrupt(flat, name, 5).astype(int) - 200).max() <= 1, name


def test_motion_leaves_a_trail_on_one_side():
    dot = np.zeros((64, 33, 33, 3), dtype=np.uint8)
    dot[:, 16, 16] = 255
    moved = corrupt(dot, "motion_blur", 5).astype(float)[..., 0]
    rows, columns = np.indices((33, 33)) - 16
    assert (moved[:, columns > 0] == 0).all()
    angles = np.degrees(np.arctan2((moved * rows).sum((1, 2)), (moved * columns).sum((1, 2)) * -1))
    assert np.abs(angles).max() < 48
    assert angles.std() == pytest.approx(90 / np.sqrt(12), rel=0.2)


def test_snow_falls_steeply_and_only_brightens():
    dark = np.full((64, 32, 32, 3), 20, dtype=np.uint8)
    snowy = corrupt(dark, "snow", 4).astype(float)[..., 0]
    assert (snowy >= 20).all()
    down = np.abs(np.diff(snowy, axis=1)).mean()
    across = np.abs(np.diff(snowy, axis=2)).mean()
    assert across > 1.2 * down
    assert np.array_equal(snowy, snowy[:, ::-1, ::-1])


def test_spatter_is_turquoise_then_brown():
    grey = np.full((64, 32, 32, 3), 100, dtype=np.uint8)
    water = corrupt(grey, "spatter", 3).astype(float) - 100
    wet = water.max(-1) > 20
    assert 0.02 < wet.mean() < 0.4
    assert (water >= 0).all()
    red, green, blue = water[wet].mean(0)
    assert red / green == pytest.approx(175 / 238, abs=0.02)
    assert green == blue
    mud = corrupt(grey, "spatter", 5)
    dirty = (mud != 100).any(-1)
    assert 0.03 < dirty.mean() < 0.4
    assert np.abs(mud[dirty].mean(0) - [63, 42, 20]).max() < 12
    drops = ndimage.label(dirty[0])[1]
    assert 1 <= drops < dirty[0].sum()


def test_fog_is_rougher_where_it_decays_less():
    grey = np.full((32, 32, 32, 3), 255, dtype=np.uint8)
    clouds = [corrupt(grey, "fog", severity).astype(float)[..., 0] for severity in (1, 5)]
    rough = [np.abs(np.diff(cloud, axis=1)).mean() / cloud.std() for cloud in clouds]
    assert rough[1] > 1.15 * rough[0]

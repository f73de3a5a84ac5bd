"""The contact sheet and the strip of severities."""

from __future__ import annotations

import corruption_references as references
import numpy as np
import pytest

from rbue.errors import InvalidInput
from rbue.lab.corruptions import CORRUPTIONS, contact_sheet, corrupt, severity_strip
from rbue.lab.corruptions.pictures import _GAP, _LABEL, _LINE


def test_every_tile_is_where_its_label_says():
    image = references.scenes()[4]
    sheet = np.asarray(contact_sheet(image, seed=2, index=9, blocks=1))
    for row, name in enumerate(CORRUPTIONS):
        for severity in range(6):
            top, left = _LINE + row * (64 + _GAP), _LABEL + severity * (64 + _GAP)
            tile = sheet[top : top + 64 : 2, left : left + 64 : 2]
            expected = corrupt(image[None], name, severity, 2, [9])[0] if severity else image
            assert np.array_equal(tile, expected), (name, severity)


def test_two_blocks_are_wider_and_lower():
    image = references.scenes()[4]
    one, two = contact_sheet(image, blocks=1), contact_sheet(image)
    assert two.width == 2 * one.width
    assert two.height < 0.6 * one.height


@pytest.mark.parametrize("side", [16, 32, 97])
def test_the_strip_shows_six(side):
    strip = severity_strip(references.scenes(side=side)[4, ..., :1], "fog")
    assert strip.size == (6 * 100 + 4, 96 + 20)


def test_only_one_image_fits():
    with pytest.raises(InvalidInput, match=r"one image of shape \(H, W, C\), got \(24, 32, 32, 3\)"):
        contact_sheet(references.scenes())

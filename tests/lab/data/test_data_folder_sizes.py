"""``folder:PATH:SIZE``: photographs of any size."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.data.folder import scaled_side

RED, BLUE = (200, 0, 0), (0, 0, 200)


def photograph(path, width, height, turned=False):
    """Red on the left, blue on the right; ``turned``: stored on its side, with a note that says so."""
    pixels = np.full((height, width, 3), RED, np.uint8)
    pixels[:, width // 2 :] = BLUE
    image, note = Image.fromarray(pixels), Image.Exif()
    if turned:
        image, note[0x0112] = image.rotate(90, expand=True), 6
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=note)


@pytest.fixture
def photographs(tmp_path):
    for label in "ab":
        for number in range(5):
            photograph(tmp_path / "photos" / label / f"{number}.png", 40 + 7 * number, 30 + number, turned=number == 2)
    return tmp_path / "photos"


def test_the_middle_square_of_each_is_scaled(photographs):
    images = data.load(f"folder:{photographs}:16", "train").images
    assert images.shape == (8, 16, 16, 3)
    assert (images[:, :, :6] == RED).all()
    assert (images[:, :, 10:] == BLUE).all()


def test_without_a_size_the_way_out_is_said(photographs):
    with pytest.raises(RbueError, match="give folder:PATH:SIZE to have the middle square of each scaled"):
        data.load(f"folder:{photographs}", "train")


def test_a_folder_with_a_colon_in_its_name_is_itself(photographs):
    other = photographs.rename(photographs.with_name("photos:16"))
    with pytest.raises(RbueError, match="is 47x31 but"):
        data.load(f"folder:{other}", "train")
    assert scaled_side(f"folder:{other}") is None
    assert scaled_side(f"folder:{other}:32") == 32
    assert scaled_side("digits") is None


@pytest.mark.parametrize(
    ("size", "said"), [("4", "8 to 1024 pixels, not 4"), ("5000", "not 5000"), ("big", "no folder")]
)
def test_other_sizes_are_refused(photographs, size, said):
    with pytest.raises(RbueError, match=said):
        data.load(f"folder:{photographs}:{size}", "test")

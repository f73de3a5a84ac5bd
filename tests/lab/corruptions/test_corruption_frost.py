"""Which frost is used: a folder, the environment's, an installed package's, or drawn ice."""

from __future__ import annotations

import corruption_references as references
import numpy as np
import pytest
from PIL import Image

from rbue.lab.corruptions import corrupt, corrupted, frost, frost_source
from rbue.lab.corruptions.frost import PHOTOGRAPHS, ice, shrink
from rbue.lab.data import DataError


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number, name in enumerate(PHOTOGRAPHS):
        pixels = np.full((200, 300, 4 if name.endswith("png") else 3), 50 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def test_ice_is_drawn_where_there_is_nothing_else():
    source = frost_source()
    assert source.folder is None
    assert str(source) == "drawn ice, version 1"
    assert len(ice()) == 5
    assert len({texture.tobytes() for texture in ice()}) == 5
    assert all(texture.shape == (360, 540, 3) for texture in ice())


def test_photographs_are_used_when_given_named_or_installed(photographs, monkeypatch, tmp_path):
    black = np.zeros((64, 32, 32, 3), dtype=np.uint8)
    drawn = corrupt(black, "frost", 2)
    given = corrupt(black, "frost", 2, frost=photographs)
    assert set(np.unique(given)) <= {int(0.3 * level + d) for level in (0, 50, 100, 150, 200) for d in (-0.5, 0, 0.5)}
    assert len(np.unique(given.mean((1, 2, 3)).round())) == 5
    assert not np.array_equal(given, drawn)

    monkeypatch.setenv("RBUE_FROST", str(photographs))
    assert frost_source().folder == photographs
    assert str(frost_source()).startswith("photographs, sha256 ")
    assert np.array_equal(corrupt(black, "frost", 2), given)
    monkeypatch.delenv("RBUE_FROST")

    package = tmp_path / "site" / "frozen_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    photographs.rename(package / "frost")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(frost, "_PACKAGE", "frozen_package")
    assert np.array_equal(corrupt(black, "frost", 2), given)
    (package / "frost" / "frost5.jpg").unlink()
    assert frost_source().folder is None


def test_a_folder_that_lacks_a_photograph_is_refused(photographs, monkeypatch):
    (photographs / "frost4.jpg").unlink()
    with pytest.raises(DataError, match=r"frost4\.jpg is not there, though the given frost folder names"):
        corrupt(references.scenes(), "frost", 1, frost=photographs)
    monkeypatch.setenv("RBUE_FROST", str(photographs))
    with pytest.raises(DataError, match=r"frost4\.jpg is not there, though \$RBUE_FROST names"):
        frost_source()


def test_a_broken_photograph_is_named(photographs):
    (photographs / "frost2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"frost2\.png is not a whole image"):
        corrupt(references.scenes(), "frost", 1, frost=photographs)


def test_a_fifth_of_the_size_takes_the_middle_of_every_five_pixels():
    texture = np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)
    assert np.array_equal(shrink(texture, 0.2), texture[2::5, 2::5])


def test_the_source_is_part_of_a_generated_set(photographs, small_set):
    drawn = corrupted(small_set, "frost", 1)
    taken = corrupted(small_set, "frost", 1, frost=photographs)
    assert "frost: drawn ice, version 1" in drawn.variant
    assert "frost: photographs, sha256" in taken.variant
    assert not np.array_equal(drawn.images, taken.images)

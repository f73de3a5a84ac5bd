"""A user's own tree of images: ``folder:PATH``, and ``folder:PATH:SIZE`` for photographs of any size."""

from __future__ import annotations

from pathlib import PurePath

import data_files as files
import numpy as np
import pytest
from PIL import Image

from rbue.errors import InvalidInput, RbueWarning
from rbue.image_decoding import open_image
from rbue.lab import data
from rbue.lab.data.folder import _files_by_class, scaled_side


def _pixels(seed, *shape):
    return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


@pytest.fixture
def tree(tmp_path):
    return files.image_tree(
        tmp_path / "mine",
        {
            f"{split}/{name}/{number}.png": _pixels(first + number, 6, 5, 3)
            for first, split in ((0, "train"), (50, "test"))
            for name in ("ant", "bee")
            for number in range(3)
        },
    )


def test_split_folders_are_used(tree):
    train = data.load(f"folder:{tree}", "train")
    assert train.images.shape == (6, 6, 5, 3)
    assert np.array_equal(train.images[1], _pixels(1, 6, 5, 3))
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.classes == ("ant", "bee")
    assert train.mean == pytest.approx(train.images.mean((0, 1, 2)) / 255, abs=1e-4)
    assert train.std == pytest.approx(train.images.std((0, 1, 2)) / 255, abs=1e-4)
    test = data.load(f"folder:{tree}", "test")
    assert (test.mean, test.std) == (train.mean, train.std) != data.images.channel_statistics(test.images)
    assert [entry.expected for entry in data.check(f"folder:{tree}")] == [None] * 4
    assert test.files == tuple(f"test/{name}/{number}.png" for name in ("ant", "bee") for number in range(3))
    kept, held_out = data.holdout(train, 2, seed=0)
    assert sorted(kept.files + held_out.files) == sorted(train.files)
    assert all(np.array_equal(held_out.images[0], one) for one in train.images[[train.files.index(held_out.files[0])]])


def test_files_of_a_class_are_not_each_compared_with_all_of_them(tmp_path, monkeypatch):
    """Which made five thousand files take four seconds, and fifty thousand minutes."""
    folder = tmp_path / "mine" / "ant"
    folder.mkdir(parents=True)
    for number in range(100):
        (folder / f"{number}.png").touch()
    hashed = []
    monkeypatch.setattr(PurePath, "__hash__", lambda path: hashed.append(path) or 0)
    assert len(_files_by_class(folder.parent, [])["ant"]) == 100
    assert len(hashed) < 1000


def test_test_images_that_are_training_images_too_are_named(tree):
    Image.fromarray(_pixels(1, 6, 5, 3)).save(tree / "test" / "bee" / "copy.bmp")
    data.load(f"folder:{tree}", "train")
    with pytest.warns(RbueWarning, match=r"1 of 7 test images are training images too, .*\(test/bee/copy.bmp\)"):
        data.load(f"folder:{tree}", "test")


@pytest.mark.parametrize("off", [0, 1], ids=["everywhere", "but for one pixel"])
def test_a_channel_that_is_the_same_everywhere_can_be_divided_by_its_deviation(tmp_path, off):
    pixels = _pixels(0, 10, 90, 90, 3)
    pixels[..., 2] = 77
    pixels[0, 0, 0, 2] += off
    names = (f"{split}/{name}/{number}.png" for split in ("train", "test") for name in "ab" for number in range(5))
    base = files.image_tree(tmp_path / "flat", {name: pixels[place % 10] for place, name in enumerate(names)})
    train = data.load(f"folder:{base}", "train")
    assert (train.mean[2], train.std[2]) == (0.302, 1.0)
    assert train.std[:2] == pytest.approx(pixels[..., :2].std((0, 1, 2)) / 255, abs=1e-4)


def test_without_them_every_fifth_image_of_a_class_is_a_test_image(tmp_path):
    base = files.image_tree(
        tmp_path / "flat", {f"{name}/{number:02}.png": _pixels(number, 4, 4) for name in "ab" for number in range(12)}
    )
    (base / "a" / ".hidden").write_text("skipped")
    train, test = (data.load(f"folder:{base}", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (20, 4)
    assert test.images.shape == (4, 4, 4, 1)
    assert np.array_equal(test.images[1, ..., 0], _pixels(9, 4, 4))


@pytest.mark.parametrize("split", ["train", "test"])
def test_classes_without_test_images_are_named(tmp_path, split):
    counts = {"a": 10, "b": 1, "c": 4}
    images = [f"{name}/{number}.png" for name, count in counts.items() for number in range(count)]
    base = files.image_tree(tmp_path / "flat", {name: _pixels(place, 4, 4) for place, name in enumerate(images)})
    said = (
        r"flat has no test images of 'b', 'c', so no measurement says anything about such images: a class needs 5 "
        r"files to have one; add images, give folder:.*flat:test=0\.5, or make train/ and test/\.$"
    )
    with pytest.warns(RbueWarning, match=said):
        data.load(f"folder:{base}", split)
    with pytest.warns(
        RbueWarning, match=r"of 'b', so .*: a class needs 2 files to have one; add images or make train/"
    ):
        data.load(f"folder:{base}:test=0.5", split)


def test_classes_that_a_test_folder_lacks_are_named(tree):
    for number in range(3):
        (tree / "test" / "bee" / f"{number}.png").unlink()
    (tree / "test" / "bee").rmdir()
    with pytest.warns(RbueWarning, match=r"mine has no test images of 'bee', so .*: add some to .*test\.$"):
        data.load(f"folder:{tree}", "test")


def test_the_fraction_of_test_images_can_be_set(tmp_path):
    base = files.image_tree(
        tmp_path / "flat", {f"{name}/{number}.png": _pixels(number, 9, 8) for name in "ab" for number in range(1, 9)}
    )

    def test_images(more):
        return [name[2] for name in data.load(f"folder:{base}{more}", "test").files]

    assert test_images("") == test_images(":test=0.2") == [*"55"]
    assert test_images(":test=0.25") == [*"4848"]
    assert test_images(":16:test=.5") == [*"24682468"]
    assert scaled_side(f"folder:{base}:16:test=.5") == 16
    assert scaled_side(f"folder:{base}:test=.5") is None
    for wrong in ("0", "1", "1.5", "0.0", "half", ""):
        with pytest.raises(data.DataError, match=f"must be a fraction between 0 and 1, such as .*, not '{wrong}'"):
            data.load(f"folder:{base}:test={wrong}", "train")


def test_a_fraction_beside_split_folders_has_no_effect(tree):
    with pytest.raises(data.DataError, match=r"has a train folder, so test=0\.5 has no effect; leave it out"):
        data.load(f"folder:{tree}:test=0.5", "train")


def test_grey_and_colour_together_become_colour(tree):
    Image.fromarray(_pixels(9, 6, 5)).save(tree / "train" / "ant" / "0.png")
    train = data.load(f"folder:{tree}", "train")
    assert train.images.shape[3] == 3
    assert np.array_equal(train.images[0], np.repeat(_pixels(9, 6, 5)[..., None], 3, axis=2))


def _break(tree, name, content):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        Image.fromarray(content).save(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/ant/7.png", _pixels(0, 5, 5, 3), r"7\.png is 5x5 but .*0\.png is 5x6; give folder:PATH:SIZE"),
        ("test/bee/7.png", _pixels(0, 5, 5, 3), r"bee.7\.png is 5x5"),
        ("test/beee/1.png", _pixels(0, 6, 5, 3), r"test.beee is a class that .*train does not have.*mean 'bee'"),
        ("train/stray.png", _pixels(0, 6, 5, 3), r"stray\.png lies outside the class folders"),
        ("train/ant/deep/1.png", _pixels(0, 6, 5, 3), r"deep is a folder inside a class folder"),
        ("other/1.png", _pixels(0, 6, 5, 3), "'other' beside train and test"),
    ],
)
def test_what_does_not_belong_is_named(tree, name, content, message):
    _break(tree, name, content)
    with pytest.raises(data.DataError, match=message):
        data.load(f"folder:{tree}", "train")


def _set_aside(tree, said, split="train"):
    with pytest.warns(RbueWarning, match=said):
        return data.load(f"folder:{tree}", split)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not an image", r"7\.png is not an image that can be read \(unknown format\)"),
        (_pixels(0, 6, 5, 4), "7.png is an image of mode RGBA"),
        (_pixels(0, 6, 5).astype(np.uint16), "7.png is an image of mode I;16"),
    ],
    ids=["text", "transparency", "16 bits"],
)
def test_an_image_that_cannot_be_used_is_set_aside_and_named(tree, content, reason):
    before = data.load(f"folder:{tree}", "train")
    _break(tree, "train/ant/7.png", content)
    for split in ("train", "test"):
        images = _set_aside(tree, rf"1 of 13 images set aside: .*train/ant/{reason}", split)
        assert (len(images), images.mean) == (6, before.mean)


def test_a_truncated_image_is_set_aside_and_moves_no_other(tmp_path):
    names = [f"{name}/{number:02}.png" for name in "ab" for number in range(10)]
    base = files.image_tree(tmp_path / "flat", {name: _pixels(place, 9, 9) for place, name in enumerate(names)})
    test = data.load(f"folder:{base}", "test")
    path = base / "a" / "02.png"
    path.write_bytes(path.read_bytes()[:-40])
    train = _set_aside(base, r"1 of 20 images set aside: .*a/02\.png is not .*truncated")
    assert train.files == tuple(name for name in names if name[2:] not in ("04.png", "09.png") and name != "a/02.png")
    assert np.array_equal(train.images[2, ..., 0], _pixels(3, 9, 9))
    assert np.array_equal(_set_aside(base, "set aside", "test").images, test.images)
    (base / "b" / "00.png").write_bytes(b"")
    _set_aside(base, r"2 of 20 images set aside: b/00\.png, a/02\.png; the first: .*b/00\.png is not")


def test_too_many_broken_images_are_an_error(tree):
    for name in ("train/ant/0.png", "test/bee/1.png"):
        (tree / name).write_bytes(b"")
    with pytest.raises(data.DataError, match=r"2 of 12 images in .* too many to set aside; the first: .*1\.png is not"):
        data.load(f"folder:{tree}", "train")
    _break(tree, "test/bee/1.png", _pixels(0, 6, 5, 3))
    for number in (1, 2):
        (tree / "train" / "ant" / f"{number}.png").unlink()
    with pytest.raises(data.DataError, match=r"no training image of 'ant' in .* can be used"):
        data.load(f"folder:{tree}", "train")


def test_files_that_are_no_images_are_left_out_with_one_warning(tree):
    before = data.load(f"folder:{tree}", "train")
    for name in ("train/Thumbs.db", "train/ant/Thumbs.db", "train/bee/notes.txt", "test/labels.csv"):
        (tree / name).write_bytes(b"\xd0\xcf\x11\xe0 hello")
    (tree / "train" / "ant" / "gone.png").symlink_to("nowhere")
    (tree / "test" / "bee" / ".DS_Store").write_bytes(b"skipped silently")
    with pytest.warns(RbueWarning) as said:
        train = data.load(f"folder:{tree}", "train")
    (said,) = said
    assert "has 5 files that are no images, left out: test/labels.csv, train/Thumbs.db, " in str(said.message)
    assert str(said.message).endswith(" and 2 more.")
    assert train.files == before.files
    assert train.checksums() == before.checksums()


def test_an_image_without_an_ending_is_one(tree):
    (tree / "train" / "ant" / "0.png").rename(tree / "train" / "ant" / "0")
    assert data.load(f"folder:{tree}", "train").files[0] == "train/ant/0"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("most", [29, 10], ids=["a warning of Pillow's", "an error of Pillow's"])
def test_an_image_with_too_many_pixels_is_never_decoded(tree, monkeypatch, most):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)  # they have 30
    with pytest.raises(data.DataError, match=f"0.png has more pixels than the {most} that are decoded; make it"):
        data.load(f"folder:{tree}", "train")


def test_folders_that_give_nothing_are_named(tree, tmp_path):
    (tree / "train" / "cow").mkdir()
    with pytest.raises(data.DataError, match="cow is an empty class folder"):
        data.load(f"folder:{tree}", "train")
    with pytest.raises(data.DataError, match="there is no folder"):
        data.load("folder:/nowhere/at/all", "train")
    for more in ("", ":64", ":test=0.3", ":64:test=0.3"):
        with pytest.raises(data.DataError, match="there is no folder phtos; give folder:PATH"):
            data.load(f"folder:phtos{more}", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.DataError, match="no class folders"):
        data.load(f"folder:{tmp_path / 'empty'}", "train")
    few = files.image_tree(tmp_path / "few", {"a/1.png": _pixels(0, 4, 4)})
    for split in ("train", "test"):
        with pytest.raises(
            data.DataError, match=r"gives no test images: a class needs 5 files to have one; add images or"
        ):
            data.load(f"folder:{few}", split)
    Image.fromarray(_pixels(1, 4, 4)).save(few / "a" / "2.png")
    said = r"a class needs 4 files to have one; add images, give folder:.*few:8:test=0\.5, or make train/ and test/\.$"
    with pytest.raises(data.DataError, match=said):
        data.load(f"folder:{few}:8:test=0.3", "train")
    alone = files.image_tree(tmp_path / "alone", {"train/a/1.png": _pixels(0, 4, 4)})
    for split in ("train", "test"):
        with pytest.raises(data.DataError, match="alone has no test folder; add"):
            data.load(f"folder:{alone}", split)
    (tree / "test").rename(tree / "val")
    with pytest.raises(data.DataError, match="rename val to test"):
        data.load(f"folder:{tree}", "train")


def test_one_class_is_no_classification(tree, tmp_path):
    for split in ("train", "test"):
        (tree / split / "bee").rename(tmp_path / split)
    with pytest.raises(data.DataError, match="mine has one class only, 'ant'; add a folder"):
        data.load(f"folder:{tree}", "train")


def test_a_folder_without_a_name_is_not_the_current_one(tree, monkeypatch):
    monkeypatch.chdir(tree)
    with pytest.raises(data.DataError, match="'folder:' names no folder; give folder:PATH"):
        data.load("folder:", "train")


RED, BLUE = (200, 0, 0), (0, 0, 200)


def photograph(path, width, height, turned=False):
    """Red on the left, blue on the right; ``turned``: stored on its side, with a note that says so."""
    pixels = np.full((height, width, 3), RED, np.uint8)
    pixels[:, width // 2 :] = BLUE
    image, note = Image.fromarray(pixels), Image.Exif()
    if turned:
        image, note[0x0112] = image.rotate(90, expand=True), 6
    path.parent.mkdir(parents=True, exist_ok=True)
    several = {"format": "MPO", "save_all": True, "append_images": [image.resize((8, 8))]}  # as telephones do
    image.save(path, exif=note, **several if path.suffix == ".jpeg" else {})


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


@pytest.mark.parametrize("kind", ["png", "jpg", "jpeg", "webp", "tiff"])
def test_images_of_one_size_are_turned_too(tmp_path, kind):
    for label in "ab":
        for number in range(5):
            photograph(tmp_path / "photos" / label / f"{number}.{kind}", 32, 24, turned=number % 2 == 0)
    images = data.load(f"folder:{tmp_path / 'photos'}", "train").images.astype(int)
    assert images.shape == (8, 24, 32, 3)
    assert (abs(images[:, :, :12] - RED) < 40).all()  # JPEG and WebP are not exact
    assert (abs(images[:, :, 20:] - BLUE) < 40).all()


@pytest.mark.parametrize("kind", ["gif", "png", "tiff"])
def test_one_of_several_frames_is_no_image_anywhere(tmp_path, kind):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE)]
    frames[0].save(tmp_path / f"moving.{kind}", save_all=True, append_images=frames[1:])
    with (
        pytest.raises(InvalidInput, match=f"moving.{kind} has 2 frames; save one"),
        open_image(tmp_path / f"moving.{kind}"),
    ):
        pass


def test_without_a_size_the_way_out_is_said(photographs):
    with pytest.raises(data.DataError, match="give folder:PATH:SIZE to have the middle square of each scaled"):
        data.load(f"folder:{photographs}", "train")


def test_a_folder_with_a_colon_in_its_name_is_itself(photographs):
    other = photographs.rename(photographs.with_name("photos:16"))
    with pytest.raises(data.DataError, match="is 47x31 but"):
        data.load(f"folder:{other}", "train")
    assert scaled_side(f"folder:{other}") is None
    assert scaled_side(f"folder:{other}:32") == 32
    assert scaled_side("digits") is None


@pytest.mark.parametrize(
    ("size", "said"), [("4", "8 to 1024 pixels, not 4"), ("5000", "not 5000"), ("big", "no folder")]
)
def test_other_sizes_are_refused(photographs, size, said):
    with pytest.raises(data.DataError, match=said):
        data.load(f"folder:{photographs}:{size}", "test")

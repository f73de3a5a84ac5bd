"""``folder:PATH``, ``folder:PATH:SIZE`` or ``folder:PATH:SIZE:test=0.3``: a user's own images, one folder a class.

``PATH/train/CLASS/image.png`` with ``PATH/test/CLASS/image.png``, or ``PATH/CLASS/image.png`` alone; then every fifth
image of each class (the 5th, 10th, ... by file name) is a test image, or with ``test=`` that fraction, spaced as
evenly. Classes are the sorted folder names (of ``train/`` where there is one). All images have one size; with ``SIZE``
they may have any, and the middle square of each is scaled to so many pixels. A tree without test images is refused for
training too. If all are grey there is one channel, otherwise three. Mean and standard deviation are those of the
training images, so asking for the test images reads the training images too.

Files that are no images (:mod:`rbue.lab.data.image_files`) are left out with a warning, names that start with a dot
without one. An image that cannot be read, or used, is set aside with a warning; more than one in ten of them, and
more than one, are an error. It keeps its number among the files, so that mending it moves no other image to the test.
Test images that are among the training images, pixel by pixel, are named in a warning, and so are classes without any.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np

from rbue.errors import InvalidInput, did_you_mean, warn
from rbue.image_decoding import GREY, open_image, pixels_of
from rbue.lab.data.image_files import ENDINGS, NAMED, first_names, is_meant_as_image, left_out
from rbue.lab.data.images import Bytes, ImageSet, channel_statistics
from rbue.lab.data.registry import FOLDER_PREFIX, DataError, check_split

SPLITS = ("train", "test")
_TEST, _HALF = "0.2", "0.5"
_MOST_BROKEN = 10  # one in so many
_SIDES = (8, 1024)
_NAME = re.compile(r"(?P<path>.+?)(:(?P<side>\d+))?(:test=(?P<test>[^:/]*))?", re.DOTALL)
_Item = tuple[Path, int]


@dataclass(frozen=True)
class _Place:
    """What a name says."""

    base: Path
    side: int | None = None
    test: str | None = None


@dataclass(frozen=True)
class _Tree:
    """The images of each split with their labels, the files that are no images, and the images that are set aside."""

    base: Path
    classes: tuple[str, ...]
    items: dict[str, list[_Item]]
    others: list[Path]
    broken: dict[Path, str]

    def usable(self, split: str) -> list[_Item]:
        """The images of a split that are not set aside."""
        return [item for item in self.items[split] if item[0] not in self.broken]


def load_folder(name: str, split: str) -> ImageSet:
    """The split of a user's image tree, by its ``name`` as above."""
    check_split(name, split, SPLITS)
    place = _place(name)
    base, tree = place.base, _scan(place)
    for needed in SPLITS:
        if needed not in tree.items:
            raise DataError(f"{base} has no {needed} folder; add {base / needed} with one folder a class inside.")
        if not tree.items[needed]:
            more = _for_more_test_images(place, tree, range(len(tree.classes)))
            raise DataError(f"{base} gives no {needed} images: {more}")
    if len(tree.classes) < 2:
        raise DataError(f"{base} has one class only, {tree.classes[0]!r}; add a folder of images for another class.")
    if tree.others:
        warn(left_out(tree.others, base))
    size, mode = _common_form(tree, place.side)
    images = _decode(tree, split, size, mode)
    training = images if split == "train" else _decode(tree, "train", size, mode)
    _check_broken(tree, split)
    _warn_of_untested_classes(place, tree)
    if split == "test":
        _warn_of_copies(tree, images, training)
    mean, std = channel_statistics(training)
    labels = np.array([label for _, label in tree.usable(split)], dtype=np.int64)
    files = tuple(path.relative_to(base).as_posix() for path, _ in tree.usable(split))
    return ImageSet(images, labels, tree.classes, name, split, mean, std, files=files)


def splits_of(name: str) -> list[str]:
    """The splits that a user's image tree has."""
    items = _scan(_place(name)).items
    return [split for split in SPLITS if items.get(split)]


def is_here(name: str) -> bool:
    """Whether the folder of a user's image tree is on this machine."""
    try:
        _place(name)
    except DataError:
        return False
    return True


def folder_of(name: str) -> Path:
    """Where the images of a set lie, links followed."""
    return _place(name).base.resolve()


def scaled_side(name: str) -> int | None:
    """The ``SIZE`` that the images of a set are scaled to; None if there is none in its name.

    The folder itself need not be there any more.
    """
    text = name.removeprefix(FOLDER_PREFIX)
    parts = _NAME.fullmatch(text)
    if text == name or parts is None or Path(text).expanduser().is_dir():
        return None
    if parts["test"] is not None and Path(text.removesuffix(f":test={parts['test']}")).expanduser().is_dir():
        return None
    return None if parts["side"] is None else int(parts["side"])


def read_image(file: Path | IO[bytes], like: ImageSet, name: str | None = None) -> Bytes:
    """The pixels of an image file, in the size and channels of a data set; ``name`` is what errors call it."""
    height, width, channels = like.images.shape[1:]
    mode, side = "L" if channels == 1 else "RGB", scaled_side(like.name)
    with open_image(file, name) as image:
        if side is None and image.size != (width, height):
            raise InvalidInput(
                f"{name or file} has {image.size[0]}x{image.size[1]} pixels, but the images of {like.name} have "
                f"{width}x{height}; crop or resize it first."
            )
        return pixels_of(image, mode, None if side is None else (side, side))


def _place(name: str) -> _Place:
    text = name.removeprefix(FOLDER_PREFIX)
    if not text:
        raise DataError(
            f"{name!r} names no folder; give folder:PATH with one folder a class inside, or folder:. for here."
        )
    whole = Path(text).expanduser()
    if whole.is_dir():
        return _Place(whole)
    parts = _NAME.fullmatch(text)
    assert parts is not None
    before = Path(text.removesuffix(f":test={parts['test']}")).expanduser()
    base, side = (before, None) if before.is_dir() else (Path(parts["path"]).expanduser(), parts["side"])
    if not base.is_dir():
        raise DataError(f"there is no folder {base}; give folder:PATH with one folder a class inside.")
    if side is not None and not _SIDES[0] <= int(side) <= _SIDES[1]:
        raise DataError(f"images are scaled to {_SIDES[0]} to {_SIDES[1]} pixels, not {side}; give folder:{base}:64.")
    test = parts["test"]
    if test is not None and not (re.fullmatch(r"0?\.\d+", test, re.ASCII) and Fraction(test) > 0):
        raise DataError(f"test= in {name!r} must be a fraction between 0 and 1, such as test=0.3, not {test!r}.")
    return _Place(base, None if side is None else int(side), test)


def _scan(place: _Place) -> _Tree:
    base, others = place.base, list[Path]()
    inside = [path.name for path in _children(base) if path.is_dir()]
    if set(inside) == {"train"} or {"train", "test"} <= set(inside):
        extra = next((folder for folder in inside if folder not in SPLITS), None)
        if extra is not None:
            raise DataError(f"{base} has {extra!r} beside train and test; move it away, or rename the split folders.")
        if place.test is not None:
            raise DataError(f"{base} has a train folder, so test={place.test} has no effect; leave it out.")
        trees = {split: _files_by_class(base / split, others) for split in inside}
        classes = tuple(trees["train"])
        for split, tree in trees.items():
            for unknown in sorted(set(tree) - set(classes)):
                raise DataError(
                    f"{base / split / unknown} is a class that {base / 'train'} does not have"
                    f"{did_you_mean(unknown, classes)}; rename it or add training images."
                )
        items = {
            split: [(file, classes.index(name)) for name, files in tree.items() for file in files]
            for split, tree in trees.items()
        }
        return _Tree(base, classes, items, others, {})
    validation = next((name for name in inside if name.lower() in ("val", "valid", "validation")), None)
    if "train" in inside and validation is not None:
        raise DataError(f"{base} has train and {validation} but no test folder; rename {validation} to test.")
    by_class = _files_by_class(base, others)
    fraction = Fraction(place.test or _TEST)
    both: dict[str, list[_Item]] = {split: [] for split in SPLITS}
    for label, files in enumerate(by_class.values()):
        for number, file in enumerate(files, start=1):
            is_test = int(number * fraction) > int((number - 1) * fraction)
            both["test" if is_test else "train"].append((file, label))
    return _Tree(base, tuple(by_class), both, others, {})


def _files_by_class(folder: Path, others: list[Path]) -> dict[str, list[Path]]:
    """The image files of each class; files that are no images go to ``others``."""
    found: dict[str, list[Path]] = {}
    for entry in _children(folder):
        if entry.is_dir():
            found[entry.name] = []
            for file in _children(entry):
                (found[entry.name] if file.is_dir() or is_meant_as_image(file) else others).append(file)
            if not found[entry.name]:
                raise DataError(f"{entry} is an empty class folder; add images or remove it.")
        elif entry.suffix.lower() in ENDINGS:
            raise DataError(f"{entry} lies outside the class folders; move it into one or remove it.")
        else:
            others.append(entry)
    if not found:
        raise DataError(f"{folder} has no class folders; put images into {folder}/CLASS/.")
    return found


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}.") from error


def _common_form(tree: _Tree, side: int | None) -> tuple[tuple[int, int] | int, str]:
    """The one size of all images, or the side they are to be scaled to, and the mode that holds them all."""
    first, size, grey = tree.base, None, True
    for path, _ in (item for items in tree.items.values() for item in items):
        if path.is_dir():
            raise DataError(f"{path} is a folder inside a class folder; remove it or move it away.")
        try:
            with open_image(path) as image:
                this, is_grey = image.size, image.mode in GREY
        except InvalidInput as error:
            tree.broken[path] = str(error)
            continue
        if size is None:
            first, size = path, this
        if this != size and side is None:
            raise DataError(
                f"{path} is {this[0]}x{this[1]} but {first} is {size[0]}x{size[1]}; give "
                "folder:PATH:SIZE to have the middle square of each scaled."
            )
        grey = grey and is_grey
    _refuse_too_many(tree)
    if size is None:
        raise DataError(f"{tree.base} has no image that can be read; {next(iter(tree.broken.values()))}")
    return side or size, "L" if grey else "RGB"


def _decode(tree: _Tree, split: str, size: tuple[int, int] | int, mode: str) -> Bytes:
    """The pixels of a split; those of images that turn out to be damaged are left out."""
    width, height = (size, size) if isinstance(size, int) else size
    items = tree.usable(split)
    out = np.empty((len(items), height, width, 1 if mode == "L" else 3), dtype=np.uint8)
    done = 0
    for path, _ in items:
        try:
            with open_image(path) as image:
                out[done] = pixels_of(image, mode, (size, size) if isinstance(size, int) else None)
                done += 1
        except InvalidInput as error:
            tree.broken[path] = str(error)
    return out[:done]


def _warn_of_untested_classes(place: _Place, tree: _Tree) -> None:
    """Say of which classes no measurement will say anything."""
    tested = {label for _, label in tree.usable("test")}
    missing = [label for label in range(len(tree.classes)) if label not in tested]
    if missing:
        named = ", ".join(repr(tree.classes[label]) for label in missing[:NAMED])
        named += f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        more = _for_more_test_images(place, tree, missing)
        warn(f"{tree.base} has no test images of {named}, so no measurement says anything about such images: {more}")


def _for_more_test_images(place: _Place, tree: _Tree, labels: Sequence[int]) -> str:
    """How classes come to test images."""
    if all((tree.base / split).is_dir() for split in SPLITS):
        return f"add some to {tree.base / 'test'}."
    fraction = Fraction(place.test or _TEST)
    files = Counter(label for items in tree.items.values() for _, label in items)
    size = "" if place.side is None else f":{place.side}"
    half = fraction < Fraction(_HALF) and max(files[label] for label in labels) > 1  # of one file it is none either
    give = f", give folder:{tree.base}{size}:test={_HALF}," if half else ""
    return f"a class needs {math.ceil(1 / fraction)} files to have one; add images{give} or make train/ and test/."


def _warn_of_copies(tree: _Tree, images: Bytes, training: Bytes) -> None:
    """Say which test images a network is trained on, too: copies under other names, or in both folders."""
    known = {sha256(image).digest() for image in training}
    files = (file for file, _ in tree.usable("test"))
    found = [file for file, image in zip(files, images, strict=True) if sha256(image).digest() in known]
    if found:
        warn(
            f"{tree.base}: {len(found)} of {len(images)} test images are training images too, pixel by pixel "
            f"({first_names(found, tree.base)}); remove them from one: they say nothing about new images."
        )


def _refuse_too_many(tree: _Tree) -> None:
    count, total = len(tree.broken), sum(map(len, tree.items.values()))
    if count > max(1, total // _MOST_BROKEN):
        raise DataError(
            f"{count} of {total} images in {tree.base} cannot be used, which is too many to set aside; the first: "
            f"{next(iter(tree.broken.values()))}"
        )


def _check_broken(tree: _Tree, split: str) -> None:
    """Say which images were set aside, and refuse what is left if it is too little."""
    if not tree.broken:
        return
    _refuse_too_many(tree)
    reason = next(iter(tree.broken.values()))
    left = {label for _, label in tree.usable("train")}
    for label, name in enumerate(tree.classes):
        if label not in left:
            raise DataError(f"no training image of {name!r} in {tree.base} can be used; {reason}")
    if not tree.usable(split):
        raise DataError(f"no {split} image in {tree.base} can be used; {reason}")
    names, total = first_names(list(tree.broken), tree.base), sum(map(len, tree.items.values()))
    which = reason if len(tree.broken) == 1 else f"{names}; the first: {reason}"
    warn(f"{tree.base}: {len(tree.broken)} of {total} images set aside: {which}")

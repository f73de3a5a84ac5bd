"""``folder:PATH`` or ``folder:PATH:SIZE``: a user's own images, one folder a class.

``PATH/train/CLASS/image.png`` with ``PATH/test/CLASS/image.png``, or ``PATH/CLASS/image.png`` alone; then every fifth
image of each class (the 5th, 10th, ... by file name) is a test image. Classes are the sorted folder names (of
``train/`` where there is one). Files and folders whose name starts with a dot are skipped. All images have one size;
with ``SIZE`` they may have any, and the middle square of each is scaled to so many pixels. A tree without test images
is refused for training too. If all are grey there is one channel, otherwise three. Mean and standard deviation are
those of the training images, so asking for the test images reads the training images too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from rbue.errors import did_you_mean
from rbue.lab.data.images import Bytes, ImageSet, channel_statistics
from rbue.lab.data.registry import FOLDER_PREFIX, DataError, check_split

SPLITS = ("train", "test")
_TEST_EVERY = 5
_SIDES = (8, 1024)
_GREY = ("L", "1")
_COLOUR = ("RGB", "P")
_Item = tuple[Path, int]


@dataclass(frozen=True)
class _Tree:
    classes: tuple[str, ...]
    items: dict[str, list[_Item]]


def load_folder(name: str, split: str) -> ImageSet:
    """The split of a user's image tree; ``name`` is ``folder:PATH`` or ``folder:PATH:SIZE``."""
    check_split(name, split, SPLITS)
    base, side = _place(name)
    tree = _scan(base)
    for needed in SPLITS:
        _check_has_images(base, tree, needed)
    if len(tree.classes) < 2:
        raise DataError(f"{base} has one class only, {tree.classes[0]!r}; add a folder of images for another class.")
    size, mode = _common_form([item for items in tree.items.values() for item in items], side)
    images = _decode(tree.items[split], size, mode)
    training = images if split == "train" else _decode(tree.items["train"], size, mode)
    mean, std = channel_statistics(training)
    labels = np.array([label for _, label in tree.items[split]], dtype=np.int64)
    files = tuple(path.relative_to(base).as_posix() for path, _ in tree.items[split])
    return ImageSet(images, labels, tree.classes, name, split, mean, std, files=files)


def _check_has_images(base: Path, tree: _Tree, split: str) -> None:
    if split not in tree.items:
        raise DataError(f"{base} has no {split} folder; add {base / split} with one folder a class inside.")
    if not tree.items[split]:
        raise DataError(
            f"{base} gives no {split} images: no class has {_TEST_EVERY} files; add images or make train/ and test/."
        )


def splits_of(name: str) -> list[str]:
    """The splits that a user's image tree has."""
    items = _scan(_place(name)[0]).items
    return [split for split in SPLITS if items.get(split)]


def is_here(name: str) -> bool:
    """Whether the folder of a user's image tree is on this machine."""
    try:
        _place(name)
    except DataError:
        return False
    return True


def scaled_side(name: str) -> int | None:
    """The ``SIZE`` that the images of a set are scaled to; None if there is none in its name.

    The folder itself need not be there any more.
    """
    head, _, size = name.removeprefix(FOLDER_PREFIX).rpartition(":")
    scaled = name.startswith(FOLDER_PREFIX) and head and size.isdecimal()
    return int(size) if scaled and not Path(f"{head}:{size}").expanduser().is_dir() else None


def middle_square(image: Image.Image, mode: str, side: int) -> Image.Image:
    """The middle of an image, the way up it was taken, scaled to ``side`` by ``side`` pixels."""
    upright = ImageOps.exif_transpose(image).convert(mode)
    return ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)


def _place(name: str) -> tuple[Path, int | None]:
    text = name.removeprefix(FOLDER_PREFIX)
    if not text:
        raise DataError(
            f"{name!r} names no folder; give folder:PATH with one folder a class inside, or folder:. for here."
        )
    base = Path(text).expanduser()
    if base.is_dir():
        return base, None
    head, _, size = text.rpartition(":")
    scaled = Path(head).expanduser()
    if not (head and size.isdecimal() and scaled.is_dir()):
        raise DataError(f"there is no folder {base}; give folder:PATH with one folder a class inside.")
    if not _SIDES[0] <= int(size) <= _SIDES[1]:
        raise DataError(f"images are scaled to {_SIDES[0]} to {_SIDES[1]} pixels, not {size}; give folder:{head}:64.")
    return scaled, int(size)


def _scan(base: Path) -> _Tree:
    inside = [path.name for path in _children(base) if path.is_dir()]
    if set(inside) == {"train"} or {"train", "test"} <= set(inside):
        extra = next((folder for folder in inside if folder not in SPLITS), None)
        if extra is not None:
            raise DataError(f"{base} has {extra!r} beside train and test; move it away, or rename the split folders.")
        classes = tuple(path.name for path in _children(base / "train"))
        trees = {split: _files_by_class(base / split) for split in inside}
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
        return _Tree(classes, items)
    validation = next((name for name in inside if name.lower() in ("val", "valid", "validation")), None)
    if "train" in inside and validation is not None:
        raise DataError(f"{base} has train and {validation} but no test folder; rename {validation} to test.")
    by_class = _files_by_class(base)
    both: dict[str, list[_Item]] = {split: [] for split in SPLITS}
    for label, files in enumerate(by_class.values()):
        for number, file in enumerate(files, start=1):
            both["test" if number % _TEST_EVERY == 0 else "train"].append((file, label))
    return _Tree(tuple(by_class), both)


def _files_by_class(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for entry in _children(folder):
        if not entry.is_dir():
            raise DataError(f"{entry} lies outside the class folders; move it into one or remove it.")
        files = _children(entry)
        if not files:
            raise DataError(f"{entry} is an empty class folder; add images or remove it.")
        found[entry.name] = files
    if not found:
        raise DataError(f"{folder} has no class folders; put images into {folder}/CLASS/.")
    return found


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}.") from error


def _common_form(items: list[_Item], side: int | None) -> tuple[tuple[int, int] | int, str]:
    """The one size of all images, or the side they are to be scaled to, and the mode that holds them all."""
    first, size, grey = items[0][0], None, True
    for path, _ in items:
        with _open(path) as image:
            if image.mode not in (*_GREY, *_COLOUR) or "transparency" in image.info:
                kind = f"{image.mode} with transparency" if image.mode in (*_GREY, *_COLOUR) else image.mode
                raise DataError(
                    f"{path} is an image of mode {kind}; save it as 8-bit grey or RGB without transparency."
                )
            if getattr(image, "n_frames", 1) != 1:
                raise DataError(f"{path} has {getattr(image, 'n_frames', 1)} frames; save one image a file.")
            size = size or image.size
            if image.size != size and side is None:
                raise DataError(
                    f"{path} is {image.size[0]}x{image.size[1]} but {first} is {size[0]}x{size[1]}; give "
                    "folder:PATH:SIZE to have the middle square of each scaled."
                )
            grey = grey and image.mode in _GREY
    assert size is not None
    return side or size, "L" if grey else "RGB"


def _decode(items: list[_Item], size: tuple[int, int] | int, mode: str) -> Bytes:
    width, height = (size, size) if isinstance(size, int) else size
    out = np.empty((len(items), height, width, 1 if mode == "L" else 3), dtype=np.uint8)
    for row, (path, _) in zip(out, items, strict=True):
        try:
            with _open(path) as image:
                pixels = middle_square(image, mode, size) if isinstance(size, int) else image.convert(mode)
                row[:] = np.asarray(pixels).reshape(row.shape)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path} is damaged or truncated ({error}); replace or remove it.") from error
    return out


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        what = "is a folder inside a class folder" if path.is_dir() else "is not an image that can be read"
        raise DataError(f"{path} {what}; remove it or move it away.") from error

"""The published corrupted sets, read where they are.

``CIFAR-10-C/`` and ``CIFAR-100-C/`` hold ``CORRUPTION.npy``, five times the test images in test order, severity by
severity, and ``labels.npy``, the test labels five times. ``Tiny-ImageNet-C/CORRUPTION/SEVERITY/CODE/*.JPEG`` holds
64x64 images; they were made from other photographs than TinyImageNet's validation images, so they bring labels of
their own.

The folders are looked for in every root of the search path (:mod:`rbue.lab.data.locations`) and in its ``NAME/``
folder.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rbue.lab.corruptions.registry import SEVERITIES
from rbue.lab.data.images import Bytes, ImageSet
from rbue.lab.data.locations import search_path
from rbue.lab.data.problems import DataError
from rbue.lab.data.progress import Progress
from rbue.lab.data.registry import get

ARRAYS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
TREES = {"tiny-imagenet": "Tiny-ImageNet-C"}
_AT_ONCE = 1000


def find_published(test_set: ImageSet, name: str, root: str | Path | None) -> Path | None:
    """The published ``CORRUPTION.npy``, or folder of a corruption; None where there is none for this set."""
    if test_set.split != "test" or test_set.held_out is not None:
        return None
    folder = ARRAYS.get(test_set.name) or TREES.get(test_set.name)
    if folder is None:
        return None
    for place in search_path(root):
        for base in (place / folder, place / test_set.name / folder):
            found = base / (f"{name}.npy" if test_set.name in ARRAYS else name)
            if found.exists():
                return found
    return None


def open_published(path: Path, test_set: ImageSet, name: str, severity: int, progress: Progress) -> ImageSet:
    """One severity of a published corruption.

    Raises:
        DataError: The files are not what they should be; the message says in what way.
    """
    variant = f"published {ARRAYS.get(test_set.name) or TREES[test_set.name]}: {name}, severity {severity}"
    if test_set.name in TREES:
        images, labels = _read_tree(path / str(severity), test_set, progress)
        return replace(test_set, images=images, labels=labels, variant=variant)
    count = len(test_set)
    images = _array(path, (len(SEVERITIES) * count, *test_set.images.shape[1:]), test_set, "u")
    found = _array(path.with_name("labels.npy"), (len(SEVERITIES) * count,), test_set, "iu")
    wrong = np.flatnonzero(found != np.tile(test_set.labels, len(SEVERITIES)))
    if len(wrong):
        at = int(wrong[0])
        raise DataError(
            f"{path.with_name('labels.npy')} has label {found[at]} at place {at}, the test labels five times over "
            f"have {test_set.labels[at % count]} ({len(wrong)} labels differ); the images are not in test order."
        )
    return replace(test_set, images=images[(severity - 1) * count : severity * count], variant=variant)


def _array(path: Path, shape: tuple[int, ...], test_set: ImageSet, kinds: str) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); get {path.parent.name} again.") from error
    fits = isinstance(array, np.ndarray) and array.shape == shape and array.dtype.kind in kinds
    if not fits or (kinds == "u" and array.dtype != np.uint8):
        what = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "no single array"
        wanted = f"{'uint8' if kinds == 'u' else 'whole numbers'} {shape}"
        raise DataError(
            f"{path} holds {what} instead of {wanted}, five times the {len(test_set)} test images; "
            f"get {path.parent.name} again, give the whole test split, or generate the set (published=False)."
        )
    return array


def _read_tree(folder: Path, test_set: ImageSet, progress: Progress) -> tuple[Bytes, NDArray[np.int64]]:
    codes = get(test_set.name).codes
    if not folder.is_dir():
        raise DataError(f"{folder} is missing; get {folder.parent.parent.name} again.")
    for unknown in sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in codes):
        raise DataError(f"{folder / unknown} is not one of the {len(codes)} classes.")
    files: list[Path] = []
    labels: list[int] = []
    for label, code in enumerate(codes):
        inside = sorted((folder / code).glob("*.JPEG"))
        if not inside:
            raise DataError(f"{folder / code} holds no *.JPEG files; get {folder.parent.parent.name} again.")
        files += inside
        labels += [label] * len(inside)
    images = np.empty((len(files), *test_set.images.shape[1:]), dtype=np.uint8)

    def decode(number: int) -> None:
        images[number] = _decode(files[number], (images.shape[2], images.shape[1]))

    with ThreadPoolExecutor() as pool:
        for number, _ in enumerate(pool.map(decode, range(len(files))), start=1):
            if number % _AT_ONCE == 0 or number == len(files):
                progress(f"{folder.parent.name} severity {folder.name}", number, len(files))
    return images, np.array(labels, dtype=np.int64)


def _decode(path: Path, size: tuple[int, int]) -> Bytes:
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            if image.size != size:
                raise DataError(f"{path} is {image.size[0]}x{image.size[1]} instead of {size[0]}x{size[1]}.")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} is not a whole JPEG ({error}); get it again.") from error

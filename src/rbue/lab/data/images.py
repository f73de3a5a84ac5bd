"""Labelled images as plain arrays, the checksums that say which set they are, and the hold-out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import InvalidInput

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
OFFICIAL = "official"
_BLOCK = 16 << 20


@dataclass(frozen=True)
class Checksums:
    """SHA-256 of the images (uint8, NHWC) and of the labels (uint8; little-endian uint16 above 256 classes)."""

    images: str
    labels: str


@dataclass(frozen=True)
class Holdout:
    """How a validation set was cut from the training images (see :func:`rbue.lab.data.holdout`)."""

    part: str
    count: int
    seed: int
    method: str = "stratified by class, RandomState(seed), original order kept"


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Labelled images of one size.

    Attributes:
        images: uint8, ``(N, H, W, C)``; memory-mapped copy-on-write when large. Not meant to be written to.
        labels: int64, ``(N,)``.
        classes: One name a class, in label order.
        name: The registry's name of the set.
        split: ``train``, ``test`` or ``validation``.
        mean: Channel means of the training images, as fractions of 255.
        std: Channel standard deviations, likewise.
        variant: ``official``, or how these images differ from the published ones.
        held_out: How a validation set was carved off, if one was.
        files: The file of each image, of a user's own folder; else empty.
    """

    images: Bytes
    labels: Labels
    classes: tuple[str, ...]
    name: str
    split: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    variant: str = OFFICIAL
    held_out: Holdout | None = None
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise InvalidInput(
                f"images must be uint8 of shape (N, H, W, C), got {self.images.dtype} {self.images.shape}."
            )
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise InvalidInput(
                f"labels must be int64 of shape ({len(self.images)},), got {self.labels.dtype} {self.labels.shape}."
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise InvalidInput(
                f"labels must lie in 0..{len(self.classes) - 1}, got {self.labels.min()}..{self.labels.max()}."
            )
        if not len(self.mean) == len(self.std) == self.images.shape[3]:
            raise InvalidInput(
                f"mean and std need one number a channel ({self.images.shape[3]}), "
                f"got {len(self.mean)} and {len(self.std)}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        height, width, channels = self.images.shape[1:]
        return (
            f"ImageSet({self.name!r}, {self.split!r}, {len(self)} images of {height}x{width}x{channels}, "
            f"{len(self.classes)} classes)"
        )

    def checksums(self) -> Checksums:
        """Computed now, from the arrays as they are."""
        return checksums(self.images, self.labels, len(self.classes))

    def take(self, indices: NDArray[np.int64], split: str, held_out: Holdout | None) -> ImageSet:
        """The images at ``indices``, as a set of its own."""
        images, labels = self.images[indices], self.labels[indices]
        files = tuple(self.files[place] for place in indices) if self.files else ()
        return replace(self, images=images, labels=labels, split=split, held_out=held_out, files=files)

    def unlabelled(self, images: Bytes) -> ImageSet:
        """Other images of the same kind, whose labels mean nothing."""
        return replace(self, images=images, labels=np.zeros(len(images), np.int64))

    def record(self) -> dict[str, Any]:
        """What to write beside a result: everything about the set but the pixels, ready for JSON."""
        return {
            "name": self.name,
            "split": self.split,
            "variant": self.variant,
            "count": len(self),
            "shape": list(self.images.shape[1:]),
            "classes": len(self.classes),
            "mean": list(self.mean),
            "std": list(self.std),
            "holdout": None if self.held_out is None else asdict(self.held_out),
            "sha256": asdict(self.checksums()),
        }


def checksums(images: Bytes, labels: NDArray[Any], classes: int) -> Checksums:
    """The two checksums of a set."""
    return Checksums(sha256_of(images), sha256_of(compact_labels(labels, classes)))


def compact_labels(labels: NDArray[Any], classes: int) -> NDArray[Any]:
    """Labels in the smallest of uint8 and little-endian uint16 that holds every class: as stored and hashed."""
    return labels.astype(np.uint8 if classes <= 256 else np.dtype("<u2"))


def sha256_of(array: NDArray[Any]) -> str:
    """SHA-256 of an array's bytes in C order, a block of rows at a time."""
    digest = hashlib.sha256()
    for block in blocks(array, _BLOCK):
        digest.update(np.ascontiguousarray(block).data.cast("B"))
    return digest.hexdigest()


def blocks(array: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    """Consecutive rows of an array, about ``size`` bytes and at least one row at a time."""
    rows = max(1, size // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def grey(images: Bytes) -> Bytes:
    """Colour images as grey ones of one channel (ITU-R 601)."""
    red, green, blue = (images[..., channel].astype(np.uint32) for channel in range(3))
    return ((299 * red + 587 * green + 114 * blue + 500) // 1000).astype(np.uint8)[..., None]


def channel_statistics(images: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel as fractions of 255, from exact integer sums, to four digits.

    What is divided by the standard deviation must stay finite: a channel that is the same everywhere is given 1.
    """
    channels = images.shape[3]
    total, squares, pixels = np.zeros(channels), np.zeros(channels), 0
    for block in blocks(images, _BLOCK):
        flat = block.reshape(-1, channels)
        for channel in range(channels):
            histogram = np.bincount(flat[:, channel], minlength=256)
            total[channel] += histogram @ np.arange(256)
            squares[channel] += histogram @ np.arange(256) ** 2
        pixels += len(flat)
    mean = total / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0.0))
    return tuple(round(float(m) / 255, 4) for m in mean), tuple(round(float(d) / 255, 4) or 1.0 for d in std)


def holdout(image_set: ImageSet, count: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split a set in two, class by class, the same way every time.

    Stratified: each class gives its share of ``count``, rounded so that the sum is exact (largest remainders
    first, lower labels first among equals). Which images of a class go is drawn with
    ``numpy.random.RandomState(seed)``, whose stream numpy keeps unchanged. Both parts keep the original order,
    and both record the count, the seed and the method in ``held_out``.

    Args:
        image_set: What to split, usually a whole training set.
        count: How many images the validation set gets; at least one is left for training.
        seed: 0 to 2**32 - 1.

    Returns:
        The training part and the validation part.

    Raises:
        InvalidInput: A count or seed out of range, or a set that has been split before.
    """
    total = len(image_set)
    if not 1 <= count < total:
        raise InvalidInput(f"a holdout of {count} images is impossible; choose 1 to {total - 1} of the {total}.")
    if not 0 <= seed < 2**32:
        raise InvalidInput(f"the holdout seed must lie in 0..{2**32 - 1}, got {seed}.")
    if image_set.held_out is not None:
        raise InvalidInput(f"{image_set!r} is already one part of a holdout; split the whole set instead.")
    sizes = np.bincount(image_set.labels, minlength=len(image_set.classes))
    shares, remainders = np.divmod(sizes * count, total)
    shares[np.argsort(-remainders, kind="stable")[: count - shares.sum()]] += 1
    random = np.random.RandomState(seed)
    chosen = np.zeros(total, dtype=bool)
    for label, share in enumerate(shares):
        members = np.flatnonzero(image_set.labels == label)
        chosen[random.permutation(members)[:share]] = True
    train = image_set.take(np.flatnonzero(~chosen), image_set.split, Holdout("train", count, seed))
    validation = image_set.take(np.flatnonzero(chosen), "validation", Holdout("validation", count, seed))
    return train, validation

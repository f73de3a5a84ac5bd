"""A split on its way in: chunks from a reader, checked against the registry as they pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rbue.lab.data.images import OFFICIAL, Bytes, Checksums, ImageSet, Labels, checksums
from rbue.lab.data.problems import DataError
from rbue.lab.data.progress import Progress, silent
from rbue.lab.data.registry import Chunk, DataSet


@dataclass(frozen=True)
class Incoming:
    """One split from one place.

    Attributes:
        dataset: The registry entry.
        split: Its split.
        chunks: What the reader gives, once.
        origin: Where it comes from, for messages and the record.
        variant: Which of the published variants it claims to be.
        evidence: What already vouches for it, such as the publisher's checksum of the file.
        expected: Checksums it must have besides the registry's.
    """

    dataset: DataSet
    split: str
    chunks: Iterable[Chunk]
    origin: str
    variant: str = OFFICIAL
    evidence: str = ""
    expected: Checksums | None = None

    @property
    def count(self) -> int:
        """How many images there must be."""
        return self.dataset.published(self.split, self.variant).count

    def checked(self, progress: Progress = silent) -> Iterator[tuple[Bytes, Labels]]:
        """The chunks, each with the right shape and labels in range, and exactly as many images as there must be."""
        seen, classes = 0, len(self.dataset.classes)
        for images, labels in self.chunks:
            if images.dtype != np.uint8 or images.shape[1:] != self.dataset.shape or len(images) != len(labels):
                raise DataError(
                    f"{self.origin} gives {len(labels)} labels and images {images.dtype} {images.shape}; "
                    f"{self.dataset.name} has uint8 images of {self.dataset.shape}."
                )
            integers = np.asarray(labels).astype(np.int64)
            if len(integers) and not 0 <= integers.min() <= integers.max() < classes:
                wrong = integers[(integers < 0) | (integers >= classes)][0]
                raise DataError(
                    f"{self.origin} holds the label {wrong}; {self.dataset.name} has the classes 0 to {classes - 1}."
                )
            seen += len(images)
            if seen > self.count:
                break
            yield images, integers
            progress(f"{self.dataset.name} {self.split}", seen, self.count)
        if seen != self.count:
            more = "more than " if seen > self.count else ""
            raise DataError(
                f"{self.origin} holds {more}{min(seen, self.count)} images for {self.dataset.name} {self.split} "
                f"instead of {self.count}; the files are truncated or of another set."
            )

    def verify(self, found: Checksums) -> str:
        """Compare checksums of what came in; returns what vouches for it.

        Raises:
            DataError: A checksum differs; the message names both.
        """
        published = self.dataset.published(self.split, self.variant)
        expectations = [(published.images, published.labels, "registry's")]
        if self.expected is not None:
            expectations.append((self.expected.images, self.expected.labels, "recorded"))
        for images, labels, what in expectations:
            for kind, wanted, got in (("images", images, found.images), ("labels", labels, found.labels)):
                if wanted is not None and wanted != got:
                    raise DataError(
                        f"the {kind} of {self.dataset.name} {self.split} from {self.origin} have the SHA-256 {got} "
                        f"instead of the {what} {wanted}; get the files again."
                    )
        if published.images and published.labels:
            return "registry's SHA-256 of the arrays"
        return self.evidence or "nothing: no checksum is published for files in this form"

    def collect(self) -> ImageSet:
        """Read the whole split into memory and verify it."""
        images = np.empty((self.count, *self.dataset.shape), dtype=np.uint8)
        labels = np.empty(self.count, dtype=np.int64)
        at = 0
        for some_images, some_labels in self.checked():
            images[at : at + len(some_images)] = some_images
            labels[at : at + len(some_labels)] = some_labels
            at += len(some_images)
        self.verify(checksums(images, labels, len(self.dataset.classes)))
        return as_image_set(self.dataset, self.split, self.variant, images, labels)


def as_image_set(dataset: DataSet, split: str, variant: str, images: Bytes, labels: Labels) -> ImageSet:
    """Arrays together with what the registry knows."""
    return ImageSet(
        images=images,
        labels=labels,
        classes=dataset.classes,
        name=dataset.name,
        split=split,
        mean=dataset.mean,
        std=dataset.std,
        variant=variant,
    )

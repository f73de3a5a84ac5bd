"""Recompute the checksums of a set and compare them with what they should be."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rbue.lab.data import store
from rbue.lab.data.images import ImageSet
from rbue.lab.data.loading import load, recorded, splits_here
from rbue.lab.data.registry import FOLDER_PREFIX, get


@dataclass(frozen=True)
class Check:
    """One array's checksum.

    Attributes:
        split: Which split.
        array: ``images`` or ``labels``.
        found: The SHA-256 of the array as it is now.
        expected: What it should be; None where nothing is known.
        reference: Where the expectation comes from: ``registry``, ``recorded when stored`` or ``nothing``.
    """

    split: str
    array: str
    found: str
    expected: str | None
    reference: str

    @property
    def ok(self) -> bool:
        """Whether it is as it should be, as far as is known."""
        return self.expected is None or self.found == self.expected


def check(name: str, root: str | os.PathLike[str] | None = None) -> list[Check]:
    """Recompute the checksums of every split that is on this machine.

    Args:
        name: A registered name, or ``folder:PATH`` (whose checksums are computed, with nothing to compare).
        root: Look only here.

    Returns:
        One entry an array; a wrong checksum is an entry whose ``ok`` is false.

    Raises:
        InvalidInput: No such set.
        DataError: The set is not on this machine, or an array cannot be read at all.
    """
    results: list[Check] = []
    for split in splits_here(name, root):
        one = load(name, split, root)
        stored = recorded(name, root)
        results += _compare(one, stored.splits[split] if stored else None)
    return results


def _compare(image_set: ImageSet, recorded: store.StoredSplit | None) -> list[Check]:
    sums = image_set.checksums()
    published = None
    if not image_set.name.startswith(FOLDER_PREFIX):
        published = get(image_set.name).published(image_set.split, image_set.variant)
    results = []
    for array in ("images", "labels"):
        expected, reference = None, "nothing"
        if published is not None and getattr(published, array):
            expected, reference = getattr(published, array), "registry"
        elif recorded is not None:
            expected, reference = getattr(recorded.sha256, array), "recorded when stored"
        results.append(Check(image_set.split, array, getattr(sums, array), expected, reference))
    return results

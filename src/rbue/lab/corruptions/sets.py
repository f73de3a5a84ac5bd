"""A test set under a corruption: the published one where it is at hand, otherwise one made here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rbue.lab.corruptions.frost import frost_source
from rbue.lab.corruptions.generated import Recipe, cached, in_memory
from rbue.lab.corruptions.published import find_published, open_published
from rbue.lab.corruptions.registry import check_severity, find
from rbue.lab.data.images import ImageSet
from rbue.lab.data.locations import target_root
from rbue.lab.data.progress import Progress, silent


def corrupted(
    test_set: ImageSet,
    name: str,
    severity: int,
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    published: bool = True,
    cache: bool = True,
    frost: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """A test set under one corruption at one severity.

    The published files (:mod:`rbue.lab.corruptions.published`) are used when they lie on the search path. Otherwise
    the set is generated with :func:`corrupt` and kept below the root that data sets are written to
    (:mod:`rbue.lab.data.locations`); asking again opens what is there. A generated set has the published one's
    constants but not its random numbers, and the published TinyImageNet-C was besides made from other photographs and
    stored as JPEG: say which one a result is about.

    Args:
        test_set: The clean test split.
        name: One of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        root: Look and write only here.
        seed: Of a generated set.
        published: Whether published files may be used.
        cache: Whether to keep what is generated; otherwise it is made in memory.
        frost: A folder with the published frost photographs (see :func:`frost_source`).
        progress: Told how many images are done.

    Returns:
        The damaged images with their labels; ``variant`` begins with ``published`` or ``generated`` and says what they
        are. Labels and order are those of ``test_set``, except for the published TinyImageNet-C, which has its own.

    Raises:
        InvalidInput: No such corruption or severity, or images that cannot be damaged.
        DataError: Published files that are damaged or do not belong to this set, or no room for the cache.
    """
    find(name)
    check_severity(severity)
    if published:
        found = find_published(test_set, name, None if root is None else Path(root))
        if found is not None:
            return open_published(found, test_set, name, severity, progress)
    recipe = Recipe(test_set, name, severity, seed, frost_source(frost))
    images = cached(recipe, target_root(root), progress) if cache else in_memory(recipe, progress)
    widened = images.shape[3] // test_set.images.shape[3]
    return replace(
        test_set, images=images, mean=test_set.mean * widened, std=test_set.std * widened, variant=recipe.variant
    )

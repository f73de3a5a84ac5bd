"""Carve a validation set off the training images."""

from __future__ import annotations

import numpy as np

from rbue.errors import InvalidInput
from rbue.lab.data.images import Holdout, ImageSet


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

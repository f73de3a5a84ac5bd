"""Labelled images: named sets, the user's own folders, and how they come to this machine.

>>> from rbue.lab import data
>>> train = data.load("digits", "train")
>>> train
ImageSet('digits', 'train', 1442 images of 8x8x1, 10 classes)
>>> train, validation = data.holdout(train, 200, seed=0)
>>> len(train), len(validation)
(1242, 200)

``load`` looks along a documented path (:mod:`rbue.lab.data.store`); ``fetch`` and ``import_`` bring a set here and
check it; ``check`` recomputes its checksums. A new set is one new file in ``rbue/lab/data/sets``.
"""

from rbue.lab.data.fetching import fetch, import_
from rbue.lab.data.images import Checksums, Holdout, ImageSet, holdout
from rbue.lab.data.registry import CannotWrite, DataError, DataSet, Progress, get, names, register
from rbue.lab.data.store import Check, check, load, search_path, splits_here, target_root

__all__ = [
    "CannotWrite", "Check", "Checksums", "DataError", "DataSet", "Holdout", "ImageSet", "Progress", "check",
    "fetch", "get", "holdout", "import_", "load", "names", "register", "search_path", "splits_here", "target_root",
]  # fmt: skip

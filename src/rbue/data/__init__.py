"""Labelled images: named sets, the user's own folders, and how they come to this machine.

>>> from rbue import data
>>> train = data.load("digits", "train")
>>> train
ImageSet('digits', 'train', 1442 images of 8x8x1, 10 classes)
>>> train, validation = data.holdout(train, 200, seed=0)
>>> len(train), len(validation)
(1242, 200)

``load`` looks along a documented path (:mod:`rbue.data.locations`); ``fetch`` and ``import_`` bring a set here and
check it; ``check`` recomputes its checksums; ``pack`` and ``unpack`` carry it to a machine without a network. A new set
is one new file in ``rbue/data/sets``.
"""

from rbue.data.checking import Check, check
from rbue.data.fetching import fetch, import_
from rbue.data.holdout import holdout
from rbue.data.images import Checksums, Holdout, ImageSet
from rbue.data.loading import load, splits_here
from rbue.data.locations import search_path, target_root
from rbue.data.packing import pack, unpack
from rbue.data.problems import CannotWrite, DataError
from rbue.data.progress import Progress
from rbue.data.registry import DataSet, get, names, register

__all__ = [
    "CannotWrite",
    "Check",
    "Checksums",
    "DataError",
    "DataSet",
    "Holdout",
    "ImageSet",
    "Progress",
    "check",
    "fetch",
    "get",
    "holdout",
    "import_",
    "load",
    "names",
    "pack",
    "register",
    "search_path",
    "splits_here",
    "target_root",
    "unpack",
]

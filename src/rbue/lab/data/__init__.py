"""Labelled images: named sets, the user's own folders, and how they come to this machine.

>>> from rbue.lab import data
>>> train = data.load("digits", "train")
>>> train
ImageSet('digits', 'train', 1442 images of 8x8x1, 10 classes)
>>> train, validation = data.holdout(train, 200, seed=0)
>>> len(train), len(validation)
(1242, 200)

``load`` looks along a documented path (:mod:`rbue.lab.data.locations`); ``fetch`` and ``import_`` bring a set here and
check it; ``check`` recomputes its checksums; ``pack`` and ``unpack`` carry it to a machine without a network. A new set
is one new file in ``rbue/data/sets``.
"""

from rbue.lab.data.checking import Check, check
from rbue.lab.data.fetching import fetch, import_
from rbue.lab.data.holdout import holdout
from rbue.lab.data.images import Checksums, Holdout, ImageSet
from rbue.lab.data.loading import load, splits_here
from rbue.lab.data.locations import search_path, target_root
from rbue.lab.data.packing import pack, unpack
from rbue.lab.data.problems import CannotWrite, DataError
from rbue.lab.data.progress import Progress
from rbue.lab.data.registry import DataSet, get, names, register

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

"""The 19 corruptions of CIFAR-10-C and TinyImageNet-C: damage images, get a damaged test set, see what they do.

>>> import numpy as np
>>> from rbue.data import corruptions
>>> images = np.full((2, 32, 32, 3), 128, dtype=np.uint8)
>>> corruptions.corrupt(images, "fog", severity=2).shape
(2, 32, 32, 3)
>>> len(corruptions.CORRUPTIONS)
19

Every image's randomness is its own (:mod:`rbue.data.corruptions.batch`). A corruption is one function with its
constants above it; only ``spatter`` needs more than the package's own dependencies (``pip install rbue[shift]``).
"""

from rbue.data.corruptions import (  # noqa: F401  each registers its corruptions
    blur,
    coding,
    colour,
    elastic,
    fog,
    glass,
    motion,
    noise,
    snow,
    spatter,
)
from rbue.data.corruptions.batch import SCHEME
from rbue.data.corruptions.corrupting import constants_of, corrupt
from rbue.data.corruptions.frost import FrostSource, frost_source
from rbue.data.corruptions.pictures import contact_sheet, severity_strip
from rbue.data.corruptions.registry import CORRUPTIONS, EXTRA, SEVERITIES
from rbue.data.corruptions.sets import corrupted

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "SCHEME",
    "SEVERITIES",
    "FrostSource",
    "constants_of",
    "contact_sheet",
    "corrupt",
    "corrupted",
    "frost_source",
    "severity_strip",
]

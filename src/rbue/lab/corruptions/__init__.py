"""The 19 corruptions of CIFAR-10-C and TinyImageNet-C: damage images, get a damaged test set, see what they do.

>>> import numpy as np
>>> from rbue.lab import corruptions
>>> images = np.full((2, 32, 32, 3), 128, dtype=np.uint8)
>>> corruptions.corrupt(images, "fog", severity=2).shape
(2, 32, 32, 3)
>>> len(corruptions.CORRUPTIONS)
19

Every image's randomness is its own (:mod:`rbue.lab.corruptions.corrupting`). A corruption is one function with its
constants above it.
"""

from rbue.lab.corruptions import blur, digital, noise, weather  # noqa: F401  each registers its corruptions
from rbue.lab.corruptions.corrupting import CORRUPTIONS, EXTRA, SCHEME, SEVERITIES, constants_of, corrupt
from rbue.lab.corruptions.frost import FrostSource, frost_source
from rbue.lab.corruptions.pictures import contact_sheet, severity_strip
from rbue.lab.corruptions.sets import corrupted

__all__ = [
    "CORRUPTIONS", "EXTRA", "SCHEME", "SEVERITIES", "FrostSource", "constants_of", "contact_sheet", "corrupt",
    "corrupted", "frost_source", "severity_strip",
]  # fmt: skip

"""Honest uncertainty for PyTorch classifiers from random ReLUs (MC-DropReLU and MC-RReLU)."""

from rbue import calibration, functional, metrics, variance
from rbue._version import __version__
from rbue.activations import Dropout, DropReLU, RReLU
from rbue.call_sites import Site, SiteTable, convert, mode, revert, seed, sites
from rbue.errors import ConversionError, InvalidInput, RbueError, RbueWarning
from rbue.folding import fold_batchnorm
from rbue.prediction import Prediction
from rbue.sampling import Adaptive, predict

__all__ = [
    "Adaptive",
    "ConversionError",
    "DropReLU",
    "Dropout",
    "InvalidInput",
    "Prediction",
    "RReLU",
    "RbueError",
    "RbueWarning",
    "Site",
    "SiteTable",
    "__version__",
    "calibration",
    "convert",
    "fold_batchnorm",
    "functional",
    "metrics",
    "mode",
    "predict",
    "revert",
    "seed",
    "sites",
    "variance",
]

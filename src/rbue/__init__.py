"""Honest uncertainty for PyTorch networks from random activations (MC-DropReLU and MC-RReLU).

Names are imported when they are first used, so that ``rbue --version`` and ``--help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rbue import _moved
from rbue._version import __version__

if TYPE_CHECKING:
    from rbue import augment, calibration, decisions, functional, metrics, variance
    from rbue.activations import DropActivation, Dropout, DropReLU, RReLU
    from rbue.batchnorm import update_bn
    from rbue.call_sites import ConversionSummary, Site, SiteTable, convert, mode, revert, seed, set_temperature, sites
    from rbue.call_sites.summary import conversion
    from rbue.errors import ConversionError, InvalidInput, RbueError, RbueWarning
    from rbue.exporting import export
    from rbue.prediction import MultiLabel, Prediction, Regression
    from rbue.sampling import Adaptive, predict, warm_up
    from rbue.saving import load, save
    from rbue.tuning import Tuned, tune

__all__ = [
    "Adaptive", "ConversionError", "ConversionSummary", "DropActivation", "DropReLU", "Dropout", "InvalidInput",
    "MultiLabel", "Prediction", "RReLU", "RbueError", "RbueWarning", "Regression", "Site", "SiteTable", "Tuned",
    "__version__", "augment", "calibration", "conversion", "convert", "decisions", "export", "functional", "load",
    "metrics", "mode", "predict", "revert", "save", "seed", "set_temperature", "sites", "tune", "update_bn",
    "variance", "warm_up",
]  # fmt: skip

_HOMES = {
    "rbue.activations": ("DropActivation", "DropReLU", "Dropout", "RReLU"),
    "rbue.batchnorm": ("update_bn",),
    "rbue.call_sites": (
        *("ConversionSummary", "Site", "SiteTable"),
        *("convert", "mode", "revert", "seed", "set_temperature", "sites"),
    ),
    "rbue.call_sites.summary": ("conversion",),
    "rbue.errors": ("ConversionError", "InvalidInput", "RbueError", "RbueWarning"),
    "rbue.exporting": ("export",),
    "rbue.prediction": ("MultiLabel", "Prediction", "Regression"),
    "rbue.sampling": ("Adaptive", "predict", "warm_up"),
    "rbue.saving": ("load", "save"),
    "rbue.tuning": ("Tuned", "tune"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_moved.install()


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        found: object = getattr(import_module(_HOME_OF[name]), name)
    elif name in __all__ or name in _moved.NAMES:
        found = import_module(f"rbue.{name}")
    else:
        raise AttributeError(f"module 'rbue' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

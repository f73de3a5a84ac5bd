"""Ways to get uncertainty from a classifier, one file each, behind the same few names."""

from importlib import import_module
from pkgutil import iter_modules

from rbue.lab.methods.base import Method, TrainingProgress, list_methods, parse, register, spec_of, split_specs

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Method", "TrainingProgress", "list_methods", "parse", "register", "spec_of", "split_specs"]

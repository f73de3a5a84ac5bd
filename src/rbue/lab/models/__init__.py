"""The networks of the paper for small images, a small CNN, and a registry for them and for one's own.

Every network has the CIFAR stem (a 3x3 convolution of stride 1, no pooling), ends in average pooling over
whatever map is left and one linear layer called ``head``, and takes ``classes``, input ``channels`` and a ``width``
factor. Images of any size go through the same parameters. A new network needs one new file in this folder that
registers it, and no change elsewhere: all files of the folder are imported here.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

from rbue.lab.models.registry import create, list_models, multiply_adds, parameters, register

for _name in sorted(module.name for module in _iter_modules(__path__)):
    _import_module(f"{__name__}.{_name}")

__all__ = ["create", "list_models", "multiply_adds", "parameters", "register"]

"""Old addresses of the laboratory, which stood beside the library until version 0.1; they go with version 0.3."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from rbue.errors import warn

NAMES = ("data", "methods", "models", "paper", "report", "runs", "shift", "training")
_OLD = {"rbue.data.corruptions": "rbue.lab.corruptions"} | {f"rbue.{name}": f"rbue.lab.{name}" for name in NAMES}


class _Aliases(MetaPathFinder, Loader):
    """Finds ``rbue.models`` and the like, and gives the module of the laboratory itself, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if _address(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        address = _address(spec.name)
        assert address is not None
        if spec.name in _OLD:  # once for a package, not again for what is in it
            warn(f"{spec.name} is now {address}, and its old name goes with version 0.3.", FutureWarning)
        module = import_module(address)
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own  # the import system has put that of the alias there


def _address(name: str) -> str | None:
    """Where a module with an old address is now."""
    old = max((old for old in _OLD if name == old or name.startswith(f"{old}.")), key=len, default=None)
    return None if old is None else _OLD[old] + name[len(old) :]


def install() -> None:
    """Let the old addresses be imported."""
    sys.meta_path.insert(0, _Aliases())

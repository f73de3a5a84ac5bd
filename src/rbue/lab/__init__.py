"""The laboratory: the paper's methods, networks, data, corruptions, trainings, tables and figures, and the command.

``pip install 'rbue[lab]'`` brings what it needs. The library never imports it.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbue.lab.runs.loading import TrainedRun, load_run

__all__ = ["TrainedRun", "load_run"]

if find_spec("PIL") is None:  # which nothing here does without
    raise ModuleNotFoundError("rbue.lab needs packages that are not here; run pip install 'rbue[lab]'.", name="PIL")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rbue.lab' has no attribute {name!r}")
    from rbue.lab.runs import loading  # when it is first used

    return getattr(loading, name)

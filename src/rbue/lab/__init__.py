"""The laboratory: the paper's methods, networks, data, corruptions, trainings, tables and figures, and the command.

``pip install 'rbue[lab]'`` brings what it needs. The library never imports it.
"""

from typing import TYPE_CHECKING

from rbue.errors import needing

if TYPE_CHECKING:
    from rbue.lab.runs.loading import TrainedRun, load_run

__all__ = ["TrainedRun", "load_run"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rbue.lab' has no attribute {name!r}")
    with needing("lab", f"rbue.lab.{name}"):
        from rbue.lab.runs import loading  # when it is first used

    return getattr(loading, name)

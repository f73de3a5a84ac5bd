"""The laboratory: the paper's methods, networks, data, corruptions, trainings, tables and figures, and the command.

``pip install 'rbue[lab]'`` brings what it needs. The library never imports it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbue.lab.runs.loading import TrainedRun, load_run

__all__ = ["TrainedRun", "load_run"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rbue.lab' has no attribute {name!r}")
    try:
        from rbue.lab.runs import loading  # when it is first used
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rbue"):
            raise
        message = f"rbue.lab.{name} needs {error.name}, which is not here; run pip install 'rbue[lab]'."
        raise ImportError(message, name=error.name) from error
    return getattr(loading, name)

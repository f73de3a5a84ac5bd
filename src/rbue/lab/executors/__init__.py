"""Independent tasks: one after the other in this process, in several of this machine, or spread over a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from rbue.errors import InvalidInput
from rbue.lab.executors.process_pool import ProcessExecutor
from rbue.lab.executors.ray_cluster import on_cluster
from rbue.lab.executors.tasks import Done, Executor, in_order
from rbue.lab.processes import alone

if TYPE_CHECKING:
    import torch

__all__ = ["ENGINES", "Done", "Executor", "executor", "in_order"]

ENGINES = {"local": (), "processes": ("workers", "cpus"), "ray": ("address", "cpus", "gpus")}
"""Where tasks can run, and the options that each has."""


@contextmanager
def executor(
    engine: str,
    device: Callable[[], torch.device],
    *,
    forced: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
) -> Iterator[Executor]:
    """Where tasks run; at the end a Ray cluster is left, and what was started for this is ended.

    Args:
        engine: one of :data:`ENGINES`.
        device: gives the device of tasks on this machine.
        forced: ``cpu`` or ``cuda``, if tasks of a cluster may not choose.
        workers: processes of this machine; left out, see :class:`ProcessExecutor`.
        address: of a cluster that is there, such as ``auto``; left out: one on this machine, for this only.
        cpus: cores of a task; left out: one on a cluster, a process's part of this machine's.
        gpus: GPUs of a task on the cluster; left out: one if there is any.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"--engine must be one of {', '.join(ENGINES)}, not {engine!r}.")
    for name, value in (("workers", workers), ("address", address), ("cpus", cpus), ("gpus", gpus)):
        if value is not None and name not in ENGINES[engine]:
            owners = " or ".join(f"--engine {one}" for one, options in ENGINES.items() if name in options)
            raise InvalidInput(f"--{name} is for {owners}; add that, or leave --{name} out.")
    if engine == "local":
        yield Executor(device())
        return
    alone(f"--engine {engine}")
    if engine == "processes":
        with closing(ProcessExecutor(device(), workers, cpus)) as pool:
            yield pool
    else:
        with on_cluster(address, forced, 1 if cpus is None else cpus, gpus) as there:
            yield there

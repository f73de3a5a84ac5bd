"""Tasks on a Ray cluster, of this machine or of many."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rbue.errors import InvalidInput, RbueError, shown
from rbue.lab.executors.tasks import RETRIES, Done, Executor, Item, died, here_with, told, work

SECONDS_TO_CONNECT = 10.0


class RayExecutor(Executor):
    """Tasks on a Ray cluster that :func:`executor` has connected to.

    Args:
        cpus: cores that a task has, which is also the number of its threads.
        gpus: GPUs that a task has; 0.5 lets two share one.
    """

    def __init__(self, cpus: int, gpus: float) -> None:
        import torch

        super().__init__(torch.device("cuda" if gpus else "cpu"))
        self.cpus, self.gpus, self.helpers = cpus, gpus, cpus - 1

    def each(
        self, task: Callable[[Item], Any], following: Callable[[], Item | None]
    ) -> Generator[Done[Item], None, None]:
        """As many tasks at once as the cluster has room for; in the order in which they end."""
        import ray

        remote = ray.remote(work).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, name="rbue")
        here = here_with(self.cpus, max(1, round(1 / self.gpus)) if self.gpus else 1)
        running: dict[Any, Item] = {}
        while True:
            while len(running) < self._room() and (item := following()) is not None:
                running[remote.remote(task, item, here)] = item
            if not running:
                return
            (ended, *_), _ = ray.wait(list(running))
            yield _done(running.pop(ended), ended)

    def _room(self) -> int:
        """Tasks that the cluster can hold, as large as it is now."""
        import ray

        there = ray.cluster_resources()
        rooms = [there.get("CPU", 0) / self.cpus] + ([there.get("GPU", 0) / self.gpus] if self.gpus else [])
        return max(1, int(min(rooms)))


@contextmanager
def on_cluster(address: str | None, forced: str | None, cpus: int, gpus: float | None) -> Iterator[RayExecutor]:
    """An executor on a cluster with room for a task; what was started for this is ended."""
    if forced == "cpu" and gpus:
        raise InvalidInput(f"--gpus {gpus:g} and --device cpu contradict each other; leave one out.")
    with redirect_stdout(sys.stderr), _connected(address) as there:  # Ray prints what its processes say
        if gpus is None:
            gpus = 1.0 if forced == "cuda" or (forced is None and there.get("GPU", 0) >= 1) else 0.0
        if there.get("CPU", 0) < cpus or there.get("GPU", 0) < gpus:
            raise InvalidInput(
                f"a task asks for {cpus} cores and {gpus:g} GPUs, but the cluster has {there.get('CPU', 0):g} and "
                f"{there.get('GPU', 0):g} in all; give smaller --cpus or --gpus."
            )
        yield RayExecutor(cpus, gpus)


def _done(item: Item, ended: Any) -> Done[Item]:
    import ray
    from ray import exceptions

    try:
        return told(item, *ray.get(ended))
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, exceptions.RaySystemError):  # it could not even begin, such as without rbue
            reason = _first_line(error.cause).removeprefix("System error: ")
            sentence = f"a machine of the cluster cannot do this ({reason}); install the same versions on all of them."
            raise RbueError(sentence) from error
        raise error.cause from error  # a mistake of ours, or no room on the GPU: as if it had happened here
    except exceptions.OutOfMemoryError:
        return died(item, "out of memory")
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError):
        return died(item)
    except exceptions.RayError as error:
        raise RbueError(f"the cluster failed ({_first_line(error)}); the same command continues.") from error


@contextmanager
def _connected(address: str | None) -> Iterator[dict[str, float]]:
    """A cluster, or one started here and ended again, for a while; gives what it has of each resource."""
    # Ray reads these when it is imported. It reports its use to its makers unless told not to, and warns at every start
    # that tasks without GPUs will see them one day.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_DEDUP_LOGS"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError:
        raise RbueError("Ray is not here; `pip install 'rbue[ray]'` brings it.") from None
    where = f"at {address} " if address else ""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal() and "://" not in host:
        try:  # Ray itself would try for many minutes
            socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
        except OSError as error:
            raise RbueError(f"there is no Ray cluster {where}to work with ({error.strerror or error}).") from error
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 100 << 20}  # tasks pass no data by Ray
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, **({} if address else own))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise RbueError(f"there is no Ray cluster {where}to work with ({_first_line(error)}).") from error
    try:
        yield ray.cluster_resources()
    finally:
        ray.shutdown()  # also ends what runs there for this process


def _first_line(error: BaseException) -> str:
    """What an error of Ray says before its traceback and advice, for a sentence."""
    line, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return shown(line.rstrip("."), 300)

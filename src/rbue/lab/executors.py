"""Independent tasks: one after the other in this process, or spread over a Ray cluster.

An executor asks for the next task whenever it has room for one, so that whoever gives them out decides what may begin
now: nothing after the end of a time budget, nothing whose networks are still being trained. Tasks find and leave their
files in folders that every machine of the cluster sees under the same path.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rbue.errors import InvalidInput, RbueError, RbueWarning, shown, warn
from rbue.lab import own_code
from rbue.lab.processes import alone

if TYPE_CHECKING:
    import torch

ENGINES = ("local", "ray")
RETRIES = 3
"""How often Ray begins a task again whose process, or machine, has died."""

SECONDS_TO_CONNECT = 10.0

Item = TypeVar("Item")


class Done(NamedTuple, Generic[Item]):
    """A task that has ended: what it was about, and what it returned, or the error it ended in."""

    item: Item
    result: Any
    error: RbueError | None


class Executor:
    """Tasks in this process, one after the other.

    Attributes:
        device: where a task computes.
        helpers: processes that a task may start for itself; None leaves it to the machine's cores.
    """

    device: torch.device
    helpers: int | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def each(
        self, task: Callable[[Item], Any], following: Callable[[], Item | None]
    ) -> Generator[Done[Item], None, None]:
        """Do what ``following`` gives, as long as it gives anything, and tell of each task when it has ended.

        Args:
            task: a function of one item; others than an :class:`~rbue.errors.RbueError` end everything.
            following: what to begin next. None: nothing now; it is asked again when another task has ended.
        """
        while (item := following()) is not None:
            try:
                done = Done(item, task(item), None)
            except RbueError as error:
                done = Done(item, None, error)
            yield done


def in_order(items: Iterable[Item], begin: Callable[[Item], None] = lambda _: None) -> Callable[[], Item | None]:
    """What :meth:`Executor.each` asks for where everything may begin at any time; ``begin`` is told of each."""
    coming = iter(items)

    def following() -> Item | None:
        item = next(coming, None)
        if item is not None:
            begin(item)
        return item

    return following


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

        own_code.note_named()  # here, as the processes of the cluster are only told
        remote = ray.remote(_work).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, name="rbue")
        variables = {name: os.environ[name] for name in ("RBUE_DATA",) if name in os.environ}
        here = _Here(os.getcwd(), self.cpus, variables, own_code.named())
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


class _Here(NamedTuple):
    """What a task has to find where it runs as it is where it was given out."""

    folder: str
    threads: int
    variables: dict[str, str]
    named: list[str]


def _work(task: Callable[[Any], Any], item: Any, here: _Here) -> tuple[Any, RbueError | None, list[str]]:
    """Do a task in a process of the cluster; errors and warnings of ours travel back as values."""
    import torch

    if os.path.isdir(here.folder):  # relative paths mean the same, and a user's own networks are found
        os.chdir(here.folder)
        own_code.look_in(here.folder)
    own_code.trust(here.named)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # each task is a process of its own
        os.environ.pop(name, None)
    os.environ.update(here.variables)
    torch.set_num_threads(here.threads)
    result, problem = None, None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RbueWarning)
        try:
            result = task(item)
        except RbueError as error:
            problem = error.with_traceback(None)
    return result, problem, [str(one.message) for one in said if issubclass(one.category, RbueWarning)]


def _done(item: Item, ended: Any) -> Done[Item]:
    import ray
    from ray import exceptions

    try:
        result, problem, said = ray.get(ended)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, exceptions.RaySystemError):  # it could not even begin, such as without rbue
            reason = _first_line(error.cause).removeprefix("System error: ")
            sentence = f"a machine of the cluster cannot do this ({reason}); install the same versions on all of them."
            raise RbueError(sentence) from error
        raise error.cause from error  # a mistake of ours, or no room on the GPU: as if it had happened here
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError) as error:
        reason = "out of memory" if isinstance(error, exceptions.OutOfMemoryError) else "killed, or out of memory"
        sentence = f"the process of this task ended {RETRIES + 1} times ({reason}?); the same command tries it again."
        return Done(item, None, RbueError(sentence))
    except exceptions.RayError as error:
        raise RbueError(f"the cluster failed ({_first_line(error)}); the same command continues.") from error
    for message in said:
        warn(message)
    return Done(item, result, problem)


@contextmanager
def executor(
    engine: str,
    device: Callable[[], torch.device],
    *,
    forced: str | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
) -> Iterator[Executor]:
    """Where tasks run; a Ray cluster is left, and one that was started for this ended, at the end.

    Args:
        engine: one of :data:`ENGINES`.
        device: gives the device of tasks in this process.
        forced: ``cpu`` or ``cuda``, if tasks of a cluster may not choose.
        address: of a cluster that is there, such as ``auto``; left out: one on this machine, for this only.
        cpus: cores of a task on the cluster; left out: one.
        gpus: GPUs of a task on the cluster; left out: one if there is any.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"--engine must be {' or '.join(ENGINES)}, not {engine!r}.")
    if engine == "local":
        if any(one is not None for one in (address, cpus, gpus)):
            raise InvalidInput("--address, --cpus and --gpus are of a Ray cluster; add --engine ray.")
        yield Executor(device())
        return
    alone("--engine ray")
    cpus = 1 if cpus is None else cpus
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
        raise RbueError("Ray is not here; `pip install rbue[ray]` brings it.") from None
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

"""Independent tasks: one after the other in this process, or in several of this machine, or spread over a Ray cluster.

An executor asks for the next task whenever it has room for one, so that whoever gives them out decides what may begin
now: nothing after the end of a time budget, nothing whose networks are still being trained. Tasks find and leave their
files in folders that every machine of the cluster sees under the same path.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from copy import copy
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rbue.errors import InvalidInput, OutOfMemory, RbueError, RbueWarning, shown, warn
from rbue.lab import own_code
from rbue.lab.processes import alone, usable_cores

if TYPE_CHECKING:
    import torch

ENGINES = {"local": (), "processes": ("workers", "cpus"), "ray": ("address", "cpus", "gpus")}
"""Where tasks can run, and the options that each has."""

RETRIES = 3
"""How often a task is begun again whose process, or machine, has died."""

WORKERS_OF_A_GPU = 4
"""A small network leaves most of a GPU idle while a core starts its kernels; each worker has its own CUDA context."""

SECONDS_TO_CONNECT = 10.0
SECONDS_TO_END = 5.0

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

        remote = ray.remote(_work).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, name="rbue")
        here = _here(self.cpus)
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


def _here(threads: int) -> _Here:
    own_code.note_named()  # here, as other processes are only told
    variables = {name: os.environ[name] for name in ("RBUE_DATA",) if name in os.environ}
    return _Here(os.getcwd(), threads, variables, own_code.named())


def _work(task: Callable[[Any], Any], item: Any, here: _Here) -> tuple[Any, RbueError | None, list[str]]:
    """Do a task in another process; errors and warnings of ours travel back as values."""
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


def _told(item: Item, result: Any, problem: RbueError | None, said: list[str]) -> Done[Item]:
    """What :func:`_work` gave, where the task was given out."""
    for message in said:
        warn(message)
    return Done(item, result, problem)


def _died(item: Item, reason: str = "killed, or out of memory") -> Done[Item]:
    sentence = f"the process of this task ended {RETRIES + 1} times ({reason}?); the same command tries it again."
    return Done(item, None, RbueError(sentence))


def _done(item: Item, ended: Any) -> Done[Item]:
    import ray
    from ray import exceptions

    try:
        return _told(item, *ray.get(ended))
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, exceptions.RaySystemError):  # it could not even begin, such as without rbue
            reason = _first_line(error.cause).removeprefix("System error: ")
            sentence = f"a machine of the cluster cannot do this ({reason}); install the same versions on all of them."
            raise RbueError(sentence) from error
        raise error.cause from error  # a mistake of ours, or no room on the GPU: as if it had happened here
    except exceptions.OutOfMemoryError:
        return _died(item, "out of memory")
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError):
        return _died(item)
    except exceptions.RayError as error:
        raise RbueError(f"the cluster failed ({_first_line(error)}); the same command continues.") from error


class ProcessExecutor(Executor):
    """Tasks in several processes of this machine, each of which does many, one after the other.

    A process starts when there is a task for it, and ends by :meth:`close`, or when anything stops :meth:`each` early.

    Args:
        device: where tasks compute. A GPU without a number is any: each process sees one of them.
        workers: how many processes; left out: as many as have ``cpus`` cores each, but four for each GPU.
        cpus: threads of each; left out: its part of the cores, which is one unless there are fewer processes.
    """

    def __init__(self, device: torch.device, workers: int | None = None, cpus: int | None = None) -> None:
        import torch

        super().__init__(torch.device(device.type))
        cores, gpus = usable_cores(), torch.cuda.device_count() if device.type == "cuda" else 0
        if workers is None:
            workers = max(1, cores // (cpus or 1))
            workers = min(workers, WORKERS_OF_A_GPU * (gpus if device.index is None else 1)) if gpus else workers
        self.workers, self.threads = workers, cpus or max(1, cores // workers)
        self.helpers = self.threads - 1
        self._gpus = _names_of_gpus(gpus, device.index)
        self._started: list[_Worker] = []

    def each(
        self, task: Callable[[Item], Any], following: Callable[[], Item | None]
    ) -> Generator[Done[Item], None, None]:
        """As many tasks at once as there are workers; in the order in which they end."""
        here = _here(self.threads)
        waiting: list[tuple[Item, int]] = []  # with how often its process has died
        running: dict[_Worker, tuple[Item, int]] = {}
        try:
            while True:
                while len(running) < self.workers:
                    if not waiting and (item := following()) is not None:
                        waiting.append((item, 0))
                    if not waiting:
                        break
                    worker = next((one for one in self._started if one not in running), None) or self._start()
                    running[worker] = waiting.pop()
                    worker.begin(task, running[worker][0], here)
                if not running:
                    return
                worker = _first_ended(running)
                (item, deaths), answer = running.pop(worker), worker.answer()
                if isinstance(answer, _Failure):
                    raise self._explained(answer)
                if answer is None:
                    worker.end(SECONDS_TO_END)
                    self._started.remove(worker)
                if answer is None and deaths < RETRIES:
                    waiting.append((item, deaths + 1))
                else:
                    yield _died(item) if answer is None else _told(item, *answer)
        except BaseException:  # also of whoever closes this
            self.close()
            raise

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        deadline = time.monotonic() + SECONDS_TO_END
        for worker in self._started:
            worker.process.terminate()
        for worker in self._started:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._started.clear()

    def _start(self) -> _Worker:
        taken = [one.gpu for one in self._started]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # inherited: Ctrl-C is for this process
        try:
            self._started.append(_Worker(self.threads, min(self._gpus, key=taken.count, default=None)))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._started[-1]

    def _explained(self, failure: _Failure) -> BaseException:
        """The error that ended a task, as if it had happened here; its traceback there is its cause."""
        error: Exception = failure.error
        if type(error).__name__ == "OutOfMemoryError" and self.workers > 1:
            error = OutOfMemory(
                f"the GPU has not enough memory for {self.workers} tasks at once; give fewer --workers."
            )
        error.__cause__ = RuntimeError(f"in a worker process\n{failure.traceback}")
        return error


class _Failure(NamedTuple):
    """An error of a task that ends everything."""

    error: Exception
    traceback: str


class _Worker:
    """A process that does tasks, seen from the one that started it."""

    def __init__(self, threads: int, gpu: str | None) -> None:
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.gpu = gpu
        self._pipe, far = spawn.Pipe()
        self.process = spawn.Process(target=_do_tasks, args=(far, threads, gpu), name="rbue worker")
        self.process.start()
        far.close()

    @property
    def ends(self) -> tuple[Connection, int]:
        """What can be waited for: an answer, or the end of the process, whose pipe a child of its own may hold open."""
        return self._pipe, self.process.sentinel

    def begin(self, task: Callable[[Any], Any], item: Any, here: _Here) -> None:
        """Give it a task."""
        with suppress(OSError):  # it is dead, as the missing answer will say
            self._pipe.send((task, item, here))

    def answer(self) -> tuple[Any, RbueError | None, list[str]] | _Failure | None:
        """What a task came to; None if the process has died of it."""
        try:
            return self._pipe.recv() if self._pipe.poll() else None
        except (EOFError, OSError):
            return None

    def end(self, seconds: float) -> None:
        """Wait for the end of the process, which is on its way; kill it if that takes longer."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        self._pipe.close()


def _first_ended(workers: Iterable[_Worker]) -> _Worker:
    owners = {end: worker for worker in workers for end in worker.ends}
    return owners[wait(list(owners))[0]]  # type: ignore[index]


def _names_of_gpus(count: int, chosen: int | None) -> list[str]:
    """The GPUs that processes take in turn, as CUDA_VISIBLE_DEVICES names them; none where all see the only one.

    A process that sees one GPU has it as plain ``cuda`` in all of its threads, and no index enters anything.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",")[:count] if given else [str(number) for number in range(count)]
    if count < 2:
        return []
    return names if chosen is None else [names[chosen]]


def _do_tasks(pipe: Connection, threads: int, gpu: str | None) -> None:
    """What a worker does, as long as there is somebody to tell."""
    os.dup2(2, 1)  # standard output is the command's
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of NumPy, too, and read when torch is imported
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that temporary folders are removed
    threading.Thread(target=_end_with_parent, args=(threading.get_ident(),), daemon=True).start()
    with suppress(OSError):  # nobody is there any more
        while True:
            answer: Any
            try:
                answer = _work(*pipe.recv())
            except Exception as error:
                answer = _failure(error)
            _send(pipe, answer)


def _failure(error: Exception) -> _Failure:
    text = "".join(traceback.format_exception(error))
    try:
        copy(error)  # made in the way in which it will arrive
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, text)


def _send(pipe: Connection, answer: Any) -> None:
    try:
        pipe.send(answer)
    except OSError:
        raise
    except Exception as error:  # there is something in it that cannot be sent
        failure = answer if isinstance(answer, _Failure) else _failure(error)
        pipe.send(_Failure(RuntimeError(f"{type(failure.error).__name__}: {failure.error}"), failure.traceback))


def _end_with_parent(main: int) -> None:
    """End this process, a worker, when the one that started it is gone, however that came."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    signal.pthread_kill(main, signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


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
        pool = ProcessExecutor(device(), workers, cpus)
        try:
            yield pool
        finally:
            pool.close()
        return
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

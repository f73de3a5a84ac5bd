"""Tasks in several processes of this machine, one of which may die without the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from copy import copy
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from rbue.errors import InvalidInput, OutOfMemory, RbueError
from rbue.lab.executors.tasks import RETRIES, Done, Executor, Here, Item, died, here_with, told, work
from rbue.lab.processes import usable_cores

if TYPE_CHECKING:
    import torch

WORKERS_OF_A_GPU = 4
"""A small network leaves most of a GPU idle while a core starts its kernels; each worker has its own CUDA context."""

SECONDS_TO_END = 5.0
SECONDS_TO_LOOK = 1.0


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

        if not hasattr(signal, "pthread_sigmask"):
            raise InvalidInput("--engine processes is not for Windows; leave it out, or use ray.")
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
        here = here_with(self.threads, self.workers)
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
                    yield died(item) if answer is None else self._with_a_way_out(told(item, *answer))
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

    def _with_a_way_out(self, done: Done[Item]) -> Done[Item]:
        """The same; that there was no room is because of the others, first of all."""
        if not isinstance(done.error, OutOfMemory) or self.workers == 1:
            return done
        sentence = f"there is not enough memory for {self.workers} tasks at once; give fewer --workers."
        return done._replace(error=OutOfMemory(sentence))

    def _explained(self, failure: _Failure) -> BaseException:
        """The error that ended a task, as if it had happened here; its traceback there is its cause."""
        error: Exception = failure.error
        if type(error).__name__ == "OutOfMemoryError":
            error = self._with_a_way_out(Done(None, None, OutOfMemory(str(error)))).error or error
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
        """What can be waited for: an answer, or the end of the process, unless a child that it forked lives on."""
        return self._pipe, self.process.sentinel

    def begin(self, task: Callable[[Any], Any], item: Any, here: Here) -> None:
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
    while True:
        for end in wait(list(owners), SECONDS_TO_LOOK):
            return owners[end]  # type: ignore[index]
        for worker in owners.values():
            if worker.process.exitcode is not None:
                return worker


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
    with suppress(OSError):  # there may be none
        os.dup2(2, 1)  # standard output is the command's
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of NumPy, too, and read when torch is imported
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, args=(threading.get_ident(),), daemon=True).start()
    with suppress(OSError):  # nobody is there any more
        while True:
            answer: Any
            try:
                answer = work(*pipe.recv())
            except _Ended:
                raise
            except SystemExit as error:
                answer = _failure(RuntimeError(f"a task ended its process by sys.exit({error.code!r})"))
            except Exception as error:
                answer = _failure(error)
            _send(pipe, answer)


class _Ended(SystemExit):
    """That a worker was told to end."""


def _end(*_: object) -> None:
    raise _Ended(1)  # not at once, so that temporary folders are removed


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

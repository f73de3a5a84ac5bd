"""What an executor does with tasks: in this process, one after the other, or through functions for other processes.

An executor asks for the next task whenever it has room for one, so that whoever gives them out decides what may begin
now: nothing after the end of a time budget, nothing whose networks are still being trained. Tasks find and leave their
files in folders that every machine of a cluster sees under the same path.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rbue.errors import RbueError, RbueWarning, warn
from rbue.lab import own_code
from rbue.lab.processes import note_tasks_at_once

if TYPE_CHECKING:
    import torch

RETRIES = 3
"""How often a task is begun again whose process, or machine, has died."""

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


class Here(NamedTuple):
    """What a task has to find where it runs as it is where it was given out."""

    folder: str
    threads: int
    at_once: int
    variables: dict[str, str]
    named: list[str]


def here_with(threads: int, at_once: int) -> Here:
    """What this process has, for tasks with so many threads, so many of which share a machine or a GPU."""
    own_code.note_named()  # here, as other processes are only told
    variables = {name: os.environ[name] for name in ("RBUE_DATA",) if name in os.environ}
    return Here(os.getcwd(), threads, at_once, variables, own_code.named())


def work(task: Callable[[Any], Any], item: Any, here: Here) -> tuple[Any, RbueError | None, list[str]]:
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
    note_tasks_at_once(here.at_once)
    result: Any = None
    problem: RbueError | None = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RbueWarning)
        try:
            result = task(item)
        except RbueError as error:
            problem = _as_sent(error.with_traceback(None))
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # the next task may need less, and its neighbours more
    return result, problem, [str(one.message) for one in said if issubclass(one.category, RbueWarning)]


def _as_sent(error: RbueError) -> RbueError:
    """The error, or one with its words if it cannot be made again where it arrives."""
    try:
        copy(error)
    except Exception:
        return RbueError(str(error))
    return error


def told(item: Item, result: Any, problem: RbueError | None, said: list[str]) -> Done[Item]:
    """What :func:`work` gave, where the task was given out."""
    for message in said:
        warn(message)
    return Done(item, result, problem)


def died(item: Item, reason: str = "killed, or out of memory") -> Done[Item]:
    """A task whose process has died too often."""
    sentence = f"the process of this task ended {RETRIES + 1} times ({reason}?); the same command tries it again."
    return Done(item, None, RbueError(sentence))

"""The processes that ``torchrun`` starts for one command: who this one is, what is its part, what the others say.

Nothing here imports torch before it is needed, as the command asks who is to speak before it knows what to do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from rbue.errors import InvalidInput, RbueError

if TYPE_CHECKING:
    import torch
    from torch import distributed, nn

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long a process that measures waits for the others, whose parts may take hours longer; ``torchrun`` ends it if
one of them dies."""

_TO_MEET = 300.0
"""Seconds in which all processes must have come to where they meet."""

_LAST_WORDS = 10.0
"""Seconds in which a process that has met an error surely says so."""

_store: distributed.Store | None = None
_reports = False


@dataclass(frozen=True)
class Rank:
    """Which of ``world_size`` processes this is, counted from 0."""

    index: int = 0
    world_size: int = 1

    def rows(self, count: int) -> range:
        """The places of ``count`` that are this process's: an even part, in one piece."""
        return range(count * self.index // self.world_size, count * (self.index + 1) // self.world_size)

    def of_all(self, value: T) -> list[T]:
        """What every process says here, in their order; they wait for each other."""
        if self.world_size == 1:
            return [value]
        from torch import distributed

        said: list[Any] = [None] * self.world_size
        distributed.all_gather_object(said, value)
        return said

    def of_first(self, value: T) -> T:
        """What the first process says here; files that it wrote before are there now."""
        if self.world_size == 1:
            return value
        from torch import distributed

        said: list[Any] = [value]
        distributed.broadcast_object_list(said, src=0)
        return said[0]

    def wait(self) -> None:
        """Return when every process has come here."""
        self.of_all(None)


def processes() -> int:
    """How many processes ``torchrun`` has started; 1 without it."""
    return _variable("WORLD_SIZE", 1)


def alone(what: str) -> None:
    """Refuse to be one of several processes."""
    if processes() > 1:
        raise InvalidInput(f"{what} is for one process, but torchrun has started {processes()}; start it without.")


def processes_here() -> int:
    """How many of them are on this machine."""
    return _variable("LOCAL_WORLD_SIZE", 1)


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return processes() == 1 or _variable("RANK", 0) == 0


_at_once = 1


def tasks_at_once() -> int:
    """How many tasks of one command share this machine or its GPU, this one among them: clocks run longer then."""
    return _at_once


def note_tasks_at_once(count: int) -> None:
    """Say so in a process that does tasks."""
    global _at_once
    _at_once = count


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _variable(name: str, otherwise: int) -> int:
    """A number that ``torchrun`` hands to its processes; other programs may set the same variables otherwise."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def own_device(device: torch.device) -> torch.device:
    """The device of this process: GPU ``k`` for the ``k``-th process of a machine."""
    if device.type != "cuda" or processes() == 1:
        return device
    import torch

    if processes_here() > torch.cuda.device_count():
        raise InvalidInput(
            f"there are {processes_here()} processes for {torch.cuda.device_count()} GPUs; give torchrun "
            f"--nproc-per-node {torch.cuda.device_count()}."
        )
    return torch.device("cuda", _variable("LOCAL_RANK", 0))


class PeerLost(RbueError):
    """Another process has ended before its time; ``said`` is whether it, or a third one, reports why."""

    def __init__(self, world_size: int, said: bool) -> None:
        super().__init__(
            f"one of the {world_size} processes has ended, and the others end with it; torchrun says which, and starts "
            "them again if --max-restarts allows; the same command continues from what was kept."
        )
        self.said = said


@contextmanager
def joined(device: torch.device, patience: timedelta | None = None) -> Iterator[Rank]:
    """Inside the block the processes know each other; yields this one's rank.

    An error of one ends all of them. The first one to meet an error reports it; in the others a :class:`PeerLost` takes
    its place. A block inside of another, or of a group that the user's own code has made, uses that group.

    Args:
        device: where the processes exchange tensors.
        patience: how long one waits for another; left out: what torch takes for that.
    """
    if processes() == 1:
        yield Rank()
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():
        yield Rank(distributed.get_rank(), distributed.get_world_size())
        return
    lacking = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if lacking:
        raise InvalidInput(
            f"WORLD_SIZE is {processes()}, but {' and '.join(lacking)} are not set; start the command by torchrun, or "
            "unset WORLD_SIZE."
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank = Rank(_variable("RANK", 0), processes())
    store = _fresh_store(rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    with _greetings_to_stderr():
        distributed.init_process_group(
            backend, store=store, rank=rank.index, world_size=rank.world_size, timeout=patience
        )
    try:
        yield rank
    except Exception as error:
        reports = _is_first_to_report(store)
        if _is_of_a_peer(error):
            raise PeerLost(rank.world_size, said=not reports) from error
        if not reports:
            raise PeerLost(rank.world_size, said=True) from error
        raise
    finally:
        distributed.destroy_process_group()


@contextmanager
def _greetings_to_stderr() -> Iterator[None]:
    """Standard output is free of greetings: gloo of torch 2.10 writes some, amid the JSON of a command."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _fresh_store(rank: Rank) -> distributed.Store:
    """A part of the processes' common store in which nothing stands yet.

    The store outlives a restart, and with it the addresses of processes that are no more. ``torchrun`` does not number
    restarts alike on all machines, so the processes agree on a name: each says who it is now, the first one answers to
    what it finds until all have heard it.
    """
    global _store
    from torch import distributed

    if _store is None:
        _store, *_ = next(distributed.rendezvous("env://"))
    store: distributed.Store = distributed.PrefixStore("rbue", _store)
    name = uuid4().hex
    if rank.index:
        store.set(f"hello {rank.index}", name)
        name = store.get(f"answer to {name}").decode()
        store.set(f"{name} heard by {rank.index}", "")
    missing = set(range(1, rank.world_size)) if rank.index == 0 else set()
    deadline = time.monotonic() + _TO_MEET
    while missing:
        if time.monotonic() > deadline:
            raise PeerLost(rank.world_size, said=False)
        for other in missing:
            if store.check([f"hello {other}"]):  # which may be an old one
                store.set(f"answer to {store.get(f'hello {other}').decode()}", name)
        time.sleep(0.02)
        missing = {other for other in missing if not store.check([f"{name} heard by {other}"])}
    return distributed.PrefixStore(name, store)


def _is_first_to_report(store: distributed.Store) -> bool:
    global _reports
    _reports = True
    with suppress(Exception):  # the store may be gone with the process that kept it
        _reports = store.add("errors", 1) == 1
    return _reports


def _is_of_a_peer(error: Exception) -> bool:
    """Whether an error says that another process cannot be reached; gloo's is a plain RuntimeError."""
    from torch import distributed

    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def is_reported_elsewhere(error: BaseException) -> bool:
    """Whether another process says what went wrong; it is given the time for it.

    ``torchrun`` ends all processes when it sees that one has ended, so one that waits for the word of another mostly
    does not return from here. Outside of :func:`joined` all processes of a machine meet the same errors, and its first
    one says so. One that is still there after a while is alone with its error.
    """
    said = isinstance(error, PeerLost) and error.said
    if processes() == 1 or (not said and (_reports or _variable("LOCAL_RANK", 0) == 0)):
        return False
    time.sleep(_LAST_WORDS)
    return said


def data_parallel(network: nn.Module, rank: Rank, device: torch.device, sync_batchnorm: bool = False) -> nn.Module:
    """The network, with gradients averaged over all processes, and BatchNorm over the whole batch if that is wanted."""
    if rank.world_size == 1:
        return network
    from torch import nn

    if sync_batchnorm:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return nn.parallel.DistributedDataParallel(network, [device.index] if device.type == "cuda" else None)

"""Corrupted sets one after the other, the next ones made while the last one is looked at.

Many are made by helper processes. Not by threads, because most corruptions draw their random numbers image by image
under Python's lock: ten of them, on two busy cores, took as long with 2 and with 16 threads as with one. Not by
:mod:`multiprocessing`, which would run a user's script a second time unless that is written with care.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import IO, Any

import numpy as np

from rbue.errors import InvalidInput, RbueError
from rbue.lab import data
from rbue.lab.corruptions import corrupted
from rbue.lab.corruptions.corrupting import SMALLEST_SIDE
from rbue.lab.corruptions.sets import find_published
from rbue.lab.data.outside import like
from rbue.lab.processes import processes_here, usable_cores
from rbue.lab.shift.rows import Cell

WORTH_HELPERS = 50_000
"""Images to make from which on it pays to wait some seconds for the helper processes to start."""

SPARED_CORES = 2
"""Left to the process that evaluates."""


def check_size(images: data.ImageSet) -> None:
    """Refuse images that are too small to be corrupted."""
    height, width = images.images.shape[1:3]
    if min(height, width) < SMALLEST_SIDE:
        raise InvalidInput(
            f"the images of {images.name} have {height}x{width} pixels, but corruptions need at least "
            f"{SMALLEST_SIDE}x{SMALLEST_SIDE}; choose another data set, such as colour-digits or cifar10."
        )


def prepared(
    images: data.ImageSet, cells: Sequence[Cell], *, cache: bool = True, helpers: int | None = None
) -> Generator[tuple[Cell, data.ImageSet], None, None]:
    """Give a test set under each corruption and severity, as the networks trained on that set take it.

    Close the iterator (:func:`contextlib.closing`) when leaving it early, so that the work in the background ends.

    Args:
        images: the clean test set.
        cells: what is wanted, in this order.
        cache: whether generated sets are kept (see :func:`rbue.lab.corruptions.corrupted`).
        helpers: how many processes make sets; 0 makes them in a thread of this one, None decides by their number.
    """
    check_size(images)
    to_make = sum(find_published(images, cell.corruption, None) is None for cell in cells)
    count = helpers_for(len(images) * to_make) if helpers is None else helpers
    with ExitStack() as stack:
        makers = _Makers(images, cache, stack, min(count, to_make))
        pool = ThreadPoolExecutor(max(1, makers.count))
        stack.callback(pool.shutdown, cancel_futures=True)
        stack.callback(makers.stop)
        waiting: deque[Future[data.ImageSet]] = deque()
        coming = iter(cells)
        for cell in cells:
            while len(waiting) <= makers.count + 1 and (following := next(coming, None)) is not None:
                waiting.append(pool.submit(makers.get, following))
            yield cell, like(waiting.popleft().result(), images)  # grey ones were damaged in colour
            makers.forget(cell)


def helpers_for(images: int) -> int:
    """How many helper processes that many images are worth on this machine, which others may measure on too."""
    return max(0, usable_cores() // processes_here() - SPARED_CORES) if images >= WORTH_HELPERS else 0


class _Makers:
    """Who makes the sets: helper processes, or this one."""

    def __init__(self, images: data.ImageSet, cache: bool, stack: ExitStack, count: int) -> None:
        self.images, self.cache, self.count = images, cache, count
        self._stopped = Event()
        self._helpers: list[Helper] = []
        self._free: SimpleQueue[Helper] = SimpleQueue()
        self._own_root: Path | None = None
        if not count:
            return
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rbue-", ignore_cleanup_errors=True)))
        np.save(place / "clean.npy", images.images, allow_pickle=False)
        if not cache:
            self._own_root = place
        root = self._own_root or data.target_root().absolute()
        stack.callback(self._close)
        for _ in range(count):
            self._helpers.append(Helper(place / "clean.npy", images, root))
            self._free.put(self._helpers[-1])

    def get(self, cell: Cell) -> data.ImageSet:
        """One damaged set, in a thread of the pool."""
        published = find_published(self.images, cell.corruption, None) is not None
        if published or not self.count:
            return corrupted(self.images, *cell, cache=self.cache, progress=self._go_on)
        helper = self._free.get()
        try:
            helper.make(cell)
        finally:
            self._free.put(helper)
        return corrupted(self.images, *cell, root=self._own_root, published=False)

    def forget(self, cell: Cell) -> None:
        """Remove what is not to be kept."""
        if self._own_root is not None:
            for path in self._own_root.glob(f"*-c-generated/{cell.corruption}-{cell.severity}-*"):
                path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End what is under way."""
        self._stopped.set()
        for helper in self._helpers:
            helper.end()

    def _close(self) -> None:
        self.stop()
        for helper in self._helpers:
            helper.close()

    def _go_on(self, what: str, done: int, total: int | None) -> None:
        if self._stopped.is_set():
            raise _Stopped


class _Stopped(Exception):
    """Nobody waits for this set any more."""


class Helper:
    """A process that makes sets, seen from the one that started it; it ends when it is closed or its starter is gone.

    It reads lines of JSON: first where the clean images lie, then one corruption and severity at a time, each answered
    by a line that holds an error or null. One thread at a time may ask it.
    """

    def __init__(self, clean: Path, images: data.ImageSet, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rbue.lab.shift.corrupted_sets import help_starter; help_starter()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the starter, who ends its helpers
        )
        facts = {"name": images.name, "split": images.split, "mean": images.mean}
        self._tell({"clean": str(clean), "root": str(root), **facts})

    def make(self, cell: Cell) -> None:
        """Have one set made and cached."""
        self._tell({"corruption": cell.corruption, "severity": cell.severity})
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RbueError(
                f"a helper process ended while making {cell} (exit code {self._process.wait()}; out of memory?); "
                "the same command continues with what is missing."
            )
        problem = json.loads(answer)
        if problem is not None:
            raise RbueError(problem)

    def end(self) -> None:
        """End the process, whatever it is doing; who waits for an answer gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let go of an ended process when nobody waits for its answer any more."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer will say it
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer until there are no more questions."""
    first = json.loads(questions.readline())
    images = np.load(first["clean"], mmap_mode="r", allow_pickle=False)
    labels = np.zeros(len(images), dtype=np.int64)
    mean = tuple(first["mean"])
    clean = data.ImageSet(images, labels, ("unknown",), first["name"], first["split"], mean, mean)
    for line in questions:
        wanted = json.loads(line)
        problem = None
        try:
            corrupted(clean, wanted["corruption"], wanted["severity"], root=first["root"], published=False)
        except (RbueError, OSError) as error:
            problem = str(error)
        answers.write(json.dumps(problem) + "\n")
        answers.flush()


def help_starter() -> None:
    """Be a helper process; what a library prints must not get between the answers."""
    to_starter, sys.stdout = sys.stdout, sys.stderr
    with contextlib.suppress(BrokenPipeError):  # the starter is gone
        serve(sys.stdin, to_starter)

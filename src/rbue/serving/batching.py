"""A bounded queue of requests in front of one engine, and which of them go into a call together.

A request's answer has the same bits whatever else is asked at the time. Its images count from 0 in the random stream,
so their masks are those of a :func:`rbue.predict` of these images alone. Sums are another matter: a library chooses how
to add by the size of a batch, so the last bits of an image may differ between a batch of one and of eight. Within one
size they depend neither on the place of a row nor on the other rows. Hence three ways:

- ``auto``: at the start images are run alone and in every size of batch. If all bits agree, requests share calls, and
  if not, each has calls of its own. Either way an answer has the bits of a direct ``predict``.
- ``padded``: every call has one size, filled up with copies of its last image. Answers are as independent, and within
  rounding of a direct ``predict``; an idle server pays for the empty places.
- ``off``: each request has calls of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from rbue.serving.engines import Answers, Engine, Numbers, Sampling

BATCHING = ("auto", "padded", "off")


class QueueFull(Exception):
    """No more requests can wait."""


class Stopping(Exception):
    """The server takes no more requests."""


@dataclass(eq=False)
class _Job:
    x: Numbers
    sampling: Sampling
    deadline: float
    future: asyncio.Future[Answers]
    joins: bool
    arrived: float = field(default_factory=time.monotonic)

    @property
    def is_wanted(self) -> bool:
        return not self.future.done() and time.monotonic() < self.deadline


class Batcher:
    """Runs requests in a thread of its own, in the order they come, some of them together.

    Args:
        engine: what answers.
        most: images in a call of several requests.
        wait: seconds that the first request of a call waits for others, if nothing else is being done.
        queue: requests that may wait.
        batching: one of :data:`BATCHING`.
        watch: is told the number of images of each call and its seconds.

    Attributes:
        joins: whether requests share calls.
        closing: whether no more requests are taken.
    """

    def __init__(
        self,
        engine: Engine,
        most: int,
        wait: float,
        queue: int,
        batching: str,
        watch: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._engine, self._most, self._wait, self._queue, self._watch = engine, most, wait, queue, watch
        self._batching = batching
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self.closing = False
        self._thread = ThreadPoolExecutor(1, "rbue-engine", initializer=engine.begin_thread)
        self._worker: asyncio.Task[None] | None = None
        self.joins = False

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._jobs)

    @property
    def failed(self) -> bool:
        """Whether nothing will be answered any more, by a fault of this class."""
        return self._worker is not None and self._worker.done() and not self.closing

    @property
    def words(self) -> str:
        """How requests share calls."""
        if self._batching == "padded" and self._engine.joins:
            return f"every call has {self._most} images, filled up"
        if self.joins:
            return f"requests share calls of up to {self._most} images"
        return "each request has calls of its own"

    async def start(self) -> None:
        """Warm the engine up, find out whether requests may share calls, and begin."""
        loop = asyncio.get_running_loop()
        self.joins = await loop.run_in_executor(self._thread, self._may_join)
        self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Take no more requests, answer those that wait, and end."""
        self.closing = True
        self._wake.set()
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    async def answer(self, x: Numbers, sampling: Sampling, deadline: float) -> Answers:
        """The prediction of the images ``(B, ...)`` of one request.

        Raises:
            QueueFull: too many others wait.
            Stopping: the server takes no more.
            TimeoutError: it was not begun before the deadline, in the time of ``time.monotonic``.
        """
        if self.closing:
            raise Stopping
        if len(self._jobs) >= self._queue:
            raise QueueFull
        usual = sampling.samples == self._engine.samples and not sampling.stops_early  # others were not compared
        future = asyncio.get_running_loop().create_future()
        job = _Job(x, sampling, deadline, future, self.joins and usual)
        self._jobs.append(job)
        self._wake.set()
        try:
            return await job.future
        except asyncio.CancelledError:  # nobody waits for it any more
            with suppress(ValueError):
                self._jobs.remove(job)
            raise

    def _may_join(self) -> bool:
        engine = self._engine
        usual = Sampling(engine.samples, keep=engine.keeps)
        x, index = engine.inputs.noise(self._most), np.zeros(self._most, np.int64)
        alone = [engine.predict(x[:1], index[:1], usual)]
        if not engine.joins or self._batching == "off" or self._most == 1:
            return False
        if self._batching == "padded":
            engine.predict(x, index, usual)  # so that the first request need not wait for what a size needs
            return True
        alone += [engine.predict(x[k : k + 1], index[:1], usual) for k in range(1, self._most)]
        for size in range(2, self._most + 1):
            together = engine.predict(x[:size], index[:size], usual)
            if not all(_same_bits(together[k : k + 1], alone[k]) for k in range(size)):
                return False
        return True

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs or not self.closing:
            if not self._jobs:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._gather()
            group = self._take()
            if not group:
                continue
            found = await loop.run_in_executor(self._thread, self._run, group)
            for job, answer in zip(group, found, strict=True):
                if job.future.done():  # its client has waited long enough
                    continue
                if isinstance(answer, Exception):
                    job.future.set_exception(answer)
                else:
                    job.future.set_result(answer)

    async def _gather(self) -> None:
        """Wait for others to join the first, as long as it may wait and there is room."""
        first = self._jobs[0]
        until = min(first.arrived + self._wait, first.deadline)
        while first.joins and not self.closing and sum(len(job.x) for job in self._jobs if job.joins) < self._most:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Job]:
        """The next request and those that share its call, taken out of the queue; none if no one waits any more."""
        group: list[_Job] = []
        others: deque[_Job] = deque()
        images = 0
        while self._jobs:
            job = self._jobs.popleft()
            if not job.is_wanted:
                if not job.future.done():
                    job.future.set_exception(TimeoutError())
            elif not group or (
                job.joins and group[0].joins and job.sampling.seed == group[0].sampling.seed
                and images + len(job.x) <= self._most
            ):  # fmt: skip
                group.append(job)
                images += len(job.x)
            else:
                others.append(job)
        self._jobs = others
        return group

    def _run(self, group: Sequence[_Job]) -> list[Answers | Exception]:
        """In the engine's thread: an answer, or an error, for each request."""
        start = time.monotonic()
        try:
            x = np.concatenate([job.x for job in group])
            index = np.concatenate([np.arange(len(job.x)) for job in group])
            keep = any(job.sampling.keep for job in group)
            answers = self._predict(x, index, replace(group[0].sampling, keep=keep), group[0].joins)
        except Exception as error:
            if len(group) == 1:  # a future takes no StopIteration
                return [RuntimeError(repr(error)) if isinstance(error, StopIteration) else error]
            return [one for job in group for one in self._run([job])]  # one request must not spoil another's answer
        self._watch(len(x), time.monotonic() - start)
        ends = np.cumsum([len(job.x) for job in group])
        return [answers[end - len(job.x) : end] for job, end in zip(group, ends, strict=True)]

    def _predict(self, x: Numbers, index: Numbers, sampling: Sampling, joins: bool) -> Answers:
        if not joins or self._batching != "padded":
            return self._engine.predict(x, index, sampling)
        parts = []
        for start in range(0, len(x), self._most):
            rows, numbers = (values[start : start + self._most] for values in (x, index))
            missing = ((0, self._most - len(rows)),)
            padded = np.pad(rows, (*missing, *[(0, 0)] * (x.ndim - 1)), mode="edge")
            parts.append(self._engine.predict(padded, np.pad(numbers, missing, mode="edge"), sampling)[: len(rows)])
        return Answers.joined(parts)


def _same_bits(one: Answers, other: Answers) -> bool:
    pairs = ((one.probs, other.probs), (one.samples, other.samples), (one.std, other.std))
    return all(a is b is None or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)

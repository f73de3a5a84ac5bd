"""Turn a stream of sampled outputs into a prediction, whoever draws the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from rbue.call_sites.batch import Batch, as_batch
from rbue.errors import InvalidInput, RbueError, warn
from rbue.prediction import Prediction, RunningMoments
from rbue.random_stream import INDEPENDENT, Cycle
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.keeping import Keeping, KeptSums
from rbue.sampling.tasks import Outputs, Task, looks_like_probs, task_of


class SampleStream(Protocol):
    """Anything that can draw numbered samples of numbered images: random passes, members, weight draws."""

    def __call__(self, x: Any, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ``(which images, which samples, outputs (s, b, ...))`` until all are done."""


class NotFinite(InvalidInput):
    """Outputs of a network that are no numbers, of images that are."""


class SampleProgress:
    """Counts drawn samples in a progress bar on standard error; plain silence where that is not a terminal."""

    def __init__(self, samples: int, images: int | None, what: str = "sampling") -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError as error:
            raise RbueError("progress=True needs rich; pip install rich, or leave progress out.") from error
        columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=None if images is None else samples * images)

    def advance(self, drawn: int) -> None:
        """Note samples drawn, or found not to be needed."""
        self._progress.advance(self._task, drawn)

    def __enter__(self) -> SampleProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


@dataclass(eq=False)
class _Drawing:
    """Samples of one batch on their way into statistics, the first ``keep`` of them kept.

    Attributes:
        statistics: of what was drawn so far.
        beside: sums of what else is kept of it.
        kept: the first samples, ``(keep, B, ...)``; None before any is drawn, or if none is to be kept.
    """

    stream: SampleStream
    x: Tensor | Batch
    images: Tensor
    task: Task
    keep: int
    report: SampleProgress | None = None
    keeping: Keeping | None = None

    def __post_init__(self) -> None:
        self.statistics = self.task.statistics(len(self.x), self.x.device)
        self.beside = KeptSums(self.keeping or Keeping((), self.task), len(self.x), self.x.device)
        self.kept: Tensor | None = None
        self.looks_like_probs: Tensor | None = None
        self.done = 0

    def draw(self, target: int, active: Tensor, fewer: Mapping[int, RunningMoments] | None = None) -> None:
        """Draw until the images ``active`` have ``target`` samples; ``fewer`` are given the first so many of them."""
        numbers = torch.arange(self.done, target, dtype=torch.int32, device=self.x.device)
        for batch, stack, out in self.stream(self.x[active], numbers, self.images[active]):
            out = self.beside.take(active[batch], out)
            if self.task.remedy and self.looks_like_probs is None:
                self.looks_like_probs = looks_like_probs(out)
            drawn = self.task.sampled(out)
            self.statistics.add(active[batch], drawn)
            for count, statistics in (fewer or {}).items():
                if count > self.done + stack.start:
                    statistics.add(active[batch], drawn[: count - self.done - stack.start])
            self._keep(slice(self.done + stack.start, min(self.done + stack.stop, self.keep)), batch, drawn)
            if self.report is not None:
                self.report.advance(drawn.shape[0] * drawn.shape[1])
        self.done = target

    def check(self) -> None:
        """Refuse numbers that are none, and warn of probabilities that are taken for logits.

        All answers are fetched at once and at the end: a GPU would stand still for each.
        """
        mean = self.statistics.mean
        questions = {"finite": torch.isfinite(mean).all()}
        if self.x.is_cuda:
            questions["finite images"] = ~as_batch(self.x).not_finite().any()
        if self.looks_like_probs is not None:
            questions["probabilities"] = self.looks_like_probs
        answers = dict(zip(questions, torch.stack(list(questions.values())).tolist(), strict=True))
        if not answers.get("finite images", True):
            refuse_infinite_images(self.x, self.images)
        if not answers["finite"]:
            bad = self.images[(~torch.isfinite(mean.reshape(len(mean), -1))).any(1)][0]
            kind = self.x.device.type
            half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
            raise NotFinite(
                f"the network returned NaN or infinity, first for image {_unsigned(bad)}; "
                + (
                    "float16 ends at 65,504, so use bfloat16 or float32."
                    if half
                    else "if a clamp(min=0) that keeps numbers from being negative was made random too (rbue.sites "
                    "lists them), leave it out with where=."
                )
            )
        if answers.get("probabilities", False):
            warn(f"the network's outputs look like probabilities, and are taken for logits; {self.task.remedy}")

    def _keep(self, places: slice, batch: slice, drawn: Tensor) -> None:
        if places.start >= places.stop:
            return
        if self.kept is None:
            self.kept = drawn.new_empty((self.keep, len(self.x), *drawn.shape[2:]))
        self.kept[places, batch] = drawn[: places.stop - places.start]


def collect(
    stream: SampleStream,
    x: Tensor | Batch,
    images: Tensor,
    samples: int,
    *,
    seed: int,
    outputs: Outputs = None,
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    report: SampleProgress | None = None,
    draws: str = "independent",
    cycle: Cycle = INDEPENDENT,
    keeping: Keeping | None = None,
    undivided: Callable[[], bool] = lambda: False,
    remedy: str | None = None,
) -> Any:
    """Draw samples of one batch and keep running statistics of them: the prediction that belongs to ``outputs``.

    ``draws`` says what kind of samples they are, ``cycle`` how they balance each other. With ``keeping`` the outputs
    hold what is to be kept (:meth:`~rbue.sampling.keeping.Keeping.beside_scores`). Images of an ``undivided`` batch,
    which may turn out while it is drawn from, settle together. ``remedy`` takes the place of the task's.
    """
    plan = [samples] if adaptive is None else adaptive.rounds(samples)
    task = _advising(task_of(outputs), remedy)
    if adaptive is not None and task.of_probabilities and adaptive.tolerance >= 1:
        raise InvalidInput(f"tolerance must lie in (0, 1) for probabilities, not {adaptive.tolerance}.")
    drawing = _Drawing(stream, x, images, task, samples if return_samples else 0, report, keeping)
    active = torch.arange(len(x), device=x.device)
    for target in plan:
        drawing.draw(target, active)
        if adaptive is not None and target != plan[-1]:
            settled = adaptive.settled(drawing.statistics, active, len(plan), cycle)
            settled &= settled.all() | (not undivided())
            if report is not None:
                report.advance(int(settled.sum()) * (plan[-1] - target))
            active = active[~settled]
            if len(active) == 0:
                break
    drawing.check()
    prediction = drawing.statistics.prediction(seed, drawing.kept, draws=draws, outputs=task.name)
    return replace(prediction, **drawing.beside.means(drawing.statistics.count)) if keeping else prediction


def collect_at(
    stream: SampleStream,
    x: Tensor,
    images: Tensor,
    counts: Sequence[int],
    *,
    seed: int,
    keep: int = 0,
    draws: str = "independent",
    remedy: str | None = None,
) -> list[Prediction]:
    """The predictions after each of some rising numbers of samples, drawn once; the last has its first ``keep``.

    All samples are asked for at once: a stream makes passes of one size of them, and each size costs time to prepare.
    """
    *fewer, most = counts
    drawing = _Drawing(stream, x, images, _advising(task_of("logits"), remedy), keep)
    statistics = {count: drawing.task.statistics(len(x), x.device) for count in fewer}
    drawing.draw(most, torch.arange(len(x), device=x.device), statistics)
    drawing.check()
    result = drawing.statistics.prediction(seed, drawing.kept, draws=draws)
    return [*(statistics[count].prediction(seed, draws=draws) for count in fewer), result]


def _advising(task: Task, remedy: str | None) -> Task:
    return task if remedy is None else replace(task, remedy=remedy)


def refuse_infinite_images(x: Tensor | Batch, images: Tensor) -> None:
    """Raise an error if an image holds NaN or infinity; ``images`` are the numbers to name it by."""
    bad = images[as_batch(x).not_finite()]
    if len(bad):
        raise InvalidInput(f"x holds NaN or infinity, first in image {_unsigned(bad[0])}; clean the input.")


def _unsigned(number: Tensor) -> int:
    """The number of an image, which travels as an ``int32`` word."""
    return int(number) % (1 << 32)

"""Turn a stream of sampled outputs into a prediction, whoever draws the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from rbue.errors import InvalidInput, RbueError, warn
from rbue.prediction import Prediction, RunningStatistics
from rbue.random_stream import INDEPENDENT, Cycle
from rbue.sampling.adaptive import Adaptive

_SUM_ROUNDING = 1e-5
"""Sums of ``float32`` probabilities are closer to one than this."""


class SampleStream(Protocol):
    """Anything that can draw numbered samples of numbered images: random passes, members, weight draws."""

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ``(which images, which samples, outputs (s, b, ...))`` until all are done."""


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


class _Drawing:
    """Samples of one batch on their way into statistics, the first ``keep`` of them kept.

    Attributes:
        statistics: of what was drawn so far.
        kept: the first samples, ``(keep, B, C, ...)``; None before any is drawn, or if none is to be kept.
    """

    def __init__(
        self, stream: SampleStream, x: Tensor, images: Tensor, outputs: str, keep: int, report: SampleProgress | None
    ) -> None:
        self.stream, self.x, self.images = stream, x, images
        self.outputs, self.keep, self.report = outputs, keep, report
        self.statistics = RunningStatistics(len(x), x.device)
        self.kept: Tensor | None = None
        self.looks_like_probs: Tensor | None = None
        self.done = 0

    def draw(self, target: int, active: Tensor, fewer: Mapping[int, RunningStatistics] | None = None) -> None:
        """Draw until the images ``active`` have ``target`` samples; ``fewer`` are given the first so many of them."""
        numbers = torch.arange(self.done, target, dtype=torch.int32, device=self.x.device)
        for batch, stack, out in self.stream(self.x[active], numbers, self.images[active]):
            if self.outputs == "logits" and batch.start == 0 and self.done + stack.start == 0:
                self.looks_like_probs = _looks_like_probs(out)
            probs = probabilities(out, self.outputs)
            if self.outputs == "probs":
                probs = _without_rounding(probs)
            self.statistics.add(active[batch], probs)
            for count, statistics in (fewer or {}).items():
                if count > self.done + stack.start:
                    statistics.add(active[batch], probs[: count - self.done - stack.start])
            self._keep(slice(self.done + stack.start, min(self.done + stack.stop, self.keep)), batch, probs)
            if self.report is not None:
                self.report.advance(probs.shape[0] * probs.shape[1])
        self.done = target

    def check(self, probs: Tensor) -> None:
        """Refuse numbers that are none, and warn of probabilities that are taken for logits.

        All answers are fetched at once and at the end: a GPU would stand still for each.
        """
        questions = {"finite": torch.isfinite(probs).all()}
        if self.x.is_cuda:
            questions["finite images"] = torch.isfinite(self.x).all()
        if self.looks_like_probs is not None:
            questions["probabilities"] = self.looks_like_probs
        answers = dict(zip(questions, torch.stack(list(questions.values())).tolist(), strict=True))
        if not answers.get("finite images", True):
            refuse_infinite_images(self.x, self.images)
        if not answers["finite"]:
            bad = self.images[(~torch.isfinite(probs.flatten(1))).any(1)][0]
            raise InvalidInput(
                f"the network returned NaN or infinity, first for image {_unsigned(bad)}; if a clamp(min=0) that keeps "
                "numbers from being negative was made random too (rbue.sites lists them), leave it out with where=."
            )
        if answers.get("probabilities", False):
            warn(
                "the network's outputs look like probabilities, and are taken for logits; use outputs='probs' if it "
                "ends in a softmax or a sigmoid."
            )

    def _keep(self, places: slice, batch: slice, probs: Tensor) -> None:
        if places.start >= places.stop:
            return
        if self.kept is None:
            self.kept = probs.new_empty((self.keep, len(self.x), *probs.shape[2:]))
        self.kept[places, batch] = probs[: places.stop - places.start]


def collect(
    stream: SampleStream,
    x: Tensor,
    images: Tensor,
    samples: int,
    *,
    seed: int,
    outputs: str = "logits",
    adaptive: Adaptive | None = None,
    return_samples: bool = False,
    report: SampleProgress | None = None,
    draws: str = "independent",
    cycle: Cycle = INDEPENDENT,
) -> Prediction:
    """Draw samples of one batch and keep running statistics of their probabilities.

    ``draws`` says what kind of samples they are, ``cycle`` how they balance each other.
    """
    plan = [samples] if adaptive is None else adaptive.rounds(samples)
    drawing = _Drawing(stream, x, images, outputs, samples if return_samples else 0, report)
    active = torch.arange(len(x), device=x.device)
    for target in plan:
        drawing.draw(target, active)
        if adaptive is not None and target != plan[-1]:
            settled = adaptive.settled(drawing.statistics, active, len(plan), cycle)
            if report is not None:
                report.advance(int(settled.sum()) * (plan[-1] - target))
            active = active[~settled]
            if len(active) == 0:
                break
    result = drawing.statistics.prediction(seed, drawing.kept, draws)
    drawing.check(result.probs)
    return result


def collect_at(
    stream: SampleStream,
    x: Tensor,
    images: Tensor,
    counts: Sequence[int],
    *,
    seed: int,
    keep: int = 0,
    draws: str = "independent",
) -> list[Prediction]:
    """The predictions after each of some rising numbers of samples, drawn once; the last has its first ``keep``.

    All samples are asked for at once: a stream makes passes of one size of them, and each size costs time to prepare.
    """
    *fewer, most = counts
    drawing = _Drawing(stream, x, images, "logits", keep, None)
    statistics = {count: RunningStatistics(len(x), x.device) for count in fewer}
    drawing.draw(most, torch.arange(len(x), device=x.device), statistics)
    result = drawing.statistics.prediction(seed, drawing.kept, draws)
    drawing.check(result.probs)
    return [*(statistics[count].prediction(seed, draws=draws) for count in fewer), result]


def probabilities(out: Tensor, outputs: str) -> Tensor:
    """Network outputs ``(s, b, C, ...)`` as class probabilities; one column becomes two classes."""
    if out.dim() == 2:
        out = out.unsqueeze(2)
    short = out.dtype in (torch.float16, torch.bfloat16)
    out = out.float() if short else out
    single = out.shape[2] == 1
    if outputs == "logits":
        if single:
            return torch.cat([torch.sigmoid(-out), torch.sigmoid(out)], dim=2)
        return torch.softmax(out, dim=2)
    if single:
        out = torch.cat([1 - out, out], dim=2)
    total = out.sum(2)
    worst, least = float(total.flatten()[(total - 1).abs().argmax()]), float(out.min())
    if abs(worst - 1) > (1e-2 if short else 1e-3) or least < -1e-6:
        wrong = f"one is {least:.4g}" if least < -1e-6 else f"those of an image sum to {worst:.4g}"
        remedy = "use outputs='logits'."
        if least >= 0 and float(out.max()) <= 1:  # logits would hardly all lie there, sigmoids do
            remedy = "for p of several labels, each with a sigmoid, return torch.stack([1 - p, p], 1)."
        raise InvalidInput(f"outputs='probs', but the network's outputs are not probabilities: {wrong}; {remedy}")
    return out


def _without_rounding(probs: Tensor) -> Tensor:
    """Probabilities that only rounding made negative, or keeps from summing to one, mended; all others as they are.

    The entropy of a negative number is infinite, and no metric takes sums as far off as those of half precision.
    """
    probs = probs.clamp(min=0)
    total = probs.sum(2, keepdim=True)
    return torch.where((total - 1).abs() > _SUM_ROUNDING, probs / total, probs)


def _looks_like_probs(out: Tensor) -> Tensor:
    """Whether a network's outputs lie between 0 and 1, and either sum to one or fill that range as sigmoids do.

    The logits of a trained network hardly do, and those of a fresh one lie close together.
    """
    precision = 1e-2 if out.dtype in (torch.float16, torch.bfloat16) else 1e-4
    least, most = out.aminmax()
    alike = most - least > 0.5
    if out.dim() > 2 and out.shape[2] > 1:
        alike |= (out.float().sum(2) - 1).abs().max() < precision
    return (least >= 0) & (most <= 1 + precision) & alike


def refuse_infinite_images(x: Tensor, images: Tensor) -> None:
    """Raise an error if an image holds NaN or infinity; ``images`` are the numbers to name it by."""
    bad = images[(~torch.isfinite(x.flatten(1) if x.dim() > 1 else x.unsqueeze(1))).any(1)]
    if len(bad):
        raise InvalidInput(f"x holds NaN or infinity, first in image {_unsigned(bad[0])}; clean the input.")


def _unsigned(number: Tensor) -> int:
    """The number of an image, which travels as an ``int32`` word."""
    return int(number) % (1 << 32)

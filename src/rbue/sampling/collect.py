"""Turn a stream of sampled outputs into a prediction, whoever draws the samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from rbue.errors import InvalidInput, RbueWarning
from rbue.prediction import Prediction, RunningStatistics
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.progress import SampleProgress


class SampleStream(Protocol):
    """Anything that can draw numbered samples of numbered images: random passes, members, weight draws."""

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ``(which images, which samples, outputs (s, b, ...))`` until all are done."""


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
) -> Prediction:
    """Draw samples of one batch and keep running statistics of their probabilities."""
    plan = [samples] if adaptive is None else adaptive.rounds(samples)
    statistics = RunningStatistics(len(x), x.device)
    active = torch.arange(len(x), device=x.device)
    kept: Tensor | None = None
    done = 0
    for target in plan:
        numbers = torch.arange(done, target, dtype=torch.int32, device=x.device)
        for batch, stack, out in stream(x[active], numbers, images[active]):
            if outputs == "logits" and batch.start == 0 and stack.start == 0 and done == 0:
                _warn_of_probabilities(out)
            probs = probabilities(out, outputs)
            statistics.add(active[batch], probs)
            if return_samples:
                if kept is None:
                    kept = probs.new_empty((target, len(x), *probs.shape[2:]))
                kept[stack, batch] = probs
            if report is not None:
                report.advance(probs.shape[0] * probs.shape[1])
        done = target
        if adaptive is not None and target != plan[-1]:
            settled = adaptive.settled(statistics, active, len(plan))
            if report is not None:
                report.advance(int(settled.sum()) * (plan[-1] - target))
            active = active[~settled]
            if len(active) == 0:
                break
    result = statistics.prediction(seed, kept)
    _check_finite(result.probs)
    return result


def collect_at(
    stream: SampleStream, x: Tensor, images: Tensor, counts: Sequence[int], *, seed: int, keep: int = 0
) -> list[Prediction]:
    """The predictions after each of some rising numbers of samples, drawn once; the last has its first ``keep``."""
    statistics = RunningStatistics(len(x), x.device)
    rows = torch.arange(len(x), device=x.device)
    kept: Tensor | None = None
    found: list[Prediction] = []
    for done, target in pairwise([0, *counts]):
        numbers = torch.arange(done, target, dtype=torch.int32, device=x.device)
        for batch, stack, out in stream(x, numbers, images):
            probs = probabilities(out, "logits")
            statistics.add(rows[batch], probs)
            if kept is None:
                kept = probs.new_empty((keep, len(x), *probs.shape[2:]))
            places = slice(done + stack.start, min(done + stack.stop, keep))
            if places.start < places.stop:
                kept[places, batch] = probs[: places.stop - places.start]
        found.append(statistics.prediction(seed, kept if target == counts[-1] and keep else None))
    _check_finite(found[-1].probs)
    return found


def probabilities(out: Tensor, outputs: str) -> Tensor:
    """Network outputs ``(s, b, C, ...)`` as class probabilities; one column becomes two classes."""
    if out.dim() == 2:
        out = out.unsqueeze(2)
    out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
    single = out.shape[2] == 1
    if outputs == "logits":
        if single:
            return torch.cat([torch.sigmoid(-out), torch.sigmoid(out)], dim=2)
        return torch.softmax(out, dim=2)
    if single:
        out = torch.cat([1 - out, out], dim=2)
    total = out.sum(2)
    worst, least = float(total.flatten()[(total - 1).abs().argmax()]), float(out.min())
    if abs(worst - 1) > 1e-3 or least < -1e-6:
        wrong = f"one is {least:.4g}" if least < -1e-6 else f"those of an image sum to {worst:.4g}"
        raise InvalidInput(
            f"outputs='probs', but the network's outputs are not probabilities: {wrong}; use outputs='logits'."
        )
    return out


def _warn_of_probabilities(out: Tensor) -> None:
    if out.dim() < 3 or out.shape[2] == 1:
        return
    precision = 1e-2 if out.dtype in (torch.float16, torch.bfloat16) else 1e-4
    sums = out.float().sum(2)
    if bool((out.min() >= 0) & ((sums - 1).abs().max() < precision)):
        warnings.warn(
            "the network's outputs look like probabilities, and are taken for logits; use outputs='probs' if it ends "
            "in a softmax.",
            RbueWarning,
            stacklevel=2,
        )


def _check_finite(probs: Tensor) -> None:
    if not bool(torch.isfinite(probs).all()):
        bad = (~torch.isfinite(probs.flatten(1))).any(1).nonzero()[0]
        raise InvalidInput(
            f"the network returned NaN or infinity, first for image {int(bad)}; if a clamp(min=0) that keeps numbers "
            "from being negative was made random too (rbue.sites lists them), leave it out with where=."
        )

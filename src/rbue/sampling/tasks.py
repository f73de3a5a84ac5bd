"""What the outputs of a network mean: how they are read, what of them is averaged, and which prediction comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rbue.errors import InvalidInput, RbueError, did_you_mean
from rbue.prediction import (
    GaussianStatistics,
    MultiLabelStatistics,
    RegressionStatistics,
    RunningMoments,
    RunningStatistics,
)
from rbue.sampling.passes import Reader, class_scores

Outputs = str | Callable[[Any], Tensor] | None
"""The name of a task, or a function that makes a tensor ``(B, ...)`` of what a network returns."""

_SUM_ROUNDING = 1e-5
"""Sums of ``float32`` probabilities are closer to one than this."""
_TELLING = 8
"""Fewer logits than this may all lie between 0 and 1 by chance."""


@dataclass(frozen=True)
class Task:
    """One meaning of outputs.

    Attributes:
        name: what ``outputs`` calls it.
        sampled: makes of outputs ``(s, b, ...)`` what is averaged.
        statistics: gathers that and makes the prediction.
        read: makes one tensor ``(rows, ...)`` of what the network returns.
        remedy: what to do with outputs that look like probabilities and are taken for logits; None if they are not.
    """

    name: str
    sampled: Callable[[Tensor], Tensor]
    statistics: type[RunningMoments] = RunningStatistics
    read: Reader = class_scores
    remedy: str | None = None

    @property
    def of_classes(self) -> bool:
        """Whether one class of several is the answer."""
        return self.statistics is RunningStatistics

    @property
    def of_probabilities(self) -> bool:
        """Whether probabilities are averaged."""
        return not issubclass(self.statistics, RegressionStatistics)


def task_of(outputs: Outputs) -> Task:
    """The task of this name, or that of a function."""
    if callable(outputs):
        name = getattr(outputs, "__name__", type(outputs).__name__)
        return Task(name, _precise, RegressionStatistics, _OwnReader(outputs))
    found = TASKS.get("logits" if outputs is None else outputs) if isinstance(outputs, str | None) else None
    if found is None:
        guess = did_you_mean(outputs, TASKS) if isinstance(outputs, str) else ""
        raise InvalidInput(
            f"outputs must be {', '.join(map(repr, TASKS))} or a function of what the network returns, not "
            f"{outputs!r}{guess}."
        )
    return found


def _precise(out: Tensor) -> Tensor:
    """Outputs in at least single precision."""
    return out.float() if out.dtype in (torch.float16, torch.bfloat16) else out


def _shape(out: Tensor) -> str:
    """The shape of a network's outputs, of which ``out`` is ``(s, b, ...)``."""
    return f"(B{''.join(f', {size}' for size in out.shape[2:])})" if out.dim() > 2 else "(B,)"


def _is_single(out: Tensor) -> bool:
    return out.dim() == 2 or out.shape[2] == 1


def class_probabilities(out: Tensor) -> Tensor:
    """The softmax of logits ``(s, b, C, ...)``; one number an image has no softmax, and two meanings."""
    if _is_single(out):
        raise InvalidInput(
            f"the network returned one number an image, {_shape(out)}, which has two meanings; give outputs='binary' "
            "if it is the logit of a yes-or-no question, or outputs='values' for regression."
        )
    return torch.softmax(_precise(out), dim=2)


def _two_classes(out: Tensor) -> Tensor:
    """One logit as the probabilities of two classes, ``(s, b, 2, ...)``."""
    if not _is_single(out):
        raise InvalidInput(
            f"outputs='binary' is for one logit an image, but the network returned {_shape(out)}; give "
            "outputs='logits' for one class an image, or outputs='multilabel' for any number of labels."
        )
    out = _precise(out.unsqueeze(2) if out.dim() == 2 else out)
    return torch.cat([torch.sigmoid(-out), torch.sigmoid(out)], dim=2)


def given_probabilities(out: Tensor) -> Tensor:
    """Outputs ``(s, b, C, ...)`` that are probabilities; one column becomes two classes."""
    short = out.dtype in (torch.float16, torch.bfloat16)
    out = _precise(out.unsqueeze(2) if out.dim() == 2 else out)
    if out.shape[2] == 1:
        out = torch.cat([1 - out, out], dim=2)
    total = out.sum(2)
    worst, least = float(total.flatten()[(total - 1).abs().argmax()]), float(out.min())
    if abs(worst - 1) > (1e-2 if short else 1e-3) or least < -1e-6:
        wrong = f"one is {least:.4g}" if least < -1e-6 else f"those of an image sum to {worst:.4g}"
        remedy = "use outputs='logits'."
        if least >= 0 and float(out.max()) <= 1:  # logits would hardly all lie there, sigmoids do
            remedy = (
                "for p of several labels, each with a sigmoid, return torch.stack([1 - p, p], 1), or the logits with "
                "outputs='multilabel'."
            )
        raise InvalidInput(f"outputs='probs', but the network's outputs are not probabilities: {wrong}; {remedy}")
    return out


def _mended_probabilities(out: Tensor) -> Tensor:
    """Probabilities that only rounding made negative, or keeps from summing to one, mended; all others as they are.

    The entropy of a negative number is infinite, and no metric takes sums as far off as those of half precision.
    """
    probs = given_probabilities(out).clamp(min=0)
    total = probs.sum(2, keepdim=True)
    return torch.where((total - 1).abs() > _SUM_ROUNDING, probs / total, probs)


def _label_probabilities(out: Tensor) -> Tensor:
    """The sigmoid of one logit for each label, ``(s, b, K, ...)``."""
    if out.dim() == 2:
        raise InvalidInput(
            "outputs='multilabel' is for a logit for each label, (B, K), but the network returned (B,); give "
            "outputs='binary' for one question."
        )
    return torch.sigmoid(_precise(out))


def _quantiles(out: Tensor) -> Tensor:
    """Quantiles ``(s, b, Q)``."""
    if out.dim() != 3 or out.shape[2] < 2:
        raise InvalidInput(
            f"outputs='quantiles' is for at least two quantiles an image, (B, Q), but the network returned "
            f"{_shape(out)}; give outputs='values' for anything else."
        )
    return _precise(out)


def _classes_last(output: Any) -> Tensor:
    """Logits ``(rows, T, C)`` as ``(rows, C, T)``, where pixels and tokens stand everywhere else."""
    scores = class_scores(output)
    if scores.dim() < 3:
        raise InvalidInput(
            f"outputs='tokens' is for scores of each token, (B, T, C), but the network returned {tuple(scores.shape)}; "
            "leave it out for one class an input."
        )
    return scores.movedim(-1, 1)


def mean_and_variance(output: Any) -> Tensor:
    """A mean and a variance as ``(rows, 2, ...)``: of two tensors, an object or dict with both, or such a tensor."""
    if not isinstance(output, Tensor):
        pair: Any = output
        if isinstance(output, Mapping) and {"mean", "variance"} <= output.keys():
            pair = (output["mean"], output["variance"])
        elif hasattr(output, "mean") and hasattr(output, "variance"):  # such as a torch.distributions.Normal
            pair = (output.mean, output.variance)
        if isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(one, Tensor) for one in pair):
            if pair[0].shape != pair[1].shape:
                mean, variance = (tuple(one.shape) for one in pair)
                raise RbueError(f"the network returned a mean of shape {mean} and a variance of shape {variance}.")
            return torch.stack(list(pair), 1) if pair[0].dim() else pair[0]
        output = class_scores(output)
    if output.dim() < 2 or output.shape[1] != 2:
        raise InvalidInput(
            "outputs='gaussian' is for a mean and a variance: a tuple of two tensors, an object or dict with 'mean' "
            f"and 'variance', or a tensor (B, 2, ...); the network returned shape {tuple(output.shape)}."
        )
    return output


def positive_variance(out: Tensor) -> Tensor:
    """Means and variances ``(s, b, 2, ...)``."""
    least = float(out[:, :, 1].detach().min())
    if least <= 0:
        raise InvalidInput(
            f"outputs='gaussian', but the network returned the variance {least:.4g}, and a variance is positive; if it "
            "is a log-variance, return its exp()."
        )
    return _precise(out)


@dataclass(frozen=True)
class _OwnReader:
    """A function of the user's; equal ones make equal plans."""

    function: Callable[[Any], Tensor]

    def __hash__(self) -> int:
        try:
            return hash(self.function)
        except TypeError:  # an object of a class that compares its own way
            return id(self.function)

    def __call__(self, output: Any) -> Tensor:
        found = self.function(output)
        if not isinstance(found, Tensor):
            raise InvalidInput(
                f"the function given as outputs returned {type(found).__name__}; it has to return a tensor (B, ...)."
            )
        return found


_BEFORE_SOFTMAX = "use outputs='probs' if it ends in a softmax or a sigmoid."
TASKS = {
    "logits": Task("logits", class_probabilities, remedy=_BEFORE_SOFTMAX),
    "probs": Task("probs", _mended_probabilities),
    "binary": Task("binary", _two_classes, remedy=_BEFORE_SOFTMAX),
    "tokens": Task("tokens", class_probabilities, read=_classes_last, remedy=_BEFORE_SOFTMAX),
    "multilabel": Task(
        "multilabel", _label_probabilities, MultiLabelStatistics, remedy="if it ends in a sigmoid, leave that out."
    ),
    "values": Task("values", _precise, RegressionStatistics),
    "gaussian": Task("gaussian", positive_variance, GaussianStatistics, mean_and_variance),
    "quantiles": Task("quantiles", _quantiles, RegressionStatistics),
}


def looks_like_probs(out: Tensor) -> Tensor:
    """Whether a network's outputs lie between 0 and 1, and either sum to one or fill that range as sigmoids do.

    The logits of a trained network hardly do, but for very few of them, and those of a fresh one lie close together.
    """
    precision = 1e-2 if out.dtype in (torch.float16, torch.bfloat16) else 1e-4
    least, most = out.aminmax()
    alike = (most - least > 0.8) & (out[0].numel() >= _TELLING)
    if out.dim() > 2 and out.shape[2] > 1:
        alike |= (out.float().sum(2) - 1).abs().max() < precision
    return (least >= 0) & (most <= 1 + precision) & alike

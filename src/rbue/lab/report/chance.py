"""What of a comparison is more than chance: intervals over the test images, and the methods that they tell apart.

All methods answered the same images. A bootstrap draws as many images again, with replacement, and measures every
method on the same draw (Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 1979). Hard
images are hard for all methods, so that differences of two methods on one draw move less than either of them.

Several methods are several chances to find a difference that is none. With ``d`` the differences of all pairs, ``d*``
those of a draw and ``s`` their standard deviations over draws, two methods are told apart if ``|d| > c s``. Here
``c`` is the 95 % quantile, over draws, of the largest ``|d* - mean(d*)| / s`` of all pairs: with 95 % confidence, no
pair of equal methods is told apart (Westfall and Young, Resampling-Based Multiple Testing, 1993; single-step max-T).

Test images are the only chance in this: another training would move the numbers too, which needs more seeds to see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue.lab.report.tables import percent
from rbue.metrics.calibration_error import top_label
from rbue.metrics.classification import log_losses, squared_errors
from rbue.metrics.sets import binomial_interval

Floats = NDArray[np.float64]

_percent = partial(percent, digits=1, gap=" ")

CONFIDENCE = 0.95
DRAWS = 2000
FEWEST = 30
"""With fewer images no two methods are told apart: a bootstrap of so few finds differences too often."""
ECE_BINS = 30


@dataclass(frozen=True)
class Resampled:
    """One measure of several methods, on the test images and on draws of them.

    Attributes:
        methods: their names.
        values: ``(methods,)`` on the images themselves.
        draws: ``(draws, methods)``.
        intervals: ``(methods, 2)``.
        images: how many there are.
        higher: whether more is better.
    """

    methods: tuple[str, ...]
    values: Floats
    draws: Floats
    intervals: Floats
    images: int
    higher: bool

    def interval(self, method: str) -> tuple[float, float]:
        """Where the measure of a method lies, with 95 % confidence."""
        low, high = self.intervals[self.methods.index(method)]
        return float(low), float(high)

    @cached_property
    def margins(self) -> Floats:
        """``(methods, methods)`` differences that chance alone may bring, with all pairs in mind."""
        pairs = self.draws[:, :, None] - self.draws[:, None, :]
        pairs -= pairs.mean(0)
        std = pairs.std(0)
        ratios = np.divide(np.abs(pairs), std, out=np.zeros_like(pairs), where=std > 0)
        return np.asarray(np.quantile(ratios.max((1, 2)), CONFIDENCE, method="higher") * std)

    def apart(self, one: str, other: str) -> bool:
        """Whether two methods differ by more than chance."""
        if self.images < FEWEST:
            return False
        first, second = self.methods.index(one), self.methods.index(other)
        # Equal answers differ by rounding alone.
        margin = max(self.margins[first, second], 1e-9)
        return bool(abs(self.values[first] - self.values[second]) > margin)

    @cached_property
    def ahead(self) -> list[str]:
        """The best method and those that cannot be told from it, the best first."""
        order = np.argsort(-self.values if self.higher else self.values, kind="stable")
        first = self.methods[order[0]]
        return [name for name in (self.methods[place] for place in order) if not self.apart(first, name)]

    def is_best(self, method: str) -> bool:
        """Whether a method is better than every other one by more than chance."""
        return len(self.methods) > 1 and self.ahead == [method]


def resample(
    probs: Mapping[str, Sequence[Floats]], labels: NDArray[np.int64], draws: int = DRAWS
) -> dict[str, Resampled]:
    """Accuracy, ECE, NLL and Brier score of methods with their chance, under these names.

    The interval of a measure ``m`` is ``m + [q(2.5 %), q(97.5 %)]`` of ``m* - mean(m*)`` over draws. Taking off the
    mean does nothing to a mean over images; the ECE of a draw is larger than that of the images, and that is no chance.
    Where each image is right or wrong, the interval of accuracy is the exact one of a share
    (:func:`rbue.metrics.binomial_interval`), since a bootstrap of sixty right answers knows of no wrong one.

    Args:
        probs: method -> ``(images, classes)`` of each of its trainings, which count as their mean.
        labels: ``(images,)``.
        draws: how often to draw.
    """
    names, images = tuple(probs), len(labels)
    runs = [(name, _run_scores(one, labels)) for name, trainings in probs.items() for one in trainings]
    random, found = np.random.default_rng(0), []
    for start in range(0, draws, 100):
        picked = (random.integers(0, images, images) for _ in range(min(100, draws - start)))
        counts = np.stack([np.bincount(one, minlength=images) for one in picked]) / images
        found.append(np.stack([_measured(counts, scores) for _, scores in runs], 1))
    drawn = np.concatenate(found)  # (draws, runs, measures)
    values = np.stack([_measured(np.full((1, images), 1 / images), scores)[0] for _, scores in runs])
    of_method = np.array([[name == one for one, _ in runs] for name in names], dtype=float)
    of_method /= of_method.sum(1, keepdims=True)
    values, drawn = of_method @ values, of_method @ drawn
    tail = (1 - CONFIDENCE) / 2
    spread = np.quantile(drawn - drawn.mean(0), [tail, 1 - tail], axis=0)  # (2, methods, measures)
    result = {}
    for place, (measure, higher) in enumerate((("accuracy", True), ("ece", False), ("nll", False), ("brier", False))):
        intervals = (values[:, place] + spread[:, :, place]).T.clip(0, 1 if measure in ("accuracy", "ece") else None)
        if measure == "accuracy" and len(runs) == len(names):
            right = torch.from_numpy((values[:, place] * images).round())
            intervals = torch.stack(binomial_interval(right, torch.full_like(right, images), CONFIDENCE), 1).numpy()
        result[measure] = Resampled(names, values[:, place], drawn[:, :, place], intervals, images, higher)
    return result


def _run_scores(probs: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Accuracy, NLL and Brier of each image, ``(images, 3)``; what it adds to the gap of each bin of the ECE."""
    given, truth = torch.from_numpy(np.asarray(probs, dtype=float)), torch.from_numpy(labels)
    confidence, correct = (one.numpy() for one in top_label(given, truth))
    losses = log_losses(given, truth), squared_errors(given, truth)
    means = np.stack([correct.astype(float), *(one.double().numpy() for one in losses)], 1)
    inner = np.arange(1, ECE_BINS) / ECE_BINS
    gaps = np.zeros((len(labels), ECE_BINS))
    gaps[np.arange(len(labels)), np.searchsorted(inner, confidence, side="left")] = correct - confidence
    return means, gaps


def _measured(weights: Floats, scores: tuple[Floats, Floats]) -> Floats:
    """``(draws, 4)``: accuracy, ECE, NLL and Brier where images have these weights, ``(draws, images)``."""
    means, gaps = weights @ scores[0], np.abs(weights @ scores[1]).sum(1)
    return np.stack([means[:, 0], gaps, means[:, 1], means[:, 2]], 1)


def verdict(measures: Mapping[str, Resampled]) -> str:
    """What a comparison came to, in one to three sentences that respect chance.

    Args:
        measures: from :func:`resample`.
    """
    accuracy, nll = measures["accuracy"], measures["nll"]
    names, images = accuracy.methods, f"{accuracy.images:,} image{'s' if accuracy.images != 1 else ''}"
    if len(names) == 1:
        low, high = accuracy.interval(names[0])
        return (
            f"`{names[0]}` is right on {_percent(accuracy.values[0])} of {images} (95 % interval: {_percent(low)} to "
            f"{_percent(high)}). There is no other method to compare it with."
        )
    if accuracy.images < FEWEST:
        return f"{images[0].upper()}{images[1:]} are too few to tell {listed(names)} apart; measure at least {FEWEST}."
    sets = [one.ahead if len(one.ahead) < len(names) else [] for one in (accuracy, nll)]
    whats = [
        f"accuracy ({_percent(accuracy.values.max())})" if len(sets[0]) == 1 else "accuracy",
        f"likelihood (NLL {nll.values.min():.3f})" if len(sets[1]) == 1 else "likelihood (NLL)",
    ]
    if not any(sets):
        none = not any(one.apart(a, b) for one in (accuracy, nll) for a in names for b in names)
        who = listed(names) if len(names) < 4 else f"The {len(names)} methods"
        said = f"{who} {'cannot be told apart' if none else 'have no winner'} on {images}, neither by "
        said += f"{whats[0]} nor by {whats[1]}."
    elif set(sets[0]) == set(sets[1]):
        said = f"On {images} {_ahead(sets[0], names, ' and in '.join(whats))}."
    else:
        parts = (
            _ahead(best, names, what) if best else f"no method is ahead in {what}"
            for best, what in zip(sets, whats, strict=True)
        )
        said = f"On {images} {'; '.join(parts)}."
    margin = float(np.median(accuracy.margins[np.triu_indices(len(names), 1)]))
    scale = f" Only differences in accuracy above about {100 * margin:.{0 if margin > 0.02 else 1}f} points would show."
    return said + (scale if margin > 0 and not sets[0] else "")


def _ahead(best: Sequence[str], names: Sequence[str], what: str) -> str:
    others = [name for name in names if name not in best]
    behind = listed(others) if len(others) == 1 else f"the other {len(others)}"
    if len(best) == 1:
        return f"{listed(best)} is ahead of {behind} in {what}, by more than chance"
    return f"{listed(best)} lead in {what}, in an order that may be chance, ahead of {behind}"


def listed(names: Sequence[Any]) -> str:
    """Names as code, the last one after an ``and``."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last

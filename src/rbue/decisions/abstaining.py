"""Which answers to trust and which to hand to a person: a threshold on any score, with a guarantee.

Scores are higher for surer answers: ``prediction.confidence``, or ``-prediction.entropy``. The curve of what each
threshold would do is :func:`rbue.metrics.risk_coverage`; :func:`rbue.metrics.aurc`, :func:`rbue.metrics.augrc` and
:func:`rbue.metrics.coverage_at_risk` sum it up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from rbue.decisions import _inputs
from rbue.errors import InvalidInput, warn, whole_number
from rbue.metrics import _binomial, _checks

__all__ = ["Abstaining", "fit"]

_STEPS = {"sequence": 100, "union": 20}


@dataclass(frozen=True)
class Abstaining:
    """A threshold that :func:`fit` found; called on scores, it says which images to answer.

    Attributes:
        threshold: Answer above it, and only above it; infinite if no threshold could be guaranteed.
        risk: The error rate that answered images may have.
        confidence: How surely they have no higher one.
        images: How many images the threshold was fitted on.
        answered: How many of them lie above it.
        errors: How many of those were wrong.
        level: Of the test that this threshold passed: ``1 - confidence``, or that divided by the number of tests.
    """

    threshold: float
    risk: float
    confidence: float
    images: int
    answered: int
    errors: int
    level: float

    @property
    def coverage(self) -> float:
        """The fraction of the images it was fitted on that it answers."""
        return self.answered / self.images

    @property
    def risk_bound(self) -> float:
        """The upper bound of Clopper and Pearson for the risk, at the level of the test; at most ``risk``."""
        return _binomial.upper_bound(torch.tensor(self.errors), torch.tensor(self.answered), self.level).item()

    def __call__(self, scores: Any) -> Tensor:
        """Which images to answer, booleans of the shape of ``scores``; the others go to a person."""
        return _inputs.tensor(scores, "scores").double() > self.threshold


def fit(
    scores: Any,
    correct: Any,
    risk: float = 0.05,
    confidence: float = 0.95,
    *,
    search: Literal["sequence", "union"] = "sequence",
    steps: int | None = None,
) -> Abstaining:
    """The threshold ``t`` that answers most with ``P(wrong | score > t) ≤ risk``, with probability ``confidence``.

    With ``k`` errors among the ``m`` surest images, the test is the exact binomial one: ``P(Bin(m, risk) ≤ k) ≤ δ``,
    which says that the upper bound of Clopper and Pearson at level ``δ`` is at most ``risk``. The candidates are
    fixed before any label is seen: the thresholds that answer ``m = n/steps, 2n/steps, … n`` images, from the first
    ``m`` that would pass with half the allowed error rate. A threshold is the score of the surest image that is not
    answered. Equal scores stay together, so fewer may be answered; a candidate that then answers fewer than the first
    ``m`` is left out.

    ``"sequence"``: with ``δ = 1 - confidence`` the candidates are tested from the fewest answers on until one fails,
    and the last that passed is taken: fixed-sequence testing, which pays nothing for many candidates (Angelopoulos et
    al., Learn then Test, arXiv:2110.01052, §3). The guarantee is exact if surer images are not wrong more often:
    ``P(wrong | score)`` does not rise with the score. Why: let ``V`` be the smallest region ``score > t`` that errs
    more often than ``risk``. Below ``V`` each image errs at least that often. A threshold that errs too much can only
    be taken if the first candidate that reaches beyond ``V`` passes. Which one that is follows from the number of
    images in ``V`` and the scores outside. Given these, its errors are at least as many as ``Bin(m, risk)``, so that
    it passes with probability ``δ`` at most.

    ``"union"``: with ``δ = (1 - confidence) / candidates`` all are tested, and the one with the most answers that
    passes is taken. This needs nothing of the score: given the threshold and how many images lie above it, those are
    independent draws from that region, so each test errs with probability ``δ`` at most. It answers somewhat fewer
    images (the union bound; Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017,
    use one too).

    Args:
        scores: One number an image, higher for surer; a tensor or array ``(B,)``.
        correct: Whether each answer is right, ``(B,)``. These images must not have trained or tuned the network.
        risk: The error rate that answered images may have, in (0, 1).
        confidence: How surely, in (0, 1).
        search: ``"sequence"`` or ``"union"``.
        steps: How many candidates at most; 100 in a sequence and 20 in a union without it.

    Raises:
        InvalidInput: if there are too few images to guarantee it even without any error; it says how many would do.

    Example:
        >>> scores = torch.arange(1000) / 1000
        >>> rule = fit(scores, torch.arange(1000) >= 200, risk=0.05)
        >>> rule.answered, rule.errors, round(rule.risk_bound, 4)
        (830, 30, 0.0487)
        >>> rule(torch.tensor([0.1, 0.9]))
        tensor([False,  True])
    """
    scores = _inputs.tensor(scores, "scores")
    if scores.ndim != 1:
        raise InvalidInput(
            f"scores has shape {tuple(scores.shape)}; give one score an image, (B,): pixels of one image are not "
            "independent, so nothing could be promised for them."
        )
    values, right = _checks.scores_and_flags(scores.double(), _inputs.tensor(correct, "correct"), "scores", "correct")
    risk, confidence = _inputs.fraction(risk, "risk"), _inputs.fraction(confidence, "confidence")
    if search not in _STEPS:
        raise InvalidInput(f'search is {search!r}; give "sequence" or "union".')
    steps = _STEPS[search] if steps is None else whole_number(steps, "steps")
    images = len(values)
    level = 1 - confidence
    counts = _candidates(images, risk, level, steps)
    if search == "union":
        level /= len(counts)
    needed = _needed(risk, level)
    if images < needed:
        raise InvalidInput(
            f"{images} images are too few for risk {risk} with confidence {confidence}; give at least {needed}, "
            "or a higher risk."
        )
    values, order = values.sort(descending=True)
    wrong = torch.cat([torch.zeros(1, dtype=torch.int64), (~right[order]).long().cumsum(0).cpu()])
    values = values.cpu()
    thresholds = torch.cat([values, values.new_tensor([-math.inf])])[counts]
    # Equal scores stay together: as many as lie strictly above.
    answered = torch.searchsorted(-values, -thresholds)
    errors = wrong[answered]
    passed = _binomial.cdf(errors, answered, torch.tensor(risk, dtype=torch.float64)) <= level
    # Leaving out by the number of answers keeps both arguments: they hold given that number.
    left_out = answered < counts[0]
    passed &= ~left_out
    if search == "sequence":
        passed &= (passed | left_out).long().cumprod(0).bool()
    if not bool(passed.any()):
        warn(
            f"abstaining.fit: no threshold has a risk of at most {risk} with confidence {confidence} on {images} "
            "images, so that nothing is answered; allow a higher risk, or give more images."
        )
        return Abstaining(math.inf, risk, confidence, images, 0, 0, level)
    best = int(passed.nonzero()[-1])
    found = int(answered[best]), int(errors[best])
    return Abstaining(thresholds[best].item(), risk, confidence, images, *found, level)


@lru_cache(maxsize=64)
def _candidates(images: int, risk: float, level: float, steps: int) -> Tensor:
    """How many images each candidate answers, rising; fixed by the number of images, never by their labels."""
    counts = torch.unique((torch.arange(1, steps + 1) * images).div(steps, rounding_mode="floor"))
    # The first has to pass in spite of some errors, or one wrong image among the surest would end the sequence.
    chance = torch.tensor(risk, dtype=torch.float64)
    fair = _binomial.cdf((counts * (chance / 2)).floor(), counts, chance) <= level
    if bool(fair.any()):
        return counts[int(fair.nonzero()[0]) :]
    return counts[counts >= min(images, _needed(risk, level))]


def _needed(risk: float, level: float) -> int:
    """The least ``m`` with ``(1 - risk)^m ≤ level``."""
    return math.ceil(math.log(level) / math.log1p(-risk))

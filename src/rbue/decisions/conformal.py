"""Sets of classes, and intervals of numbers, that hold the truth as often as they say: split conformal prediction.

A score ``s(x, y)`` says how badly ``y`` fits the prediction for ``x``. With the scores ``s_1 … s_n`` of ``n`` held-out
images and their true answers, ``q`` is the ``⌈(n + 1)·coverage⌉``-th smallest, and the set of a new image is
``{y: s(x, y) ≤ q}``. If the new image and the held-out ones are exchangeable, it holds the truth with probability
``coverage`` at least, and with ``coverage + 1 / (n + 1)`` at most if no two scores are equal, whatever the network
(Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; Lei et al., Distribution-Free Predictive
Inference for Regression, JASA 2018). The probability is over held-out and new images alike. Use images that neither
trained nor tuned the network, its temperature included.

    >>> probs = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]])
    >>> sets = LAC().fit(probs, torch.tensor([0, 1, 0, 1]), coverage=0.7)
    >>> sets(torch.tensor([[0.5, 0.5], [0.65, 0.35]]))
    tensor([[False, False],
            [ True, False]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbue.decisions import _inputs
from rbue.errors import InvalidInput, whole_number
from rbue.metrics import _checks
from rbue.prediction import Regression

__all__ = [
    "APS", "LAC", "RAPS", "ConformalIntervals", "ConformalSets", "Intervals", "NormalisedResiduals",
    "QuantileResiduals", "Residuals", "rank_of_threshold",
]  # fmt: skip


def rank_of_threshold(images: int, coverage: float) -> int:
    """``⌈(n + 1)·coverage⌉``: which of the ``n`` scores, from the smallest, is the threshold.

    ``coverage`` is taken for the decimal that it is written as, so that 0.9 of 10 is 9 and no rounding makes it 10.

    Raises:
        InvalidInput: if that is more than ``n``; it says how many images would do.

    Example:
        >>> rank_of_threshold(99, 0.9), rank_of_threshold(9, 0.9)
        (90, 9)
    """
    exact = _decimal(coverage)
    rank = math.ceil((images + 1) * exact)
    if rank > images:
        raise InvalidInput(
            f"{images} images are too few for coverage {coverage}; give at least {_needed(exact)}, or a lower coverage."
        )
    return rank


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Thresholds that ``fit`` of :class:`LAC`, :class:`APS` or :class:`RAPS` found; a call gives sets.

    Attributes:
        score: What was fitted.
        thresholds: ``q``: one number ``()``, or ``(C,)`` with ``by_class``; infinite where every set holds the class.
        coverage: What was asked for.
        images: How many images it was fitted on, ``()``, or those of each class ``(C,)``.
        classes: The number of classes.
        seed: Of the random numbers, if the score is randomised.
        temperature: What the prediction it was fitted on was scaled by; None if that is not known.
    """

    score: LAC
    thresholds: Tensor
    coverage: float
    images: Tensor
    classes: int
    seed: int = 0
    temperature: float | None = None
    _next: int = field(default=0, init=False, repr=False)

    def __call__(self, prediction: Any, *, first: int | None = None, never_empty: bool = False) -> Tensor:
        """The sets ``{y: s(x, y) ≤ q}`` as booleans ``(B, C)``.

        Args:
            prediction: Of new images: a ``Prediction``, probabilities ``(B, C)`` or samples ``(S, B, C)``.
            first: The number of the first image, if the score is randomised: image ``k`` has the ``k``-th random number
                of the seed. Without it images go on from those of the last call, so that calls in order give the sets
                that all images at once would. ``first=0`` gives the same images the same sets again. Images that all
                have the same number share a random number, and the coverage does not hold.
            never_empty: Put the most probable class into a set that would be empty. It can only add to the coverage.
        """
        probs = _inputs.probabilities(prediction)
        if probs.shape[1] != self.classes:
            raise InvalidInput(f"prediction has {probs.shape[1]} classes; these sets were fitted on {self.classes}.")
        given, fitted = _inputs.temperature_of(prediction), self.temperature
        if given is not None and fitted is not None and not math.isclose(given, fitted, rel_tol=1e-6):
            raise InvalidInput(
                f"prediction has the temperature {given:.4g}, and these sets were fitted at {fitted:.4g}, so they "
                "would not cover; fit them anew, or predict with that temperature. Samples are never scaled."
            )
        first = self._next if first is None else whole_number(first, "first", least=0)
        object.__setattr__(self, "_next", first + len(probs))
        found = self.score.scores(probs, _uniforms(len(probs), self.seed, "new", first))
        sets = found <= self.thresholds.to(found.device)
        if never_empty:
            sets[~sets.any(1), probs.argmax(1)[~sets.any(1)]] = True
        return sets


@dataclass(frozen=True)
class LAC:
    """Least ambiguous sets: ``s(x, y) = 1 - p_y``, every class above one probability.

    They are the smallest on average if the probabilities are right, and may be empty (Sadinle, Lei and Wasserman, Least
    Ambiguous Set-Valued Classifiers With Bounded Error Levels, JASA 2019).

    Example:
        >>> probs = torch.tensor([[0.75, 0.25]]).repeat(9, 1)
        >>> LAC().fit(probs, torch.zeros(9, dtype=torch.int64), coverage=0.9).thresholds.item()
        0.25
    """

    def scores(self, probs: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """``s(x, y)`` of every class, ``(B, C)`` in float64; ``uniforms`` ``(B,)`` are for randomised scores."""
        return 1 - probs.double()

    def fit(
        self,
        prediction: Any,
        labels: Any,
        coverage: float = 0.9,
        *,
        by_class: bool = False,
        too_few: Literal["error", "whole"] = "error",
        seed: int = 0,
    ) -> ConformalSets:
        """Find the threshold on held-out images.

        Args:
            prediction: Of held-out images: a ``Prediction``, probabilities ``(B, C)`` or samples ``(S, B, C)``.
            labels: Their classes ``(B,)``.
            coverage: How often a set has to hold the true class, in (0, 1).
            by_class: Whether each class gets a threshold from its own images, so that the coverage holds for each (the
                Mondrian form, Vovk, Conditional Validity of Inductive Conformal Predictors, ACML 2012).
            too_few: What to do with a class (or all) that has fewer images than the coverage needs: an error that says
                how many, or an infinite threshold, with which the class is in the whole of the sets.
            seed: Of the random numbers, if the score is randomised. New images get others than held-out ones.
        """
        probs = _inputs.probabilities(prediction)
        labels = _inputs.labels_of(labels, probs)
        exact = _decimal(coverage)
        if too_few not in ("error", "whole"):
            raise InvalidInput(f'too_few is {too_few!r}; give "error" or "whole".')
        uniforms = _uniforms(len(probs), whole_number(seed, "seed", least=0), "held out")
        own = self.scores(probs, uniforms).gather(1, labels[:, None]).squeeze(1)
        classes, scaled = probs.shape[1], _inputs.temperature_of(prediction)
        if not by_class:
            found = _threshold(own, coverage, too_few)
            return ConformalSets(self, found, float(coverage), torch.tensor(len(own)), classes, seed, scaled)
        images = labels.bincount(minlength=classes)
        if too_few == "error" and int(images.min()) < _needed(exact):
            rare = int(images.argmin())
            raise InvalidInput(
                f"class {rare} has {int(images[rare])} images, too few for coverage {coverage}; give at least "
                f'{_needed(exact)} of each class, or too_few="whole" to have such a class in every set.'
            )
        found = torch.stack([_threshold(own[labels == one], coverage, too_few) for one in range(classes)])
        return ConformalSets(self, found, float(coverage), images, classes, seed, scaled)


@dataclass(frozen=True)
class APS(LAC):
    """Adaptive sets: ``s(x, y) = Σ_{p_j before p_y} p_j + u·p_y``, classes from the most probable down.

    ``u`` is uniform in [0, 1) for each image, or 1 without ``randomised``: the sets are then larger than needed, and
    equal for equal images. Of equally probable classes the one with the lower number comes first (Romano, Sesia and
    Candès, Classification with Valid and Adaptive Coverage, NeurIPS 2020).

    Example:
        >>> APS(randomised=False).scores(torch.tensor([[0.25, 0.5, 0.25]]))
        tensor([[0.7500, 0.5000, 1.0000]], dtype=torch.float64)
    """

    randomised: bool = field(default=True, kw_only=True)

    def scores(self, probs: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """``s(x, y)`` of every class, ``(B, C)`` in float64; ``uniforms`` are ``u``, ``(B,)``."""
        ordered, order = probs.double().sort(dim=1, descending=True, stable=True)
        found = ordered.cumsum(1)
        if self.randomised:
            if uniforms is None:
                raise InvalidInput("uniforms is None; a randomised score needs one number in [0, 1) an image.")
            # What comes before each, shifted by one place: found - ordered would round twice.
            before = torch.cat([torch.zeros_like(found[:, :1]), found[:, :-1]], 1)
            found = before + uniforms.to(ordered)[:, None] * ordered
        return torch.empty_like(found).scatter_(1, order, found + self._penalties(found))

    def _penalties(self, ordered: Tensor) -> Tensor:
        return torch.zeros(ordered.shape[1], dtype=torch.float64, device=ordered.device)


@dataclass(frozen=True)
class RAPS(APS):
    """Regularised adaptive sets: ``s(x, y) = APS(x, y) + penalty·max(0, o(y) - free_ranks)``; the rank ``o`` is from 1.

    The penalty keeps the improbable tail of many classes out; the paper calls the constants λ and k_reg (Angelopoulos
    et al., Uncertainty Sets for Image Classifiers using Conformal Prediction, ICLR 2021). They must not come from the
    images that ``fit`` sees.

    Example:
        >>> RAPS(0.1, free_ranks=1, randomised=False).scores(torch.tensor([[0.25, 0.5, 0.25]]))
        tensor([[0.8500, 0.5000, 1.2000]], dtype=torch.float64)
    """

    penalty: float = 0.01
    free_ranks: int = 5

    def __post_init__(self) -> None:
        """Refuse constants that make no sense."""
        if not isinstance(self.penalty, (Real, Tensor)) or not 0 <= self.penalty < math.inf:
            raise InvalidInput(f"penalty is {self.penalty!r}; give a number of at least 0.")
        whole_number(self.free_ranks, "free_ranks", least=0)

    def _penalties(self, ordered: Tensor) -> Tensor:
        ranks = torch.arange(1, ordered.shape[1] + 1, dtype=torch.float64, device=ordered.device)
        return float(self.penalty) * (ranks - self.free_ranks).clamp_min(0)


class Intervals(NamedTuple):
    """An interval for each number, both ends of it inside."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """A threshold that ``fit`` of a residual found; called on a prediction, it gives :class:`Intervals`.

    Attributes:
        score: What was fitted.
        threshold: ``q``.
        coverage: What was asked for.
        images: How many images it was fitted on.
    """

    score: Residuals
    threshold: float
    coverage: float
    images: int

    def __call__(self, prediction: Any) -> Intervals:
        """The interval ``{y: s(x, y) ≤ q}`` of each image, ends of shape ``(B,)`` in float64."""
        low, high, width = self.score.parts(prediction)
        return Intervals(low - self.threshold * width, high + self.threshold * width)


@dataclass(frozen=True)
class Residuals:
    """Intervals of one width: ``s(x, y) = |y - mean|``, and ``mean ± q`` (Lei et al., JASA 2018).

    A prediction is a ``Regression``, or a tensor or array of means ``(B,)``.

    Example:
        >>> mean, targets = torch.zeros(9), torch.arange(1.0, 10.0)
        >>> intervals = Residuals().fit(mean, targets, coverage=0.9)
        >>> intervals(torch.tensor([5.0]))
        Intervals(lower=tensor([-4.], dtype=torch.float64), upper=tensor([14.], dtype=torch.float64))
    """

    _needs: ClassVar[str] = "a Regression with one number an image, or means (B,)"

    def parts(self, prediction: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Lower end, upper end and the width that the threshold multiplies, each ``(B,)`` in float64."""
        mean = self._numbers(prediction.mean if isinstance(prediction, Regression) else prediction)
        return mean, mean, torch.ones_like(mean)

    def fit(self, prediction: Any, targets: Any, coverage: float = 0.9) -> ConformalIntervals:
        """Find the threshold on held-out images.

        Args:
            prediction: Of held-out images.
            targets: Their true numbers ``(B,)`` or ``(B, 1)``.
            coverage: How often an interval has to hold the true number, in (0, 1).
        """
        low, high, width = self.parts(prediction)
        true = self._numbers(targets, "targets")
        if len(true) != len(low):
            raise InvalidInput(f"targets has {len(true)} numbers for {len(low)} images; give one each.")
        scores = torch.maximum(low - true, true - high) / width
        rank = rank_of_threshold(len(scores), coverage)
        return ConformalIntervals(self, scores.kthvalue(rank).values.item(), float(coverage), len(scores))

    def _numbers(self, values: Any, name: str = "prediction") -> Tensor:
        found = _inputs.tensor(values, name)
        if found.ndim == 2 and found.shape[1] == 1:
            found = found.squeeze(1)
        if found.ndim != 1:
            raise InvalidInput(f"{name} has shape {tuple(found.shape)}; give {self._needs}.")
        return _checks.numbers({name: found})[0]


@dataclass(frozen=True)
class NormalisedResiduals(Residuals):
    """Intervals as wide as the prediction is unsure: ``s(x, y) = |y - mean| / std``, and ``mean ± q·std``.

    A prediction is a ``Regression``, or a pair ``(mean, std)`` (Papadopoulos et al., Regression Conformal Prediction
    with Nearest Neighbours, JAIR 2011; Lei et al., JASA 2018, §5.2).

    Attributes:
        least: Added to every standard deviation, where it may be 0.

    Example:
        >>> mean, std, targets = torch.zeros(9), torch.full((9,), 2.0), torch.arange(1.0, 10.0)
        >>> intervals = NormalisedResiduals().fit((mean, std), targets, coverage=0.9)
        >>> intervals((torch.tensor([5.0]), torch.tensor([4.0]))).upper
        tensor([23.], dtype=torch.float64)
    """

    least: float = 0.0
    _needs: ClassVar[str] = "a Regression with one number an image, or a pair of means (B,) and stds (B,)"

    def parts(self, prediction: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Lower end, upper end and the width that the threshold multiplies, each ``(B,)`` in float64."""
        if isinstance(prediction, Regression):
            prediction = (prediction.mean, prediction.std)
        if not isinstance(prediction, tuple) or len(prediction) != 2:
            raise InvalidInput(f"prediction is a {type(prediction).__name__}; give {self._needs}.")
        mean, std = (self._numbers(values) for values in prediction)
        width = std + self.least
        if len(mean) != len(std) or not bool((width > 0).all()):
            raise InvalidInput(
                f"the {len(std)} standard deviations for {len(mean)} means are from {float(width.min()):.6g} on; give "
                "as many, all positive, or NormalisedResiduals(least=...)."
            )
        return mean, mean, width


@dataclass(frozen=True)
class QuantileResiduals(Residuals):
    """Conformalised quantiles: ``s(x, y) = max(low - y, y - high)``, and from ``low - q`` to ``high + q``.

    The interval between a network's outer quantiles is widened, or narrowed, until it covers (CQR: Romano, Patterson
    and Candès, Conformalized Quantile Regression, NeurIPS 2019). A prediction is a ``Regression`` of
    ``outputs="quantiles"`` or an array of quantiles ``(B, Q)``, of which the first and the last are taken. Where
    ``q`` is so negative that the ends would cross, the interval is empty: its lower end is then the greater one.

    Example:
        >>> quantiles, targets = torch.tensor([[-1.0, 1.0]]).repeat(9, 1), torch.arange(1.0, 10.0)
        >>> QuantileResiduals().fit(quantiles, targets, coverage=0.9)(torch.tensor([[-2.0, 2.0]])).upper
        tensor([10.], dtype=torch.float64)
    """

    _needs: ClassVar[str] = 'a Regression of outputs="quantiles", or quantiles (B, Q) with Q of at least 2'

    def parts(self, prediction: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Lower end, upper end and the width that the threshold multiplies, each ``(B,)`` in float64."""
        if isinstance(prediction, Regression) and prediction.outputs != "quantiles":
            raise InvalidInput(f"prediction is of outputs={prediction.outputs!r}; give {self._needs}.")
        mean = prediction.mean if isinstance(prediction, Regression) else prediction
        values = _inputs.tensor(mean, "prediction")
        if values.ndim != 2 or values.shape[1] < 2:
            raise InvalidInput(f"prediction has shape {tuple(values.shape)}; give {self._needs}.")
        low, high = self._numbers(values[:, 0]), self._numbers(values[:, -1])
        return low, high, torch.ones_like(low)


def _decimal(coverage: float) -> Fraction:
    return Fraction(repr(_inputs.fraction(coverage, "coverage")))


def _needed(coverage: Fraction) -> int:
    """The least ``n`` with ``(n + 1)·coverage ≤ n``."""
    return math.ceil(coverage / (1 - coverage))


def _threshold(scores: Tensor, coverage: float, too_few: str) -> Tensor:
    if too_few == "whole" and len(scores) < _needed(_decimal(coverage)):
        return scores.new_tensor(math.inf)
    return scores.kthvalue(rank_of_threshold(len(scores), coverage)).values


def _uniforms(images: int, seed: int, part: str, first: int = 0) -> Tensor:
    """One number in [0, 1) an image, by its number: held-out and new images have streams of their own."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, 0 if part == "held out" else 1]))
    return torch.from_numpy(np.random.Generator(bits.advance(first)).random(images))

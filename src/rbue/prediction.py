"""What a user gets back: the mean of many random passes, and how much they spread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from rbue import random_stream
from rbue.calibration import Temperature


@dataclass(frozen=True, eq=False)
class Sampled:
    """What every prediction holds besides its numbers; see :class:`Prediction`."""

    samples_used: Tensor = field(kw_only=True)
    seed: int = field(kw_only=True)
    samples: Tensor | None = field(default=None, kw_only=True)
    stream_version: int = field(default=random_stream.VERSION, kw_only=True)
    draws: str = field(default="independent", kw_only=True)
    outputs: str = field(default="logits", kw_only=True)

    _main: ClassVar[str]
    """The field with the mean."""

    def __len__(self) -> int:
        return self.samples_used.shape[0]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of an image's mean output."""
        return tuple(getattr(self, self._main).shape[1:])

    def to(self: _Kind, device: torch.device | str) -> _Kind:
        """The same prediction with its tensors on another device."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        moved: dict[str, Any] = {name: x.to(device) for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **moved)

    def _described(self, what: str, *numbers: str) -> str:
        drawn = self.samples_used
        count = f"{int(drawn.min())}" if drawn.min() == drawn.max() else f"{int(drawn.min())} to {int(drawn.max())}"
        parts = (f"{len(self)} inputs", what, f"{count} {self.draws} samples each", f"seed={self.seed}", *numbers)
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Sampled):
    """The outcome of ``samples_used`` stochastic passes of a classifier for each image (paper §3.3).

    Attributes:
        probs: mean class probabilities, ``(B, C, ...)``, scaled by ``temperature``.
        variance: population variance of the sampled probabilities, ``(B, C, ...)``.
        votes: how many samples had each class as their most probable one, integers, ``(B, C, ...)``.
        expected_entropy: mean over samples of their entropies, in nats, ``(B, ...)``.
        samples_used: number of samples drawn for each image, ``(B,)``.
        samples: the raw sampled probabilities ``(S, B, C, ...)`` if they were asked for.
        seed: the seed of the draws.
        stream_version: version of the random stream; equal seeds, draws and versions mean equal bits.
        draws: ``"independent"`` or ``"balanced"``. Balanced samples err less in the mean, not in themselves: the mean
            is unbiased either way. Within a cycle of ``L`` samples they differ a little more than independent ones,
            so the population variance, the entropy of the mean and the mutual information lie nearer their limits.
            Pairwise JSD and disagreement within a cycle grow by up to ``L / (L - 1)``; pairs from different cycles
            are those of independent draws. Votes have the same mean and are not binomial.
        temperature: what the mean of the samples was scaled by (:class:`rbue.calibration.Temperature`); 1 if it was
            not. ``confidence`` and ``entropy`` are those of the scaled mean. What the samples say of their spread
            is left as it was drawn: ``variance``, ``votes``, ``expected_entropy``, ``mutual_information``, ``samples``.
        unscaled_probs: the mean before that; None if it was not scaled.
        logits: mean over samples of the logits, ``(B, C)``; this and what follows are None unless ``keep`` asked for
            them, and no temperature scales them.
        energy: mean over samples of ``-ln Σ_c exp(z_c)`` for logits ``z``, ``(B,)``.
        max_logit: mean over samples of ``max_c z_c``, ``(B,)``.
        features: mean over samples of the classifier's input, ``(B, D)``.
        outputs: what the network's outputs were taken for, such as ``"logits"``; the name of a function that read them.
    """

    probs: Tensor
    variance: Tensor
    votes: Tensor
    expected_entropy: Tensor
    temperature: float = field(default=1.0, kw_only=True)
    unscaled_probs: Tensor | None = field(default=None, kw_only=True)
    logits: Tensor | None = field(default=None, kw_only=True)
    energy: Tensor | None = field(default=None, kw_only=True)
    max_logit: Tensor | None = field(default=None, kw_only=True)
    features: Tensor | None = field(default=None, kw_only=True)

    _main = "probs"

    @property
    def label(self) -> Tensor:
        """The class with the highest mean probability, ``(B, ...)``."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The mean probability of the label, ``(B, ...)``."""
        return self.probs.amax(1)

    @property
    def entropy(self) -> Tensor:
        """Predictive entropy: the entropy of the mean, in nats, ``(B, ...)``."""
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy of the unscaled mean minus mean entropy, in nats: what the samples disagree about, ``(B, ...)``."""
        mean = self.probs if self.unscaled_probs is None else self.unscaled_probs
        return (entropy(mean) - self.expected_entropy).clamp(min=0)

    def scaled(self, temperature: float) -> Prediction:
        """The same samples with their mean scaled by another temperature than before; 1 takes it off."""
        mean = self.probs if self.unscaled_probs is None else self.unscaled_probs
        if temperature == 1:
            return replace(self, probs=mean, temperature=1.0, unscaled_probs=None)
        return replace(self, probs=Temperature(temperature)(mean), temperature=temperature, unscaled_probs=mean)

    def __repr__(self) -> str:
        return self._described(
            f"{self.probs.shape[1]} classes",
            *([] if self.temperature == 1 else [f"temperature {self.temperature:.4g}"]),
            f"mean confidence {self.confidence.mean():.3f}",
            f"mean mutual information {self.mutual_information.mean():.4f}",
        )


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(Sampled):
    """The outcome for a network with a yes-or-no answer for each of ``K`` labels (``outputs="multilabel"``).

    Attributes:
        probs: mean probability of each label, ``(B, K, ...)``; they need not sum to one.
        variance: population variance of the sampled probabilities, ``(B, K, ...)``.
        votes: how many samples gave each label more than one half, integers, ``(B, K, ...)``.
        expected_entropy: mean over samples of each label's entropy, in nats, ``(B, K, ...)``.
        samples_used, seed, samples, stream_version, draws, outputs: as in :class:`Prediction`.
    """

    probs: Tensor
    variance: Tensor
    votes: Tensor
    expected_entropy: Tensor

    _main = "probs"

    @property
    def label(self) -> Tensor:
        """Whether each label is more probable than not, booleans, ``(B, K, ...)``."""
        return self.probs > 0.5

    @property
    def entropy(self) -> Tensor:
        """The entropy of each label's mean probability, in nats, ``(B, K, ...)``."""
        return binary_entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy of each label, in nats, ``(B, K, ...)``."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def __repr__(self) -> str:
        return self._described(
            f"{self.probs.shape[1]} labels",
            f"{self.label.sum(1).double().mean():.2f} of them true on average",
            f"mean mutual information {self.mutual_information.mean():.4f}",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Regression(Sampled):
    """The outcome for a network that returns numbers: ``outputs="values"``, ``"gaussian"``, ``"quantiles"`` or own.

    With ``"gaussian"`` each sample is a normal distribution of mean ``m_s`` and variance ``v_s``, and the prediction is
    their mixture. Its mean is that of ``m_s``; its variance is the mean of ``v_s`` (aleatoric: noise of the data, which
    more training data does not lessen) plus the variance of ``m_s`` (epistemic: what the samples disagree about).

    Attributes:
        mean: mean of the sampled outputs, ``(B, ...)``; of the quantiles ``(B, Q)`` with ``"quantiles"``.
        epistemic: population variance of the sampled outputs, ``(B, ...)``.
        aleatoric: mean of the sampled variances, ``(B, ...)``, with ``"gaussian"``; else None.
        samples_used, seed, stream_version, draws, outputs: as in :class:`Prediction`.
        samples: the sampled outputs ``(S, B, ...)`` if they were asked for; with ``"gaussian"`` means and variances,
            ``(S, B, 2, ...)``.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor | None = None

    _main = "mean"

    @property
    def variance(self) -> Tensor:
        """Total variance, ``(B, ...)``: epistemic, and aleatoric where the network says it."""
        return self.epistemic if self.aleatoric is None else self.epistemic + self.aleatoric

    @property
    def std(self) -> Tensor:
        """The square root of the total variance, ``(B, ...)``; it is epistemic alone but for ``"gaussian"``."""
        return self.variance.sqrt()

    def __repr__(self) -> str:
        one = "x".join(map(str, self.output_shape)) or "1"
        noise = [] if self.aleatoric is None else [f"mean aleatoric std {self.aleatoric.sqrt().mean():.4g}"]
        spread = f"mean epistemic std {self.epistemic.sqrt().mean():.4g}"
        return self._described(f"{one} {self.outputs} each", spread, *noise)


AnyPrediction = Prediction | MultiLabel | Regression
_Kind = TypeVar("_Kind", bound=Sampled)


def entropy(probs: Tensor) -> Tensor:
    """``-Σ p log p`` over dimension 1, in nats, with ``0 log 0 = 0``."""
    return torch.special.entr(probs).sum(1)


def binary_entropy(probs: Tensor) -> Tensor:
    """``-p log p - (1-p) log (1-p)`` of each number, in nats."""
    return torch.special.entr(probs) + torch.special.entr(1 - probs)


def concatenate(parts: Sequence[_Kind]) -> _Kind:
    """One prediction from those of consecutive batches."""
    joined: dict[str, Any] = {}
    for one in fields(parts[0]):
        values = [getattr(part, one.name) for part in parts]
        if all(isinstance(value, Tensor) for value in values):
            joined[one.name] = torch.cat(values, dim=1 if one.name == "samples" else 0)
    return replace(parts[0], **joined)


_AT_ONCE = 1 << 20
"""Numbers of maps that are added up at once."""


class Sums(dict[str, Tensor]):
    """Sums by name over the samples of some images, ``(B, ...)``: memory does not grow with the samples."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self.images = images

    def add(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Add ``values``, ``(b, ...)``, to those of the images ``rows``."""
        if name not in self:
            self[name] = values.new_zeros((self.images, *values.shape[1:]))
        self[name][rows] += values

    def mean(self, name: str, counts: Tensor) -> Tensor:
        """The mean over so many samples an image, in ``float32``."""
        return (self[name] / _counted(counts, self[name])).float()


def precise_float(device: torch.device) -> torch.dtype:
    """What sums are kept in: ``float64`` where there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


class RunningMoments(ABC):
    """Mean and sum of squares of a stream of samples, in memory that does not grow with it.

    A subclass adds up what else its prediction holds, makes the prediction, and says when an answer has settled.
    """

    def __init__(self, images: int, device: torch.device) -> None:
        self.images = images
        self.count = torch.zeros(images, dtype=torch.int64, device=device)
        self._float = precise_float(device)
        self.sums = Sums(images)
        self._moments: tuple[Tensor, Tensor] | None = None

    @property
    def mean(self) -> Tensor:
        """Mean so far, ``(B, C, ...)``."""
        assert self._moments is not None
        return self._moments[0]

    @property
    def squares(self) -> Tensor:
        """Sums of squared deviations from the mean so far, ``(B, C, ...)``."""
        assert self._moments is not None
        return self._moments[1]

    @property
    def variance(self) -> Tensor:
        """Population variance so far, ``(B, C, ...)``."""
        return self.squares / _counted(self.count, self.squares)

    def add(self, rows: Tensor, samples: Tensor) -> None:
        """Take in samples ``(s, b, C, ...)`` of the images ``rows`` (``b`` indices).

        The means and sums of squares of old and new samples are merged exactly (Chan et al., 1979), which
        stays accurate however many chunks there are. Large maps are taken in image by image, a few samples at a time:
        the ``float64`` copies that are made on the way would need several times the memory of the pass they come from.
        """
        if samples.dim() <= 3 or samples.numel() <= _AT_ONCE:
            self._add(rows, samples)
            return
        few = max(1, _AT_ONCE // samples[0, 0].numel())
        for place in range(len(rows)):
            for part in samples[:, place : place + 1].split(few):
                self._add(rows[place : place + 1], part)

    def _add(self, rows: Tensor, samples: Tensor) -> None:
        if self._moments is None:
            zeros = torch.zeros((self.images, *samples.shape[2:]), dtype=self._float, device=samples.device)
            self._moments, self.dtype = (zeros, zeros.clone()), samples.dtype
        samples = samples.to(self._float)
        mean_so_far, squares = self._moments
        new = samples.shape[0]
        old = _counted(self.count[rows], samples[0])
        total = (old + new).to(self._float)  # quotients of integers have torch's default type, which may be a short one
        mean = samples.mean(0)
        shift = mean - mean_so_far[rows]
        apart = shift**2 * (old * new / total)
        squares[rows] += apart if new == 1 else ((samples - mean) ** 2).sum(0) + apart
        mean_so_far[rows] += shift * (new / total)
        self._take(rows, samples)
        self.count[rows] += new

    def _take(self, rows: Tensor, samples: Tensor) -> None:  # noqa: B027 (mean and squares may be all there is)
        """Sum up what else the prediction holds."""

    @abstractmethod
    def prediction(self, seed: int, samples: Tensor | None = None, **settings: str) -> Any:
        """The statistics so far; ``settings`` are ``draws`` and ``outputs``."""

    def settled(self, rows: Tensor, half_width: Tensor, tolerance: float) -> Tensor:
        """Whether each answer of the images ``rows`` is known, if means are within ``half_width``; ``(b, ...)``."""
        return half_width <= tolerance


class _ProbabilityStatistics(RunningMoments):
    """Mean, variance, votes and mean entropy of probabilities."""

    _kind: type[Prediction | MultiLabel]

    def prediction(self, seed: int, samples: Tensor | None = None, **settings: str) -> Any:
        """The statistics so far in ``float32``."""
        return self._kind(
            probs=self.mean.to(torch.float32, copy=True),
            variance=self.variance.float(),
            votes=self.sums["votes"].clone(),
            expected_entropy=self.sums.mean("entropy", self.count),
            samples_used=self.count.clone(),
            seed=seed,
            samples=samples,
            **settings,  # type: ignore[arg-type]
        )


class RunningStatistics(_ProbabilityStatistics):
    """Those of a :class:`Prediction`: of the classes of an image together."""

    _kind = Prediction

    def _take(self, rows: Tensor, samples: Tensor) -> None:
        self.sums.add("votes", rows, _votes(samples))
        self.sums.add("entropy", rows, entropy(samples.flatten(0, 1)).unflatten(0, samples.shape[:2]).sum(0))

    def settled(self, rows: Tensor, half_width: Tensor, tolerance: float) -> Tensor:
        """Means are within the tolerance, and the label leads whatever the correlation of two classes."""
        mean = self.mean[rows]
        top = mean.argmax(1, keepdim=True)
        lead = mean.gather(1, top) - mean
        safe = (lead > half_width.gather(1, top) + half_width).sum(1) == mean.shape[1] - 1
        return (half_width.amax(1) <= tolerance) & safe


class MultiLabelStatistics(_ProbabilityStatistics):
    """Those of a :class:`MultiLabel`: each label by itself."""

    _kind = MultiLabel

    def _take(self, rows: Tensor, samples: Tensor) -> None:
        self.sums.add("votes", rows, (samples > 0.5).sum(0))
        self.sums.add("entropy", rows, binary_entropy(samples).sum(0))

    def settled(self, rows: Tensor, half_width: Tensor, tolerance: float) -> Tensor:
        """Means are within the tolerance, and on one side of one half."""
        return (half_width <= tolerance) & ((self.mean[rows] - 0.5).abs() > half_width)


class RegressionStatistics(RunningMoments):
    """Those of a :class:`Regression`, in the network's own precision."""

    def prediction(self, seed: int, samples: Tensor | None = None, **settings: str) -> Regression:
        """The statistics so far."""
        return Regression(
            mean=self.mean.to(self.dtype, copy=True),
            epistemic=self.variance.to(self.dtype),
            samples_used=self.count.clone(),
            seed=seed,
            samples=samples,
            **settings,  # type: ignore[arg-type]
        )


class GaussianStatistics(RegressionStatistics):
    """The same for samples ``(s, b, 2, ...)`` of a mean and a variance."""

    def prediction(self, seed: int, samples: Tensor | None = None, **settings: str) -> Regression:
        """The statistics so far."""
        both = super().prediction(seed, samples, **settings)
        return replace(both, mean=both.mean[:, 0], epistemic=both.epistemic[:, 0], aleatoric=both.mean[:, 1])

    def settled(self, rows: Tensor, half_width: Tensor, tolerance: float) -> Tensor:
        """The mean is within the tolerance; the variance has another unit."""
        return half_width[:, 0] <= tolerance


def of_samples(samples: Tensor) -> Prediction:
    """The prediction of samples ``(S, B, C, ...)`` that are all there already, such as those of stored members."""
    statistics = RunningStatistics(samples.shape[1], samples.device)
    statistics.add(torch.arange(samples.shape[1], device=samples.device), samples)
    return statistics.prediction(0, samples)


def _counted(counts: Tensor, like: Tensor) -> Tensor:
    """Numbers ``(B,)`` that broadcast against a tensor ``(B, ...)``."""
    return counts.reshape(-1, *[1] * (like.dim() - 1))


def _votes(probs: Tensor) -> Tensor:
    counts = torch.zeros(probs.shape[1:], dtype=torch.int64, device=probs.device)
    labels = probs.argmax(2).movedim(0, 1)  # (b, s, ...)
    return counts.scatter_add_(1, labels, torch.ones_like(labels))

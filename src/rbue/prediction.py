"""What a user gets back: the mean of many random passes, and how much they spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rbue import random_stream
from rbue.calibration import Temperature


@dataclass(frozen=True, eq=False)
class Prediction:
    """The outcome of ``samples_used`` stochastic passes for each image (paper §3.3).

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
    """

    probs: Tensor
    variance: Tensor
    votes: Tensor
    expected_entropy: Tensor
    samples_used: Tensor
    seed: int
    samples: Tensor | None = None
    stream_version: int = random_stream.VERSION
    draws: str = "independent"
    temperature: float = 1.0
    unscaled_probs: Tensor | None = None

    def __len__(self) -> int:
        return self.probs.shape[0]

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
        drawn = self.samples_used
        count = f"{int(drawn.min())}" if drawn.min() == drawn.max() else f"{int(drawn.min())} to {int(drawn.max())}"
        return (
            f"Prediction({len(self)} images, {self.probs.shape[1]} classes, {count} {self.draws} samples each, "
            f"seed={self.seed}, {'' if self.temperature == 1 else f'temperature {self.temperature:.4g}, '}"
            f"mean confidence {self.confidence.mean():.3f}, "
            f"mean mutual information {self.mutual_information.mean():.4f})"
        )


def entropy(probs: Tensor) -> Tensor:
    """``-Σ p log p`` over dimension 1, in nats, with ``0 log 0 = 0``."""
    return torch.special.entr(probs).sum(1)


def concatenate(parts: Sequence[Prediction]) -> Prediction:
    """One prediction from those of consecutive batches."""
    samples = [part.samples for part in parts if part.samples is not None]
    unscaled = [part.unscaled_probs for part in parts if part.unscaled_probs is not None]
    return Prediction(
        probs=torch.cat([part.probs for part in parts]),
        variance=torch.cat([part.variance for part in parts]),
        votes=torch.cat([part.votes for part in parts]),
        expected_entropy=torch.cat([part.expected_entropy for part in parts]),
        samples_used=torch.cat([part.samples_used for part in parts]),
        seed=parts[0].seed,
        draws=parts[0].draws,
        samples=torch.cat(samples, dim=1) if samples else None,
        temperature=parts[0].temperature,
        unscaled_probs=torch.cat(unscaled) if unscaled else None,
    )


@dataclass
class _Sums:
    mean: Tensor
    squares: Tensor
    votes: Tensor
    entropies: Tensor


class RunningStatistics:
    """Mean, variance, votes and mean entropy of a stream of samples, in memory that does not grow with it."""

    def __init__(self, images: int, device: torch.device) -> None:
        self.images = images
        self.count = torch.zeros(images, dtype=torch.int64, device=device)
        self._float = torch.float32 if device.type == "mps" else torch.float64
        self._sums: _Sums | None = None

    @property
    def mean(self) -> Tensor:
        """Mean probabilities so far, ``(B, C, ...)``."""
        assert self._sums is not None
        return self._sums.mean

    @property
    def squares(self) -> Tensor:
        """Sums of squared deviations from the mean so far, ``(B, C, ...)``."""
        assert self._sums is not None
        return self._sums.squares

    def add(self, rows: Tensor, probs: Tensor) -> None:
        """Take in samples ``(s, b, C, ...)`` of the images ``rows`` (``b`` indices).

        The means and sums of squares of old and new samples are merged exactly (Chan et al., 1979), which
        stays accurate however many chunks there are.
        """
        probs = probs.to(self._float)
        if self._sums is None:
            zeros = torch.zeros((self.images, *probs.shape[2:]), dtype=self._float, device=probs.device)
            votes = torch.zeros_like(zeros, dtype=torch.int64)
            self._sums = _Sums(zeros, zeros.clone(), votes, torch.zeros_like(zeros[:, 0]))
        sums = self._sums
        new = probs.shape[0]
        old = self.count[rows].reshape(-1, *[1] * (probs.dim() - 2))
        total = (old + new).to(self._float)  # quotients of integers have torch's default type, which may be a short one
        mean = probs.mean(0)
        shift = mean - sums.mean[rows]
        sums.squares[rows] += ((probs - mean) ** 2).sum(0) + shift**2 * (old * new / total)
        sums.mean[rows] += shift * (new / total)
        sums.votes[rows] += _votes(probs)
        sums.entropies[rows] += entropy(probs.flatten(0, 1)).unflatten(0, probs.shape[:2]).sum(0)
        self.count[rows] += new

    def prediction(self, seed: int, samples: Tensor | None = None, draws: str = "independent") -> Prediction:
        """The statistics so far as a :class:`Prediction` in ``float32``."""
        assert self._sums is not None
        count = self.count.reshape(-1, *[1] * (self.mean.dim() - 1))
        return Prediction(
            probs=self.mean.to(torch.float32, copy=True),
            variance=(self.squares / count).float(),
            votes=self._sums.votes.clone(),
            expected_entropy=(self._sums.entropies / count.squeeze(1)).float(),
            samples_used=self.count.clone(),
            seed=seed,
            samples=samples,
            draws=draws,
        )


def of_samples(samples: Tensor) -> Prediction:
    """The prediction of samples ``(S, B, C, ...)`` that are all there already, such as those of stored members."""
    statistics = RunningStatistics(samples.shape[1], samples.device)
    statistics.add(torch.arange(samples.shape[1], device=samples.device), samples)
    return statistics.prediction(0, samples)


def _votes(probs: Tensor) -> Tensor:
    counts = torch.zeros(probs.shape[1:], dtype=torch.int64, device=probs.device)
    labels = probs.argmax(2).movedim(0, 1)  # (b, s, ...)
    return counts.scatter_add_(1, labels, torch.ones_like(labels))

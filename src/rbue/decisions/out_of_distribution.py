"""What does not belong: scores that are higher the more unusual an image is, and how well they tell.

Every score gives one float64 number an image, ``(B,)``. Those of probabilities take any prediction. Energy and the
largest logit take logits, ``(B, C)`` or ``(S, B, C)``, of which the mean over samples is taken. :class:`KNearest` and
:class:`Mahalanobis` are fitted on training features ``(N, D)`` and called on new ones. A prediction of
``rbue.predict(..., keep=("logits", "features"))`` goes into all of them. :func:`scores` gives all that its inputs
allow, by name; :func:`detection` says how well one tells inside from outside.

Several labels (``MultiLabel``) are taken as independent questions: their entropies add up, and of the probabilities of
their answers the geometric mean is taken, as the product of many would be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbue import metrics
from rbue.decisions import _inputs
from rbue.errors import InvalidInput, whole_number
from rbue.metrics import _checks
from rbue.metrics.uncertainty import mean_over_samples
from rbue.prediction import MultiLabel, Prediction, binary_entropy

__all__ = [
    "Detection", "KNearest", "Mahalanobis", "detection", "energy", "entropy", "expected_entropy", "max_logit",
    "max_probability", "mutual_information", "scores", "variation_ratio",
]  # fmt: skip


def max_probability(prediction: Any) -> Tensor:
    """``-max_c p_c``: the mean probability of the label, negated (Hendrycks and Gimpel, ICLR 2017).

    Of several labels the geometric mean is taken.

    Example:
        >>> max_probability(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
        tensor([-0.7500, -0.5000], dtype=torch.float64)
    """
    if isinstance(prediction, MultiLabel):
        probs = prediction.probs.detach().double().flatten(1)
        return -torch.maximum(probs, 1 - probs).log().mean(1).exp()
    return -_inputs.probabilities(prediction).amax(1)


def entropy(prediction: Any) -> Tensor:
    """``-Σ p ln p`` of the mean probabilities, in nats: all uncertainty.

    Example:
        >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    if isinstance(prediction, MultiLabel):
        return binary_entropy(prediction.probs.detach().double()).flatten(1).sum(1)
    return metrics.entropy(_inputs.probabilities(prediction))


def expected_entropy(prediction: Any) -> Tensor:
    """Mean over samples of their entropies, in nats: the uncertainty that every sample shares.

    It needs a ``Prediction`` or samples ``(S, B, C)``.

    Example:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
        tensor([0.3466], dtype=torch.float64)
    """
    if isinstance(prediction, (Prediction, MultiLabel)):
        return _an_image(prediction.expected_entropy)
    return metrics.expected_entropy(_inputs.samples_of(prediction))


def mutual_information(prediction: Any) -> Tensor:
    """Entropy of the mean minus mean entropy, in nats: what the samples disagree about.

    It needs a ``Prediction`` or samples ``(S, B, C)`` (Smith and Gal, Understanding Measures of Uncertainty for
    Adversarial Example Detection, UAI 2018). A temperature does not change it.

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931], dtype=torch.float64)
    """
    if isinstance(prediction, (Prediction, MultiLabel)):
        return _an_image(prediction.mutual_information)
    return metrics.mutual_information(_inputs.samples_of(prediction))


def variation_ratio(prediction: Any) -> Tensor:
    """``1 - v / S`` for the ``v`` votes of ``S`` samples that the most frequent label got (Freeman, 1965).

    It needs a ``Prediction`` or samples ``(S, B, C)``; of several labels the mean is taken.

    Example:
        >>> variation_ratio(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.7, 0.3]], [[0.4, 0.6]]]))
        tensor([0.2500], dtype=torch.float64)
    """
    if isinstance(prediction, MultiLabel):
        drawn = prediction.samples_used.double().reshape(-1, *[1] * (prediction.votes.ndim - 1))
        part = prediction.votes / drawn
        return (1 - torch.maximum(part, 1 - part)).flatten(1).mean(1)
    if isinstance(prediction, Prediction):
        if prediction.votes.ndim != 2:
            raise InvalidInput(f"prediction.votes has shape {tuple(prediction.votes.shape)}; give one label an image.")
        return 1 - prediction.votes.amax(1).double() / prediction.samples_used
    samples = _inputs.samples_of(prediction)
    votes = torch.zeros(samples.shape[1:], dtype=torch.int64, device=samples.device)
    for sample in samples:
        votes.scatter_add_(1, sample.argmax(1, keepdim=True), torch.ones_like(votes[:, :1]))
    return 1 - votes.amax(1).double() / len(samples)


def energy(logits: Any, temperature: float = 1.0) -> Tensor:
    """``-T ln Σ_c exp(z_c / T)`` (Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020).

    Args:
        logits: ``(B, C)``, or ``(S, B, C)`` for the mean over samples; or a ``Prediction`` that keeps logits, which
            has the same mean for ``T = 1``. ``energy(prediction.logits)`` is that of the mean logits.
        temperature: ``T``.

    Example:
        >>> energy(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        tensor([-0.6931, -9.0001], dtype=torch.float64)
    """
    if not 0 < temperature < math.inf:
        raise InvalidInput(f"temperature is {temperature}; give a finite number above 0.")
    if isinstance(logits, Prediction):
        if temperature != 1:
            raise InvalidInput(
                f"temperature is {temperature}, but a prediction keeps the energy of 1; give logits (S, B, C) instead."
            )
        return _inputs.kept(logits, "energy", "logits").double()
    return _of_logits(logits, lambda rows: -temperature * torch.logsumexp(rows / temperature, 1))


def max_logit(logits: Any) -> Tensor:
    """``-max_c z_c`` (Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022).

    Args:
        logits: ``(B, C)``, or ``(S, B, C)`` for the mean over samples; or a ``Prediction`` that keeps logits.

    Example:
        >>> max_logit(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        tensor([ 0., -9.], dtype=torch.float64)
    """
    if isinstance(logits, Prediction):
        return -_inputs.kept(logits, "max_logit", "logits").double()
    return _of_logits(logits, lambda rows: -rows.amax(1))


@dataclass(frozen=True, eq=False)
class KNearest:
    """Distance to the ``k``-th nearest training feature, all of length one.

    ``‖z - z_(k)‖`` with ``z = f / ‖f‖`` (Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML
    2022). Work space does not grow with the images.

    Attributes:
        training: The training features, ``(N, D)``, normalised, float64.
        k: Which neighbour counts. The paper takes 50 for CIFAR-10; more for more training images.

    Example:
        >>> near = KNearest.fit(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), k=1)
        >>> near(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]))
        tensor([0.0000, 1.4142], dtype=torch.float64)
    """

    training: Tensor
    k: int

    @classmethod
    def fit(cls, features: Any, k: int = 50) -> KNearest:
        """Keep the training features ``(N, D)``, or those of a prediction of training images."""
        rows = _inputs.features_of(features)
        return cls(_unit(rows.double()), whole_number(k, "k", most=len(rows)))

    def __call__(self, features: Any) -> Tensor:
        """The score of each row of ``features``, ``(B,)``."""
        rows = _inputs.features_of(features, self.training.shape[1])
        found = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        training = self.training.to(rows.device)
        for block in _inputs.blocks(len(rows), len(training)):
            # The k-th nearest has the k-th greatest cosine; ‖a - b‖² = 2 - 2·cos for unit vectors.
            cosine = (_unit(rows[block].double()) @ training.T).topk(self.k, dim=1).values[:, -1]
            found[block] = (2 - 2 * cosine).clamp_min(0).sqrt()
        return found


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Squared distance to the nearest class mean, measured by the covariance that all classes share.

    ``min_c (f - μ_c)ᵀ Σ⁺ (f - μ_c)`` with ``Σ = 1/N Σ_i (f_i - μ_{y_i})(f_i - μ_{y_i})ᵀ``, in float64 (Lee et al., A
    Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, NeurIPS 2018). ``Σ⁺``
    is the pseudo-inverse: directions in which training features do not vary, such as dead channels, do not count.

    Attributes:
        means: The means of the classes that occur, ``(K, D)``, float64.
        whitening: ``(D, R)``, with ``whitening·whiteningᵀ = Σ⁺`` of rank ``R``.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> Mahalanobis.fit(features, torch.tensor([0, 0, 0, 0]))(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([2.0000, 4.5000], dtype=torch.float64)
    """

    means: Tensor
    whitening: Tensor

    @classmethod
    def fit(cls, features: Any, labels: Any) -> Mahalanobis:
        """Estimate means and covariance from training features ``(N, D)``, or a prediction, and classes ``(N,)``."""
        rows = _inputs.features_of(features)
        labels = _inputs.tensor(labels, "labels").to(rows.device)
        if labels.shape != rows.shape[:1] or labels.is_floating_point():
            raise InvalidInput(
                f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; give {len(rows)} class numbers."
            )
        _, group, size = labels.unique(return_inverse=True, return_counts=True)
        width = rows.shape[1]
        means = rows.new_zeros((len(size), width), dtype=torch.float64)
        scatter = rows.new_zeros((width, width), dtype=torch.float64)
        for block in _inputs.blocks(len(rows), width):
            means.index_add_(0, group[block], rows[block].double())
        means /= size[:, None]
        for block in _inputs.blocks(len(rows), width):
            apart = rows[block].double() - means[group[block]]
            scatter += apart.T @ apart
        variances, directions = torch.linalg.eigh(scatter / len(rows))
        varies = variances > variances[-1] * width * torch.finfo(torch.float64).eps
        if not bool(varies.any()):
            raise InvalidInput(f"the {len(rows)} training features equal their class means; give features that vary.")
        return cls(means, directions[:, varies] / variances[varies].sqrt())

    def __call__(self, features: Any) -> Tensor:
        """The score of each row of ``features``, ``(B,)``."""
        rows = _inputs.features_of(features, self.means.shape[1])
        whitening = self.whitening.to(rows.device)
        means = self.means.to(rows.device) @ whitening
        found = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        for block in _inputs.blocks(len(rows), max(self.whitening.numel() // len(self.whitening), len(means))):
            white = rows[block].double() @ whitening
            found[block] = torch.stack([(white - mean).square().sum(1) for mean in means]).amin(0)
        return found


def scores(
    prediction: Any = None,
    *,
    logits: Any = None,
    features: Any = None,
    detectors: Mapping[str, Callable[[Any], Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Every score that the given inputs allow, by name; each ``(B,)``, higher for more unusual.

    Args:
        prediction: A ``Prediction``, a ``MultiLabel``, probabilities ``(B, C)`` or samples ``(S, B, C)``.
        logits: ``(B, C)`` or ``(S, B, C)``; by default those that the prediction keeps.
        features: ``(B, D)``, for the detectors; by default those that the prediction keeps.
        detectors: Fitted :class:`KNearest`, :class:`Mahalanobis` or functions of features of your own, by name.

    Example:
        >>> list(scores(torch.tensor([[0.5, 0.5]]), logits=torch.zeros(1, 2)))
        ['max_probability', 'entropy', 'energy', 'max_logit']
    """
    found: dict[str, Tensor] = {}
    if isinstance(prediction, Prediction):
        logits = prediction if logits is None and prediction.logits is not None else logits
        features = prediction if features is None and detectors else features
    if prediction is not None:
        found |= {"max_probability": max_probability(prediction), "entropy": entropy(prediction)}
        if isinstance(prediction, (Prediction, MultiLabel)) or _inputs.tensor(prediction, "prediction").ndim == 3:
            found |= {one.__name__: one(prediction) for one in (expected_entropy, mutual_information, variation_ratio)}
    if logits is not None:
        found |= {"energy": energy(logits), "max_logit": max_logit(logits)}
    if (features is None) != (not detectors):
        raise InvalidInput("features and detectors go together; give both or neither.")
    for name, detector in (detectors or {}).items():
        if name in found:
            raise InvalidInput(f"detectors holds {name!r}, which is the name of another score; give it another.")
        found[name] = detector(features)
    if not found:
        raise InvalidInput("nothing was given to score; give prediction=, logits= or features=.")
    return found


class Detection(NamedTuple):
    """How well a score tells outside from inside; outside images are the positives."""

    auroc: float
    aupr: float
    fpr95: float


def detection(inside: Any, outside: Any) -> Detection:
    """AUROC, AUPR and FPR95 of a score: outside images are the positives.

    FPR95 is the fraction of inside images that are taken for outside ones when 95 % of the outside images are found.
    See :func:`rbue.metrics.auroc`, :func:`rbue.metrics.aupr` and :func:`rbue.metrics.fpr95`.

    Args:
        inside: Scores of images like those of the training, ``(B,)``.
        outside: Scores of others.

    Example:
        >>> detection(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
        Detection(auroc=0.75, aupr=0.8333333333333333, fpr95=0.5)
    """
    one, other = _inputs.tensor(inside, "inside").double(), _inputs.tensor(outside, "outside").double()
    if one.ndim != 1 or other.ndim != 1:
        raise InvalidInput(f"inside and outside have shapes {tuple(one.shape)} and {tuple(other.shape)}; give (B,).")
    joined = torch.cat([one, other])
    positive = torch.arange(len(joined), device=joined.device) >= len(one)
    return Detection(*(metric(joined, positive).item() for metric in (metrics.auroc, metrics.aupr, metrics.fpr95)))


def _an_image(values: Tensor) -> Tensor:
    """Numbers ``(B, ...)`` summed to one an image."""
    values = values.detach().double()
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _of_logits(logits: Any, score: Callable[[Tensor], Tensor]) -> Tensor:
    values = _inputs.tensor(logits, "logits")
    if values.ndim not in (2, 3):
        raise InvalidInput(f"logits has shape {tuple(values.shape)}; give (B, C) or (S, B, C).")
    samples = values if values.ndim == 3 else values[None]
    return mean_over_samples(samples, lambda sample: score(_checks.logits_of(sample).double()))


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)

"""torchmetrics classes: the functions of :mod:`rbue.metrics` for data that comes in batches.

Most keep a few sums, whose size does not grow with the number of images. Those that need all scores at once keep two
float64 numbers an image.

``MetricCollection`` lets metrics with equally named and, after one batch, equal states share them for good.
Hence every class that sums something else has a state name of its own: otherwise ``Accuracy`` and
``TopKAccuracy``, both right on all of the first batch, would become one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from rbue.errors import InvalidInput, whole_number
from rbue.metrics import _checks
from rbue.metrics.calibration_error import BinSums, Reliability, bin_sums, equal_mass_error, top_label
from rbue.metrics.classification import hits, log_losses, squared_errors
from rbue.metrics.ranking import augrc, aupr, aurc, auroc, coverage_at_risk, error_rate, fpr95
from rbue.metrics.uncertainty import disagreement_sums, entropy, jsd_sums, mutual_information


class _SumMetric(Metric):
    """A sum over images, in a state of this name and shape, and their number; ``compute`` is the quotient."""

    is_differentiable = False
    full_state_update = False
    images: Tensor
    _total_name: str
    _total_shape: tuple[int, ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state(self._total_name, torch.zeros(self._total_shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _take(self, values: Tensor) -> None:
        """Add one value an image."""
        self._add(values.sum(), values.numel())

    def _add(self, total: Tensor, images: int) -> None:
        so_far: Tensor = getattr(self, self._total_name)
        # Not in place: the lazy (S, S) states start as a single zero.
        setattr(self, self._total_name, so_far + total.detach().to(so_far.device))
        self.images = self.images + images

    def compute(self) -> Tensor:
        """Return the mean over all images seen since the last ``reset``."""
        _require_images(self, self.images)
        return getattr(self, self._total_name) / self.images


class Accuracy(_SumMetric):
    """Streaming form of ``rbue.metrics.accuracy``.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([1, 0]))
        >>> metric.compute().item()
        0.75
    """

    higher_is_better = True
    _total_name = "hits"

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._take(hits(probs, labels))


class TopKAccuracy(_SumMetric):
    """Streaming form of ``rbue.metrics.top_k_accuracy``."""

    higher_is_better = True

    def __init__(self, k: int = 5, **settings: Any) -> None:
        self.k, self._total_name = whole_number(k, "k"), f"top_{k}_hits"
        super().__init__(**settings)

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._take(hits(probs, labels, self.k))


class NLL(_SumMetric):
    """Streaming form of ``rbue.metrics.nll``."""

    higher_is_better = False
    _total_name = "log_loss_sum"

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._take(log_losses(probs, labels))


class Brier(_SumMetric):
    """Streaming form of ``rbue.metrics.brier``."""

    higher_is_better = False
    _total_name = "squared_error_sum"

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._take(squared_errors(probs, labels))


class PredictiveEntropy(_SumMetric):
    """Mean over images of ``rbue.metrics.entropy``, streaming."""

    _total_name = "entropy_sum"

    def update(self, probs: Tensor) -> None:
        """Take in one batch of mean probabilities."""
        self._take(entropy(probs))


class MutualInformation(_SumMetric):
    """Mean over images of ``rbue.metrics.mutual_information``, streaming."""

    _total_name = "mutual_information_sum"

    def update(self, samples: Tensor) -> None:
        """Take in the samples ``(S, B, C, ...)`` of one batch."""
        self._take(mutual_information(samples))


class _PairMetric(_SumMetric):
    """An ``(S, S)`` sum over images; without ``num_samples`` the first batch says what ``S`` is."""

    higher_is_better = True
    _sums: Callable[[Tensor], tuple[Tensor, int]]

    def __init__(self, num_samples: int | None = None, **settings: Any) -> None:
        if num_samples is not None:
            self._total_shape = (whole_number(num_samples, "num_samples", least=2),) * 2
        super().__init__(**settings)

    def forward(self, samples: Tensor) -> Any:
        """Take in one batch and return its own matrix."""
        # torchmetrics resets the state before it calls `update` here, so `update` could not compare.
        self._check_num_samples(samples)
        return super().forward(samples)

    def update(self, samples: Tensor) -> None:
        """Take in the samples ``(S, B, C, ...)`` of one batch."""
        self._check_num_samples(samples)
        self._add(*self._sums(samples))

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the sums of another one, which compares as many samples."""
        self._check_num_samples(getattr(incoming_state, self._total_name, None))
        super().merge_state(incoming_state)

    def _check_num_samples(self, samples: Tensor | None) -> None:
        known = getattr(self, self._total_name).shape
        if known and isinstance(samples, Tensor) and samples.ndim and samples.shape[0] != known[0]:
            raise InvalidInput(
                f"samples has shape {tuple(samples.shape)}, that is {samples.shape[0]} samples; "
                f"this {type(self).__name__} compares {known[0]}: call reset(), or make one for each number."
            )


class JSD(_PairMetric):
    """Streaming form of ``rbue.metrics.jsd``.

    Args:
        num_samples: The number ``S`` of samples. Left out, the first batch decides it; give it when the
            metric is synchronised over processes of which one may see no batch.
        **settings: Passed on to ``torchmetrics.Metric``.

    Example:
        >>> metric = JSD()
        >>> metric.update(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> metric.update(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]))
        >>> metric.compute()
        tensor([[0.0000, 0.3466],
                [0.3466, 0.0000]], dtype=torch.float64)
    """

    _total_name = "jsd_sum"
    _sums = staticmethod(jsd_sums)


class Disagreement(_PairMetric):
    """Streaming form of ``rbue.metrics.disagreement``; the arguments are those of ``JSD``."""

    _total_name = "disagreement_sum"
    _sums = staticmethod(disagreement_sums)


class _BinnedError(Metric):
    """The sums of a reliability diagram, which ``ECE`` and ``MCE`` may share."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    bin_counts: Tensor
    bin_confidence: Tensor
    bin_correct: Tensor

    def __init__(self, bins: int = 30, **settings: Any) -> None:
        self.bins = whole_number(bins, "bins")
        super().__init__(**settings)
        self.add_state("bin_counts", torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("bin_confidence", torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("bin_correct", torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        with torch.no_grad():
            counts, confidence, correct = bin_sums(probs, labels, self.bins)
        device = self.bin_counts.device
        self.bin_counts = self.bin_counts + counts.to(device)
        self.bin_confidence = self.bin_confidence + confidence.to(device)
        self.bin_correct = self.bin_correct + correct.to(device)

    def reliability(self) -> Reliability:
        """Return the reliability diagram of all images seen by this process."""
        _require_images(self, self.bin_counts.sum())
        return BinSums(self.bin_counts, self.bin_confidence, self.bin_correct).reliability()


class ECE(_BinnedError):
    """Streaming form of ``rbue.metrics.ece``.

    Example:
        >>> metric = ECE(bins=30)
        >>> metric.update(torch.tensor([[0.8, 0.2]]), torch.tensor([0]))
        >>> metric.update(torch.tensor([[0.8, 0.2]]), torch.tensor([1]))
        >>> round(metric.compute().item(), 4)
        0.3
    """

    def compute(self) -> Tensor:
        """Return the expected calibration error of all images seen since the last ``reset``."""
        return self.reliability().ece


class MCE(_BinnedError):
    """Streaming form of ``rbue.metrics.mce``."""

    def compute(self) -> Tensor:
        """Return the maximum calibration error of all images seen since the last ``reset``."""
        return self.reliability().mce


def _require_images(metric: Metric, images: Tensor | int) -> None:
    if not int(images):
        raise InvalidInput(f"{type(metric).__name__} has seen 0 images; call update(...) before compute().")


class _ScoreMetric(Metric):
    """Lists of scores and of yes/no flags, joined over batches and processes."""

    is_differentiable = False
    full_state_update = False

    _names: tuple[str, str]
    _score: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in self._names:
            self.add_state(name, [], dist_reduce_fx="cat")
        # Processes without data send an empty tensor of the metric's dtype, which must be that of the others.
        self.set_dtype(torch.float64)

    def _append(self, scores: Tensor, flags: Tensor) -> None:
        for name, values in zip(self._names, (scores, flags), strict=True):
            getattr(self, name).append(values.detach().to(self.device, torch.float64))

    def _joined(self) -> tuple[Tensor, Tensor]:
        scores, flags = (_join(getattr(self, name)) for name in self._names)
        _require_images(self, scores.numel())
        return scores, flags.bool()

    def compute(self) -> Tensor:
        """Return the score of all images seen since the last ``reset``."""
        return self._score(*self._joined())


def _join(state: list[Tensor] | Tensor) -> Tensor:
    # After synchronisation the list is one tensor.
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.empty(0)


class AdaptiveECE(_ScoreMetric):
    """Streaming form of ``rbue.metrics.adaptive_ece``."""

    higher_is_better = False
    _names = ("top_confidence", "top_correct")

    def __init__(self, bins: int = 30, **settings: Any) -> None:
        self.bins = whole_number(bins, "bins")
        super().__init__(**settings)

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._append(*top_label(probs, labels))

    def compute(self) -> Tensor:
        """Return the equal-mass calibration error of all images seen since the last ``reset``."""
        return equal_mass_error(*self._joined(), self.bins)


class _Detection(_ScoreMetric):
    """Scores and which of them belong to positives."""

    _names = ("scores", "positive")
    _of_a_batch = False

    def forward(self, scores: Tensor, positive: Tensor) -> Any:
        """Take in one batch and return its own score, NaN if it holds positives or negatives only."""
        self._of_a_batch = True
        try:
            return super().forward(scores, positive)
        finally:
            self._of_a_batch = False

    def update(self, scores: Tensor, positive: Tensor) -> None:
        """Take in one batch; a batch may hold positives or negatives only."""
        self._append(*_checks.scores_and_flags(scores, positive, "scores", "positive"))

    def compute(self) -> Tensor:
        """Return the score of all images seen since the last ``reset``."""
        scores, positive = self._joined()
        # An error within forward would lose what torchmetrics has put aside, which is all that was seen before.
        if self._of_a_batch and len(positive.unique()) == 1:
            return scores.new_tensor(torch.nan)
        return self._score(scores, positive)


class AUROC(_Detection):
    """Streaming form of ``rbue.metrics.auroc``.

    Example:
        >>> metric = AUROC()
        >>> metric.update(torch.tensor([0.9, 0.4]), torch.tensor([True, True]))
        >>> metric.update(torch.tensor([0.4, 0.1]), torch.tensor([False, False]))
        >>> metric.compute().item()
        0.875
    """

    higher_is_better = True
    _score = staticmethod(auroc)


class AUPR(_Detection):
    """Streaming form of ``rbue.metrics.aupr``."""

    higher_is_better = True
    _score = staticmethod(aupr)


class FPR95(_Detection):
    """Streaming form of ``rbue.metrics.fpr95``."""

    higher_is_better = False
    _score = staticmethod(fpr95)


class AURC(_ScoreMetric):
    """Streaming form of ``rbue.metrics.aurc``."""

    higher_is_better = False
    _names = ("confidence", "correct")
    _score = staticmethod(aurc)

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Take in one batch."""
        self._append(*_checks.scores_and_flags(confidence, correct, "confidence", "correct"))


class AUGRC(AURC):
    """Streaming form of ``rbue.metrics.augrc``."""

    _score = staticmethod(augrc)


class CoverageAtRisk(AURC):
    """Streaming form of ``rbue.metrics.coverage_at_risk``."""

    higher_is_better = True

    def __init__(self, risk: float = 0.05, **settings: Any) -> None:
        self.risk = error_rate(risk)
        super().__init__(**settings)

    def compute(self) -> Tensor:
        """Return the coverage at that error rate of all images seen since the last ``reset``."""
        return coverage_at_risk(*self._joined(), self.risk)


class _LabelAURC(AURC):
    """``AURC`` of the predicted labels: how well their confidence ranks them."""

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._append(*top_label(probs, labels))


def collection(bins: int = 30, **settings: Any) -> MetricCollection:
    """The scores of a classifier as one ``torchmetrics.MetricCollection``, updated with ``(probs, labels)``.

    It holds ``accuracy``, ``nll``, ``ece``, ``brier`` and ``aurc``; the last ranks by the probability of the label.

    Args:
        bins: number of bins of the ECE.
        **settings: passed on to ``MetricCollection``, such as ``prefix="val_"``.

    Example:
        >>> scores = collection(prefix="val_")
        >>> scores.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
        >>> {name: round(value.item(), 3) for name, value in scores.compute().items()}
        {'val_accuracy': 0.5, 'val_aurc': 0.25, 'val_brier': 0.37, 'val_ece': 0.35, 'val_nll': 0.511}
    """
    metrics = {"accuracy": Accuracy(), "nll": NLL(), "ece": ECE(bins), "brier": Brier(), "aurc": _LabelAURC()}
    return MetricCollection(metrics, **settings)

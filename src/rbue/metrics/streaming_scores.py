"""torchmetrics classes that need all scores at once: they keep two float64 numbers an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from rbue.errors import InvalidInput
from rbue.metrics import _checks
from rbue.metrics.calibration_error import equal_mass_error, top_label
from rbue.metrics.detection import aupr, auroc, fpr95
from rbue.metrics.selective import aurc


class _ScoreMetric(Metric):
    """Lists of scores and of yes/no flags, joined over batches and processes."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, scores_name: str, flags_name: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._names = (scores_name, flags_name)
        self.add_state(scores_name, [], dist_reduce_fx="cat")
        self.add_state(flags_name, [], dist_reduce_fx="cat")
        # Processes without data send an empty tensor of the metric's dtype, which must be that of the others.
        self.set_dtype(torch.float64)

    def _append(self, scores: Tensor, flags: Tensor) -> None:
        for name, values in zip(self._names, (scores, flags), strict=True):
            getattr(self, name).append(values.detach().to(self.device, torch.float64))

    def _joined(self) -> tuple[Tensor, Tensor]:
        scores, flags = (_join(getattr(self, name)) for name in self._names)
        if not scores.numel():
            raise InvalidInput(f"{type(self).__name__} has seen 0 images; call update(...) before compute().")
        return scores, flags.bool()


def _join(state: list[Tensor] | Tensor) -> Tensor:
    # After synchronisation the list is one tensor.
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.empty(0)


class AdaptiveECE(_ScoreMetric):
    """Streaming form of ``rbue.metrics.adaptive_ece``."""

    higher_is_better = False

    def __init__(self, bins: int = 30, **settings: Any) -> None:
        self.bins = _checks.whole_number(bins, "bins")
        super().__init__("top_confidence", "top_correct", **settings)

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        self._append(*top_label(probs, labels))

    def compute(self) -> Tensor:
        """Return the equal-mass calibration error of all images seen since the last ``reset``."""
        return equal_mass_error(*self._joined(), self.bins)


class _Detection(_ScoreMetric):
    """Scores and which of them belong to positives."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("scores", "positive", **settings)

    def update(self, scores: Tensor, positive: Tensor) -> None:
        """Take in one batch; a batch may hold positives or negatives only."""
        self._append(*_checks.scores_and_flags(scores, positive, "scores", "positive"))


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

    def compute(self) -> Tensor:
        """Return the area under the ROC curve of all images seen since the last ``reset``."""
        return auroc(*self._joined())


class AUPR(_Detection):
    """Streaming form of ``rbue.metrics.aupr``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the average precision of all images seen since the last ``reset``."""
        return aupr(*self._joined())


class FPR95(_Detection):
    """Streaming form of ``rbue.metrics.fpr95``."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the false positive rate at 95 % true positive rate of all images since ``reset``."""
        return fpr95(*self._joined())


class AURC(_ScoreMetric):
    """Streaming form of ``rbue.metrics.aurc``."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__("confidence", "correct", **settings)

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Take in one batch."""
        self._append(*_checks.scores_and_flags(confidence, correct, "confidence", "correct"))

    def compute(self) -> Tensor:
        """Return the area under the risk-coverage curve of all images seen since the last ``reset``."""
        return aurc(*self._joined())

"""torchmetrics classes: the functions of :mod:`rbue.metrics.regression` for data that comes in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics.regression import below_quantiles, covered, crps_of_samples, levels_of, normal_crps, normal_log_losses
from rbue.metrics.streaming import _SumMetric


class GaussianNLL(_SumMetric):
    """Streaming form of ``rbue.metrics.gaussian_nll``; it takes the variance, where ``GaussianCRPS`` takes the std.

    In one ``MetricCollection`` give both by name, or each takes the other's for its own.

    Example:
        >>> from torchmetrics import MetricCollection
        >>> scores = MetricCollection([GaussianNLL(), GaussianCRPS()])
        >>> mean, std, targets = torch.zeros(2), torch.full((2,), 3.0), torch.tensor([-1.0, 4.0])
        >>> scores.update(mean=mean, variance=std.square(), std=std, targets=targets)
        >>> {name: round(value.item(), 3) for name, value in scores.compute().items()}
        {'GaussianNLL': 2.49, 'GaussianCRPS': 1.697}
    """

    higher_is_better = False
    _total_name = "normal_log_loss_sum"

    def update(self, mean: Tensor, variance: Tensor, targets: Tensor) -> None:
        """Take in one batch."""
        self._take(normal_log_losses(mean, variance, targets))


class GaussianCRPS(_SumMetric):
    """Streaming form of ``rbue.metrics.gaussian_crps``; in one collection with ``GaussianNLL``, see there."""

    higher_is_better = False
    _total_name = "normal_crps_sum"

    def update(self, mean: Tensor, std: Tensor, targets: Tensor) -> None:
        """Take in one batch."""
        self._take(normal_crps(mean, std, targets))


class SampleCRPS(_SumMetric):
    """Streaming form of ``rbue.metrics.sample_crps``.

    Example:
        >>> metric = SampleCRPS(fair=False)
        >>> metric.update(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]))
        >>> metric.update(torch.tensor([[1.0], [1.0]]), torch.tensor([1.0]))
        >>> metric.compute().item()
        0.25
    """

    higher_is_better = False

    def __init__(self, fair: bool = True, **settings: Any) -> None:
        self.fair, self._total_name = fair, "fair_crps_sum" if fair else "sample_crps_sum"
        super().__init__(**settings)

    def update(self, samples: Tensor, targets: Tensor) -> None:
        """Take in the samples ``(S, B, ...)`` of one batch."""
        self._take(crps_of_samples(samples, targets, self.fair))


class IntervalCoverage(_SumMetric):
    """Streaming form of ``rbue.metrics.interval_coverage``."""

    _total_name = "covered_sum"

    def update(self, lower: Tensor, upper: Tensor, targets: Tensor) -> None:
        """Take in one batch."""
        self._take(covered(lower, upper, targets))


class QuantileCalibrationError(_SumMetric):
    """Streaming form of ``rbue.metrics.quantile_calibration_error``.

    Args:
        levels: The levels of the quantiles, each in (0, 1).
        **settings: Passed on to ``torchmetrics.Metric``.
    """

    higher_is_better = False
    levels: Tensor

    def __init__(self, levels: Sequence[float], **settings: Any) -> None:
        try:
            given = torch.as_tensor(levels, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidInput(f"levels is {levels!r}; give a list of numbers in (0, 1).") from None
        given = levels_of(given)
        # Another set of levels counts something else, so its state has another name (see rbue.metrics.streaming).
        name = "_".join(f"{level:g}".replace(".", "_") for level in given.tolist())
        self._total_name, self._total_shape = f"below_quantiles_{name}", tuple(given.shape)
        super().__init__(**settings)
        self.register_buffer("levels", given, persistent=False)

    def update(self, quantiles: Tensor, targets: Tensor) -> None:
        """Take in one batch of quantiles ``(B, Q, ...)``."""
        self._add(*below_quantiles(quantiles, self.levels, targets))

    def compute(self) -> Tensor:
        """Return the mean distance of the observed fractions from the levels."""
        return (super().compute() - self.levels).abs().mean()

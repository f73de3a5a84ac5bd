"""Accuracy, calibration, proper scores, uncertainty, diversity, detection and sets; scores of regression.

Lower-case names are pure functions of whole tensors; capitalised names are torchmetrics classes that take
the data in batches and give the same values, and ``collection()`` is several of them at once. ``probs`` are mean
class probabilities, ``(B, C)`` or ``(B, C, ...)``; ``samples`` are ``(S, B, C)`` or ``(S, B, C, ...)``, samples first.
Numbers of regression have any shape ``(B, ...)``. Everything is computed in float64 on the device of the input and
returned as a tensor there; logarithms are natural.

torchmetrics is imported when the first class is asked for, so the functions also work where it cannot be
imported (it fails, for instance, beside a torchvision that does not fit the installed torch).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rbue.metrics.calibration_error import Reliability, adaptive_ece, ece, mce, reliability
from rbue.metrics.classification import accuracy, brier, nll, top_k_accuracy
from rbue.metrics.ranking import RiskCoverage, augrc, aupr, aurc, auroc, coverage_at_risk, fpr95, risk_coverage
from rbue.metrics.regression import (
    gaussian_crps,
    gaussian_nll,
    interval_coverage,
    quantile_calibration_error,
    sample_crps,
)
from rbue.metrics.sets import Coverage, binomial_interval, coverage_by_class, coverage_by_size, set_coverage, set_size
from rbue.metrics.uncertainty import (
    disagreement,
    entropy,
    expected_entropy,
    jsd,
    max_pairwise,
    mean_pairwise,
    mutual_information,
)

if TYPE_CHECKING:
    from rbue.metrics.streaming import (
        AUGRC,
        AUPR,
        AURC,
        AUROC,
        ECE,
        FPR95,
        JSD,
        MCE,
        NLL,
        Accuracy,
        AdaptiveECE,
        Brier,
        CoverageAtRisk,
        Disagreement,
        MutualInformation,
        PredictiveEntropy,
        TopKAccuracy,
        collection,
    )
    from rbue.metrics.streaming_regression import (
        GaussianCRPS,
        GaussianNLL,
        IntervalCoverage,
        QuantileCalibrationError,
        SampleCRPS,
    )

__all__ = [
    "AUGRC", "AUPR", "AURC", "AUROC", "ECE", "FPR95", "JSD", "MCE", "NLL", "Accuracy", "AdaptiveECE", "Brier",
    "Coverage", "CoverageAtRisk", "Disagreement", "GaussianCRPS", "GaussianNLL", "IntervalCoverage",
    "MutualInformation", "PredictiveEntropy", "QuantileCalibrationError", "Reliability", "RiskCoverage", "SampleCRPS",
    "TopKAccuracy",
    "accuracy", "adaptive_ece", "augrc", "aupr", "aurc", "auroc", "binomial_interval", "brier", "collection",
    "coverage_at_risk", "coverage_by_class", "coverage_by_size", "disagreement", "ece", "entropy", "expected_entropy",
    "fpr95", "gaussian_crps", "gaussian_nll", "interval_coverage", "jsd", "max_pairwise", "mce", "mean_pairwise",
    "mutual_information", "nll", "quantile_calibration_error", "reliability", "risk_coverage", "sample_crps",
    "set_coverage", "set_size", "top_k_accuracy",
]  # fmt: skip

_CLASSES = {name for name in __all__ if name not in globals()}
_OF_REGRESSION = {"GaussianCRPS", "GaussianNLL", "IntervalCoverage", "QuantileCalibrationError", "SampleCRPS"}


def __getattr__(name: str) -> object:
    """Import the torchmetrics classes when they are first asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = "streaming_regression" if name in _OF_REGRESSION else "streaming"
        found: object = getattr(import_module(f"rbue.metrics.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torchmetrics":
            raise
        raise ImportError(
            f"rbue.metrics.{name} needs torchmetrics; run pip install 'rbue[metrics]', or use the functions of "
            "rbue.metrics, which do without."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"rbue.metrics.{name} needs torchmetrics, which cannot be imported here ({error}); mend that "
            "installation (a torchvision that does not fit torch is a common cause), or use the functions of "
            "rbue.metrics, which do without."
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

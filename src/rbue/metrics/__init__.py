"""Accuracy, calibration, proper scores, uncertainty, diversity and detection.

Lower-case names are pure functions of whole tensors; capitalised names are torchmetrics classes that take
the data in batches and give the same values. ``probs`` are mean class probabilities, ``(B, C)`` or
``(B, C, ...)``; ``samples`` are ``(S, B, C)`` or ``(S, B, C, ...)``, samples first. Everything is computed in
float64 on the device of the input and returned as a tensor there; logarithms are natural.

torchmetrics is imported when the first class is asked for, so the functions also work where it cannot be
imported (it fails, for instance, beside a torchvision that does not fit the installed torch).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rbue.metrics.calibration_error import Reliability, adaptive_ece, ece, mce, reliability
from rbue.metrics.classification import accuracy, top_k_accuracy
from rbue.metrics.detection import aupr, auroc, fpr95
from rbue.metrics.diversity import disagreement, jsd, max_pairwise, mean_pairwise
from rbue.metrics.information import entropy, expected_entropy, mutual_information
from rbue.metrics.proper_scores import brier, nll
from rbue.metrics.selective import RiskCoverage, aurc, risk_coverage

if TYPE_CHECKING:
    from rbue.metrics.streaming_scores import AUPR, AURC, AUROC, FPR95, AdaptiveECE
    from rbue.metrics.streaming_sums import (
        ECE,
        JSD,
        MCE,
        NLL,
        Accuracy,
        Brier,
        Disagreement,
        MutualInformation,
        PredictiveEntropy,
        TopKAccuracy,
    )

__all__ = [
    "AUPR", "AURC", "AUROC", "ECE", "FPR95", "JSD", "MCE", "NLL", "Accuracy", "AdaptiveECE", "Brier",
    "Disagreement", "MutualInformation", "PredictiveEntropy", "Reliability", "RiskCoverage", "TopKAccuracy",
    "accuracy", "adaptive_ece", "aupr", "aurc", "auroc", "brier", "disagreement", "ece", "entropy",
    "expected_entropy", "fpr95", "jsd", "max_pairwise", "mce", "mean_pairwise", "mutual_information", "nll",
    "reliability", "risk_coverage", "top_k_accuracy",
]  # fmt: skip

_SCORE_CLASSES = ("AUPR", "AURC", "AUROC", "AdaptiveECE", "FPR95")
_CLASS_HOMES = {
    name: "rbue.metrics.streaming_scores" if name in _SCORE_CLASSES else "rbue.metrics.streaming_sums"
    for name in __all__
    if name not in globals()
}


def __getattr__(name: str) -> object:
    """Import the torchmetrics classes when they are first asked for."""
    if name not in _CLASS_HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(import_module(_CLASS_HOMES[name]), name)
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

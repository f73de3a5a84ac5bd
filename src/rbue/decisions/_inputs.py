"""What decisions are made from: predictions of this library, or tensors and arrays of any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics import _checks
from rbue.metrics.uncertainty import mean_over_samples
from rbue.prediction import MultiLabel, Prediction, Regression

_WORK_ELEMENTS = 1 << 22
"""Elements of float64 work space: 4 Mi of them are 32 MiB, whatever the number of images."""

_OF_MAPS = (
    "give one row a pixel, {}.movedim(1, -1).flatten(0, -2), but to fit a coverage only one random pixel of each "
    "image, as those of one image are not independent and would promise more than they keep"
)


def tensor(value: Any, name: str) -> Tensor:
    """A tensor or a NumPy array, as a tensor without gradients."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise InvalidInput(f"{name} is an array of {value.dtype}; give one of numbers.")
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
        return torch.from_numpy(value if value.flags.writeable else value.copy())  # torch warns of read-only memory
    if not isinstance(value, Tensor):
        raise InvalidInput(f"{name} is a {type(value).__name__}; give a tensor or a NumPy array.")
    return value.detach()


def probabilities(prediction: Any) -> Tensor:
    """Mean class probabilities ``(B, C)`` in float64."""
    if isinstance(prediction, Prediction):
        probs = prediction.probs.detach()
        if probs.ndim != 2:
            raise InvalidInput(
                f"prediction.probs has shape {tuple(probs.shape)}; {_OF_MAPS.format('prediction.probs')}."
            )
    elif isinstance(prediction, (MultiLabel, Regression)):
        raise InvalidInput(
            f"prediction is a {type(prediction).__name__}, which has no classes to choose among; give a Prediction, "
            "or torch.stack((1 - p, p), 1) for the probabilities p of one label."
        )
    else:
        probs = tensor(prediction, "prediction")
        if probs.ndim == 3:
            _checks.sample_probabilities(probs, name="prediction")
            return mean_over_samples(probs)
        if probs.ndim != 2:
            maps = f"; of maps (B, C, ...) {_OF_MAPS.format('prediction')}" * (probs.ndim > 3)
            raise InvalidInput(
                f"prediction has shape {tuple(probs.shape)}; give probabilities (B, C) or samples (S, B, C){maps}."
            )
    return _checks.probabilities(probs, "prediction").double()


def temperature_of(prediction: Any) -> float | None:
    """What probabilities were scaled by: 1 for samples, None where that is not known."""
    if isinstance(prediction, Prediction):
        return prediction.temperature
    return 1.0 if prediction.ndim == 3 else None


def samples_of(prediction: Any, least: int = 1) -> Tensor:
    """Samples ``(S, B, C)`` as they are."""
    samples = prediction.samples if isinstance(prediction, Prediction) else prediction
    if samples is None:
        raise InvalidInput("prediction has no samples; make it with rbue.predict(..., return_samples=True).")
    samples = tensor(samples, "prediction")
    if samples.ndim != 3:
        raise InvalidInput(f"prediction has shape {tuple(samples.shape)}; this needs samples (S, B, C).")
    _checks.sample_probabilities(samples, least=least, name="prediction")
    return samples


def kept(prediction: Prediction, name: str, asked: str = "features") -> Tensor:
    """What a prediction keeps beside its probabilities."""
    found: Tensor | None = getattr(prediction, name)
    if found is None:
        raise InvalidInput(f"prediction has no {asked}; make it with rbue.predict(..., keep=({asked!r},)).")
    return found.detach()


def labels_of(labels: Any, outputs: Tensor) -> Tensor:
    """Class numbers ``(B,)``."""
    return _checks.labels_of(tensor(labels, "labels"), outputs, "prediction")


def features_of(features: Any, width: int | None = None, name: str = "features") -> Tensor:
    """Finite features ``(B, D)`` as they are; of a prediction those it keeps."""
    rows = tensor(kept(features, "features") if isinstance(features, Prediction) else features, name)
    if rows.ndim != 2:
        raise InvalidInput(f"{name} has shape {tuple(rows.shape)}; give (images, features), e.g. {name}.flatten(1).")
    if width is not None and rows.shape[1] != width:
        raise InvalidInput(f"{name} has {rows.shape[1]} numbers an image; give {width}, as there were before.")
    return _checks.finite_rows(rows, name)


def fraction(value: float, name: str) -> float:
    """A number in (0, 1)."""
    if not isinstance(value, (int, float, np.floating)) or not 0 < value < 1:
        raise InvalidInput(f"{name} is {value!r}; give a number in (0, 1).")
    return float(value)


def blocks(rows: int, elements: int) -> Iterator[slice]:
    """Cut rows that take so many elements of work space each into blocks that fit it."""
    step = max(1, _WORK_ELEMENTS // elements)
    for start in range(0, rows, step):
        yield slice(start, start + step)

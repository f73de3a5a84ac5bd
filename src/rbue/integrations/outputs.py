"""A prediction in the form of a network's outputs, for code that expects those."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.prediction import AnyPrediction, MultiLabel, Prediction


def as_outputs(prediction: AnyPrediction) -> Tensor:
    """What a network would return in one pass that says what all samples say.

    For logits it is ``log p`` of the mean probabilities ``p``: its softmax is ``p``, its argmax the label, its cross
    entropy their negative log-likelihood. For ``"binary"`` and ``"multilabel"`` it is ``log p - log (1 - p)``, whose
    sigmoid is ``p``. Probabilities and numbers stay as they are; of ``"gaussian"`` come mean and total variance.

    >>> from rbue import DropReLU, convert, predict
    >>> net = convert(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), DropReLU(0.8))
    >>> prediction = predict(net, torch.randn(5, 4), samples=20)
    >>> torch.allclose(as_outputs(prediction).softmax(1), prediction.probs)
    True
    """
    if isinstance(prediction, MultiLabel):
        # Beside 1 floats lie apart: what rounds to it counts as half the distance, not as certainty.
        other = (1 - prediction.probs).clamp(min=torch.finfo(prediction.probs.dtype).eps / 4)
        return _log(prediction.probs) - other.log()
    if not isinstance(prediction, Prediction):
        gaussian = prediction.aleatoric is not None
        return torch.stack([prediction.mean, prediction.variance], 1) if gaussian else prediction.mean
    if prediction.outputs == "probs":
        return prediction.probs
    scores = _log(prediction.probs)
    if prediction.outputs == "binary":
        return scores[:, 1:] - scores[:, :1]
    return scores.movedim(1, -1) if prediction.outputs == "tokens" else scores


def _log(probs: Tensor) -> Tensor:
    """Finite logarithms: ``0 * -inf`` would make a loss NaN."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()

"""Held-out labels, and how good answers are by them: as they are, and with a temperature that fits others best."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from rbue import metrics
from rbue.calibration import Temperature, cross_fitted
from rbue.errors import InvalidInput, RbueWarning, whole_number
from rbue.metrics import _checks

_PRIOR = 0.5
"""Images with any label, added where a temperature is fitted: there may be no mistake among a few hundred images. A
half is Jeffreys' for a probability. On 40 small networks less guarded worse, and 1 cost a little where there were
mistakes."""


class HeldOut:
    """Labels of images, or of their pixels, without those that say nothing.

    They come in batches, as do the answers: the maps of each may have a size of their own.

    Attributes:
        labels: as they were given.
        known: which of them count.
        image: the image of each that counts.
        images: how many images have one.
        folds: into how many parts the images are dealt, each scaled by the temperature that fits the others.
    """

    def __init__(self, labels: Sequence[Tensor], folds: int, ignore_index: int | None) -> None:
        if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral)):
            raise InvalidInput(f"ignore_index must be a class number, not {ignore_index!r}.")
        self.labels, self.folds = labels, whole_number(folds, "folds", least=2)
        if ignore_index is None:
            self.known = [torch.ones_like(one, dtype=torch.bool) for one in labels]
        else:
            self.known = [one != int(ignore_index) for one in labels]
        counts = torch.cat([one[:, None].flatten(1).sum(1) for one in self.known])
        self.image = torch.repeat_interleave(counts)
        self.images = int(counts.count_nonzero())
        if self.images < folds:
            count = f"{self.images} image{'s' * (self.images != 1)}"
            ignored = "" if ignore_index is None else f" with other labels than {ignore_index}"
            raise InvalidInput(
                f"validation has {count}{ignored} for folds={folds}; give more, a few hundred if you can."
            )

    def check(self, answers: Sequence[Tensor]) -> None:
        """Refuse labels that are not those of such answers, and answers that are no numbers."""
        leave_out = "ignore_index= leaves one number out"
        for number, (labels, known, probs) in enumerate(zip(self.labels, self.known, answers, strict=True)):
            name = f"the output for batch {number}"
            _checks.labels_of(labels.where(known, 0), probs, name, leave_out)
            _checks.probabilities(probs, name)

    def scores(self, answers: Sequence[Tensor]) -> dict[str, Any]:
        """Those of a candidate of ``rbue.tune``, by name."""
        probs = torch.cat([one.movedim(1, -1)[known] for one, known in zip(answers, self.known, strict=True)])
        labels = torch.cat([one[known] for one, known in zip(self.labels, self.known, strict=True)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RbueWarning)  # of candidates that nobody has chosen
            temperature = Temperature.fit(probs, labels, prior=_PRIOR).value
            scaled = cross_fitted(probs, labels, self.folds, prior=_PRIOR, groups=self.image).probs
        losses = -scaled.double().gather(1, labels[:, None]).clamp(min=1e-30).log().squeeze(1)
        by_image = losses.new_zeros(sum(map(len, self.labels))).index_add(0, self.image, losses)[self.image.unique()]
        return {
            "accuracy": float(metrics.accuracy(probs, labels)),
            "nll": float(metrics.nll(probs, labels)),
            "ece": float(metrics.ece(probs, labels)),
            "temperature": temperature,
            "scaled_nll": float(metrics.nll(scaled, labels)),
            "scaled_ece": float(metrics.ece(scaled, labels)),
            "losses": by_image * self.images / len(losses),
        }

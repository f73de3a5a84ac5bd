"""The stored answers of a run with the test images they are about; no network is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue import metrics
from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.report.of_runs.reading import Record
from rbue.lab.runs.folders import belong_to, read_probs


@dataclass(frozen=True)
class Answers:
    """Mean probabilities of the test images.

    Attributes:
        record: the run they come from.
        images: the test images.
        probs: ``(N, classes)``, made to sum to 1 again, since they are stored with three digits.
    """

    record: Record
    images: data.ImageSet
    probs: NDArray[np.float64]

    @property
    def method(self) -> str:
        """Short text of the method."""
        return self.record.settings.method

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each answer is right."""
        right: NDArray[np.bool_] = self.probs.argmax(1) == self.images.labels
        return right

    @cached_property
    def entropy(self) -> NDArray[np.float64]:
        """Entropy of the mean, in nats."""
        found: NDArray[np.float64] = metrics.entropy(torch.from_numpy(self.probs)).numpy()
        return found

    def reliability(self, bins: int = 30) -> metrics.Reliability:
        """The reliability diagram."""
        return metrics.reliability(torch.from_numpy(self.probs), torch.from_numpy(self.images.labels), bins)

    def risk_coverage(self) -> metrics.RiskCoverage:
        """The risk-coverage curve."""
        return metrics.risk_coverage(torch.from_numpy(self.probs.max(1)), torch.from_numpy(self.correct))


class TestImages:
    """The test images of each data set, loaded and compared once."""

    def __init__(self) -> None:
        self._sets: dict[str, tuple[data.ImageSet, dict[str, str]] | RbueError] = {}

    def answers(self, record: Record) -> Answers:
        """The stored answers of a run.

        Raises:
            RbueError: in one sentence, why they cannot be drawn.
        """
        if not record.folder.probs.is_file():
            raise RbueError("its probs.npy is not there, so its answers cannot be drawn.")
        images = self._matching(record)
        stored = read_probs(record.folder.probs)
        if stored.shape != (len(images), len(images.classes)):
            raise RbueError(f"its probs.npy has shape {stored.shape}, which does not fit {images!r}.")
        if not belong_to(record.folder.probs, record.result):
            raise RbueError("its probs.npy is of another measurement, so its answers cannot be drawn.")
        return Answers(record, images, stored.astype(np.float64))

    def _matching(self, record: Record) -> data.ImageSet:
        name = record.settings.data
        if name not in self._sets:
            try:
                images = data.load(name, "test")
                self._sets[name] = images, images.record()["sha256"]
            except RbueError as error:
                self._sets[name] = error
        found = self._sets[name]
        if isinstance(found, RbueError):
            raise RbueError(f"the test images of {name} are needed to draw its answers: {found}")
        measured: dict[str, Any] = dict(record.result.get("data") or {}).get("sha256") or found[1]
        if measured != found[1]:
            raise RbueError(f"it was measured on other test images of {name} than those on this machine.")
        return found[0]

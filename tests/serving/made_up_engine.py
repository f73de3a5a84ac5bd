"""An engine without a network: its answers can be told from its images and their numbers."""

from __future__ import annotations

import threading

import numpy as np

from rbue.errors import InvalidInput
from rbue.serving import Answers, Engine, Inputs

POISON = 250
"""An image that begins with this byte cannot be predicted."""


class MadeUp(Engine):
    title = "made up"
    classes = ("cat", "<b>dog</b>", "bird")
    samples = 4
    facts = {"draws": "balanced", "stream_version": 1, "temperature": 1.0}  # noqa: RUF012

    def __init__(self, inputs=None, batch_dependent=False):
        self.inputs = inputs or Inputs((4, 4, 1), bytes=True)
        self.batch_dependent = batch_dependent
        self.calls = []
        self.go_on = threading.Event()
        self.go_on.set()

    def predict(self, x, index, sampling):
        self.calls.append((len(x), index.tolist(), sampling))
        assert self.go_on.wait(20)
        if (x.reshape(len(x), -1)[:, 0] == POISON).any():
            raise InvalidInput("the network returned NaN or infinity.")
        if (x == 251).all():
            raise ZeroDivisionError("a secret of the server")
        samples = np.full((len(x), sampling.samples, 3), 0.1, np.float32)
        shown = x.reshape(len(x), -1).astype(np.float32).mean(1) / 2000 + 0.01 * index
        samples[:, :, 0] = 0.5 + shown[:, None] + 0.001 * np.arange(sampling.samples)
        if self.batch_dependent:
            samples += np.float32(1e-6 * len(x))
        probs = samples.mean(1)
        zeros = np.zeros(len(x), np.float32)
        used = np.full(len(x), sampling.samples)
        kept = samples if sampling.keep else None
        return Answers(probs, zeros, zeros, used, samples.std(1), np.ones((len(x), 3), int), kept)

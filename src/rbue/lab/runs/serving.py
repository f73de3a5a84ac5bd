"""A trained run as an engine of the server, and what its held-out images say about sets of classes."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

import numpy as np
import torch
from numpy.typing import NDArray

from rbue import random_stream
from rbue.decisions.conformal import LAC
from rbue.errors import InvalidInput
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.loading import TrainedRun, load_run
from rbue.lab.runs.measuring import images_of, predict_images, stored_answers
from rbue.lab.runs.passes import Passes, best_draws
from rbue.prediction import Prediction
from rbue.sampling.adaptive import Adaptive
from rbue.serving import Answers, Conformal, Engine, Inputs, Sampling
from rbue.serving.engines import Numbers
from rbue.serving.networks import answers_of, rule_of, set_threads


class RunEngine(Engine):
    """What the method of a run says, as :meth:`rbue.lab.TrainedRun.predict`; images are bytes ``(H, W, C)``.

    Args:
        path: the run folder that ``rbue train`` prints.
        device: where the networks go; left out: a GPU if there is one.
        samples: how many are drawn if a request does not say; a method with fewer draws all it has.
        draws: ``balanced`` or ``independent``; left out: balanced where the method has them.
        threads: of torch; left out, its own choice.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        device: str | torch.device | None = None,
        samples: int = 100,
        draws: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.run: TrainedRun = load_run(path, device)
        config = self.run.config
        self._threads = threads
        self._passes = passes = Passes(samples, draws=draws or best_draws(config)).of(config)
        self.title = f"{config.method} · {config.model} on {config.data}"
        self.inputs = Inputs(self.run.shape, bytes=True)
        self.classes = self.run.classes
        self.samples = passes.count(config)
        self.facts = {"draws": passes.draws, "stream_version": random_stream.VERSION, "temperature": 1.0}

    def predict(self, x: Numbers, index: NDArray[np.int64], sampling: Sampling) -> Answers:
        """What the run says of bytes ``(B, H, W, C)``."""
        rule = rule_of(sampling)
        return answers_of(self._prediction(x, index, sampling, rule), rule)

    def _prediction(
        self, x: Numbers, index: NDArray[np.int64] | None, sampling: Sampling, rule: Adaptive | None = None
    ) -> Prediction:
        run = self.run
        images = run._like.unlabelled(x)
        passes = Passes(sampling.samples, sampling.seed, rule, self._passes.draws)
        return predict_images(
            run.config, run.networks, images, passes, run.device, return_samples=sampling.keep, numbers=index
        )

    def begin_thread(self) -> None:
        """Give the thread its number of threads, which torch keeps for each."""
        set_threads(self._threads)

    def conformal(self, coverage: float, seed: int = 0) -> Conformal:
        """A threshold from the images that were held out of the training.

        What ``rbue evaluate --split validation`` has kept is used if it was drawn in the same way.

        Raises:
            InvalidInput: the run has none, or too few for the coverage.
        """
        config = self.run.config
        if not config.holdout:
            raise InvalidInput(
                f"{self.run.path} has no held-out images for --conformal; train with --holdout, or give --held-out a "
                "file with probs and labels."
            )
        held_out = images_of(config, "validation")
        root, passes = RunFolder(self.run.path).root, replace(self._passes, seed=seed)
        probs = stored_answers(config, root, held_out, passes, "validation")
        if probs is None:
            probs = self._prediction(held_out.images, None, Sampling(self.samples, seed)).probs.cpu().numpy()
        return fitted(probs, held_out.labels, coverage)


def fitted(probs: object, labels: object, coverage: float) -> Conformal:
    """The threshold of :class:`~rbue.decisions.conformal.LAC` on held-out images."""
    sets = LAC().fit(probs, labels, coverage)
    return Conformal(float(sets.thresholds), sets.coverage, int(sets.images))

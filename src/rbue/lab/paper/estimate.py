"""How long the missing work would take on this machine, from a few timed steps of each network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from rbue.lab import data, models
from rbue.lab.environment import facts
from rbue.lab.paper.jobs import Step, is_measured
from rbue.lab.paper.settings import Settings
from rbue.lab.paper.shift_results import CORRUPTION_COUNT
from rbue.lab.paper.trained import machine_of
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import DIVERSITY_SAMPLES

TIMED_STEPS = 5
TIMED_SECONDS = 2.0
"""No more steps are timed once those after the first took so long."""

TIMED_BATCH = {"cpu": 8, "cuda": 128}
TIMED_PIXELS = {"cpu": 8 * 32 * 32}
"""No more of them in a timed batch: fewer images where they are larger."""

METHOD_FACTORS = {"svi": 2.4, "mc-droprelu": 1.3, "mc-rrelu": 1.3}
"""Cost of a step of a method in steps of Single, measured on a CPU with small networks."""


@dataclass(frozen=True)
class Speed:
    """Seconds for one image of a network: in a training step, and in a forward pass."""

    training: float
    forward: float


class Estimator:
    """Times each network once, and prefers what trainings of the same network took on this machine.

    Args:
        device: where the work would be done.
        root: the folder of runs.
        clock: tells the time, in seconds.
        together: how many networks would be trained side by side.
    """

    def __init__(
        self,
        device: torch.device,
        root: Path,
        clock: Callable[[], float] = time.perf_counter,
        together: int = 1,
    ) -> None:
        self.device, self.root, self._clock, self.together = device, root, clock, together
        self._speeds: dict[tuple[tuple[int, int, int], str, float], Speed] = {}

    def seconds(self, step: Step, settings: Settings) -> float:
        """How long one step would take."""
        if step.kind == "train":
            return self._training(step.config)
        if step.kind == "clean" and is_measured(step.config, self.root, settings.samples_of(step.config)):
            return 0.0  # only its calibration is missing, for which no network runs
        images = data.get(step.config.data).published("test", "official").count
        if step.kind == "clean":
            passes = _clean_passes(step.config, settings.samples_of(step.config))
        else:
            sets = CORRUPTION_COUNT * len(settings.scale.severities)
            passes = sets * _passes(step.config, settings.shift_samples_of(step.config))
        return images * passes * self.speed(step.config).forward * _factor(step.config)

    def _training(self, config: RunConfig) -> float:
        known = self._finished_epochs(config)
        if known:
            # A network's seconds are its share of the clock, which is shorter beside others than alone.
            _, epoch = min(known, key=lambda one: abs(one[0] - self.together))
            return epoch * config.recipe.epochs
        images = data.get(config.data).published("train", "official").count - config.holdout
        return images * config.recipe.epochs * self.speed(config).training * _factor(config)

    def _finished_epochs(self, config: RunConfig) -> list[tuple[int, float]]:
        """Beside how many networks such a network was trained on this machine, and its seconds for an epoch."""
        here = machine_of(self.device.type, facts())
        found = []
        for path in sorted(RunFolder.of(config, self.root).path.parent.glob(f"*-seed*-{'?' * 8}/training.json")):
            folder = RunFolder(path.parent)
            other, training = folder.config(), folder.read("training")
            alike = other.width == config.width and other.parsed.name == config.parsed.name
            device, environment = training.get("device"), folder.read("environment") or {}
            if alike and device == self.device.type and machine_of(device, environment) == here:
                found.append((training.get("side_by_side", 1), float(training["seconds"] / other.recipe.epochs)))
        return found

    def speed(self, config: RunConfig) -> Speed:
        """The speed of a plain network, timed on random images when it is first asked for.

        How many classes there are changes only its last layer, so that sets with images of one size share it.
        """
        key = (data.get(config.data).shape, config.model, config.width)
        if key not in self._speeds:
            self._speeds[key] = self._timed(config)
        return self._speeds[key]

    def _timed(self, config: RunConfig) -> Speed:
        known = data.get(config.data)
        height, width, channels = known.shape
        network = models.create(config.model, len(known.classes), channels, config.width).to(self.device)
        batch = min(config.recipe.batch, TIMED_BATCH.get(self.device.type, 8))
        if self.device.type in TIMED_PIXELS:
            batch = min(batch, max(2, TIMED_PIXELS[self.device.type] // (height * width)))
        x = torch.randn(batch, channels, height, width, device=self.device)
        y = torch.zeros(batch, dtype=torch.int64, device=self.device)

        def train() -> None:
            F.cross_entropy(network.train()(x), y).backward()

        def forward() -> None:
            with torch.no_grad():
                network.eval()(x)

        return Speed(self._seconds_of(train) / batch, self._seconds_of(forward) / batch)

    def _seconds_of(self, work: Callable[[], None]) -> float:
        """The least of a few steps: another process on the machine can make one ten times as long, never shorter."""
        steps = [self._time(work), self._time(work)]  # the first prepares kernels and memory
        while len(steps) < TIMED_STEPS and sum(steps[1:]) < TIMED_SECONDS:
            steps.append(self._time(work))
        return min(steps)

    def _time(self, work: Callable[[], None]) -> float:
        start = self._clock()
        work()
        self._wait()
        return self._clock() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _clean_passes(config: RunConfig, samples: int) -> int:
    """One sweep gives every smaller number of samples; diversity needs another where fewer than its own are asked."""
    again = config.parsed.limit is None and samples < DIVERSITY_SAMPLES
    return _passes(config, samples) + (_passes(config, DIVERSITY_SAMPLES) if again else 0)


def _passes(config: RunConfig, samples: int) -> int:
    method = config.parsed
    if method.limit is not None:
        return min(samples, method.limit)
    return 1 if getattr(method, "where", "all") == "last" else samples


def _factor(config: RunConfig) -> float:
    return METHOD_FACTORS.get(config.parsed.name, 1.0)

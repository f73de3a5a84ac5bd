"""What there is to do: every run once, however many experiments share it, and how far each has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rbue.lab import data
from rbue.lab.paper.definitions import Experiment
from rbue.lab.paper.settings import Settings
from rbue.lab.paper.shift_results import shift_is_done
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, result_key
from rbue.lab.runs.measuring import lacks_calibration

StepKind = Literal["train", "clean", "shift"]
STEPS: tuple[StepKind, ...] = ("train", "clean", "shift")
COST_OF_AN_IMAGE = {"vgg13": 1.0, "resnet18": 2.4, "densenet121": 3.9}
"""Multiply-adds in those of VGG-13; counting them (:func:`rbue.lab.models.multiply_adds`) takes seconds a network."""


@dataclass(frozen=True)
class Step:
    """The smallest piece of work, finished or not begun: train one network, or measure one run."""

    kind: StepKind
    config: RunConfig

    def __str__(self) -> str:
        verb = {"train": "train", "clean": "measure", "shift": "measure under corruptions"}[self.kind]
        config = self.config
        return f"{verb} {config.data} {config.model} {config.method} seed {config.seed}"


@dataclass(frozen=True)
class Job:
    """One run with all that the chosen experiments want to know of it.

    Attributes:
        config: the run.
        measures: ``clean``, ``diversity``, ``shift``.
        experiments: ids of the experiments that use it.
    """

    config: RunConfig
    measures: frozenset[str]
    experiments: tuple[str, ...]

    def missing(self, root: Path, settings: Settings, kinds: Iterable[str] = STEPS) -> list[Step]:
        """What is still to be done, in order."""
        steps = [Step("train", member) for member in self.config.members() if not is_trained(member, root)]
        samples = settings.samples_of(self.config)
        measured = is_measured(self.config, root, samples) and is_calibrated(self.config, root, samples)
        if self.measures & {"clean", "diversity"} and not measured:
            steps.append(Step("clean", self.config))
        if "shift" in self.measures and not shift_is_done(
            self.config, root, settings.scale.severities, settings.shift_samples_of(self.config)
        ):
            steps.append(Step("shift", self.config))
        return [step for step in steps if step.kind in kinds]


def is_trained(config: RunConfig, root: Path) -> bool:
    """Whether one network's training is finished."""
    return RunFolder.of(config, root).read("training") is not None


def is_measured(config: RunConfig, root: Path, samples: int) -> bool:
    """Whether a run has its clean results with so many samples, of today's random stream."""
    found = RunFolder.of(config, root).entries("results").get(result_key(samples))
    return found is not None and not other_stream(config, found)


def is_calibrated(config: RunConfig, root: Path, samples: int) -> bool:
    """Whether those results have been calibrated; also where the probabilities to do it from are not there."""
    return not lacks_calibration(RunFolder.of(config, root), result_key(samples))


def jobs_for(experiments: Iterable[Experiment], settings: Settings) -> list[Job]:
    """Every run of the experiments once; cheap runs and those many experiments share come first."""
    users: dict[RunConfig, list[str]] = {}
    measures: dict[RunConfig, frozenset[str]] = {}
    for experiment in experiments:
        for config in settings.configs(experiment):
            users.setdefault(config, []).append(experiment.id)
            measures[config] = measures.get(config, frozenset()) | settings.measures(experiment)
    jobs = [Job(config, measures[config], tuple(names)) for config, names in users.items()]
    return sorted(jobs, key=lambda job: training_cost(job.config) / len(job.experiments))


def training_cost(config: RunConfig) -> float:
    """About the multiply-adds of a whole training, for putting runs in order."""
    known = data.get(config.data)
    height, width, _ = known.shape
    images = known.published("train", "official").count - config.holdout
    one = COST_OF_AN_IMAGE.get(config.model, 1.0) * height * width * config.width**2
    return one * images * config.recipe.epochs * len(config.members())

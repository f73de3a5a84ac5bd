"""What there is to do: every run once, however many experiments share it, and about how long the missing steps take.

:func:`jobs_for` lists the runs, :meth:`Job.missing` says how far each has come, :class:`Estimator` how long a step
would take on this machine, and :func:`planned` puts the three together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch.nn import functional as F

from rbue.errors import RbueError
from rbue.lab import data, models
from rbue.lab.environment import facts
from rbue.lab.paper.experiments import Experiment
from rbue.lab.paper.results import CORRUPTION_COUNT, as_measured, machine_of, shift_is_done
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunConfig, RunFolder, outdated, result_key
from rbue.lab.runs.measuring import DIVERSITY_SAMPLES
from rbue.lab.runs.temperatures import lacks_calibration

StepKind = Literal["train", "clean", "shift"]
STEPS: tuple[StepKind, ...] = ("train", "clean", "shift")
COST_OF_AN_IMAGE = {"vgg13": 1.0, "resnet18": 2.4, "densenet121": 3.9}
"""Multiply-adds in those of VGG-13; counting them (:func:`rbue.lab.models.multiply_adds`) takes seconds a network."""

TIMED_STEPS = 5
TIMED_SECONDS = 2.0
"""No more steps are timed once those after the first took so long."""

TIMED_BATCH = {"cpu": 8, "cuda": 128}
TIMED_PIXELS = {"cpu": 8 * 32 * 32}
"""No more of them in a timed batch: fewer images where they are larger."""

METHOD_FACTORS = {"svi": 2.4, "mc-droprelu": 1.3, "mc-rrelu": 1.3}
METHOD_FACTORS |= {"treenet": 2.6, "batch-ensemble": 2.7, "packed-ensemble": 1.5}
"""Cost of a step of a method in steps of Single, measured on a CPU with small networks."""
GPU_FACTORS = {"svi": 2.1, "treenet": 2.2, "batch-ensemble": 4.7, "packed-ensemble": 1.7}
"""The same on a GPU, where random ReLUs cost as much as plain ones (`results/costs`)."""


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
        config, samples = self.config, settings.samples_of(self.config)
        steps = [Step("train", member) for member in config.trainings() if not is_trained(member, root)]
        # A run whose probabilities are not there lacks no calibration: there is nothing to make it from.
        complete = is_measured(config, root, samples) and not lacks_calibration(
            RunFolder.of(config, root), result_key(samples)
        )
        if self.measures & {"clean", "diversity"} and not complete:
            steps.append(Step("clean", config))
        wanted = (settings.scale.severities, settings.shift_samples_of(config))
        if "shift" in self.measures and not shift_is_done(config, root, *wanted):
            steps.append(Step("shift", config))
        return [step for step in steps if step.kind in kinds]


def is_trained(config: RunConfig, root: Path) -> bool:
    """Whether one network's training is finished."""
    return RunFolder.of(config, root).read("training") is not None


def is_measured(config: RunConfig, root: Path, samples: int) -> bool:
    """Whether a run has its clean results with so many samples, of today's random stream and networks."""
    found = RunFolder.of(config, root).entries("results").get(result_key(samples))
    return found is not None and not outdated(config, root, found)


def data_is_here(name: str) -> bool:
    """Whether both splits of a data set can be loaded."""
    try:
        return {"train", "test"} <= set(data.splits_here(name))
    except data.DataError:
        return False


def jobs_for(experiments: Iterable[Experiment], settings: Settings, root: Path | None = None) -> list[Job]:
    """Every run of the experiments once; cheap runs and those many experiments share come first.

    Where any network will do, that is decided by what the folder of runs has, if one is given.
    """
    users: dict[RunConfig, list[str]] = {}
    measures: dict[RunConfig, frozenset[str]] = {}
    for experiment in experiments:
        those = settings if root is None else as_measured(experiment, settings, root)
        for config in those.configs(experiment):
            wanted = settings.measures(experiment)
            if config.seed and settings.seeds is None:
                wanted -= {"shift"}  # the budget's further repetitions are for clean images
            users.setdefault(config, []).append(experiment.id)
            measures[config] = measures.get(config, frozenset()) | wanted
    jobs = [Job(config, measures[config], tuple(names)) for config, names in users.items()]
    return sorted(jobs, key=lambda job: training_cost(job.config) / len(job.experiments))


def training_cost(config: RunConfig) -> float:
    """About the multiply-adds of a whole training, for putting runs in order."""
    height, width, _ = data.get(config.data).shape
    one = COST_OF_AN_IMAGE.get(config.model, 1.0) * height * width * config.width**2
    return one * _training_images(config) * config.recipe.epochs * len(config.trainings())


def _training_images(config: RunConfig) -> int:
    return data.get(config.data).published("train", "official").count - config.holdout


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        data: the data set really used.
        model: the network.
        method: short text of the method.
        seed: seed of the (first) network.
        missing: kinds of steps still to do, ``train`` once for each network.
        seconds: estimate for those that are not done by an earlier run of the plan.
        here: whether the data set is on this machine.
        experiments: which experiments use it.
    """

    data: str
    model: str
    method: str
    seed: int
    missing: tuple[str, ...]
    seconds: float
    here: bool
    experiments: tuple[str, ...]

    @property
    def state(self) -> str:
        """What is missing, in words."""
        if not self.missing:
            return "nothing"
        networks = self.missing.count("train")
        words = [f"train {networks}" if networks > 1 else "train"] if networks else []
        return ", ".join([*words, *(kind for kind in self.missing if kind != "train")])


def planned(
    jobs: Sequence[Job], settings: Settings, estimator: Estimator, kinds: Iterable[str] = STEPS
) -> list[PlannedRun]:
    """The runs in the order of work; a network that two runs share is counted with the first."""
    counted: set[Step] = set()
    here = {name: data_is_here(name) for name in {job.config.data for job in jobs}}
    rows = []
    for job in jobs:
        steps = [step for step in job.missing(estimator.root, settings, frozenset(kinds)) if step not in counted]
        counted.update(steps)
        config = job.config
        rows.append(
            PlannedRun(
                *(config.data, config.model, config.method, config.seed),
                missing=tuple(step.kind for step in steps),
                seconds=sum(estimator.seconds(step, settings) for step in steps),
                here=here[config.data],
                experiments=job.experiments,
            )
        )
    return rows


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

    factors: ClassVar[dict[str, float]] = METHOD_FACTORS

    def __init__(
        self, device: torch.device, root: Path, clock: Callable[[], float] = time.perf_counter, together: int = 1
    ) -> None:
        self.device, self.root, self._clock, self.together = device, root, clock, together
        self._speeds: dict[tuple[tuple[int, int, int], str, float], Speed] = {}

    def seconds(self, step: Step, settings: Settings) -> float:
        """How long one step would take."""
        config = step.config
        if step.kind == "train":
            return self._training(config)
        if step.kind == "clean" and is_measured(config, self.root, settings.samples_of(config)):
            return 0.0  # only its calibration is missing, for which no network runs
        if step.kind == "clean":
            passes = _clean_passes(config, settings.samples_of(config))
        else:
            sets = CORRUPTION_COUNT * len(settings.scale.severities)
            passes = sets * _passes(config, settings.shift_samples_of(config))
        images = data.get(config.data).published("test", "official").count
        return images * passes * self.speed(config).forward * self.factor(config)

    def _training(self, config: RunConfig) -> float:
        known = self._finished_epochs(config)
        if known:
            # A network's seconds are its part of the clock, which is shorter beside others than alone.
            _, epoch = min(known, key=lambda one: abs(one[0] - self.together))
            return epoch * config.recipe.epochs
        return _training_images(config) * config.recipe.epochs * self.speed(config).training * self.factor(config)

    def _finished_epochs(self, config: RunConfig) -> list[tuple[int, float]]:
        """Beside how many networks such a network was trained on this machine, and its seconds for an epoch."""
        here = machine_of(self.device.type, facts())
        found = []
        for path in sorted(RunFolder.of(config, self.root).path.parent.glob(f"*-seed*-{'?' * 8}/training.json")):
            folder = RunFolder(path.parent)
            try:
                other, training = folder.config(), folder.read("training")
                environment = folder.read("environment") or {}
            except RbueError:  # of a run that nobody asks for here
                continue
            alike = other.width == config.width and other.parsed.name == config.parsed.name
            device = training.get("device")
            alone = training.get("workers", 1) == 1  # beside other processes an epoch says little
            if alike and alone and device == self.device.type and machine_of(device, environment) == here:
                found.append((training.get("side_by_side", 1), float(training["seconds"] / other.recipe.epochs)))
        return found

    def factor(self, config: RunConfig) -> float:
        """What a step of a run's method costs in steps of Single."""
        return self.factors.get(config.parsed.name, 1.0)

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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self._clock() - start


RECORDED_GPU = "NVIDIA H200"
RECORDED_SOURCE = (
    "trainings in results/runs, two to four of them side by side, and passes in results/mc_inference_cuda.json; larger "
    "images by pixels"
)
_RECORDED_TRAININGS = {"vgg13": 82.0, "resnet18": 208.0, "densenet121": 1299.0}
"""Seconds of Single for 200 epochs of CIFAR-10, beside three, one and one other networks."""

_RECORDED_PASSES = 2.683
"""Seconds of 100 passes of ResNet-18 over 10,000 images of CIFAR-10."""


class RecordedGpu(Estimator):
    """How long steps would take on one GPU of the kind that `results` comes from; nothing is timed."""

    factors: ClassVar[dict[str, float]] = GPU_FACTORS

    def __init__(self, root: Path) -> None:
        super().__init__(torch.device("cpu"), root)

    def _finished_epochs(self, config: RunConfig) -> list[tuple[int, float]]:
        return []

    def _timed(self, config: RunConfig) -> Speed:
        height, width, _ = data.get(config.data).shape
        seconds = _RECORDED_TRAININGS[config.model]
        larger = height * width / 32**2 * config.width**2
        forward = _RECORDED_PASSES / (100 * 10_000) * seconds / _RECORDED_TRAININGS["resnet18"]
        return Speed(larger * seconds / (200 * 50_000), larger * forward)


def _clean_passes(config: RunConfig, samples: int) -> int:
    """One sweep gives every smaller number of samples; diversity needs another where fewer than its own are asked."""
    again = config.parsed.limit is None and samples < DIVERSITY_SAMPLES
    return _passes(config, samples) + (_passes(config, DIVERSITY_SAMPLES) if again else 0)


def _passes(config: RunConfig, samples: int) -> int:
    method = config.parsed
    if method.limit is not None:
        return min(samples, method.limit)
    return 1 if getattr(method, "where", "all") == "last" else samples

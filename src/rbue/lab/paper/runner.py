"""Do what is missing of some experiments, one step after the other, until it is done or the time is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_json
from rbue.lab import data
from rbue.lab.paper.experiments import Experiment
from rbue.lab.paper.illustrations import is_illustrated, write_illustration
from rbue.lab.paper.planning import STEPS, Job, Step, data_is_here, is_trained, jobs_for
from rbue.lab.paper.settings import Settings, settings_file
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.temperatures import calibrate_run
from rbue.lab.runs.training import Report, train_runs
from rbue.lab.shift import shift_run
from rbue.lab.training import Diverged

Tell = Callable[[str], None]
DRAW = "draw"
"""The name, among the kinds of steps, of making the data of illustrations, which no comparison of runs gives."""

KINDS = (*STEPS, DRAW)
_UNTRAINED = "its training is not finished"

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")


def parse_duration(text: str) -> float:
    """Seconds in a text such as ``90s``, ``25m``, ``1h`` or ``1h30m``.

    >>> parse_duration("90s"), parse_duration("25m"), parse_duration("1h30m")
    (90.0, 1500.0, 5400.0)
    """
    plain = text.strip().lower().replace(" ", "")
    parts = _PART.findall(plain)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(map("".join, parts)) != plain or seconds <= 0:
        raise InvalidInput(f"--time-budget must be a time such as 90s, 25m or 1h30m, not {text!r}.")
    return seconds


class TimeBudget:
    """Time that begins to run when it is made; None never ends."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._start = clock()

    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._start

    def over(self) -> bool:
        """Whether nothing new should be begun."""
        return self.seconds is not None and self.spent() >= self.seconds


@dataclass
class Outcome:
    """What became of a command.

    Attributes:
        done: steps that were done now.
        left: steps that were not begun because the time was over.
        skipped: steps that cannot be done here, with the reason.
        failed: steps that ended in an error, with its message; the others were done.
        already: how many runs had nothing missing.
    """

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    already: int = 0


@dataclass(frozen=True)
class Watch:
    """What is told of the progress within a step, each opened for that step only.

    Attributes:
        training: gives a function to tell of every epoch.
        shifting: gives a function to tell of measurements done, of how many.
    """

    training: Callable[[], AbstractContextManager[Report | None]] = nullcontext
    shifting: Callable[[], AbstractContextManager[data.Progress | None]] = nullcontext


@dataclass(frozen=True)
class Place:
    """Where runs are and where to compute.

    Attributes:
        root: folder of the runs.
        device: where to compute.
        together: how many networks to train side by side.
        engine: how training steps run, see :mod:`rbue.lab.training.engines`.
    """

    root: Path
    device: torch.device
    together: int = 1
    engine: str = "auto"


def run_experiments(
    experiments: Sequence[Experiment],
    settings: Settings,
    place: Place,
    *,
    budget: TimeBudget | None = None,
    kinds: Iterable[str] = KINDS,
    tell: Tell = lambda _: None,
    watch: Watch | None = None,
) -> Outcome:
    """Train and measure what the experiments still miss.

    A step that has begun is finished and saved; when the budget is over nothing new is begun. Starting again continues
    there: every step leaves a file behind that says it is done, and an interrupted training its last epoch.

    Args:
        experiments: what is wanted.
        settings: how much of it.
        place: where the runs are, and the device.
        budget: how long; without one, until all is done.
        kinds: which of :data:`KINDS` to do.
        tell: called with a line before each step.
        watch: shows progress within a step.
    """
    budget, outcome = budget or TimeBudget(), Outcome()
    kinds = frozenset(kinds)
    write_json(settings_file(place.root), settings.as_json())
    jobs = jobs_for(experiments, settings)
    here = {name: data_is_here(name) for name in {job.config.data for job in jobs}}
    drawn = [one for one in experiments if one.illustration is not None] if DRAW in kinds else []
    _illustrate([one for one in drawn if one.grid is None], settings, place, budget, tell, outcome)
    diverged: set[Step] = set()
    for number, job in enumerate(jobs, 1):
        missing = job.missing(place.root, settings, kinds)
        outcome.already += not missing
        for step in missing:
            if step.kind == "train" and (step in diverged or is_trained(step.config, place.root)):
                continue  # alongside another one
            problem = _obstacle(step, place.root) if here[step.config.data] else _not_here(step.config.data)
            if budget.over() and here[step.config.data]:
                outcome.left.append(str(step))
            elif problem is not None:
                outcome.skipped.append((str(step), problem))
            else:
                group = _alongside(step, jobs[number - 1 :], place, settings, kinds, diverged)
                tell(f"{number} of {len(jobs)}: {', '.join(str(one) for one in group)}")
                diverged.update(_attempt(group, settings, place, watch or Watch(), outcome))
    _illustrate([one for one in drawn if one.grid is not None], settings, place, budget, tell, outcome)
    outcome.left = list(dict.fromkeys(outcome.left))
    return outcome


def _alongside(
    step: Step, jobs: Sequence[Job], place: Place, settings: Settings, kinds: frozenset[str], diverged: set[Step]
) -> list[Step]:
    """The step, and other trainings of its job and later ones, on the same data, to do with it."""
    if step.kind != "train" or place.together == 1:
        return [step]
    trainings = [step]
    for job in jobs:
        for one in job.missing(place.root, settings, kinds):
            fits = one.kind == "train" and one.config.data == step.config.data and one not in trainings
            if fits and one not in diverged and len(trainings) < place.together:
                trainings.append(one)
    return trainings


def _attempt(steps: Sequence[Step], settings: Settings, place: Place, watch: Watch, outcome: Outcome) -> Sequence[Step]:
    """Do steps and note what became of them; gives the trainings that diverged."""
    try:
        _do(steps, settings, place, watch)
    except RbueError as error:  # such as a training that diverged; the others go on
        trained = [one for one in steps if one.kind == "train" and is_trained(one.config, place.root)]
        failed = [one for one in steps if one not in trained]
        outcome.done += [str(one) for one in trained]
        outcome.failed += [(str(one), str(error)) for one in failed]
        return failed if isinstance(error, Diverged) else ()
    outcome.done += [str(one) for one in steps]
    return ()


def _do(steps: Sequence[Step], settings: Settings, place: Place, watch: Watch) -> None:
    step, config = steps[0], steps[0].config
    if step.kind == "train":
        with watch.training() as report:
            configs = [one.config for one in steps]
            train_runs(configs, place.root, place.device, report, engine=place.engine, together=place.together)
    elif step.kind == "clean":
        evaluate_run(config, place.root, place.device, samples=settings.samples_of(config), seed=0)
        calibrate_run(config, place.root)
    else:
        severities, samples = settings.scale.severities, settings.shift_samples_of(config)
        with watch.shifting() as progress:
            shift_run(
                *(config, place.root, place.device), severities=severities, samples=samples, seed=0, progress=progress
            )


def _obstacle(step: Step, root: Path) -> str | None:
    """Why a step cannot be done here although its data is; None if it can."""
    if step.kind != "train" and not all(is_trained(member, root) for member in step.config.members()):
        return _UNTRAINED
    return None


def _not_here(name: str) -> str:
    return f"{name} is not on this machine; run `rbue data fetch {name}`"


def _illustrate(
    experiments: Sequence[Experiment],
    settings: Settings,
    place: Place,
    budget: TimeBudget,
    tell: Tell,
    outcome: Outcome,
) -> None:
    for experiment in experiments:
        if is_illustrated(experiment, settings, place.root):
            continue
        step = f"draw from {experiment.id}"
        problem = _cannot_illustrate(experiment, settings, place.root)
        if budget.over():
            outcome.left.append(step)
        elif problem is not None:
            outcome.skipped.append((step, problem))
        else:
            tell(step)
            try:
                write_illustration(experiment, settings, place.root, place.device)
            except RbueError as error:
                outcome.failed.append((step, str(error)))
            else:
                outcome.done.append(step)


def _cannot_illustrate(experiment: Experiment, settings: Settings, root: Path) -> str | None:
    illustration = experiment.illustration
    assert illustration is not None
    if illustration.data is not None and not data_is_here(settings.data_of(illustration.data)):
        return _not_here(settings.data_of(illustration.data))
    if illustration.run is not None:
        runs = list(settings.configs(experiment))
        if not runs or not is_trained(runs[0], root):
            return _UNTRAINED
    return None

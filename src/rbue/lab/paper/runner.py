"""Do what is missing of some experiments, here or elsewhere, until it is done or the time is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_json
from rbue.lab import data
from rbue.lab.executors import Executor
from rbue.lab.paper.experiments import Experiment
from rbue.lab.paper.illustrations import read_illustration, write_illustration
from rbue.lab.paper.planning import STEPS, Job, Step, data_is_here, is_trained, jobs_for
from rbue.lab.paper.settings import Settings, settings_file
from rbue.lab.runs.folders import RunConfig
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
        shifting: gives, for the name of a step, a function to tell of measurements done, of how many.
    """

    training: Callable[[], AbstractContextManager[Report | None]] = nullcontext
    shifting: Callable[[str], AbstractContextManager[data.Progress | None]] = lambda _: nullcontext()


@dataclass(frozen=True)
class Place:
    """Where runs are and where to compute.

    Attributes:
        root: folder of the runs.
        device: where to compute.
        together: how many networks to train side by side.
        engine: how training steps run, see :mod:`rbue.lab.training.engines`.
        helpers: how many processes make corrupted images; None decides by their number.
    """

    root: Path
    device: torch.device
    together: int = 1
    engine: str = "auto"
    helpers: int | None = None


def run_experiments(
    experiments: Sequence[Experiment],
    settings: Settings,
    place: Place,
    *,
    budget: TimeBudget | None = None,
    kinds: Iterable[str] = KINDS,
    tell: Tell = lambda _: None,
    watch: Watch | None = None,
    executor: Executor | None = None,
) -> Outcome:
    """Train and measure what the experiments still miss.

    A step that has begun is finished and saved; when the budget is over nothing new is begun. Starting again continues
    there: every step leaves a file behind that says it is done, and an interrupted training its last checkpoint.

    Args:
        experiments: what is wanted.
        settings: how much of it.
        place: where the runs are, and the device.
        budget: how long; without one, until all is done.
        kinds: which of :data:`KINDS` to do.
        tell: called with a line before each step.
        watch: shows progress within a step.
        executor: does the steps; without one, this process does.
    """
    budget, outcome, executor = budget or TimeBudget(), Outcome(), executor or Executor(place.device)
    kinds = frozenset(kinds)
    write_json(settings_file(place.root), settings.as_json())
    drawn = [one for one in experiments if one.illustration is not None] if DRAW in kinds else []
    draw = partial(_illustrate, settings=settings, place=place, budget=budget, tell=tell, outcome=outcome)
    draw([one for one in drawn if one.grid is None], executor)
    agenda = _Agenda(jobs_for(experiments, settings, place.root), settings, place, budget, kinds, tell, outcome)
    task = partial(_do, settings=settings, place=place, watch=watch or Watch())
    for steps, _, error in executor.each(task, agenda.following):
        agenda.note(steps, error)
    draw([one for one in drawn if one.grid is not None], executor)
    outcome.left = list(dict.fromkeys(outcome.left))
    return outcome


class _Agenda:
    """The steps that are missing, in order, and which of them can begin now.

    Two steps about the same network are never under way together: what is measured is trained, and an ensemble finds
    what was measured of its members.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        settings: Settings,
        place: Place,
        budget: TimeBudget,
        kinds: frozenset[str],
        tell: Tell,
        outcome: Outcome,
    ) -> None:
        self.jobs, self.settings, self.place, self.kinds = jobs, settings, place, kinds
        self.budget, self.tell, self.outcome = budget, tell, outcome
        self.here = {name: data_is_here(name) for name in {job.config.data for job in jobs}}
        missing = [job.missing(place.root, settings, kinds) for job in jobs]
        outcome.already = sum(not steps for steps in missing)
        self.waiting = [(number, step) for number, steps in enumerate(missing, 1) for step in steps]
        self.under_way: list[Step] = []
        self.diverged: set[Step] = set()
        self.alone: set[Step] = set()

    def following(self) -> list[Step] | None:
        """What to do next: a step, or trainings side by side. None if nothing can begin now."""
        for entry in list(self.waiting):
            number, step = entry
            if self._is_done(*entry):
                self.waiting.remove(entry)
                continue
            here = self.here[step.config.data]
            shared = self._networks(step) & self._networks(*self.under_way)
            if step in self.under_way or (shared and here and not self.budget.over()):
                continue
            self.waiting.remove(entry)
            problem = _obstacle(step, self.place.root) if here else _not_here(step.config.data)
            if here and self.budget.over():
                self.outcome.left.append(str(step))
            elif problem is not None:
                self.outcome.skipped.append((str(step), problem))
            else:
                steps = [step, *self._alongside(step)]
                if len(steps) > 1:  # as those beside it, in case they fail together
                    self.waiting.insert(0, entry)
                self.under_way += steps
                self.tell(f"{number} of {len(self.jobs)}: {', '.join(str(one) for one in steps)}")
                return steps
        return None

    def note(self, steps: Sequence[Step], error: RbueError | None) -> None:
        """Keep what became of steps; after an error, such as a training that diverged, the others go on.

        Trainings that failed side by side are tried again one by one: the error is that of one of them, or of their
        number.
        """
        done = [
            one for one in steps if error is None or (one.kind == "train" and is_trained(one.config, self.place.root))
        ]
        self.outcome.done += [str(one) for one in done]
        for one in steps:
            self.under_way.remove(one)
        lost = [one for one in steps if one not in done]
        self.diverged.update(lost if isinstance(error, Diverged) else ())
        if len(steps) > 1 and not isinstance(error, Diverged):
            self.alone.update(lost)
        else:
            self.outcome.failed += [(str(one), str(error)) for one in lost]

    def _is_done(self, number: int, step: Step) -> bool:
        """Whether a step was done with another one since, or would end as it did before."""
        if step.kind == "train":
            return step in self.diverged or is_trained(step.config, self.place.root)
        return step not in self.jobs[number - 1].missing(self.place.root, self.settings, self.kinds)

    def _alongside(self, step: Step) -> list[Step]:
        """Other trainings on the same data, of its job and later ones, to do with a training."""
        chosen: list[Step] = []
        for number, one in list(self.waiting):
            if step.kind != "train" or step in self.alone or len(chosen) + 1 >= self.place.together:
                break
            fits = one.kind == "train" and one.config.data == step.config.data and one not in (step, *chosen)
            free = one not in self.under_way and one not in self.alone
            if fits and free and not self._is_done(number, one) and _obstacle(one, self.place.root) is None:
                chosen.append(one)
        return chosen

    @staticmethod
    def _networks(*steps: Step) -> set[RunConfig]:
        return {member for step in steps for member in step.config.trainings()}


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
        with watch.shifting(str(step)) as progress:
            shift_run(
                *(config, place.root, place.device),
                severities=severities,
                samples=samples,
                seed=0,
                progress=progress,
                helpers=place.helpers,
            )


def _obstacle(step: Step, root: Path) -> str | None:
    """Why a step cannot be done here although its data is; None if it can."""
    config = step.config
    if step.kind != "train":
        return None if all(is_trained(member, root) for member in config.trainings()) else _UNTRAINED
    try:
        config.parsed.check_training(config.recipe.epochs, config.recipe.average)
    except RbueError as error:
        return str(error).removesuffix(".")
    return None


def _not_here(name: str) -> str:
    return f"{name} is not on this machine; run `rbue data fetch {name}`"


def _illustrate(
    experiments: Sequence[Experiment],
    executor: Executor,
    settings: Settings,
    place: Place,
    budget: TimeBudget,
    tell: Tell,
    outcome: Outcome,
) -> None:
    waiting = [one for one in experiments if read_illustration(one, settings, place.root) is None]

    def following() -> Experiment | None:
        while waiting:
            experiment = waiting.pop(0)
            problem = _cannot_illustrate(experiment, settings, place.root)
            if budget.over():
                outcome.left.append(_drawing(experiment))
            elif problem is not None:
                outcome.skipped.append((_drawing(experiment), problem))
            else:
                tell(_drawing(experiment))
                return experiment
        return None

    task = partial(write_illustration, settings=settings, root=place.root, device=place.device)
    for experiment, _, error in executor.each(task, following):
        if error is None:
            outcome.done.append(_drawing(experiment))
        else:
            outcome.failed.append((_drawing(experiment), str(error)))


def _drawing(experiment: Experiment) -> str:
    return f"draw from {experiment.id}"


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

"""What a command would do: one entry a run, with what is missing of it and about how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rbue.lab.paper.estimate import Estimator
from rbue.lab.paper.jobs import STEPS, Job, Step
from rbue.lab.paper.runner import data_is_here
from rbue.lab.paper.settings import Settings


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

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


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
                config.data,
                config.model,
                config.method,
                config.seed,
                tuple(step.kind for step in steps),
                sum(estimator.seconds(step, settings) for step in steps),
                here[config.data],
                job.experiments,
            )
        )
    return rows

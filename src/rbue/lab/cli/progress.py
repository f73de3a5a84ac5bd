"""Progress on stderr: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from rbue.lab import data
from rbue.lab.cli.output import duration, remark, stderr
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.training import Report
from rbue.lab.training import EpochReport

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def training_progress() -> Iterator[Report]:
    """A function to tell of every epoch: loss, accuracy and time left."""
    console = stderr()
    if not console.is_terminal:
        yield lambda config, epoch: remark(f"{_name(config)}: {_state(config, epoch)}")
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}
        waiting = bars.add_task("first epoch", total=None, state="")

        def report(config: RunConfig, epoch: EpochReport) -> None:
            bars.update(waiting, visible=False)
            total = config.recipe.epochs
            task = tasks.setdefault(config.id, TaskID(-1))
            if task == -1:
                task = tasks[config.id] = bars.add_task(_name(config), total=total, state="")
            bars.update(task, completed=epoch.epoch + 1, state=_state(config, epoch))

        try:
            yield report
        finally:
            bars.update(waiting, visible=False)


def _name(config: RunConfig) -> str:
    return f"{config.method} seed {config.seed}"


def _state(config: RunConfig, epoch: EpochReport) -> str:
    done, total = epoch.epoch + 1, config.recipe.epochs
    text = f"epoch {done}/{total}, loss {epoch.loss:.4f}, accuracy {100 * epoch.accuracy:.2f} %"
    left = (total - done) * epoch.seconds * epoch.side_by_side
    return text if done == total else f"{text}, {duration(left)} left"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something without steps is going on."""
    console = stderr()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        remark(what)
        yield


@contextmanager
def data_progress() -> Iterator[data.Progress]:
    """A function to tell of bytes and images done."""
    console = stderr()
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


class _Lines:
    """A line when something begins or ends, and every few seconds between."""

    def __init__(self) -> None:
        self._what, self._time = "", 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if what != self._what or done == total or now - self._time > SECONDS_BETWEEN_LINES:
            self._what, self._time = what, now
            remark(f"{what}: {done:,}" + (f" of {total:,}" if total is not None else ""))

"""The training loop, the same on a CPU and a GPU and whether it was interrupted or not; and the log of its epochs."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbue.errors import RbueError, warn
from rbue.files import DiskFull, append_text, parse_json, write_bytes
from rbue.lab.methods.base import Method, naming_own, spec_of
from rbue.lab.processes import Rank
from rbue.lab.training.batches import Batches
from rbue.lab.training.checkpoint import CheckpointWriter, load_checkpoint, snapshot
from rbue.lab.training.engines import Engine, PlainEngine, engine_for
from rbue.lab.training.recipe import Recipe
from rbue.lab.training.step import TrainingStep

_SAVING_PART, _WRITING_PART = 0.005, 0.02
"""Where epochs are short: the largest part of the time that training waits for checkpoints, and the largest in which
they are written beside it."""


@dataclass(frozen=True)
class EpochReport:
    """What one epoch came to; ``seconds`` is a network's part of it where several were trained side by side."""

    epoch: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float
    side_by_side: int = 1

    def as_json(self) -> dict[str, Any]:
        """For the log, where the learning rate is ``rate``."""
        return {"rate" if name == "learning_rate" else name: value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class TrainingSummary:
    """What a whole training came to.

    ``seconds`` counts preparing, compiling, epochs and saving (but the last), over all starts of a run, but not epochs
    that were lost in a stop. Networks trained side by side share the clock, and each is given its part of every epoch.
    """

    epochs: int
    seconds: float
    loss: float
    accuracy: float
    engine: str
    side_by_side: int


class Diverged(RbueError):
    """A training whose loss is not a number any more."""


@dataclass(frozen=True)
class Job:
    """One network to train.

    Attributes:
        network: the network, prepared by the method, on its device.
        method: says what to minimise.
        batches: the training data.
        recipe: epochs and optimiser settings.
        run_seed: seed of the run.
        checkpoint: file to continue from and to write to; None keeps nothing.
        report: called after each epoch.
        rank: which of several processes this is.
        made_from: what else decides the training, ready for JSON, such as a checksum of the images. A checkpoint notes
            it, with the method, the recipe and the seed; one that was made from something else is refused.
    """

    network: nn.Module
    method: Method
    batches: Batches
    recipe: Recipe
    run_seed: int
    checkpoint: Path | None = None
    report: Callable[[EpochReport], None] | None = None
    rank: Rank = field(default_factory=Rank)
    made_from: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Everything that decides the training, as it is read back from JSON."""
        own = {"method": spec_of(self.method), "seed": self.run_seed, **self.recipe.as_json()}
        return dict(json.loads(json.dumps({**own, **self.made_from})))

    def example(self) -> Tensor:
        """Two black images as the network takes them."""
        images = self.batches.images
        return torch.zeros(2, *images.shape[1:], device=images.device).permute(0, 3, 1, 2)


def train(job: Job, engine: str = "auto") -> TrainingSummary:
    """Train one network, continuing from its checkpoint if there is one.

    All randomness of an epoch (order, augmentation, masks, weight noise) follows from the run's seed and the epoch's
    number, so a run that was stopped and continued ends in the same weights, bit for bit, on a CPU.
    """
    (outcome,) = train_together([job], engine)
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def train_together(jobs: Sequence[Job], engine: str = "auto") -> list[TrainingSummary | Diverged]:
    """Train several networks side by side on one device: their steps are started in turn and overlap on a GPU.

    Masks, batches and learning rates are those of training alone. (Noise that a method draws from torch's own generator
    is not: such a method should train alone.) One that diverges ends, and its error is given in place of a summary; the
    others go on. Torch's generators are afterwards where they were.
    """
    gpus = {job.batches.images.device for job in jobs if job.batches.images.device.type == "cuda"}
    with torch.random.fork_rng(gpus), naming_own(*(job.method for job in jobs)):
        import_module("torch._dynamo")  # any optimiser does: 2 s, which are not the first network's
        start = time.perf_counter()
        runners = [_Runner(job, engine, len(jobs), start) for job in jobs]
        try:
            while active := [runner for runner in runners if not (runner.finished or runner.diverged)]:
                _run_epoch(active)
        except BaseException:
            for runner in runners:
                runner.abandon()
            raise
        return [runner.diverged or runner.summary() for runner in runners]


def _run_epoch(active: Sequence[_Runner]) -> None:
    for runner in active:
        runner.start_epoch()
    for sizes in zip_longest(*(runner.step.batch_sizes() for runner in active)):
        for runner, rows in zip(active, sizes, strict=True):
            if rows is not None:
                runner.engine.start_step(rows)
    for runner in active:  # while a GPU is still busy with the steps it was given
        runner.plan_ahead()
    for runner in active:
        runner.end_epoch(len(active))


class _Runner:
    """One job on its way."""

    def __init__(self, job: Job, engine: str, together: int, start: float) -> None:
        self.job, self.last_look = job, start
        self.diverged: Diverged | None = None
        self.step = TrainingStep(job.network, job.method, job.batches, job.recipe, job.run_seed, job.rank)
        self.progress: dict[str, Any] = {"epoch": 0, "seconds": 0.0, "loss": 0.0, "accuracy": 0.0}
        self.progress |= {"engine": PlainEngine.name, "side_by_side": 1}  # where a checkpoint does not say
        if job.checkpoint is not None and job.checkpoint.exists():
            self.progress |= load_checkpoint(
                job.checkpoint, job.network, self.step.optimiser, job.settings(), self._average()
            )
        self._refuse_other_beginnings()
        self.engine: Engine = PlainEngine(self.step)  # of one that has nothing left to run
        if not self.finished:
            self.engine = engine_for(self.step, engine, int(self.progress["epoch"]))
            self.progress["side_by_side"] = together
        file = job.checkpoint if job.rank.index == 0 else None
        self.writer = None if file is None else CheckpointWriter(file)
        self.saving, self.saved_at = 0.0, time.perf_counter()

    def _refuse_other_beginnings(self) -> None:
        """Processes that wait for each other must have as many steps to take."""
        epochs = self.job.rank.of_all(int(self.progress["epoch"]))
        if len(set(epochs)) > 1:
            raise RbueError(
                f"the processes would begin after {', '.join(map(str, epochs))} epochs; put the folder of runs, with "
                f"{self.job.checkpoint}, where all machines see it."
            )

    def _average(self) -> dict[str, Tensor] | None:
        return None if self.step.average is None else self.step.average.tensors

    @property
    def finished(self) -> bool:
        return int(self.progress["epoch"]) >= self.job.recipe.epochs

    def start_epoch(self) -> None:
        self.epoch_start = time.perf_counter()
        self.step.start_epoch(int(self.progress["epoch"]))
        if self.step.device.type == "cuda":  # an engine's own stream would not wait for what was set in this one
            torch.cuda.synchronize(self.step.device)

    def plan_ahead(self) -> None:
        if int(self.progress["epoch"]) + 1 < self.job.recipe.epochs:
            self.step.plan_ahead(int(self.progress["epoch"]) + 1)

    def end_epoch(self, together: int) -> None:
        epoch = int(self.progress["epoch"])
        self.engine.wait()
        loss, accuracy = self.step.epoch_means()
        trouble = "" if math.isfinite(loss) else f"the loss is {loss}"
        if not trouble:
            self.step.end_epoch(epoch)
        now = time.perf_counter()
        # Of earlier epochs the loss of the next one tells.
        if not trouble and epoch + 1 == self.job.recipe.epochs and not self._weights_are_finite():
            trouble = "its last step left weights or statistics that are not finite"
        if trouble:
            given = self.job.recipe.learning_rate
            self.diverged = Diverged(
                f"training diverged in epoch {epoch + 1}: {trouble}; lower the learning rate ({given})."
            )
            self.abandon()
            return
        seconds = self.progress["seconds"] + (now - self.last_look) / together
        self.last_look = now
        self.progress |= {"epoch": epoch + 1, "seconds": seconds, "loss": loss, "accuracy": accuracy}
        self.progress["engine"] = self.engine.name
        if self.writer is not None:
            self.progress["settings"] = self.job.settings()
        if self.job.report is not None:
            learning_rate = self.step.learning_rate_at(epoch)
            seconds = (now - self.epoch_start) / together
            self.job.report(EpochReport(epoch, loss, accuracy, learning_rate, seconds, together))
        if self.writer is not None and (self.finished or self._is_time_to_save(self.writer, now)):
            self._save(self.writer)

    def _weights_are_finite(self) -> bool:
        network = self.job.network
        # Of the buffers only running_mean, running_var and the like: a mask may hold -inf from the start.
        statistics = (buffer for name, buffer in network.named_buffers() if ".running_" in f".{name}")
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in (*network.parameters(), *statistics))
        return all(self.job.rank.of_all(finite))  # each process has statistics of its own

    def _is_time_to_save(self, writer: CheckpointWriter, now: float) -> bool:
        pause = max(self.saving / _SAVING_PART, writer.seconds / _WRITING_PART)
        return now - self.saved_at >= pause and not writer.is_writing

    def _save(self, writer: CheckpointWriter) -> None:
        start = time.perf_counter()
        average = None if self.finished else self._average()  # by then it is the network's weights
        try:
            writer.finish()
        except DiskFull as error:  # the one before is still there, and this one is tried now
            warn(f"a checkpoint is lost, and training goes on: {error}")
        write = writer.write_last if self.finished else writer.start
        write(snapshot(self.job.network, self.step.optimiser, average), self.progress)
        self.saved_at = time.perf_counter()
        self.saving = self.saved_at - start

    def abandon(self) -> None:
        """Wait for the checkpoint that is being written; that it failed must not hide why training ends."""
        if self.writer is None:
            return
        try:
            self.writer.close()
        except RbueError as error:
            warn(f"the last checkpoint is lost: {error}")

    def summary(self) -> TrainingSummary:
        names = ("seconds", "loss", "accuracy", "engine", "side_by_side")
        return TrainingSummary(self.progress["epoch"], **{name: self.progress[name] for name in names})


class EpochLog:
    """Adds epochs to a log; an epoch that was lost in a stop and run again replaces its line.

    Training does not wait for a line to be on the disk, so the last ones may be missing after a loss of power.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path, self.tensorboard = path, tensorboard
        self.writer: Any = None
        self.begun = False
        self.waiting: list[dict[str, Any]] = []
        """Epochs for which there was no room on the disk."""

    def __call__(self, report: EpochReport) -> None:
        """Note one epoch; on a full disk it is kept for the next time."""
        self.waiting.append(report.as_json())
        try:
            self._write()
        except DiskFull as error:
            warn(f"an epoch is not in the log yet: {error}")
        # Without room a thread of TensorBoard's would end in a traceback.
        if self.tensorboard is not None and find_spec("tensorboard") is not None and _has_room(self.path.parent):
            try:
                self._to_tensorboard(report)
            except OSError as error:
                warn(f"{self.tensorboard} could not be written ({error.strerror}); TensorBoard sees no more epochs.")
                self.tensorboard = None

    def _write(self) -> None:
        first, begun, self.begun = self.waiting[0]["epoch"], self.begun, False  # it may leave half a line
        if begun:
            append_text(self.path, _text(self.waiting))
        else:
            earlier = [line for line in read_log(self.path) if line["epoch"] < first]
            write_bytes(self.path, _text(earlier + self.waiting).encode())
        self.begun = True
        self.waiting.clear()

    def _to_tensorboard(self, report: EpochReport) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self.writer = SummaryWriter(str(self.tensorboard), purge_step=report.epoch)
        for name in ("loss", "accuracy", "rate", "seconds"):
            self.writer.add_scalar(f"train/{name}", report.as_json()[name], report.epoch)
        self.writer.flush()

    def close(self) -> None:
        """End the log."""
        if self.waiting and self.path.parent.is_dir():
            try:
                self._write()
            except DiskFull as error:
                warn(f"the log lacks {len(self.waiting)} epochs: {error}")
        if self.writer is not None:
            with suppress(OSError):
                self.writer.close()


def _has_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free > 1 << 20


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The epochs of a log, each as it was written last; a line cut off by a stop, or otherwise damaged, ends it."""
    if not path.exists():
        return []
    entries: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = parse_json(line.decode())
        except ValueError:  # neither UTF-8 nor JSON
            break
        if not (isinstance(entry, dict) and isinstance(entry.get("epoch"), int)):
            break
        entries[entry["epoch"]] = entry
    return [entries[epoch] for epoch in sorted(entries)]

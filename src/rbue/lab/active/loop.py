"""The loop of active learning: train on what is labelled, measure, pick what to label next, and again.

    RUNS/active/<data>/<model>/<method>-<acquire>-seed<seed>-<id>/
        active.json          what was asked for; the id is a hash of it
        environment.json     versions, hardware, commit
        rounds.json          the first labelled images, and of each finished round what it came to and what it picked
        checksums.json       of rounds.json

Every round trains new networks, from an initialisation of its own, for the same number of steps. All randomness follows
from the seed and the round's number: the first labelled images, initialisations and batches are the same for every
method and acquisition of a seed. So curves of one seed differ by what is compared, and a round that was stopped and run
again is the same, bit for bit, on a CPU.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rbue import random_stream
from rbue.errors import InvalidInput, RbueError, reason
from rbue.files import read_json, write_json
from rbue.lab import data
from rbue.lab.active.picking import acquisition_named, check_samples, pick
from rbue.lab.environment import facts
from rbue.lab.own_code import note_named
from rbue.lab.processes import processes
from rbue.lab.runs.folders import RunConfig, RunFolder, as_name
from rbue.lab.runs.measuring import measure, predict_images
from rbue.lab.runs.networks import drawn_from, draws_from_torch, explaining_memory, fresh_network, image_shape
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import batches_for, training_images
from rbue.lab.training import Job, Recipe, train, train_together
from rbue.lab.training.batches import epoch_seed
from rbue.lab.training.recipe import whole_number
from rbue.lab.training.step import FEWEST
from rbue.lab.training.trainer import Diverged, TrainingSummary

STEPS = 2000
"""Of each network in each round, if nothing else is said."""

FILE, ROUNDS = "active", "rounds"
_FIRST, _POOL, _PICKING = range(3)
"""Which random numbers are whose. The first epochs of a round have the same seeds, for other things."""

Round = dict[str, Any]


@dataclass(frozen=True)
class ActiveConfig:
    """Everything that decides the rounds, but how many there are: more can be added later.

    Attributes:
        run: data, network, method, seed and recipe. Its epochs count only where ``steps`` is None.
        acquire: name of the acquisition function.
        start: how many images are labelled before the first round: as many of each class as can be, else at random.
        take: how many are added after each round.
        steps: of each network in each round, rounded up to whole epochs, however few images there are. So small sets
            are not trained too little, nor large ones too much. None trains ``run.recipe.epochs`` epochs instead.
        samples: random passes for each image, of the test and of the pool.
        pool: how many images, drawn anew each round, are candidates; None for all that have no label.
    """

    run: RunConfig
    acquire: str = "bald"
    start: int = 20
    take: int = 10
    steps: int | None = STEPS
    samples: int = 20
    pool: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "acquire", acquisition_named(self.acquire))
        for name, lowest in (("start", 2), ("take", 1), ("steps", 1), ("samples", 1), ("pool", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), lowest))
        if self.steps is not None:  # the epochs follow from it, so that settings that differ in them are the same
            recipe = replace(self.run.recipe, epochs=Recipe().epochs)
            object.__setattr__(self, "run", replace(self.run, recipe=recipe))
        if self.pool is not None and self.pool < self.take:
            raise InvalidInput(f"a pool of {self.pool} images is too small to take {self.take} of them each round.")
        check_samples(self.acquire, self.run, self.samples)

    def as_json(self) -> dict[str, Any]:
        """For ``active.json``."""
        run = self.run.as_json()
        if self.steps is not None:
            del run["recipe"]["epochs"]
        return {**{name: value for name, value in asdict(self).items() if name != "run"}, **run}

    @classmethod
    def from_json(cls, content: dict[str, Any], file: object = "this active.json") -> ActiveConfig:
        """The inverse of :meth:`as_json`."""
        try:
            own = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
            run = {name: value for name, value in content.items() if name not in own}
            return cls(RunConfig.from_json(run, file), **own)
        except (TypeError, AttributeError) as error:
            raise RbueError(f"{file} was written by another version of rbue ({reason(error)}).") from error

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that differ when any setting does."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:8]

    def folder(self, root: Path) -> RunFolder:
        """Where these rounds live."""
        run = self.run
        name = f"{as_name(run.method)}-{self.acquire}-seed{run.seed}-{self.id}"
        return RunFolder(root / "active" / as_name(run.data) / as_name(run.model) / name)

    def labels(self, round_: int) -> int:
        """How many images a round trains on."""
        return self.start + round_ * self.take

    def of_round(self, round_: int) -> RunConfig:
        """The run that trains the networks of a round: a seed, a batch size and a number of epochs of its own.

        Batches are about equally large, and none larger than the recipe's. Of 35 images in batches of 32, every other
        step would be one of 3 images, whose BatchNorm statistics spoil the network.
        """
        recipe, labels = self.run.recipe, self.labels(round_)
        recipe = replace(recipe, batch=_share(labels, _share(labels, recipe.batch)))
        if self.steps is not None:
            recipe = replace(recipe, epochs=_share(self.steps, _batches(labels, recipe.batch)))
        return replace(self.run, seed=epoch_seed(self.run.seed, round_), recipe=recipe)


def _share(many: int, parts: int) -> int:
    """The quotient, rounded up."""
    return -(-many // parts)


def _batches(images: int, batch: int) -> int:
    """How many batches an epoch has; a smaller last one may be left out, as :class:`TrainingStep` says."""
    whole, rest = divmod(images, batch)
    return max(1, whole + (rest >= FEWEST))


def first_labelled(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The images that are labelled at first: of each class equally many, up to one, as far as it has them.

    >>> np.bincount(np.array([0, 0, 0, 1, 1, 2])[first_labelled(np.array([0, 0, 0, 1, 1, 2]), 5, seed=0)])
    array([2, 2, 1])
    """
    order = np.random.default_rng(epoch_seed(seed, _FIRST)).permutation(len(labels))
    turn = np.empty(len(labels), np.int64)  # how many of its class come before an image
    for label in np.unique(labels):
        members = np.flatnonzero(labels[order] == label)
        turn[members] = np.arange(len(members))
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


class ActiveImages(NamedTuple):
    """What all runs on the same data share; ``records``, as a folder has them, hold checksums, which take a while."""

    train: data.ImageSet
    test: data.ImageSet
    records: dict[str, dict[str, Any]]


def load_images(run: RunConfig) -> ActiveImages:
    """The images of a run; :func:`.training_data` says which runs have the same."""
    train, test = training_images(run), data.load(run.data, "test")
    return ActiveImages(train, test, {"data": train.record(), "test_data": test.record()})


Report = Callable[[ActiveConfig, Round, int], None]
"""Called after each round, with the number of all of them."""


def run_active(
    config: ActiveConfig,
    rounds: int,
    root: Path,
    device: torch.device,
    report: Report | None = None,
    *,
    engine: str = "auto",
    together: int = 1,
    load: Callable[[RunConfig], ActiveImages] = load_images,
) -> list[Round]:
    """Train, measure and acquire ``rounds`` times, and train and measure once more; what is done is kept.

    Args:
        config: the settings.
        rounds: how often images are acquired.
        root: folder of all runs.
        device: where to train.
        report: called after each round.
        engine: how steps are run, see :mod:`rbue.lab.training.engines`.
        together: how many members of an ensemble are trained side by side on a GPU.
        load: gives the images, if there is anything to do; several runs can share them.

    Raises:
        InvalidInput: there are fewer images than labels asked for.
        Diverged: a training diverged; earlier rounds are kept.
        InUse: another process is at work on the same settings.
    """
    rounds = whole_number("rounds", rounds, 0)
    if processes() > 1:
        raise InvalidInput("active learning runs in one process; start one for each seed in place of torchrun.")
    folder = config.folder(root)
    kept = _kept(folder)
    if len(kept.get("rounds", ())) > rounds:
        return list(kept["rounds"][: rounds + 1])
    images = load(config.run)
    _check_labels(config, rounds, images.train)
    with folder.locked(wait=0):
        kept = _kept(folder) or _opened(folder, config, images)
        # The oldest folders do not note the test images.
        if any(kept.get(part, now)["sha256"] != now["sha256"] for part, now in images.records.items()):
            raise RbueError(f"{folder.path} was begun with other images than {config.run.data} holds now; remove it.")
        done: list[Round] = kept["rounds"]
        while len(done) <= rounds:
            if done and done[-1]["picked"] is None:
                done.pop()  # the last one of an earlier start with fewer rounds: its networks are gone
            labelled = np.array([*kept["first"], *(number for one in done for number in one["picked"])], np.int64)
            done.append(_round(config, len(done), rounds, images, labelled, device, engine, together))
            folder.write(ROUNDS, kept, numbers_in_line=True)
            if report is not None:
                report(config, done[-1], rounds)
    return done


def _kept(folder: RunFolder) -> dict[str, Any]:
    """What is in ``rounds.json``; nothing if it is not there."""
    found: dict[str, Any] = folder.read(ROUNDS) or {}
    if found and not {"first", "rounds", "data", "stream_version"} <= found.keys():
        raise RbueError(f"{folder.path / ROUNDS}.json has another form; remove it to have it made again.")
    if found and found["stream_version"] != random_stream.VERSION:
        raise RbueError(
            f"{folder.path} was begun with version {found['stream_version']} of the random stream, while this is "
            f"version {random_stream.VERSION}; remove it to have it made again."
        )
    return found


def _opened(folder: RunFolder, config: ActiveConfig, images: ActiveImages) -> dict[str, Any]:
    """Make the folder; what ``rounds.json`` holds before the first round."""
    note_named()
    write_json(folder.path / "environment.json", facts())
    write_json(folder.path / f"{FILE}.json", config.as_json())
    return {
        "first": first_labelled(images.train.labels, config.start, config.run.seed).tolist(),
        "rounds": [],
        **images.records,
        "stream_version": random_stream.VERSION,
    }


def _check_labels(config: ActiveConfig, rounds: int, images: data.ImageSet) -> None:
    wanted = config.labels(rounds)
    if wanted > len(images):
        sum_ = f"{config.start:,} + {rounds:,} x {config.take:,} = {wanted:,}"
        raise InvalidInput(
            f"{sum_} labels are asked for, but {config.run.data} has {len(images):,} training images here; choose a "
            "smaller start, take or number of rounds."
        )


def _round(
    config: ActiveConfig,
    number: int,
    rounds: int,
    given: ActiveImages,
    labelled: NDArray[np.int64],
    device: torch.device,
    engine: str,
    together: int,
) -> Round:
    """What one round came to and, but for the last one, which images to label next."""
    start = time.perf_counter()
    run, images, test = config.of_round(number), given.train, given.test
    with explaining_memory(device, "choose a smaller --batch or --width, or less at once"):
        networks, summary = _trained(run, images.take(labelled, "train", images.held_out), device, engine, together)
    trained = time.perf_counter()
    prediction = predict_images(run, networks, test, Passes(config.samples, run.seed), device)
    measured = measure(prediction, torch.from_numpy(test.labels).to(device))
    tested = time.perf_counter()
    picked = None
    if number < rounds:
        candidates = _candidates(config, number, len(images), labelled)
        seed = epoch_seed(run.seed, _PICKING)
        how = (labelled, config.take, Passes(config.samples, seed), device)
        picked = pick(config.acquire, run, networks, images, candidates, *how)
    end = time.perf_counter()
    return {
        "round": number,
        "labels": len(labelled),
        **measured,
        "samples": Passes(config.samples).count(run),
        "epochs": run.recipe.epochs,
        "steps": run.recipe.epochs * _batches(len(labelled), run.recipe.batch),
        "train_loss": summary.loss,
        "train_accuracy": summary.accuracy,
        "engine": summary.engine,
        "device": device.type,
        "seconds": {"training": trained - start, "measuring": tested - trained, "acquiring": end - tested},
        "picked": picked,
    }


def _candidates(config: ActiveConfig, number: int, images: int, labelled: NDArray[np.int64]) -> NDArray[np.int64]:
    """The images to choose among: all without a label, or a random part of them."""
    free = np.ones(images, bool)
    free[labelled] = False
    if config.pool is None:
        return np.flatnonzero(free)
    order = np.random.default_rng(epoch_seed(config.of_round(number).seed, _POOL)).permutation(images)
    return np.sort(order[free[order]][: config.pool])


def _trained(
    config: RunConfig, images: data.ImageSet, device: torch.device, engine: str, together: int
) -> tuple[list[nn.Module], TrainingSummary]:
    """The networks of a run, trained in memory, and what the last one's training came to."""
    trainings = config.trainings()
    networks: list[nn.Module] = []
    for begin in range(0, len(trainings), together):
        jobs = [
            Job(fresh_network(one, images, device), one.parsed, batches_for(one, images, device), one.recipe, one.seed)
            for one in trainings[begin : begin + together]
        ]
        outcomes = _outcomes(jobs, engine)
        for job in jobs:
            job.network.zero_grad()  # gradients lie in the memory of captured steps, which they would keep
            networks.append(job.network)
        del jobs, job
    example = torch.zeros(2, *image_shape(images), device=device)
    networks = [drawn_from(network, config.parsed, example) for network in networks]
    if device.type == "cuda":
        gc.collect()  # what cycles of Python hold there, once a round: it takes a tenth of a second
    return networks, outcomes[-1]


def _outcomes(jobs: Sequence[Job], engine: str) -> list[TrainingSummary]:
    """Train networks side by side, or one after the other where they draw from torch's one generator."""
    first = jobs[0]
    if len(jobs) == 1 or first.method.trains_alone or draws_from_torch(first.network, first.example()):
        return [train(job, engine) for job in jobs]
    outcomes = train_together(jobs, engine)
    for outcome in outcomes:
        if isinstance(outcome, Diverged):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, TrainingSummary)]


def find_active(root: Path) -> list[RunFolder]:
    """Every folder of active learning below ``root``, in order of their names."""
    return [RunFolder(path.parent) for path in sorted(root.glob(f"**/{FILE}.json"))]


def read_active(folder: RunFolder) -> tuple[ActiveConfig, list[Round], dict[str, Any]]:
    """The settings, the finished rounds and the environment of a folder.

    Raises:
        RbueError: a file cannot be read.
    """
    file = folder.path / f"{FILE}.json"
    config = ActiveConfig.from_json(read_json(file), file)
    environment = folder.read("environment") or {}
    return config, list(_kept(folder).get("rounds", ())), environment

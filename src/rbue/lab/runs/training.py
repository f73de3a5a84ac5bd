"""Train the networks of runs and keep them in their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch

from rbue.call_sites import innermost
from rbue.errors import InvalidInput, RbueError, warn
from rbue.lab import data, models
from rbue.lab.data.registry import FOLDER_PREFIX
from rbue.lab.environment import facts
from rbue.lab.methods.base import naming_own
from rbue.lab.own_code import note_named, source_checksum
from rbue.lab.processes import Rank, data_parallel, is_first, joined, own_device, tasks_at_once
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.networks import draws_from_torch, explaining_memory, fresh_network
from rbue.lab.training import Batches, Diverged, EpochReport, Job, train_together
from rbue.lab.training.checkpoint import WAIT_FOR_ROOM, save_weights
from rbue.lab.training.trainer import EpochLog
from rbue.locks import Lock

Report = Callable[[RunConfig, EpochReport], None]

PATIENCE = timedelta(seconds=6 * WAIT_FOR_ROOM)
"""How long other processes wait for the first one, whose last files may have to wait for room one after the other."""


def train_run(
    config: RunConfig,
    root: Path,
    device: torch.device,
    report: Report | None = None,
    *,
    engine: str = "auto",
    shard_mib: int | None = None,
    together: int = 1,
) -> list[RunFolder]:
    """Train the networks of a run: see :func:`train_runs`. The folders are those of its networks."""
    train_runs([config], root, device, report, engine=engine, shard_mib=shard_mib, together=together)
    return [RunFolder.of(member, root) for member in config.trainings()]


def train_runs(
    configs: Sequence[RunConfig],
    root: Path,
    device: torch.device,
    report: Report | None = None,
    *,
    engine: str = "auto",
    shard_mib: int | None = None,
    together: int = 1,
) -> None:
    """Train the networks of runs, continuing what was begun and keeping what is done.

    Args:
        configs: what to train.
        root: folder of the run folders.
        device: where to train; under ``torchrun`` each process takes its own GPU.
        report: called after each epoch of each network.
        engine: how steps are run, see :mod:`rbue.lab.training.engines`.
        shard_mib: largest size of a file of weights; None writes one file.
        together: how many networks to train side by side on a GPU.

    Raises:
        Diverged: trainings diverged; all others were finished.
        InUse: another process is training one of these networks.
    """
    device = own_device(device)
    missing = missing_networks(configs, root)
    for config in missing:
        with naming_own(config.parsed):
            config.parsed.check_training(config.recipe.epochs, config.recipe.average)
        if config.recipe.sync_batchnorm and device.type != "cuda":
            raise InvalidInput(
                f"sync_batchnorm needs GPUs, as torch has no synchronised BatchNorm for a {device.type}; leave it out."
            )
    for config in configs:
        refuse_other_images(config, root)
        warn_of_changed_code(config, root)
    diverged: dict[RunConfig, Diverged] = {}
    if is_first():
        note_named()
    with joined(device, PATIENCE) as rank:
        # Another process may just have trained some; those that train together must not disagree on that.
        missing = rank.of_first(missing)
        for group in _groups(missing, together):
            with ExitStack() as stack:
                locks = {
                    config: stack.enter_context(RunFolder.of(config, root).locked(wait=0))
                    for config in (group if is_first() else ())
                }
                still = rank.of_first(missing_networks(group, root))
                if not still:
                    continue
                with explaining_memory(device, "choose a smaller --batch or --width, or another --device"):
                    diverged |= _train_networks(still, root, device, rank, report, engine, shard_mib, locks)
        rank.wait()  # for the files of the first
    if diverged and len(missing) == 1:
        raise diverged[missing[0]]
    if diverged:
        raise Diverged(" ".join(f"{one.method} seed {one.seed}: {error}" for one, error in diverged.items()))
    if is_first():
        for config in configs:
            RunFolder.of(config, root).open(config, facts())


def missing_networks(configs: Sequence[RunConfig], root: Path) -> list[RunConfig]:
    """The networks that have to be trained for some runs, each once, or taken from their last checkpoint again."""
    members = dict.fromkeys(member for config in configs for member in config.trainings())
    return [member for member in members if not RunFolder.of(member, root).is_trained]


def refuse_other_images(config: RunConfig, root: Path) -> None:
    """Raise if a folder of images has changed since networks were trained on it; other data sets cannot."""
    if not config.data.startswith(FOLDER_PREFIX):
        return
    for member in config.trainings():
        folder = RunFolder.of(member, root)
        trained = folder.read("training")
        if trained is not None and trained["data"]["sha256"] != training_images(member).record()["sha256"]:
            raise RbueError(
                f"{folder.path} was trained on other images than {config.data} holds now; remove it, or give another "
                "folder of runs."
            )


def warn_of_changed_code(config: RunConfig, root: Path) -> None:
    """Warn if the file of a network or method of one's own is not what it was when those of a run were trained."""
    for member in config.trainings():
        folder = RunFolder.of(member, root)
        noted = folder.read("training") or {}
        for key, name in _code_of(member).items():
            if key in noted and noted[key] != source_checksum(name):
                warn(
                    f"the file of {name} has changed since {folder.path} was trained; remove that folder to train it "
                    "again if the change matters."
                )


def _code_of(config: RunConfig) -> dict[str, str]:
    """What may be a user's own code, by the key of its checksum."""
    return {"model_sha256": config.model, "method_sha256": config.parsed.name}


def _groups(configs: Sequence[RunConfig], together: int) -> list[list[RunConfig]]:
    """Networks to train side by side: the same data, and no method that needs to be alone."""
    groups: list[list[RunConfig]] = []
    for config in configs:
        first = groups[-1][0] if groups else None
        alone = any(one.parsed.trains_alone for one in (config, first) if one is not None)
        same = first is not None and training_data(config) == training_data(first)
        if same and not alone and len(groups[-1]) < together:
            groups[-1].append(config)
        else:
            groups.append([config])
    return groups


def _train_networks(
    configs: Sequence[RunConfig],
    root: Path,
    device: torch.device,
    rank: Rank,
    report: Report | None,
    engine: str,
    shard_mib: int | None,
    locks: Mapping[RunConfig, Lock],
) -> dict[RunConfig, Diverged]:
    """Train networks side by side and keep those that can be; gives the errors of the others."""
    images = training_images(configs[0])
    folders = [RunFolder.of(config, root) for config in configs]
    logs = [EpochLog(folder.log, folder.path / "tensorboard") for folder in folders]
    jobs = [
        _job(config, folder, images, device, rank, _note(config, log, report, locks.get(config)))
        for config, folder, log in zip(configs, folders, logs, strict=True)
    ]
    if len(jobs) > 1 and any(draws_from_torch(innermost(job.network), job.example()) for job in jobs):
        jobs.clear()  # made again one by one, and each measured without the memory of the others
        alone = (_train_networks([config], root, device, rank, report, engine, shard_mib, locks) for config in configs)
        return {config: error for found in alone for config, error in found.items()}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        outcomes = train_together(jobs, engine)
    finally:
        for log in logs:
            log.close()
    only_one = device.type == "cuda" and len(jobs) == 1  # the peak of several is not that of any one
    peak = torch.cuda.max_memory_allocated(device) if only_one else None
    for config, folder, job, outcome in zip(configs, folders, jobs, outcomes, strict=True):
        if is_first() and not isinstance(outcome, Diverged):
            save_weights(folder.path, job.network, shard_mib)
            code = {key: source_checksum(name) for key, name in _code_of(config).items()}
            trained = {
                **asdict(outcome),
                "processes": rank.world_size,
                "workers": tasks_at_once(),
                "device": device.type,
                "precision": "bfloat16 autocast" if device.type == "cuda" else "float32",
                "parameters": models.parameters(job.network),
                "peak_bytes": peak,
                "data": images.record(),
                "class_names": list(images.classes),
                **{key: checksum for key, checksum in code.items() if checksum is not None},
            }
            folder.write("training", trained)
    return {config: one for config, one in zip(configs, outcomes, strict=True) if isinstance(one, Diverged)}


def _job(
    config: RunConfig,
    folder: RunFolder,
    images: data.ImageSet,
    device: torch.device,
    rank: Rank,
    note: Callable[[EpochReport], None],
) -> Job:
    """One network to train, on its device; its folder notes what is to run there."""
    batches = batches_for(config, images, device)
    network = fresh_network(config, images, device)
    network = data_parallel(network, rank, device, config.recipe.sync_batchnorm)
    if is_first():
        folder.open(config, facts())
    return Job(
        network,
        config.parsed,
        batches,
        config.recipe,
        config.seed,
        folder.state,
        report=note if is_first() else None,
        rank=rank,
        made_from={"data": _in_short(images)} if config.data.startswith(FOLDER_PREFIX) else {},
    )


def _in_short(images: data.ImageSet) -> str:
    """Which images these are, for a message."""
    found = images.checksums()
    return f"of {len(images)} images (checksums {found.images[:8]} and {found.labels[:8]})"


def _note(config: RunConfig, log: EpochLog, report: Report | None, lock: Lock | None) -> Callable[[EpochReport], None]:
    def note(epoch: EpochReport) -> None:
        if lock is not None:
            lock.check()  # before anything of this epoch is written
        log(epoch)
        if report is not None:
            report(config, epoch)

    return note


def training_data(config: RunConfig) -> tuple[str, int, int]:
    """What decides the images a run trains on."""
    return config.data, config.holdout, config.holdout_seed


def training_images(config: RunConfig) -> data.ImageSet:
    """The images a run trains on."""
    images = data.load(config.data, "train")
    if config.holdout:
        images, _ = data.holdout(images, config.holdout, config.holdout_seed)
    return images


def batches_for(config: RunConfig, images: data.ImageSet, device: torch.device) -> Batches:
    """The training batches of a run, with the data on its device."""
    recipe = config.recipe
    return Batches(
        images.images,
        images.labels,
        images.mean,
        images.std,
        batch=recipe.batch,
        padding=recipe.padding,
        flip=recipe.flip,
        seed=config.seed,
        device=device,
        cutout=recipe.cutout,
        mixup=recipe.mixup,
        noise=recipe.noise,
        augmix=recipe.augmix,
        classes=len(images.classes),
    )

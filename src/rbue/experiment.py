"""Train a run and measure it: the two things a comparison is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rbue import data, models
from rbue.call_sites import innermost
from rbue.environment import facts
from rbue.errors import RbueError
from rbue.fitting import draws_from_torch
from rbue.measuring import DIVERSITY_SAMPLES, diversity, measure, predict_images, predict_images_at
from rbue.networks import fresh_network, load_networks
from rbue.prediction import Prediction, RunningStatistics
from rbue.runs import RunConfig, RunFolder, other_stream
from rbue.stored_probs import read_probs, write_probs
from rbue.training import Batches, Diverged, EpochReport, Job, TrainingSummary, train_together
from rbue.training.distribution import is_first, joined, own_device, shared
from rbue.training.logs import EpochLog
from rbue.training.step import Share
from rbue.training.weights import save_weights

Report = Callable[[RunConfig, EpochReport], None]
SAMPLE_COUNTS = (1, 4, 10, 30)
"""Numbers of samples at which a stochastic method is measured on the way to all of them."""


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
    return [RunFolder.of(member, root) for member in config.members()]


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
        engine: how steps are run, see :mod:`rbue.training.engines`.
        shard_mib: largest size of a file of weights; None writes one file.
        together: how many networks to train side by side on a GPU.

    Raises:
        Diverged: trainings diverged; all others were finished.
    """
    device = own_device(device)
    missing = missing_networks(configs, root)
    for config in configs:
        refuse_other_images(config, root)
    diverged: dict[RunConfig, Diverged] = {}
    with joined(device) as share:
        for group in _groups(missing, together):
            diverged |= _train_networks(group, root, device, share, report, engine, shard_mib)
    if diverged and len(missing) == 1:
        raise diverged[missing[0]]
    if diverged:
        raise Diverged(" ".join(f"{one.method} seed {one.seed}: {error}" for one, error in diverged.items()))
    if is_first():
        for config in configs:
            RunFolder.of(config, root).open(config, facts())


def missing_networks(configs: Sequence[RunConfig], root: Path) -> list[RunConfig]:
    """The networks that have to be trained for some runs, each once."""
    members = dict.fromkeys(member for config in configs for member in config.members())
    return [member for member in members if RunFolder.of(member, root).read("training") is None]


def refuse_other_images(config: RunConfig, root: Path) -> None:
    """Raise if a folder of images has changed since networks were trained on it; other data sets cannot."""
    if not config.data.startswith("folder:"):
        return
    for member in config.members():
        folder = RunFolder.of(member, root)
        trained = folder.read("training")
        if trained is not None and trained["data"]["sha256"] != training_images(member).record()["sha256"]:
            raise RbueError(
                f"{folder.path} was trained on other images than {config.data} holds now; remove it, or give another "
                "folder of runs."
            )


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
    share: Share,
    report: Report | None,
    engine: str,
    shard_mib: int | None,
) -> dict[RunConfig, Diverged]:
    """Train networks side by side and keep those that can be; gives the errors of the others."""
    images = training_images(configs[0])
    jobs: list[Job] = []
    logs: list[EpochLog] = []
    for config in configs:
        folder = RunFolder.of(config, root)
        network = shared(fresh_network(config, images, device), share, device)
        if is_first():
            folder.open(config, facts())
        log = EpochLog(folder.log, folder.path / "tensorboard")
        logs.append(log)
        note = _note(config, log, report) if is_first() else None
        batches = batches_for(config, images, device)
        jobs.append(
            Job(network, config.parsed, batches, config.recipe, config.seed, folder.state, report=note, share=share)
        )
    if len(jobs) > 1 and any(draws_from_torch(innermost(job.network), _example(job)) for job in jobs):
        alone = (_train_networks([config], root, device, share, report, engine, shard_mib) for config in configs)
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
    for config, job, outcome in zip(configs, jobs, outcomes, strict=True):
        if is_first() and not isinstance(outcome, Diverged):
            _finish(RunFolder.of(config, root), job, outcome, peak, images, shard_mib)
    return {config: one for config, one in zip(configs, outcomes, strict=True) if isinstance(one, Diverged)}


def _example(job: Job) -> torch.Tensor:
    images = job.batches.images
    return torch.zeros(2, *images.shape[1:], device=images.device).permute(0, 3, 1, 2)


def _finish(
    folder: RunFolder,
    job: Job,
    summary: TrainingSummary,
    peak: int | None,
    images: data.ImageSet,
    shard_mib: int | None,
) -> None:
    save_weights(folder.path, job.network, shard_mib)
    facts_of_training = {
        "parameters": models.parameters(job.network),
        "peak_bytes": peak,
        "data": images.record(),
        "class_names": list(images.classes),
    }
    device = job.batches.images.device.type
    precision = "bfloat16 autocast" if device == "cuda" else "float32"
    place = {"processes": job.share.processes, "device": device, "precision": precision}
    folder.write("training", {**asdict(summary), **place, **facts_of_training})


def _note(config: RunConfig, log: EpochLog, report: Report | None) -> Callable[[EpochReport], None]:
    def note(epoch: EpochReport) -> None:
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
    )


def evaluate_run(
    config: RunConfig, root: Path, device: torch.device, samples: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Measure a trained run on the test images and keep the result in its folder.

    What was measured before is given again, unless another version of the random stream drew it or a folder of images
    has other test images by now. An ensemble some of whose members' weights are elsewhere is combined from stored
    probabilities.
    """
    refuse_other_images(config, root)
    folder = RunFolder.of(config, root)
    key = _key(samples, seed)
    known = folder.read("results") or {}
    if key in known:
        outdated = _outdated(config, known[key])
        if not outdated:
            return dict(known[key])
        if not folder.has_weights and config.parsed.networks == 1:
            raise RbueError(
                f"{folder.path} was measured {outdated}; its weights are not kept in this folder to measure it again."
            )
    return _measured(config, root, device, samples, seed)


def _outdated(config: RunConfig, result: dict[str, Any]) -> str:
    """Why a measurement is not the one that would be made now, in words; empty if it is."""
    streams = other_stream(config, result)
    if streams:
        return f"with {streams}"
    if config.data.startswith("folder:") and _other_images(result, data.load(config.data, "test")):
        return f"on other test images than {config.data} holds now"
    return ""


def _other_images(result: dict[str, Any], images: data.ImageSet) -> bool:
    """Whether a measurement is about other test images or labels; one that does not say is taken for the same."""
    noted = dict(result.get("data") or {}).get("sha256")
    return noted is not None and noted != images.record()["sha256"]


def _measured(config: RunConfig, root: Path, device: torch.device, samples: int, seed: int) -> dict[str, Any]:
    folder = RunFolder.of(config, root)
    images = data.load(config.data, "test")
    labels = torch.from_numpy(images.labels).to(device)
    stored = _from_members(config, root, device, samples, seed, images)
    if stored is not None:
        first, prediction = stored
        curve: list[dict[str, float]] = []
    else:
        networks = load_networks(config, root, device)
        limit = config.parsed.limit
        counts = [*(count for count in SAMPLE_COUNTS if count < samples and limit is None), samples]
        compared = limit or DIVERSITY_SAMPLES
        *fewer, prediction = predict_images_at(config, networks, images, counts, seed, device, keep=compared)
        first = prediction
        if samples < compared:
            first = predict_images(config, networks, images, compared, seed, device, return_samples=True)
        curve = [{"samples": int(one.samples_used[0]), **measure(one, labels)} for one in fewer]
    training = [RunFolder.of(member, root).read("training") for member in config.members()]
    result = {
        **measure(prediction, labels),
        **diversity(first),
        "parameters": sum(entry["parameters"] for entry in training),
        "training_seconds": sum(entry["seconds"] for entry in training),
        "samples": int(prediction.samples_used[0]),
        "by_samples": curve,
        "combined_from": "networks" if stored is None else "stored probabilities",
        "seed": seed,
        "device": device.type,
        "stream_version": prediction.stream_version,
        "data": images.record(),
        "environment": facts(),
    }
    folder.open(config, facts())
    result["probs_sha256"] = write_probs(folder.probs, prediction.probs.cpu().numpy())
    key = _key(samples, seed)
    now = folder.read("results") or {}  # another process may have added to it
    others = {name: one for name, one in now.items() if name != key}
    folder.write("results", {**others, key: result})  # the last one is that of the stored probabilities
    return result


def _key(samples: int, seed: int) -> str:
    return f"samples={samples},seed={seed}"


def _from_members(
    config: RunConfig, root: Path, device: torch.device, samples: int, seed: int, images: data.ImageSet
) -> tuple[Prediction, Prediction] | None:
    """An ensemble from stored probabilities, if the weights of a member are elsewhere; else None.

    Members whose weights are here are measured first, which stores theirs.

    Returns:
        The prediction of all members, and that of as many as samples are asked for.

    Raises:
        RbueError: a member was measured on other images, and its weights to measure it again are elsewhere.
    """
    members = [(member, RunFolder.of(member, root)) for member in config.members()]
    folders = [folder for _, folder in members]
    if len(folders) == 1 or all(folder.has_weights for folder in folders):
        return None
    if not all(folder.has_weights or folder.probs.exists() for folder in folders):
        return None
    for member, folder in members:
        if not _has_answers(folder, images):
            if not folder.has_weights:
                raise RbueError(
                    f"{folder.path} was measured on other test images than {config.data} holds here; its weights are "
                    f"not kept in this folder to measure it again for {config.method}."
                )
            _measured(member, root, device, samples, seed)
    probs = torch.from_numpy(np.stack([read_probs(folder.probs) for folder in folders])).to(device)
    return _mean_of(probs), _mean_of(probs[:samples])


def _has_answers(folder: RunFolder, images: data.ImageSet) -> bool:
    """Whether the probabilities stored in a folder are about these images, as far as it says."""
    if not folder.probs.exists():
        return False
    results = folder.read("results") or {}
    last = list(results.values())[-1] if results else {}
    return not _other_images(last, images) and read_probs(folder.probs).shape == (len(images), len(images.classes))


def _mean_of(probs: torch.Tensor) -> Prediction:
    statistics = RunningStatistics(probs.shape[1], probs.device)
    statistics.add(torch.arange(probs.shape[1], device=probs.device), probs)
    return statistics.prediction(0, probs)

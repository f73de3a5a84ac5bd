"""Train a run and measure it: the two things a comparison is made of."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rbue import data, metrics, models
from rbue.call_sites import evaluating
from rbue.environment import facts
from rbue.errors import RbueError
from rbue.files import write_bytes
from rbue.prediction import Prediction, concatenate
from rbue.runs import RunConfig, RunFolder
from rbue.sampling.collect import collect
from rbue.training import Batches, EpochReport, Normalise, train
from rbue.training.checkpoint import load_weights, read_tensors

EVALUATION_BATCH = 500
DIVERSITY_SAMPLES = 4
"""JSD and DIS compare the first four samples, or the members of an ensemble (paper §4.4)."""

Report = Callable[[RunConfig, EpochReport], None]


def train_run(config: RunConfig, root: Path, device: torch.device, report: Report | None = None) -> list[RunFolder]:
    """Train the networks of a run, continuing what was begun and keeping what is done."""
    folders = []
    for member in config.members():
        folder = RunFolder.of(member, root)
        folders.append(folder)
        if folder.read("training") is None:
            _train_network(member, folder, device, report)
    return folders


def _train_network(config: RunConfig, folder: RunFolder, device: torch.device, report: Report | None) -> None:
    images = data.load(config.data, "train")
    if config.holdout:
        images, _ = data.holdout(images, config.holdout, config.holdout_seed)
    network = fresh_network(config, images, device)
    folder.open(config, facts())
    recipe = config.recipe
    batches = Batches(
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

    def note(epoch: EpochReport) -> None:
        with folder.log.open("a") as log:
            log.write(json.dumps(asdict(epoch)) + "\n")
        if report is not None:
            report(config, epoch)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    summary = train(network, config.parsed, batches, recipe, run_seed=config.seed, checkpoint=folder.state, report=note)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    folder.write(
        "training",
        {**asdict(summary), "parameters": models.parameters(network), "peak_bytes": peak, "data": images.record()},
    )


def fresh_network(config: RunConfig, images: data.ImageSet, device: torch.device) -> nn.Module:
    """An initialised network, prepared by the method, on its device; the same for the same seed."""
    torch.manual_seed(config.seed)
    channels = images.images.shape[3]
    network = models.create(config.model, classes=len(images.classes), channels=channels, width=config.width)
    network = network.to(device)
    height, width = images.images.shape[1:3]
    example = torch.zeros(2, channels, height, width, device=device)
    return config.parsed.prepare(network, example)


def load_networks(config: RunConfig, root: Path, device: torch.device) -> list[nn.Module]:
    """The trained networks of a run."""
    images = data.load(config.data, "test")
    networks = []
    for member in config.members():
        folder = RunFolder.of(member, root)
        if folder.read("training") is None:
            raise RbueError(f"{folder.path} holds no finished training; train it first.")
        network = fresh_network(member, images, device)
        tensors, _ = read_tensors(folder.state)
        weights = {name[8:]: value for name, value in tensors.items() if name.startswith("weights.")}
        load_weights(network, weights, folder.state)
        networks.append(network)
    return networks


def predict_images(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    samples: int,
    seed: int,
    device: torch.device,
    return_samples: bool = False,
) -> Prediction:
    """Predict a set of images with the method of a run; a method with fewer samples draws all it has."""
    method = config.parsed
    count = samples if method.limit is None else min(samples, method.limit)
    normalise = Normalise(images.mean, images.std, device)
    parts = []
    modules = nn.ModuleList(networks)
    with evaluating(modules):
        for start in range(0, len(images), EVALUATION_BATCH):
            block = np.ascontiguousarray(images.images[start : start + EVALUATION_BATCH])
            x = normalise(torch.from_numpy(block).to(device))
            numbers = torch.arange(start, start + len(x), dtype=torch.int32, device=device)
            stream = method.stream(networks, x, seed)
            parts.append(collect(stream, x, numbers, count, seed=seed, return_samples=return_samples))
    return concatenate(parts)


def evaluate_run(
    config: RunConfig, root: Path, device: torch.device, samples: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Measure a trained run on the test images and keep the result in its folder."""
    folder = RunFolder.of(config, root)
    key = f"samples={samples},seed={seed}"
    results = folder.read("results") or {}
    if key in results:
        return dict(results[key])
    networks = load_networks(config, root, device)
    images = data.load(config.data, "test")
    labels = torch.from_numpy(images.labels).to(device)
    prediction = predict_images(config, networks, images, samples, seed, device)
    first = predict_images(config, networks, images, DIVERSITY_SAMPLES, seed, device, return_samples=True)
    training = [RunFolder.of(member, root).read("training") for member in config.members()]
    result = {
        **measure(prediction, labels),
        **diversity(first),
        "parameters": sum(models.parameters(network) for network in networks),
        "training_seconds": sum(entry["seconds"] for entry in training),
        "samples": int(prediction.samples_used[0]),
        "seed": seed,
        "stream_version": prediction.stream_version,
        "data": images.record(),
        "environment": facts(),
    }
    folder.open(config, facts())
    _save_probs(folder, prediction)
    folder.write("results", {**results, key: result})
    return result


def measure(prediction: Prediction, labels: torch.Tensor) -> dict[str, float]:
    """The paper's measurements and the proper scores of one prediction."""
    probs = prediction.probs
    correct = prediction.label == labels
    return {
        "accuracy": float(metrics.accuracy(probs, labels)),
        "ece": float(metrics.ece(probs, labels)),
        "nll": float(metrics.nll(probs, labels)),
        "brier": float(metrics.brier(probs, labels)),
        "entropy": float(prediction.entropy.mean()),
        "mutual_information": float(prediction.mutual_information.mean()),
        "aurc": float(metrics.aurc(prediction.confidence, correct)),
    }


def diversity(first: Prediction) -> dict[str, float | None]:
    """JSD and DIS over pairs of the first samples (paper §4.4); None for a method with a single sample."""
    if first.samples is None or len(first.samples) < 2:
        return dict.fromkeys(("mean_jsd", "max_jsd", "mean_dis", "max_dis"))
    jsd, dis = metrics.jsd(first.samples), metrics.disagreement(first.samples)
    return {
        "mean_jsd": float(metrics.mean_pairwise(jsd)),
        "max_jsd": float(metrics.max_pairwise(jsd)),
        "mean_dis": float(metrics.mean_pairwise(dis)),
        "max_dis": float(metrics.max_pairwise(dis)),
    }


def _save_probs(folder: RunFolder, prediction: Prediction) -> None:
    buffer = io.BytesIO()
    np.save(buffer, prediction.probs.cpu().numpy().astype(np.float16), allow_pickle=False)
    write_bytes(folder.probs, buffer.getvalue())

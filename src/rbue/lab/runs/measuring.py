"""Predict a set of images with the networks of a run, and measure the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from rbue import metrics
from rbue.call_sites import evaluating
from rbue.lab import data
from rbue.lab.runs.folders import RunConfig
from rbue.lab.training import Normalise
from rbue.prediction import Prediction, concatenate
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.collect import SampleStream, collect, collect_at

BATCH_PIXELS = {"cpu": 500 << 10, "cuda": 10_000 << 10}
"""Pixels of the images that are predicted at once: 500 of CIFAR's on a CPU; all 10,000 on a GPU, so that one draw of
weights serves them all. Streams make smaller passes of them."""
DIVERSITY_SAMPLES = 4
"""JSD and DIS compare the first four samples, or the members of an ensemble (paper §4.4)."""


def predict_images(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    samples: int,
    seed: int,
    device: torch.device,
    return_samples: bool = False,
    adaptive: Adaptive | None = None,
) -> Prediction:
    """Predict a set of images with the method of a run; a method with fewer samples draws all it has."""
    rule = adaptive if config.parsed.limit is None else None
    count = usable_samples(config, samples)
    with _measuring(networks, device):
        parts = [
            collect(stream, x, numbers, count, seed=seed, adaptive=rule, return_samples=return_samples)
            for stream, x, numbers in _streams(config, networks, images, seed, device)
        ]
    return concatenate(parts)


def predict_images_at(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    counts: Sequence[int],
    seed: int,
    device: torch.device,
    keep: int,
) -> list[Prediction]:
    """Predictions after each of some rising numbers of samples, drawn once; the last has its first ``keep`` samples."""
    reached = sorted({usable_samples(config, count) for count in counts})
    with _measuring(networks, device):
        parts = [
            collect_at(stream, x, numbers, reached, seed=seed, keep=min(keep, reached[-1]))
            for stream, x, numbers in _streams(config, networks, images, seed, device)
        ]
    return [concatenate(part) for part in zip(*parts, strict=True)]


def usable_samples(config: RunConfig, samples: int) -> int:
    """How many of the samples asked for the method of a run has."""
    limit = config.parsed.limit
    return samples if limit is None else min(samples, limit)


@contextmanager
def _measuring(networks: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Networks in evaluation, a GPU in ``float16``: as fast as ``bfloat16``, and its probabilities are finer."""
    half = torch.autocast(device.type, torch.float16, enabled=device.type == "cuda")
    with evaluating(nn.ModuleList(networks)), half:
        yield


def _streams(
    config: RunConfig, networks: Sequence[nn.Module], images: data.ImageSet, seed: int, device: torch.device
) -> Iterator[tuple[SampleStream, torch.Tensor, torch.Tensor]]:
    """For each batch of the images: what draws samples, the normalised batch, and the numbers of its images."""
    normalise = Normalise(images.mean, images.std, device)
    height, width = images.images.shape[1:3]
    rows = max(1, BATCH_PIXELS.get(device.type, BATCH_PIXELS["cpu"]) // (height * width))
    for start in range(0, len(images), rows):
        block = np.ascontiguousarray(images.images[start : start + rows])
        x = normalise(torch.from_numpy(block).to(device))
        numbers = torch.arange(start, start + len(x), dtype=torch.int32, device=device)
        yield config.parsed.stream(networks, x, seed), x, numbers


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


def diversity(first: Prediction) -> dict[str, object]:
    """JSD and DIS over pairs of the first samples (paper §4.4); None for a method with a single sample."""
    if first.samples is None or len(first.samples) < 2:
        return dict.fromkeys(("mean_jsd", "max_jsd", "mean_dis", "max_dis", "jsd", "dis"))
    jsd, dis = metrics.jsd(first.samples), metrics.disagreement(first.samples)
    return {
        "mean_jsd": float(metrics.mean_pairwise(jsd)),
        "max_jsd": float(metrics.max_pairwise(jsd)),
        "mean_dis": float(metrics.mean_pairwise(dis)),
        "max_dis": float(metrics.max_pairwise(dis)),
        "jsd": jsd.tolist(),
        "dis": dis.tolist(),
    }

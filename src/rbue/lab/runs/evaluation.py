"""Measure a trained run and keep the result in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, result_key
from rbue.lab.runs.measuring import DIVERSITY_SAMPLES, diversity, measure, predict_images, predict_images_at
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.stored_probs import belong_to, read_probs, write_probs
from rbue.lab.runs.training_runs import refuse_other_images, warn_of_changed_code
from rbue.prediction import Prediction, of_samples

SAMPLE_COUNTS = (1, 4, 10, 30)
"""Numbers of samples at which a stochastic method is measured on the way to all of them."""


def evaluate_run(
    config: RunConfig, root: Path, device: torch.device, samples: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Measure a trained run on the test images and keep the result in its folder.

    What was measured before is given again, unless another version of the random stream drew it, a folder of images
    has other test images by now, or the stored probabilities were removed. An ensemble some of whose members' weights
    are elsewhere is combined from stored probabilities.
    """
    refuse_other_images(config, root)
    warn_of_changed_code(config, root)
    folder = RunFolder.of(config, root)
    key = result_key(samples, seed)
    known = folder.entries("results")
    if key in known:
        outdated = _outdated(config, known[key])
        networks_here = all(RunFolder.of(member, root).has_weights for member in config.members())
        if not outdated and (folder.probs.exists() or not networks_here):
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
    key = result_key(samples, seed)
    now = folder.entries("results")  # another process may have added to it
    others = {name: one for name, one in now.items() if name != key}
    folder.write("results", {**others, key: result})  # the last one is that of the stored probabilities
    return result


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
                    f"{folder.path} was measured on other test images than {config.data} holds here, or not to the "
                    f"end; its weights are not kept in this folder to measure it again for {config.method}."
                )
            _measured(member, root, device, samples, seed)
    probs = torch.from_numpy(np.stack([read_probs(folder.probs) for folder in folders])).to(device)
    return of_samples(probs), of_samples(probs[:samples])


def _has_answers(folder: RunFolder, images: data.ImageSet) -> bool:
    """Whether the probabilities stored in a folder are those of its last measurement, on these images."""
    if not folder.probs.exists():
        return False
    results = folder.entries("results")
    last = list(results.values())[-1] if results else {}
    if _other_images(last, images) or not belong_to(folder.probs, last):
        return False
    return read_probs(folder.probs).shape == (len(images), len(images.classes))

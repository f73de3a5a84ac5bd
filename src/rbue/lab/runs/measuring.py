"""Predict images with the networks of a run, measure the prediction, and keep what came out in the run's folder.

:func:`evaluate_run` measures a trained run on its test images, or on those that were held out. :func:`calibrate_run`
scales what was measured by a temperature, without a network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rbue import metrics
from rbue.augment import Augmentation
from rbue.call_sites import evaluating
from rbue.errors import InvalidInput, RbueError, did_you_mean
from rbue.lab import data
from rbue.lab.environment import facts
from rbue.lab.processes import PATIENCE, Rank, is_first, joined, own_device, tasks_at_once
from rbue.lab.runs.augmented import augmented, canonical, parse_augment
from rbue.lab.runs.folders import (
    RunConfig,
    RunFolder,
    belong_to,
    other_stream,
    read_probs,
    result_key,
    write_probs,
)
from rbue.lab.runs.networks import NoWeights, explaining_memory, load_networks
from rbue.lab.runs.training import refuse_other_images, warn_of_changed_code
from rbue.lab.training import Normalise
from rbue.locks import InUse
from rbue.prediction import Prediction, concatenate, of_samples
from rbue.random_stream import INDEPENDENT
from rbue.sampling.adaptive import Adaptive
from rbue.sampling.collect import SampleStream, collect, collect_at
from rbue.sampling.keeping import Keeping
from rbue.sampling.predicting import check_draws
from rbue.sampling.tasks import task_of

BATCH_PIXELS = {"cpu": 500 << 10, "cuda": 10_000 << 10}
"""Pixels of the images that are predicted at once: 500 of CIFAR's on a CPU; all 10,000 on a GPU, so that one draw of
weights serves them all. Streams make smaller passes of them."""
SAMPLE_COUNTS = (1, 4, 10, 30)
"""Numbers of samples at which a stochastic method is measured on the way to all of them."""
DIVERSITY_SAMPLES = 4
"""JSD and DIS compare the first four samples, or the members of an ensemble (paper §4.4)."""
ALONE = Rank()
SPLITS = {"test": "results", "validation": "validation"}
"""What a run can be measured on, with the name of the file that keeps it."""


def predict_images(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    samples: int,
    seed: int,
    device: torch.device,
    return_samples: bool = False,
    adaptive: Adaptive | None = None,
    draws: str = "independent",
    augment: str = "",
    keep: Sequence[str] = (),
    chosen: NDArray[np.int64] | None = None,
    numbers: NDArray[np.int64] | None = None,
    rank: Rank = ALONE,
) -> Prediction:
    """Predict a set of images with the method of a run; a method with fewer samples draws all it has.

    What to ``keep`` is as in :func:`rbue.predict`. ``chosen`` are the numbers of those to predict, if not all: what is
    said of an image does not depend on the others. ``numbers`` are what all images count as in the random stream, if
    not as their place. Of several processes each predicts its part (:func:`own_part`), and all have the whole
    prediction.
    """
    count = usable_samples(config, samples, augment)
    rule = adaptive if usable_samples(config, samples + 1, augment) > samples else None
    draws = usable_draws(config, draws, augment)
    cycle = config.parsed.cycle if draws == "balanced" and not augment else INDEPENDENT
    settings = {"seed": seed, "adaptive": rule, "return_samples": return_samples, "draws": draws, "cycle": cycle}
    keeping = Keeping(keep, task_of("logits"))
    with _measuring(networks, device), keeping.beside_scores(networks):
        parts = [
            [collect(stream, x, index, count, keeping=keeping, **settings)]  # type: ignore[arg-type]
            for stream, x, index in _streams(
                config, networks, images, seed, device, draws, augment, chosen, numbers, rank
            )
        ]
    return _whole(parts, rank, device)[0]


def predict_images_at(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    counts: Sequence[int],
    seed: int,
    device: torch.device,
    keep: int,
    draws: str = "independent",
    augment: str = "",
    rank: Rank = ALONE,
) -> list[Prediction]:
    """Predictions after each of some rising numbers of samples, drawn once; the last has its first ``keep`` samples."""
    reached = sorted({usable_samples(config, count, augment) for count in counts})
    with _measuring(networks, device):
        parts = [
            collect_at(stream, x, numbers, reached, seed=seed, keep=min(keep, reached[-1]), draws=draws)
            for stream, x, numbers in _streams(config, networks, images, seed, device, draws, augment, rank=rank)
        ]
    return _whole(parts, rank, device)


def own_part(rank: Rank, images: int, batch: int) -> range:
    """Which of so many images are this process's: whole batches of those that one process would make, if that is fair.

    Then every prediction has the bits that one process gives it. Where one process would have a tenth more to do than
    evenly, images are divided instead: other batches, in which libraries may add up in another order.

    >>> own_part(Rank(0, 2), 10_000, 500), own_part(Rank(1, 3), 10_000, 500), own_part(Rank(1, 2), 355, 8000)
    (range(0, 5000), range(3000, 6500), range(177, 355))
    """
    batches = -(-images // batch)
    most = -(-batches // rank.world_size)
    if 10 * most * rank.world_size > 11 * batches:
        return rank.rows(images)
    own = rank.rows(batches)
    return range(own.start * batch, min(own.stop * batch, images))


def _whole(parts: list[list[Prediction]], rank: Rank, device: torch.device) -> list[Prediction]:
    """The predictions of all processes, in the order of the images; in each part there are as many, one a row."""
    if rank.world_size > 1:
        own = [[one.to("cpu") for one in part] for part in parts]
        parts = [[one.to(device) for one in part] for said in rank.of_all(own) for part in said]
    return [concatenate(part) for part in zip(*parts, strict=True)]


def usable_samples(config: RunConfig, samples: int, augment: str = "") -> int:
    """How many of the samples asked for the method of a run has; of augmented ones there is no end."""
    limit = config.parsed.limit
    return samples if limit is None or augment else min(samples, limit)


def usable_draws(config: RunConfig, draws: str, augment: str = "") -> str:
    """How the method of a run draws when asked for ``draws``.

    One with so many samples and no more has only its own. Its augmentations may be balanced.
    """
    check_draws(draws)
    if config.parsed.limit is not None:
        return draws if augment else "independent"
    if draws == "balanced" and not config.parsed.balances:
        raise InvalidInput(f"{config.method} has no balanced draws; use independent ones.")
    return draws


def images_at_once(images: data.ImageSet, device: torch.device) -> int:
    """How many images of this size are predicted at once."""
    height, width = images.images.shape[1:3]
    return max(1, BATCH_PIXELS.get(device.type, BATCH_PIXELS["cpu"]) // (height * width))


@contextmanager
def _measuring(networks: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Networks in evaluation, a GPU in ``float16``: as fast as ``bfloat16``, and its probabilities are finer."""
    half = torch.autocast(device.type, torch.float16, enabled=device.type == "cuda")
    lack = explaining_memory(device, "a pass with one image does not fit; choose another --device")
    with lack, evaluating(nn.ModuleList(networks)), half:
        yield


def _streams(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    seed: int,
    device: torch.device,
    draws: str = "independent",
    augment: str = "",
    chosen: NDArray[np.int64] | None = None,
    numbers: NDArray[np.int64] | None = None,
    rank: Rank = ALONE,
) -> Iterator[tuple[SampleStream, torch.Tensor, torch.Tensor]]:
    """For each batch of a process's images: what draws samples, the normalised batch, the numbers of its images."""
    normalise = Normalise(images.mean, images.std, device)
    rows = images_at_once(images, device)
    which = np.arange(len(images)) if chosen is None else chosen
    own = own_part(rank, len(which), rows)
    for start in range(own.start, own.stop, rows):
        part = which[start : min(start + rows, own.stop)]
        x = normalise(torch.from_numpy(images.images[part]).to(device))
        index = torch.from_numpy((part if numbers is None else numbers[part]).astype(np.int32)).to(device)
        stream = config.parsed.stream(networks, x, seed, draws=draws)
        if augment:
            black = [-mean / std for mean, std in zip(images.mean, images.std, strict=True)]
            changing = Augmentation(parse_augment(augment, black), seed, device, draws)
            stream = augmented(stream, changing, config.parsed.limit)
        yield stream, x, index


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


def evaluate_run(
    config: RunConfig,
    root: Path,
    device: torch.device,
    samples: int = 100,
    seed: int = 0,
    split: str = "test",
    draws: str = "independent",
    augment: str = "",
) -> dict[str, Any]:
    """Measure a trained run on the test images and keep the result in its folder.

    The ``"validation"`` images are those that ``config.holdout`` kept from training. Choose by them, not by the test
    images. ``augment`` names what each sample does to its images first (:mod:`rbue.lab.runs.augmented`). Diversity is
    always that of independent samples of the images as they are.

    What was measured before is given again, unless another version of the random stream drew it, a folder of images
    has other test images by now, or its probabilities are not there: a folder keeps those of its last measurement.
    Where weights are elsewhere, numbers without probabilities will do. An ensemble some of whose members' weights are
    elsewhere is combined from stored probabilities.

    Under ``torchrun`` every process predicts its part of the images, on its own GPU if there are some. All give the
    result; the first one keeps it.
    """
    check_split(config, split)
    refuse_other_images(config, root)
    warn_of_changed_code(config, root)
    device, augment = own_device(device), canonical(augment)
    draws = usable_draws(config, draws, augment)
    with joined(torch.device("cpu"), PATIENCE) as rank:
        known = rank.of_first(_known(config, root, split, result_key(samples, seed, draws, augment)))
        return known or _measured(config, root, device, samples, seed, split, draws, augment, rank)


def _known(config: RunConfig, root: Path, split: str, key: str) -> dict[str, Any] | None:
    """What was measured before, if it is still what would be measured."""
    folder = RunFolder.of(config, root)
    known = folder.entries(SPLITS[split])
    if key in known:
        outdated = _outdated(config, known[key], split)
        networks_here = all(RunFolder.of(member, root).has_weights for member in config.members())
        probs, is_last = _probs(folder, split), list(known)[-1] == key  # older ones note no checksum
        if not outdated and (not networks_here or (is_last and probs.exists() and belong_to(probs, known[key]))):
            return dict(known[key])
        if not folder.has_weights and config.parsed.networks == 1:
            raise RbueError(
                f"{folder.path} was measured {outdated}; its weights are not kept in this folder to measure it again."
            )
    return None


def check_split(config: RunConfig, split: str) -> None:
    """Refuse images that a run does not have."""
    if split not in SPLITS:
        raise InvalidInput(f"split must be {' or '.join(SPLITS)}, not {split!r}{did_you_mean(split, SPLITS)}.")
    if split == "validation" and not config.holdout:
        raise InvalidInput(
            "a run without held-out images has no validation images; train it with --holdout N, a tenth of its "
            "training images, say."
        )


def images_of(config: RunConfig, split: str) -> data.ImageSet:
    """The images of a split of :data:`SPLITS`."""
    if split == "test":
        return data.load(config.data, "test")
    return data.holdout(data.load(config.data, "train"), config.holdout, config.holdout_seed)[1]


def _probs(folder: RunFolder, split: str) -> Path:
    return folder.probs if split == "test" else folder.validation_probs


def _outdated(config: RunConfig, result: dict[str, Any], split: str) -> str:
    """Why a measurement is not the one that would be made now, in words; empty if it is."""
    streams = other_stream(config, result)
    if streams:
        return f"with {streams}"
    if config.data.startswith("folder:") and other_images(result, images_of(config, split)):
        return f"on other {split} images than {config.data} holds now"
    return ""


def other_images(result: dict[str, Any], images: data.ImageSet) -> bool:
    """Whether a measurement is about other test images or labels; one that does not say is taken for the same."""
    noted = dict(result.get("data") or {}).get("sha256")
    return noted is not None and noted != images.record()["sha256"]


def _measured(
    config: RunConfig,
    root: Path,
    device: torch.device,
    samples: int,
    seed: int,
    split: str = "test",
    draws: str = "independent",
    augment: str = "",
    rank: Rank = ALONE,
) -> dict[str, Any]:
    folder = RunFolder.of(config, root)
    if rank.index == 0:
        with suppress(InUse), folder.locked(wait=0):
            pass  # that nothing can be written here should be known before hours of work
    images = images_of(config, split)
    labels = torch.from_numpy(images.labels).to(device)
    drawn = samples, seed, draws, augment
    stored = _from_members(config, root, device, drawn, images, rank) if split == "test" else None
    costs: dict[str, float] = {}
    if stored is not None:
        first, prediction = stored
        curve: list[dict[str, float]] = []
    else:
        networks = load_networks(config, root, device)
        members = None if config.parsed.draws_samples else config.parsed.limit
        growing = members is None or bool(augment)
        counts = [*(count for count in SAMPLE_COUNTS if count < samples and growing), samples]
        compared = members or DIVERSITY_SAMPLES
        start = time.perf_counter()
        *fewer, prediction = predict_images_at(
            config, networks, images, counts, seed, device, compared, draws, augment, rank
        )
        prediction.probs.sum().item()  # a GPU may be behind
        if tasks_at_once() == 1:
            costs["prediction_seconds"] = time.perf_counter() - start
        costs["stored_bytes"] = sum(RunFolder.of(member, root).stored_bytes for member in config.members())
        first = prediction
        if samples < compared or draws != "independent" or augment:
            first = predict_images(config, networks, images, compared, seed, device, return_samples=True, rank=rank)
        curve = [{"samples": int(one.samples_used[0]), **measure(one, labels)} for one in fewer]
    training = [RunFolder.of(member, root).read("training") for member in config.members()]
    result = {
        **measure(prediction, labels),
        **diversity(first),
        "parameters": sum(entry["parameters"] for entry in training),
        "training_seconds": sum(entry["seconds"] for entry in training),
        **costs,
        "samples": int(prediction.samples_used[0]) * (samples if stored and augment else 1),
        "by_samples": curve,
        "combined_from": "networks" if stored is None else "stored probabilities",
        "seed": seed,
        "draws": draws,
        **({"augment": augment} if augment else {}),
        "device": device.type,
        **({"processes": rank.world_size} if rank.world_size > 1 else {}),
        "stream_version": prediction.stream_version,
        "data": images.record(),
        "environment": facts(),
    }
    key = result_key(*drawn)
    if is_first():
        with folder.locked():
            folder.open(config, facts())
            result["probs_sha256"] = write_probs(_probs(folder, split), prediction.probs.cpu().numpy())
            others = {name: one for name, one in folder.entries(SPLITS[split]).items() if name != key}
            folder.write(SPLITS[split], {**others, key: result})  # the last one is that of the stored probabilities
    return rank.of_first(result)


def _from_members(
    config: RunConfig,
    root: Path,
    device: torch.device,
    drawn: tuple[int, int, str, str],
    images: data.ImageSet,
    rank: Rank,
) -> tuple[Prediction, Prediction] | None:
    """An ensemble from stored probabilities, if the weights of a member are elsewhere; else None.

    Members whose weights are here are measured first, which stores theirs. Augmented passes are those of each member.

    Returns:
        Members to compare, and the prediction: of as many members as samples are asked for. Of augmented passes only
        the means are stored: there is no pair to compare.

    Raises:
        NoWeights: a member was measured on other images or with other passes, and its weights are elsewhere.
    """
    samples, seed, draws, augment = drawn
    members = [(member, RunFolder.of(member, root)) for member in config.members()]
    folders = [folder for _, folder in members]
    if len(folders) == 1 or all(folder.has_weights for folder in folders):
        return None
    if not all(folder.has_weights or folder.probs.exists() for folder in folders):
        return None
    for member, folder in members:
        if not _has_answers(folder, images, drawn):
            if not folder.has_weights:
                raise NoWeights(
                    f"{folder.path} was last measured on other test images than {config.data} holds here, with other "
                    f"passes than {result_key(*drawn)}, or not to the end; its weights are not kept in this folder to "
                    f"measure it again for {config.method}."
                )
            _measured(member, root, device, samples, seed, draws=draws, augment=augment, rank=rank)
    probs = torch.from_numpy(np.stack([read_probs(folder.probs) for folder in folders])).to(device)
    if augment:
        return of_samples(probs[:1]), of_samples(probs)
    return of_samples(probs), of_samples(probs[:samples])


def _has_answers(folder: RunFolder, images: data.ImageSet, drawn: tuple[int, int, str, str]) -> bool:
    """Whether the probabilities stored in a folder are those of its last measurement, on these images.

    Augmented passes have to be the ones asked for; others, one pass of a plain network, are what they are.
    """
    if not folder.probs.exists():
        return False
    results = folder.entries("results")
    key, last = list(results.items())[-1] if results else ("", {})
    other_passes = key != result_key(*drawn) if drawn[-1] else "augment" in last
    if other_passes or other_images(last, images) or not belong_to(folder.probs, last):
        return False
    return read_probs(folder.probs).shape == (len(images), len(images.classes))

"""Predict images with the networks of a run, measure the prediction, and keep what came out in the run's folder.

:func:`evaluate_run` measures a trained run on its test images, or on those that were held out. :func:`calibrate_run`
scales what was measured by a temperature, without a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rbue import metrics
from rbue.augment import Augmentation
from rbue.call_sites import evaluating
from rbue.errors import InvalidInput, RbueError, did_you_mean, warn
from rbue.lab import data
from rbue.lab.data.registry import FOLDER_PREFIX
from rbue.lab.environment import facts
from rbue.lab.methods.base import Method, naming_own
from rbue.lab.processes import PATIENCE, Rank, is_first, joined, own_device, tasks_at_once
from rbue.lab.runs.augmented import augmented, parse_augment
from rbue.lab.runs.folders import RunConfig, RunFolder, has_weights, outdated, training_seconds
from rbue.lab.runs.networks import NoWeights, explaining_memory, load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.probabilities import belong_to, probs_of, write_probs
from rbue.lab.runs.training import refuse_other_images, warn_of_changed_code
from rbue.lab.training import Normalise
from rbue.locks import InUse
from rbue.prediction import Prediction, concatenate, of_samples
from rbue.random_stream import INDEPENDENT
from rbue.sampling.collect import NotFinite, SampleStream, collect, collect_at
from rbue.sampling.keeping import Keeping
from rbue.sampling.tasks import task_of

BATCH_PIXELS = {"cpu": 500 << 10, "cuda": 10_000 << 10}
"""Pixels of the images that are predicted at once: 500 of CIFAR's on a CPU; all 10,000 on a GPU, so that one draw of
weights serves them all. Streams make smaller passes of them."""
HALVES: dict[str, tuple[torch.dtype, ...]] = {"cuda": (torch.float16, torch.bfloat16)}
"""What networks are measured in: one is as fast as the other, the first is finer, and the second wider."""
SAMPLE_COUNTS = (1, 4, 10, 30)
"""Numbers of samples at which a stochastic method is measured on the way to all of them."""
BINS = 30
"""Of the ECE, as in the paper."""
DIVERSITY_SAMPLES = 4
"""JSD and DIS compare the first four samples, or the members of an ensemble (paper §4.4)."""
BEFORE_SOFTMAX = "if it ends in a softmax or a sigmoid, leave that out and train it again."
ALONE = Rank()
SPLITS = {"test": "results", "validation": "validation"}
"""What a run can be measured on, with the name of the file that keeps it."""


def predict_images(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    passes: Passes,
    device: torch.device,
    return_samples: bool = False,
    keep: Sequence[str] = (),
    chosen: NDArray[np.int64] | None = None,
    numbers: NDArray[np.int64] | None = None,
    rank: Rank = ALONE,
) -> Prediction:
    """Predict a set of images with the method of a run.

    What to ``keep`` is as in :func:`rbue.predict`. ``chosen`` are the numbers of those to predict, if not all: what is
    said of an image does not depend on the others. ``numbers`` are what all images count as in the random stream, if
    not as their place. Of several processes each predicts its part (:func:`own_part`), and all have the whole
    prediction.
    """
    passes, count, limit = passes.of(config), passes.count(config), passes.limit(config)
    settings: dict[str, Any] = {
        "seed": passes.seed,
        "adaptive": passes.adaptive if limit is None or passes.samples < limit else None,
        "return_samples": return_samples,
        "draws": passes.draws,
        "cycle": config.parsed.cycle if passes.draws == "balanced" and not passes.augment else INDEPENDENT,
        "keeping": Keeping(keep, task_of("logits")),
        "remedy": BEFORE_SOFTMAX,
    }

    def drawn() -> list[list[Prediction]]:
        with settings["keeping"].beside_scores(networks):
            return [
                [collect(stream, x, index, count, **settings)]
                for stream, x, index in _streams(config, networks, images, passes, device, chosen, numbers, rank)
            ]

    return _whole(_measuring(config.parsed, networks, device, drawn), rank, device)[0]


def predict_images_at(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    counts: Sequence[int],
    passes: Passes,
    device: torch.device,
    keep: int,
    rank: Rank = ALONE,
) -> list[Prediction]:
    """Predictions after some rising numbers of samples and after all, drawn once; the last has its first ``keep``."""
    reached = sorted({replace(passes, samples=count).count(config) for count in (*counts, passes.samples)})
    how: dict[str, Any] = {"seed": passes.seed, "keep": min(keep, reached[-1]), "draws": passes.draws}
    how["remedy"] = BEFORE_SOFTMAX

    def drawn() -> list[list[Prediction]]:
        return [
            collect_at(stream, x, numbers, reached, **how)
            for stream, x, numbers in _streams(config, networks, images, passes, device, rank=rank)
        ]

    return _whole(_measuring(config.parsed, networks, device, drawn), rank, device)


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


def images_at_once(images: data.ImageSet, device: torch.device) -> int:
    """How many images of this size are predicted at once."""
    height, width = images.images.shape[1:3]
    return max(1, BATCH_PIXELS.get(device.type, BATCH_PIXELS["cpu"]) // (height * width))


def _measuring(
    method: Method, networks: Sequence[nn.Module], device: torch.device, drawn: Callable[[], list[list[Prediction]]]
) -> list[list[Prediction]]:
    """What ``drawn`` gives with the networks in evaluation and in the first of :data:`HALVES` that is wide enough."""
    halves = HALVES.get(device.type, ())
    lack = explaining_memory(device, "a pass with one image does not fit; choose another --device")
    with lack, naming_own(method), evaluating(nn.ModuleList(networks)):
        for half in halves[:-1]:
            with suppress(NotFinite), torch.autocast(device.type, half):
                return drawn()
            warn(f"numbers in the network exceed those of {half}; it is measured in {halves[-1]}.")
        with torch.autocast(device.type, halves[-1]) if halves else nullcontext():
            return drawn()


def _streams(
    config: RunConfig,
    networks: Sequence[nn.Module],
    images: data.ImageSet,
    passes: Passes,
    device: torch.device,
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
        stream = config.parsed.stream(networks, x, passes.seed, draws=passes.draws)
        if passes.augment:
            black = [-mean / std for mean, std in zip(images.mean, images.std, strict=True)]
            changing = Augmentation(parse_augment(passes.augment, black), passes.seed, device, passes.draws)
            stream = augmented(stream, changing, config.parsed.limit)
        yield stream, x, index


def measure(prediction: Prediction, labels: torch.Tensor) -> dict[str, float]:
    """The paper's measurements and the proper scores of one prediction."""
    return {
        **scores(prediction.probs, labels),
        "entropy": float(prediction.entropy.mean()),
        "mutual_information": float(prediction.mutual_information.mean()),
        "aurc": float(metrics.aurc(prediction.confidence, prediction.label == labels)),
    }


def scores(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Those that need nothing but the probabilities."""
    return {
        "accuracy": float(metrics.accuracy(probs, labels)),
        "ece": float(metrics.ece(probs, labels, BINS)),
        "nll": float(metrics.nll(probs, labels)),
        "brier": float(metrics.brier(probs, labels)),
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
    has other test images by now, its networks were trained again, or its probabilities are not there: a folder keeps
    those of its last measurement. Where weights are elsewhere, numbers without probabilities will do. An ensemble some
    of whose members' weights are elsewhere is combined from stored probabilities.

    Under ``torchrun`` every process predicts its part of the images, on its own GPU if there are some. All give the
    result; the first one keeps it.
    """
    check_split(config, split)
    refuse_other_images(config, root)
    warn_of_changed_code(config, root)
    device, passes = own_device(device), Passes(samples, seed, draws=draws, augment=augment).of(config)
    with joined(torch.device("cpu"), PATIENCE) as rank:
        known = rank.of_first(_known(config, root, split, passes))
        return known or _measured(config, root, device, passes, split, rank)


def _known(config: RunConfig, root: Path, split: str, passes: Passes) -> dict[str, Any] | None:
    """What was measured before, if it is still what would be measured."""
    folder, key = RunFolder.of(config, root), passes.key
    known = folder.entries(SPLITS[split])
    if key in known:
        otherwise = _outdated(config, root, known[key], split)
        networks_here = has_weights(config, root)
        probs, is_last = _probs(folder, split), list(known)[-1] == key  # older ones note no checksum
        whole = is_last and known[key]["samples"] == passes.count(config)  # or that many of each member
        if not otherwise and (not networks_here or (whole and probs.exists() and belong_to(probs, known[key]))):
            return dict(known[key])
        if not networks_here and config.parsed.networks == 1:
            raise RbueError(
                f"{folder.path} was measured {otherwise}; its weights are not kept in this folder to measure it again."
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


def _outdated(config: RunConfig, root: Path, result: dict[str, Any], split: str) -> str:
    """Why a measurement is not the one that would be made now, in words; empty if it is."""
    words = outdated(config, root, result)
    if not words and config.data.startswith(FOLDER_PREFIX) and other_images(result, images_of(config, split)):
        return f"on other {split} images than {config.data} holds now"
    return words


def other_images(result: dict[str, Any], images: data.ImageSet) -> bool:
    """Whether a measurement is about other test images or labels; one that does not say is taken for the same."""
    noted = dict(result.get("data") or {}).get("sha256")
    return noted is not None and noted != images.record()["sha256"]


def _measured(
    config: RunConfig, root: Path, device: torch.device, passes: Passes, split: str, rank: Rank
) -> dict[str, Any]:
    folder = RunFolder.of(config, root)
    if rank.index == 0:
        with suppress(InUse), folder.locked(wait=0):
            pass  # that nothing can be written here should be known before hours of work
    seconds = training_seconds(config, root)  # of those that are loaded below
    images = images_of(config, split)
    labels = torch.from_numpy(images.labels).to(device)
    stored = _from_members(config, root, device, passes, images, rank) if split == "test" else None
    costs: dict[str, float] = {}
    if stored is not None:
        first, prediction = stored
        curve: list[dict[str, float]] = []
    else:
        networks = load_networks(config, root, device)
        members = None if config.parsed.draws_samples else config.parsed.limit
        growing = members is None or bool(passes.augment)
        counts = [count for count in SAMPLE_COUNTS if count < passes.samples and growing]
        compared = members or DIVERSITY_SAMPLES
        start = time.perf_counter()
        *fewer, prediction = predict_images_at(config, networks, images, counts, passes, device, compared, rank)
        prediction.probs.sum().item()  # a GPU may be behind
        if tasks_at_once() == 1:
            costs["prediction_seconds"] = time.perf_counter() - start
        costs["stored_bytes"] = sum(RunFolder.of(one, root).stored_bytes for one in config.trainings())
        first = prediction
        plain = Passes(compared, passes.seed)
        if passes.samples < compared or replace(passes, samples=compared) != plain:
            first = predict_images(config, networks, images, plain, device, return_samples=True, rank=rank)
        curve = [{"samples": int(one.samples_used[0]), **measure(one, labels)} for one in fewer]
    training = [RunFolder.of(one, root).read("training") for one in config.trainings()]
    result = {
        **measure(prediction, labels),
        **diversity(first),
        "parameters": sum(entry["parameters"] for entry in training),
        "training_seconds": seconds,
        **costs,
        "samples": int(prediction.samples_used[0]) * (passes.share(config).count(config.members()[0]) if stored else 1),
        "by_samples": curve,
        "combined_from": "networks" if stored is None else "stored probabilities",
        "seed": passes.seed,
        "draws": passes.draws,
        **({"augment": passes.augment} if passes.augment else {}),
        "device": device.type,
        **({"processes": rank.world_size} if rank.world_size > 1 else {}),
        "stream_version": prediction.stream_version,
        "data": images.record(),
        "environment": facts(),
    }
    if is_first():
        with folder.locked():
            folder.open(config, facts())
            result["probs_sha256"] = write_probs(_probs(folder, split), prediction.probs.cpu().numpy())
            others = {name: one for name, one in folder.entries(SPLITS[split]).items() if name != passes.key}
            # The last one is that of the stored probabilities.
            folder.write(SPLITS[split], {**others, passes.key: result})
    return rank.of_first(result)


def _from_members(
    config: RunConfig, root: Path, device: torch.device, passes: Passes, images: data.ImageSet, rank: Rank
) -> tuple[Prediction, Prediction] | None:
    """An ensemble from stored probabilities, if the weights of a member are elsewhere; else None.

    Members whose weights are here are measured first, which stores theirs. Random and augmented passes are shared by
    the members: each makes as many.

    Returns:
        Members to compare, and the prediction: of as many members as samples are asked for. Of random and augmented
        passes only the means are stored: there is no pair to compare.

    Raises:
        NoWeights: a member was measured on other images or with other passes, and its weights are elsewhere.
    """
    members = config.members()
    if len(members) == 1 or has_weights(config, root):
        return None
    if any(RunFolder.of(one, root).read("training") is None for one in config.trainings()):
        return None  # which is then said: one that was removed, and from which the members drew
    if not all(has_weights(member, root) or RunFolder.of(member, root).probs.exists() for member in members):
        return None
    found, share = [], passes.share(config)
    for member in members:
        folder = RunFolder.of(member, root)
        answers = stored_answers(member, root, images, share)
        if answers is None:
            if not has_weights(member, root):
                raise NoWeights(
                    f"{folder.path} was last measured on other test images than {config.data} holds here, with other "
                    f"passes than {share.key}, before it was trained again, or not to the end; its weights are not "
                    f"kept in this folder to measure it again for {config.method}."
                )
            _measured(member, root, device, share, "test", rank)
            answers = stored_answers(member, root, images, share)
            if answers is None:
                raise RbueError(f"{folder.path} was measured otherwise meanwhile; give the same command again.")
        found.append(answers)
    probs = torch.from_numpy(np.stack(found)).to(device)
    if _makes_passes(members[0], passes):
        return of_samples(probs[:1]), of_samples(probs)
    return of_samples(probs), of_samples(probs[: passes.samples])


def _makes_passes(member: RunConfig, passes: Passes) -> bool:
    """Whether a member answers by the passes asked for, and not always by the one of a plain network."""
    return passes.limit(member) != 1


def stored_answers(
    member: RunConfig, root: Path, images: data.ImageSet, passes: Passes, split: str = "test"
) -> NDArray[np.float32] | None:
    """The probabilities stored in a folder if they are those of its last measurement, on these images.

    Random and augmented passes have to be the ones asked for; one pass of a plain network is what it is.
    """
    folder = RunFolder.of(member, root)
    probs = _probs(folder, split)
    if not probs.exists():
        return None
    results = folder.entries(SPLITS[split])
    key, last = list(results.items())[-1] if results else ("", {})
    other_passes = key != passes.key if _makes_passes(member, passes) else "augment" in last
    if other_passes or outdated(member, root, last) or other_images(last, images):
        return None
    found = probs_of(probs, last)
    return found if found is not None and found.shape == (len(images), len(images.classes)) else None

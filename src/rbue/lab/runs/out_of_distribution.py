"""Measure how well a run tells images from elsewhere: every score, on every set, after one pass over each.

``ood.json`` in the run folder has one entry for each way to draw samples and to fit detectors, and in it the sets that
were measured. Detectors are fitted on training features, which are means over samples and over the members of an
ensemble, as logits are. Members' features have axes of their own; their mean is still one fixed map of the image.
Methods whose samples do not come from one classifier have no detectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rbue import metrics
from rbue.decisions import out_of_distribution as ood
from rbue.errors import InvalidInput, whole_number
from rbue.lab import data
from rbue.lab.data.outside import USUAL, Outside, at_most, outside
from rbue.lab.data.registry import FOLDER_PREFIX, silent
from rbue.lab.environment import facts
from rbue.lab.processes import PATIENCE, Rank, is_first, joined, own_device
from rbue.lab.runs.folders import RunConfig, RunFolder, outdated, training_seconds
from rbue.lab.runs.measuring import images_of, other_images, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import refuse_other_images, training_images, warn_of_changed_code
from rbue.prediction import Prediction

OF_SPREAD = ("expected_entropy", "mutual_information", "variation_ratio")
"""Scores that say nothing of one sample, and are left out there."""
SCORES = ("max_probability", "entropy", *OF_SPREAD, "energy", "max_logit", "nearest", "mahalanobis")
"""Every score, in the order of tables."""
MEASURES = ("auroc", "aupr", "fpr95")
ENTROPY_BINS = 24
"""Of the histograms that a page draws."""


@dataclass(frozen=True)
class OodSetting(Passes):
    """How samples are drawn and detectors fitted.

    Attributes:
        images: the most images of each set, evenly spaced.
        training_images: the most that detectors are fitted on; None for all.
        k: the neighbour whose distance counts; less where there are fewer training images.
    """

    images: int = 10_000
    training_images: int | None = None
    k: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive is not None:
            raise InvalidInput("images from elsewhere are measured with as many samples of each; leave adaptive out.")
        for name in ("images", "training_images", "k"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name)

    def name(self, config: RunConfig) -> str:
        """The name of the entry; a method that gives all samples it has needs no number or seed.

        >>> OodSetting(20).name(RunConfig(method="single")), OodSetting(20).name(RunConfig(method="svi"))
        ('samples=1,seed=0,images=10000,k=50', 'samples=20,seed=0,images=10000,k=50')
        """
        seed = self.seed if self.limit(config) is None else 0
        drawn = replace(self.of(config), samples=self.count(config), seed=seed).key
        fewer = "" if self.training_images is None else f",training_images={self.training_images}"
        return f"{drawn},images={self.images}{fewer},k={self.k}"


def sets_for(config: RunConfig, near: Sequence[str], far: Sequence[str]) -> tuple[list[str], list[str]]:
    """The sets near to that of a run and far from it: those that are named, or the usual ones."""
    if not near and not far:
        if config.data not in USUAL:
            raise InvalidInput(f"there is no usual set outside of {config.data}; name some with --near or --far.")
        near, far = USUAL[config.data]
    both = sorted(set(near) & set(far))
    if both:
        raise InvalidInput(f"{both[0]} is named as near and as far; name it once.")
    return list(dict.fromkeys(near)), list(dict.fromkeys(far))


def measure_outside(
    config: RunConfig,
    root: Path,
    device: torch.device,
    names: Sequence[str],
    setting: OodSetting | None = None,
    progress: data.Progress | None = None,
    opened: dict[tuple[str, str], Outside] | None = None,
) -> dict[str, Any]:
    """Measure a trained run on its test images against sets from elsewhere, and keep what came out in its folder.

    Every set is kept as soon as it is measured. What is there already is not measured again, unless another version of
    the random stream drew it or a folder of images has other images by now. Under ``torchrun`` every process predicts
    its part of the images.

    Args:
        config: the run.
        root: folder of the run folders.
        device: where to predict.
        names: the sets.
        setting: how samples are drawn and detectors fitted.
        progress: told how many sets are done, of how many.
        opened: sets that were opened for an earlier run with the same number of images, which is added to.

    Returns:
        The entry of ``ood.json``: how it was measured, and for each name in ``sets`` its ``scores``, of which each has
        ``auroc``, ``aupr`` and ``fpr95``; images from elsewhere are the positives.
    """
    setting, folder = setting or OodSetting(), RunFolder.of(config, root)
    refuse_other_images(config, root)
    with joined(torch.device("cpu"), PATIENCE) as rank:
        known = rank.of_first(_kept(config, root, setting))
        missing = [name for name in dict.fromkeys(names) if _changed(known.get(name), name, config, setting)]
        if missing:
            known |= _measured(config, root, own_device(device), missing, setting, progress, opened, rank)
        entry = rank.of_first(folder.entries("ood")[setting.name(config)] if rank.index == 0 else {})
        return {**entry, "sets": {name: known[name] for name in dict.fromkeys(names)}}


def _measured(
    config: RunConfig,
    root: Path,
    device: torch.device,
    names: Sequence[str],
    setting: OodSetting,
    progress: data.Progress | None,
    opened: dict[tuple[str, str], Outside] | None,
    rank: Rank,
) -> dict[str, Any]:
    """What sets come to; each is kept by the first process as soon as it is measured."""
    warn_of_changed_code(config, root)
    folder, key = RunFolder.of(config, root), setting.name(config)
    inside = at_most(images_of(config, "test"), setting.images)
    sets = {} if opened is None else opened
    for name in names:  # before anything is measured: one of them may not be here
        if (name, inside.name) not in sets:
            sets[name, inside.name] = outside(name, inside, setting.images)
    what, steps = f"{config.method} seed {config.seed}", len(names) + 2  # and training images, and those inside

    def tell(done: int) -> None:
        (progress or silent)(what, done, steps)

    telling = _Telling(config, root, device, setting, inside, tell, rank)
    found: dict[str, Any] = {}
    for done, name in enumerate(names, 3):
        found[name] = telling.against(sets[name, inside.name])
        if is_first():
            with folder.locked():
                folder.open(config, facts())
                known = {**_kept(config, root, setting), name: found[name]}
                folder.write("ood", {**folder.entries("ood"), key: {**telling.how, "sets": known}})
        tell(done)
    return rank.of_first(found)


def _kept(config: RunConfig, root: Path, setting: OodSetting) -> dict[str, Any]:
    """The sets that were measured, unless they would be measured otherwise now."""
    entry = RunFolder.of(config, root).entries("ood").get(setting.name(config), {})
    moved = config.data.startswith(FOLDER_PREFIX) and other_images(
        entry, at_most(images_of(config, "test"), setting.images)
    )
    return {} if moved or outdated(config, root, entry) else dict(entry.get("sets", {}))


def _changed(found: dict[str, Any] | None, name: str, config: RunConfig, setting: OodSetting) -> bool:
    """Whether a set was not measured, or is a folder of images that has others by now."""
    if found is None or not name.startswith(FOLDER_PREFIX):
        return found is None
    inside = at_most(images_of(config, "test"), setting.images)
    return other_images(found, outside(name, inside, setting.images).images)


class _Telling:
    """A run with fitted detectors, and its scores of the images inside.

    Attributes:
        how: what to keep of how it measures.
    """

    def __init__(
        self,
        config: RunConfig,
        root: Path,
        device: torch.device,
        setting: OodSetting,
        inside: data.ImageSet,
        tell: Callable[[int], None],
        rank: Rank,
    ) -> None:
        self.config, self.device, self.setting, self.rank = config, device, setting, rank
        seconds = training_seconds(config, root)
        self.networks = load_networks(config, root, device)
        self.detectors: dict[str, Callable[[Any], Tensor]] = {}
        tell(0)
        fitted_on: dict[str, Any] = {}
        if config.parsed.member.one_classifier:
            training = at_most(training_images(config), setting.training_images)
            fitted = self._predicted(training)
            k = min(setting.k, len(training))
            self.detectors = {
                "nearest": ood.KNearest.fit(fitted, k),
                "mahalanobis": ood.Mahalanobis.fit(fitted, torch.from_numpy(training.labels).to(device)),
            }
            fitted_on = {"k": k, "training_data": training.record()}
        tell(1)
        prediction = self._predicted(inside)
        self.inside, self.classes = self._scores(prediction), prediction.probs.shape[1]
        tell(2)
        self.how = {
            "accuracy": float(metrics.accuracy(prediction.probs, torch.from_numpy(inside.labels).to(device))),
            "samples": int(prediction.samples_used[0]),
            "training_seconds": seconds,
            "seed": setting.seed,
            "draws": setting.of(config).draws,
            **({"augment": setting.augment} if setting.augment else {}),
            **fitted_on,
            "stream_version": prediction.stream_version,
            "data": inside.record(),
        }

    def _predicted(self, images: data.ImageSet) -> Prediction:
        keep = ("logits", "features") if self.config.parsed.member.one_classifier else ("logits",)
        return predict_images(self.config, self.networks, images, self.setting, self.device, keep=keep, rank=self.rank)

    def _scores(self, prediction: Prediction) -> dict[str, Tensor]:
        found = ood.scores(prediction, detectors=self.detectors)
        several = int(prediction.samples_used.max()) > 1
        return {name: values for name, values in found.items() if several or name not in OF_SPREAD}

    def _histogram(self, scores: dict[str, Tensor]) -> list[int]:
        """How many entropies lie in each part of the range from 0 to that of a uniform answer."""
        entropies = scores["entropy"].cpu() / math.log(self.classes)
        return [int(count) for count in entropies.clamp(0, 1).histc(ENTROPY_BINS, 0, 1)]

    def against(self, other: Outside) -> dict[str, Any]:
        """What a set comes to."""
        scores = self._scores(self._predicted(other.images))
        return {
            "scores": {name: ood.detection(self.inside[name], scores[name])._asdict() for name in scores},
            "entropies": {"inside": self._histogram(self.inside), "outside": self._histogram(scores)},
            "images": len(other.images),
            "left_out": list(other.left_out),
            "data": other.images.record(),
            "device": self.device.type,
            "environment": facts(),
        }


def means(entry: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Means of each score's measures over some sets; nothing if there are none."""
    if not names:
        return {}
    found = [entry["sets"][name]["scores"] for name in names]
    return {score: {measure: fmean(one[score][measure] for one in found) for measure in MEASURES} for score in found[0]}

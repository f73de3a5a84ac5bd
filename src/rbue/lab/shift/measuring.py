"""Measure runs on damaged images: those of the test set, or those that were held out.

Runs on one data set are measured together: every damaged set is made once, every network loaded once. An ensemble is
combined from what its members came to.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rbue.errors import InvalidInput, RbueError, warn
from rbue.lab import data
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from rbue.lab.corruptions.corrupting import check_severity, find
from rbue.lab.corruptions.sets import find_published
from rbue.lab.data.folder import is_here
from rbue.lab.data.images import Labels, sha256_of
from rbue.lab.data.registry import FOLDER_PREFIX, silent
from rbue.lab.environment import facts
from rbue.lab.processes import PATIENCE, Rank, joined, own_device
from rbue.lab.runs.folders import RunConfig, RunFolder, training_seconds
from rbue.lab.runs.measuring import check_split, images_of, measure, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.training import refuse_other_images, training_data
from rbue.lab.shift.corrupted_sets import check_size, prepared
from rbue.lab.shift.rows import Cell, Row, Setting, ShiftStore
from rbue.prediction import of_samples
from rbue.sampling.adaptive import Adaptive


def shift_run(config: RunConfig, root: Path, device: torch.device, **how: Any) -> list[Row]:
    """Measure one trained run under corruptions; see :func:`shift_runs`."""
    (rows,) = shift_runs([config], root, device, **how)
    return rows


def shift_runs(
    configs: Sequence[RunConfig],
    root: Path,
    device: torch.device,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    samples: int = 100,
    seed: int = 0,
    progress: data.Progress | None = None,
    adaptive: Adaptive | None = None,
    cache: bool = True,
    helpers: int | None = None,
    draws: str = "independent",
    split: str = "test",
    augment: str = "",
) -> list[list[Row]]:
    """Measure several trained runs on the same damaged images and keep the rows in their folders.

    Every row is kept as soon as it is measured; what is there already is not measured again, unless another version
    of the random stream drew it or a folder of images has other images by now. An ensemble of plain networks has its
    members measured and is combined from their stored probabilities. A run whose weights are not here gives what it
    has, with a warning about what is missing.

    Under ``torchrun`` every process makes and measures its part of the damaged sets, each of them as one process would,
    and keeps their rows; all give the rows of all.

    Args:
        configs: the runs.
        root: folder of the run folders.
        device: where to predict.
        corruptions: names out of :data:`rbue.lab.corruptions.CORRUPTIONS`.
        severities: out of 1 to 5.
        samples: random passes for each image, shared by the members of an ensemble.
        seed: of the passes; the damage to the images always has seed 0.
        progress: told how many measurements are done, of how many of this process.
        adaptive: stop earlier for images whose answer has settled.
        cache: whether generated images are kept for the next time (see :func:`rbue.lab.corruptions.corrupted`).
        helpers: how many processes make images; None decides by their number.
        draws: ``"independent"`` or ``"balanced"``, as in :func:`rbue.predict`.
        split: ``"test"``, or ``"validation"``: the damage is done to the images that ``config.holdout`` kept from
            training. Choose by these, not by the test images. Their rows lie in files of their own.
        augment: what each pass does to its images first, such as ``"flip,shift:2"``.

    Returns:
        For each run its rows, by corruption and severity: ``corruption``, ``severity``, ``accuracy``, ``ece``, ``nll``,
        ``brier``, ``entropy``, ``mutual_information``, ``aurc``, ``samples`` (the mean number used), ``images``,
        ``variant`` (what the images are), and where they come from.

    Raises:
        InvalidInput: an unknown corruption or severity, images too small for corruptions, or a run without the split.
        RbueError: a run that has neither weights nor rows, or has to be measured and was trained on other images than
            its folder of images holds now.
    """
    setting = Setting(samples, seed, adaptive, draws, augment)
    cells = _cells(corruptions, severities)
    by_images: dict[tuple[str, int, int], list[RunConfig]] = {}
    for config in configs:
        check_split(config, split)
        by_images.setdefault(_which_images(config, split), []).append(config)
    device = own_device(device)
    with joined(torch.device("cpu"), PATIENCE) as rank:
        groups = {which: Group(runs, root, device, cells, setting, split, rank) for which, runs in by_images.items()}
        rank.wait()  # until all have seen what is missing
        total = sum(len(group.networks) * len(group.own) for group in groups.values())
        done = total - sum(len(group.needed) for group in groups.values())
        tell = progress or silent
        if done < total:
            tell("measuring under corruptions", done, total)
        for group in groups.values():
            with closing(group.measure_missing(cache, helpers)) as steps:
                for _ in steps:
                    done += 1
                    tell("measuring under corruptions", done, total)
        rank.wait()  # for the rows of the others
        return [groups[_which_images(config, split)].rows_of(config) for config in configs]


def _which_images(config: RunConfig, split: str) -> tuple[str, int, int]:
    """What decides the clean images; all runs on a data set share its test images."""
    return training_data(config) if split == "validation" else (config.data, 0, 0)


def _cells(corruptions: Sequence[str], severities: Sequence[int]) -> list[Cell]:
    if isinstance(corruptions, str):
        raise InvalidInput(f"corruptions must be a list of names, such as [{corruptions!r}], not a text.")
    if not corruptions or not severities:
        raise InvalidInput("there is nothing to measure; give at least one corruption and one severity.")
    names = [find(name).name for name in dict.fromkeys(corruptions)]
    levels = sorted({check_severity(severity) for severity in severities})
    return [Cell(name, severity) for name in names for severity in levels]


class Group:
    """Runs with the same clean images, and what is missing of them.

    Attributes:
        own: the sets of this process. A row is measured by one process, and neighbours cost about the same; so they are
            dealt out one by one. What is missing is not, as a process may see rows that another one has just written.
        needed: what this process has to measure, as networks and sets; members of ensembles stand for themselves.
        networks: those that have to be loaded for it.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        root: Path,
        device: torch.device,
        cells: Sequence[Cell],
        setting: Setting,
        split: str,
        rank: Rank,
    ) -> None:
        self.root, self.device, self.cells, self.setting, self.split = root, device, cells, setting, split
        self.own = cells[rank.index :: rank.world_size]
        self.first = configs[0]
        self.ensembles = [config for config in configs if members_of(config, setting) != [config]]
        self.needed: set[tuple[RunConfig, Cell]] = set()
        for config in configs:
            self._plan(config)
        asked = dict.fromkeys(member for config in configs for member in members_of(config, setting))
        self.networks = [config for config in asked if any(config == run for run, _ in self.needed)]
        for config in self.networks:
            refuse_other_images(config, root)
        if self.needed:
            check_size(self.images)

    @cached_property
    def images(self) -> data.ImageSet:
        """The clean set; unless it is a folder, whose images may change, only opened to measure something."""
        return images_of(self.first, self.split)

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Those of the clean images and labels."""
        return dict(self.images.record()["sha256"])

    @cached_property
    def clean(self) -> dict[str, str] | None:
        """The same, if rows may be about other images: of a folder, as long as it is here."""
        name = self.first.data
        return self.checksums if name.startswith(FOLDER_PREFIX) and is_here(name) else None

    @cached_property
    def labels(self) -> dict[str, Labels]:
        """Labels by their checksums: those of the clean set, and those that published sets have brought along."""
        return {sha256_of(self.images.labels): self.images.labels}

    def _store(self, config: RunConfig) -> ShiftStore:
        return ShiftStore(RunFolder.of(config, self.root), self.split)

    def _plan(self, config: RunConfig) -> None:
        """Note what has to be measured for a run, and what cannot be."""
        wanted = self._missing(config)
        if not wanted:
            return
        own = path = RunFolder.of(config, self.root).path
        lacking, measured = set[Cell](), ""
        for member in members_of(config, self.setting):
            with_probs = member != config
            cells = wanted & self._missing(member, with_probs)
            trained = [RunFolder.of(one, self.root) for one in member.trainings()]
            if all(one.has_weights and one.read("training") is not None for one in trained):
                self.needed.update((member, cell) for cell in cells.intersection(self.own))
                continue
            lacking.update(cells)
            how = self._store(member).outdated(member, self.setting, self.clean, with_probs)
            words = next((words for cell, words in how.items() if cell in cells), "")
            if words and not measured:
                path, measured = RunFolder.of(member, self.root).path, words
        if not lacking:
            return
        if len(lacking) == len(self.cells) and measured:
            raise RbueError(
                f"{path} was measured under corruptions {measured}; its weights are not kept in this folder to measure "
                "it again."
            )
        otherwise = self._store(config).measured_otherwise(config, self.setting)
        if len(lacking) == len(self.cells) and otherwise:
            raise RbueError(
                f"{own} was measured under corruptions with {otherwise}; ask for that: its weights are not "
                "kept in this folder to measure anything else."
            )
        if len(lacking) == len(self.cells):
            raise RbueError(
                f"{own} has neither trained networks nor measurements under corruptions here; train it first."
            )
        warn(
            f"{own} lacks {len(lacking)} of {len(self.cells)} measurements under corruptions"
            f"{f' (some were measured {measured})' if measured else ''}, and its weights are not here to make them; "
            "what there is is used."
        )

    def _missing(self, config: RunConfig, with_probs: bool = False) -> set[Cell]:
        """The sets of which a run has no row; or, if those are asked for, no probabilities."""
        found = self._store(config).find(config, self.setting, self.clean, with_probs)
        return set(self.cells) - set(found)

    def rows_of(self, config: RunConfig) -> list[Row]:
        """What has been measured of a run, in the order of the sets."""
        found = self._store(config).find(config, self.setting, self.clean)
        return [found[cell] for cell in self.cells if cell in found]

    def measure_missing(self, cache: bool, helpers: int | None) -> Generator[None, None, None]:
        """Measure what is missing, one network and one set at a time."""
        seconds = {config: training_seconds(config, self.root) for config in self.networks}
        networks = {config: load_networks(config, self.root, self.device) for config in self.networks}
        at_work = [cell for cell in self.own if any(wanted == cell for _, wanted in self.needed)]
        for config in self.ensembles:
            for cell in self.own:
                if cell not in at_work:
                    self._combine(config, cell)
        if not at_work:
            return
        with closing(prepared(self.images, at_work, cache=cache, helpers=helpers)) as sets:
            for cell, damaged in sets:
                for config in self.networks:
                    if (config, cell) in self.needed:
                        self._measure(config, networks[config], cell, damaged, seconds[config])
                        yield
                for config in self.ensembles:
                    self._combine(config, cell)

    def _measure(
        self, config: RunConfig, networks: list[nn.Module], cell: Cell, damaged: data.ImageSet, seconds: float | None
    ) -> None:
        prediction = predict_images(config, networks, damaged, self.setting, self.device)
        name = sha256_of(damaged.labels)
        self.labels.setdefault(name, damaged.labels)
        row = {
            **cell._asdict(),
            **self.setting.facts(config),
            **measure(prediction, torch.from_numpy(damaged.labels).to(self.device)),
            "samples": float(prediction.samples_used.double().mean()),
            "images": len(damaged),
            "variant": damaged.variant,
            "labels_sha256": name,
            "clean_sha256": self.checksums,
            "training_seconds": seconds,
            "stream_version": prediction.stream_version,
            "device": self.device.type,
            "combined_from": "networks",
        }
        if self.split != "test":
            row["split"] = self.split
        store = self._store(config)
        with store.folder.locked():
            store.folder.open(config, facts())  # of an ensemble, which nobody trained there
        store.keep(row, prediction.probs.cpu().numpy())

    def _combine(self, config: RunConfig, cell: Cell) -> None:
        """Keep the row of an ensemble, unless it is there or a member lacks its own; no network is needed."""
        store = self._store(config)
        if cell in store.find(config, self.setting, self.clean):
            return
        members = members_of(config, self.setting)
        stores = [self._store(member) for member in members]
        found = [one.whole(run, self.setting, cell, self.clean) for one, run in zip(stores, members, strict=True)]
        whole = [one for one in found if one is not None]
        if len(whole) < len(stores):
            return
        rows, answers = zip(*whole, strict=True)
        _check_same_images(config, stores, rows, cell)
        labels = self._labels_of(config, cell, rows[0]["labels_sha256"])
        shape = len(labels), len(self.images.classes)
        for one, probs in zip(stores, answers, strict=True):
            one.check_shape(cell, probs, shape)
        together = of_samples(torch.from_numpy(np.stack(answers)).to(self.device))
        row = {
            **_said_of_all(rows),
            **measure(together, torch.from_numpy(labels).to(self.device)),
            **self.setting.facts(config),
            "samples": sum(row["samples"] for row in rows),
            "training_seconds": training_seconds(config, self.root),
            "combined_from": "stored probabilities",
        }
        with store.folder.locked():
            store.folder.open(config, facts())
            store.add(row)

    def _labels_of(self, config: RunConfig, cell: Cell, name: str) -> Labels:
        """The labels with a checksum."""
        if name not in self.labels and find_published(self.images, cell.corruption, None) is not None:
            labels = corrupted(self.images, *cell).labels
            self.labels.setdefault(sha256_of(labels), labels)
        if name not in self.labels:
            raise RbueError(
                f"the probabilities of {config.method} under {cell} belong to images that are not on this machine; "
                f"remove {self._store(config).file.name} of its members to have them measured again."
            )
        return self.labels[name]


_OF_THE_IMAGES = ("variant", "labels_sha256", "clean_sha256")
"""What rows say about the images they were measured on."""


def members_of(config: RunConfig, setting: Setting) -> list[RunConfig]:
    """The runs that are measured: a run itself, or the members of an ensemble if its samples follow from theirs."""
    return config.members()[: setting.count(config)] if setting.follow_from_members(config) else [config]


def _check_same_images(config: RunConfig, stores: Sequence[ShiftStore], rows: Sequence[Row], cell: Cell) -> None:
    known = _said_of_all(rows)
    for store, row in zip(stores, rows, strict=True):
        if any(row.get(name, known.get(name)) != known.get(name) for name in _OF_THE_IMAGES):
            same_variant = row["variant"] == known["variant"]
            variants = f"{known['variant']!r} and {row['variant']!r}"
            what = f"made from other {store.split} images" if same_variant else variants
            raise RbueError(
                f"the members of {config.method} were measured on different images of {cell} ({what}); "
                f"remove {store.file} to have that member measured again."
            )


def _said_of_all(rows: Sequence[Row]) -> Row:
    """What the first row says that is true of an ensemble too, with what a later one adds about the images."""
    said = {**{name: row[name] for row in reversed(rows) for name in _OF_THE_IMAGES if name in row}, **rows[0]}
    return {name: value for name, value in said.items() if name != "probs_sha256"}

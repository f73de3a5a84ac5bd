"""Runs on one data set, measured together: every damaged set is made once, every network loaded once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from rbue.errors import RbueError, warn
from rbue.lab import data
from rbue.lab.corruptions import corrupted
from rbue.lab.corruptions.sets import find_published
from rbue.lab.data.folder import is_here
from rbue.lab.data.images import Labels
from rbue.lab.data.registry import FOLDER_PREFIX
from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import measure, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.training_runs import refuse_other_images
from rbue.lab.shift.ensembles import LabelsByChecksum, combined, members_of
from rbue.lab.shift.preparing import check_size, prepared
from rbue.lab.shift.rows import Cell, Row, ShiftStore
from rbue.lab.shift.settings import Setting


class Group:
    """Runs on one data set, and what is missing of them.

    Attributes:
        needed: what has to be measured, as networks and sets; members of ensembles stand for themselves.
        networks: those that have to be loaded for it.
    """

    def __init__(
        self, configs: Sequence[RunConfig], root: Path, device: torch.device, cells: Sequence[Cell], setting: Setting
    ) -> None:
        self.root, self.device, self.cells, self.setting = root, device, cells, setting
        self.data = configs[0].data
        self.ensembles = [config for config in configs if config.parsed.networks > 1]
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
        """The clean test set; unless it is a folder, whose images may change, only opened to measure something."""
        return data.load(self.data, "test")

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Those of the clean test images and labels."""
        return dict(self.images.record()["sha256"])

    @cached_property
    def clean(self) -> dict[str, str] | None:
        """The same, if rows may be about other images: of a folder, as long as it is here."""
        return self.checksums if self.data.startswith(FOLDER_PREFIX) and is_here(self.data) else None

    @cached_property
    def labels(self) -> LabelsByChecksum:
        """Labels seen so far."""
        return LabelsByChecksum(self.images.labels)

    def _plan(self, config: RunConfig) -> None:
        """Note what has to be measured for a run, and what cannot be."""
        wanted = self._missing(config)
        if not wanted:
            return
        lacking: set[Cell] = set()
        outdated: dict[Path, str] = {}
        for member in members_of(config, self.setting):
            with_probs = member != config
            cells = wanted & self._missing(member, with_probs)
            folder = RunFolder.of(member, self.root)
            if folder.has_weights and folder.read("training") is not None:
                self.needed.update((member, cell) for cell in cells)
                continue
            lacking.update(cells)
            how = ShiftStore(folder).outdated(member, self.setting, self.clean, with_probs)
            words = next((words for cell, words in how.items() if cell in cells), "")
            if words:
                outdated[folder.path] = words
        if not lacking:
            return
        folder = RunFolder.of(config, self.root)
        path, measured = next(iter(outdated.items()), (folder.path, ""))
        if len(lacking) == len(self.cells) and measured:
            raise RbueError(
                f"{path} was measured under corruptions {measured}; its weights are not kept in this folder to measure "
                "it again."
            )
        if len(lacking) == len(self.cells):
            raise RbueError(
                f"{folder.path} has neither trained networks nor measurements under corruptions here; train it first."
            )
        warn(
            f"{folder.path} lacks {len(lacking)} of {len(self.cells)} measurements under corruptions"
            f"{f' (some were measured {measured})' if measured else ''}, and its weights are not here to make them; "
            "what there is is used."
        )

    def _missing(self, config: RunConfig, with_probs: bool = False) -> set[Cell]:
        """The sets of which a run has no row; or, if those are asked for, no probabilities."""
        found = ShiftStore(RunFolder.of(config, self.root)).find(config, self.setting, self.clean, with_probs)
        return set(self.cells) - set(found)

    def rows_of(self, config: RunConfig) -> list[Row]:
        """What has been measured of a run, in the order of the sets."""
        found = ShiftStore(RunFolder.of(config, self.root)).find(config, self.setting, self.clean)
        return [found[cell] for cell in self.cells if cell in found]

    def measure_missing(self, cache: bool, helpers: int | None) -> Generator[None, None, None]:
        """Measure what is missing, one network and one set at a time."""
        networks = {config: load_networks(config, self.root, self.device) for config in self.networks}
        at_work = [cell for cell in self.cells if any(wanted == cell for _, wanted in self.needed)]
        for config in self.ensembles:
            for cell in self.cells:
                if cell not in at_work:
                    self._combine(config, cell)
        if not at_work:
            return
        with closing(prepared(self.images, at_work, cache=cache, helpers=helpers)) as sets:
            for cell, damaged in sets:
                for config in self.networks:
                    if (config, cell) in self.needed:
                        self._measure(config, networks[config], cell, damaged)
                        yield
                for config in self.ensembles:
                    self._combine(config, cell)

    def _measure(self, config: RunConfig, networks: list[nn.Module], cell: Cell, damaged: data.ImageSet) -> None:
        setting = self.setting
        prediction = predict_images(
            config,
            networks,
            damaged,
            setting.samples,
            setting.seed,
            self.device,
            adaptive=setting.adaptive,
        )
        row = {
            **cell._asdict(),
            **setting.facts(config),
            **measure(prediction, torch.from_numpy(damaged.labels).to(self.device)),
            "samples": float(prediction.samples_used.double().mean()),
            "images": len(damaged),
            "variant": damaged.variant,
            "labels_sha256": self.labels.note(damaged.labels),
            "clean_sha256": self.checksums,
            "stream_version": prediction.stream_version,
            "device": self.device.type,
            "combined_from": "networks",
        }
        ShiftStore(RunFolder.of(config, self.root)).keep(row, prediction.probs.cpu().numpy())

    def _combine(self, config: RunConfig, cell: Cell) -> None:
        store = ShiftStore(RunFolder.of(config, self.root))
        if cell in store.find(config, self.setting, self.clean):
            return

        def labels(name: str) -> Labels:
            if not self.labels.knows(name) and find_published(self.images, cell.corruption, None) is not None:
                self.labels.note(corrupted(self.images, *cell).labels)
            if not self.labels.knows(name):
                raise RbueError(
                    f"the probabilities of {config.method} under {cell} belong to images that are not on this machine; "
                    "remove shift.json of its members to have them measured again."
                )
            return self.labels[name]

        def classes() -> int:
            return len(self.images.classes)

        row = combined(config, self.root, cell, self.setting, self.device, labels, classes, self.clean)
        if row is not None:
            store.folder.open(config, facts())
            store.add(row)

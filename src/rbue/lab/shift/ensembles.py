"""An ensemble under corruptions, from what its members came to: no network is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from rbue.errors import RbueError
from rbue.lab.data.images import Labels, sha256_of
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import measure
from rbue.lab.shift.rows import Cell, Row, ShiftStore
from rbue.lab.shift.settings import Setting
from rbue.prediction import of_samples

_OF_THE_IMAGES = ("variant", "labels_sha256", "clean_sha256")
"""What rows say about the images they were measured on."""


def members_of(config: RunConfig, setting: Setting) -> list[RunConfig]:
    """The runs whose networks are asked: a run itself, or the members of an ensemble."""
    members = config.members()
    return members if len(members) == 1 else members[: setting.count(config)]


def combined(
    config: RunConfig,
    root: Path,
    cell: Cell,
    setting: Setting,
    device: torch.device,
    labels: Callable[[str], Labels],
    classes: Callable[[], int],
    clean: dict[str, str] | None,
) -> Row | None:
    """The row of an ensemble from its members' probabilities; None while a member lacks its own.

    Args:
        config: the ensemble.
        root: folder of the run folders.
        cell: the corruption and severity.
        setting: how predictions are drawn.
        device: where to compute.
        labels: gives the labels of the set with a checksum.
        classes: gives their number.
        clean: checksums of the clean test images, if they can be others than those that were measured.
    """
    stores = [ShiftStore(RunFolder.of(member, root)) for member in members_of(config, setting)]
    found = [
        store.whole(member, setting, cell, clean)
        for store, member in zip(stores, members_of(config, setting), strict=True)
    ]
    rows = [row for row in found if row is not None]
    if len(rows) < len(stores):
        return None
    _check_same_images(config, stores, rows, cell)
    true_labels = labels(rows[0]["labels_sha256"])
    shape = len(true_labels), classes()
    probs = torch.from_numpy(np.stack([store.load_probs(cell, shape) for store in stores])).to(device)
    numbers = measure(of_samples(probs), torch.from_numpy(true_labels).to(device))
    return {
        **_said_of_all(rows),
        **numbers,
        **setting.facts(config),
        "samples": float(len(stores)),
        "combined_from": "stored probabilities",
    }


def _check_same_images(config: RunConfig, stores: Sequence[ShiftStore], rows: Sequence[Row], cell: Cell) -> None:
    known = _said_of_all(rows)
    for store, row in zip(stores, rows, strict=True):
        if any(row.get(name, known.get(name)) != known.get(name) for name in _OF_THE_IMAGES):
            same_variant = row["variant"] == known["variant"]
            what = "made from other test images" if same_variant else f"{known['variant']!r} and {row['variant']!r}"
            raise RbueError(
                f"the members of {config.method} were measured on different images of {cell} ({what}); "
                f"remove {store.folder.path / 'shift.json'} to have that member measured again."
            )


def _said_of_all(rows: Sequence[Row]) -> Row:
    """What the first row says that is true of an ensemble too, with what a later one adds about the images."""
    said = {**{name: row[name] for row in reversed(rows) for name in _OF_THE_IMAGES if name in row}, **rows[0]}
    return {name: value for name, value in said.items() if name != "probs_sha256"}


class LabelsByChecksum:
    """Labels of damaged sets: those of the clean set, or those that a published set brought along."""

    def __init__(self, clean: Labels) -> None:
        self._known = {sha256_of(clean): clean}

    def note(self, labels: Labels) -> str:
        """Remember labels; gives their checksum."""
        name = sha256_of(labels)
        self._known.setdefault(name, labels)
        return name

    def knows(self, name: str) -> bool:
        """Whether labels with this checksum were seen."""
        return name in self._known

    def __getitem__(self, name: str) -> Labels:
        return self._known[name]

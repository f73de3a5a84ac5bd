"""An ensemble under corruptions, from what its members came to: no network is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from rbue.data.images import Labels, sha256_of
from rbue.errors import RbueError
from rbue.measuring import measure
from rbue.prediction import of_samples
from rbue.runs import RunConfig, RunFolder
from rbue.shift.rows import Cell, Row, ShiftStore
from rbue.shift.settings import Setting


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
) -> Row | None:
    """The row of an ensemble from its members' probabilities; None while a member lacks its own.

    Args:
        config: the ensemble.
        root: folder of the run folders.
        cell: the corruption and severity.
        setting: how predictions are drawn.
        device: where to compute.
        labels: gives the labels of the set with a checksum.
    """
    stores = [ShiftStore(RunFolder.of(member, root)) for member in members_of(config, setting)]
    found = [
        store.find(member, setting).get(cell) if store.has_probs(cell) else None
        for store, member in zip(stores, members_of(config, setting), strict=True)
    ]
    rows = [row for row in found if row is not None]
    if len(rows) < len(stores):
        return None
    _check_same_images(config, stores, rows, cell)
    probs = torch.from_numpy(np.stack([store.load_probs(cell) for store in stores])).to(device)
    numbers = measure(of_samples(probs), torch.from_numpy(labels(rows[0]["labels_sha256"])).to(device))
    return {
        **rows[0],
        **numbers,
        **setting.facts(config),
        "samples": float(len(stores)),
        "combined_from": "stored probabilities",
    }


def _check_same_images(config: RunConfig, stores: Sequence[ShiftStore], rows: Sequence[Row], cell: Cell) -> None:
    for store, row in zip(stores, rows, strict=True):
        if (row["variant"], row["labels_sha256"]) != (rows[0]["variant"], rows[0]["labels_sha256"]):
            raise RbueError(
                f"the members of {config.method} were measured on different images of {cell} "
                f"({rows[0]['variant']!r} and {row['variant']!r}); remove {store.folder.path / 'shift.json'} to have "
                "that member measured again."
            )


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

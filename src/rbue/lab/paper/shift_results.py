"""Measure a run under corruptions, and read what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rbue.lab import data
from rbue.lab.corruptions import CORRUPTIONS
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.shift import Row, Setting, ShiftStore, shift_run

CORRUPTION_COUNT = len(CORRUPTIONS)


def measure_shift(
    config: RunConfig,
    root: Path,
    device: torch.device,
    severities: Sequence[int],
    samples: int,
    progress: data.Progress | None = None,
) -> list[Row]:
    """Measure one run on all corruptions at the severities and keep the rows in its folder."""
    return shift_run(config, root, device, severities=tuple(severities), samples=samples, seed=0, progress=progress)


def shift_rows(config: RunConfig, root: Path, samples: int) -> list[Row]:
    """What was measured under corruptions: rows with ``corruption``, ``severity``, ``accuracy``, ``ece``."""
    return list(ShiftStore(RunFolder.of(config, root)).find(config, Setting(samples)).values())


def shift_is_done(config: RunConfig, root: Path, severities: Sequence[int], samples: int) -> bool:
    """Whether all corruptions at all the severities are there."""
    seen = {(row["corruption"], row["severity"]) for row in shift_rows(config, root, samples)}
    return all(sum(severity == one for _, severity in seen) >= CORRUPTION_COUNT for one in severities)

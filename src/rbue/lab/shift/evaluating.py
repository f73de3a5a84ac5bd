"""Measure runs on damaged test images, and give what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.corruptions.corrupting import check_severity, find
from rbue.lab.data.registry import silent
from rbue.lab.runs.folders import RunConfig
from rbue.lab.shift.rows import Cell, Row
from rbue.lab.shift.settings import Setting
from rbue.lab.shift.together import Group
from rbue.sampling.adaptive import Adaptive


def shift_run(
    config: RunConfig,
    root: Path,
    device: torch.device,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    samples: int = 100,
    seed: int = 0,
    progress: data.Progress | None = None,
    adaptive: Adaptive | None = None,
    cache: bool = True,
) -> list[Row]:
    """Measure one trained run under corruptions; see :func:`shift_runs`."""
    (rows,) = shift_runs([config], root, device, corruptions, severities, samples, seed, progress, adaptive, cache)
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
) -> list[list[Row]]:
    """Measure several trained runs on the same damaged images and keep the rows in their folders.

    Every row is kept as soon as it is measured; what is there already is not measured again, unless another version
    of the random stream drew it or a folder of images has other test images by now. An ensemble has its members
    measured and is combined from their stored probabilities. A run whose weights are not here gives what it has, with a
    warning about what is missing.

    Args:
        configs: the runs.
        root: folder of the run folders.
        device: where to predict.
        corruptions: names out of :data:`rbue.lab.corruptions.CORRUPTIONS`.
        severities: out of 1 to 5.
        samples: random passes for each image.
        seed: of the passes; the damage to the images always has seed 0.
        progress: told how many measurements are done, of how many.
        adaptive: stop earlier for images whose answer has settled.
        cache: whether generated images are kept for the next time (see :func:`rbue.lab.corruptions.corrupted`).
        helpers: how many processes make images; None decides by their number.

    Returns:
        For each run its rows, by corruption and severity: ``corruption``, ``severity``, ``accuracy``, ``ece``, ``nll``,
        ``brier``, ``entropy``, ``mutual_information``, ``aurc``, ``samples`` (the mean number used), ``images``,
        ``variant`` (what the images are), and where they come from.

    Raises:
        InvalidInput: an unknown corruption or severity, or images too small for corruptions.
        RbueError: a run that has neither weights nor rows, or has to be measured and was trained on other images than
            its folder of images holds now.
    """
    setting = Setting(samples, seed, adaptive)
    cells = _cells(corruptions, severities)
    by_data: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_data.setdefault(config.data, []).append(config)
    groups = {name: Group(runs, root, device, cells, setting) for name, runs in by_data.items()}
    total = sum(len(group.networks) for group in groups.values()) * len(cells)
    done = total - sum(len(group.needed) for group in groups.values())
    tell = progress or silent
    if done < total:
        tell("measuring under corruptions", done, total)
    for group in groups.values():
        with closing(group.measure_missing(cache, helpers)) as steps:
            for _ in steps:
                done += 1
                tell("measuring under corruptions", done, total)
    return [groups[config.data].rows_of(config) for config in configs]


def _cells(corruptions: Sequence[str], severities: Sequence[int]) -> list[Cell]:
    if isinstance(corruptions, str):
        raise InvalidInput(f"corruptions must be a list of names, such as [{corruptions!r}], not a text.")
    if not corruptions or not severities:
        raise InvalidInput("there is nothing to measure; give at least one corruption and one severity.")
    names = [find(name).name for name in dict.fromkeys(corruptions)]
    levels = sorted({check_severity(severity) for severity in severities})
    return [Cell(name, severity) for name in names for severity in levels]

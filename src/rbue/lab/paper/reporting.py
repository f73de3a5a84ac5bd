"""The report of the paper's experiments as files: Markdown, CSV, and the data of every figure.

More can be plugged in: a *renderer* takes what was gathered and gives files by name, as :func:`plain_files` does, and
:func:`rbue.lab.paper.page.page_files` for the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rbue.files import read_json, write_bytes
from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.runner import settings_file
from rbue.lab.paper.settings import QUICK, Settings
from rbue.lab.paper.tables import QUICK_WARNING, comma_separated, markdown

Renderer = Callable[[Sequence[ExperimentData]], Mapping[str, bytes]]
TITLE = "# The paper's tables and figures, measured\n\n"


def plain_files(gathered: Sequence[ExperimentData]) -> dict[str, bytes]:
    """The report as Markdown, CSV and JSON."""
    quick = any(one.scale == QUICK.name for one in gathered)
    page = TITLE + (f"{QUICK_WARNING}\n\n" if quick else "") + "\n".join(markdown(one) for one in gathered)
    files = {"report.md": page, "report.csv": comma_separated(gathered)}
    files |= {f"data/{one.experiment.id}.json": json.dumps(one.as_json(), indent=1) + "\n" for one in gathered}
    return {name: content.encode() for name, content in files.items()}


def write_report(
    gathered: Sequence[ExperimentData], folder: Path, renderers: Sequence[Renderer] = (plain_files,)
) -> list[Path]:
    """Write the files of every renderer, each whole or not at all."""
    written = []
    for render in renderers:
        for name, content in render(gathered).items():
            write_bytes(folder / name, content)
            written.append(folder / name)
    return written


def last_settings(root: Path, asked: Settings) -> Settings:
    """What was asked for, or, if nothing was, the settings of the last ``rbue paper run`` in this folder.

    Which networks and methods that command was limited to is left out: what it did not run is missing.
    """
    path = settings_file(root)
    if asked != Settings() or not path.exists():
        return asked
    return replace(Settings.from_json(read_json(path)), models=None, methods=None)

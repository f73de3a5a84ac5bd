"""Where each number comes from: run, seeds, hardware, versions and commit, one row a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rbue.lab.report.tables import Cell, Column, Table

_COLUMNS = (
    Column("run", "run", numeric=False, about="Where the run lies; its last eight digits are a hash of its settings."),
    Column("method", "method", numeric=False),
    Column("seed", "seed", text="{:.0f}".format, about="Seed of the initialisation and of training."),
    Column("samples", "samples", text="{:,.0f}".format, about="Random passes for each image."),
    Column("sample_seed", "sample seed", text="{:.0f}".format, about="Seed of the random passes."),
    Column("hardware", "hardware", numeric=False),
    Column("versions", "versions", numeric=False),
    Column("commit", "commit", numeric=False, about="Commit of rbue, where it ran from a checkout."),
    Column("data", "test images", numeric=False, about="Number of test images and the start of their SHA-256."),
)


@dataclass(frozen=True)
class Source:
    """Where the numbers of one run come from; what is not known is None."""

    run: str
    method: str
    seed: int | None = None
    samples: int | None = None
    sample_seed: int | None = None
    hardware: str | None = None
    versions: str | None = None
    commit: str | None = None
    data: str | None = None
    anchor: str = ""


def source_from_run(
    run: str,
    method: str,
    seed: int,
    result: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    anchor: str = "",
) -> Source:
    """The source of one entry of a run's ``results.json``.

    Args:
        run: where it lies.
        method: short text of the method.
        seed: seed of the training.
        result: the entry; its ``environment`` is where it was measured.
        environment: where it was trained, from ``environment.json``; named too where it was another machine.
        anchor: the id of its row.
    """
    measured = dict(result.get("environment") or environment or {})
    images = dict(result.get("data") or {})
    hardware = _hardware(measured)
    trained = _hardware(environment or {})
    if trained and hardware and trained != hardware:
        hardware = f"trained on {trained}; measured on {hardware}"
    versions = [f"{name} {measured[name]}" for name in ("rbue", "torch", "python") if measured.get(name)]
    if measured.get("stream_version") is not None:
        versions.append(f"stream {measured['stream_version']}")
    checksum = dict(images.get("sha256") or {}).get("images", "")
    count = images.get("count")
    combined = result.get("combined_from") == "stored probabilities"
    return Source(
        run=run,
        method=f"{method}, from stored probabilities" if combined else method,
        seed=seed,
        samples=result.get("samples"),
        sample_seed=result.get("seed"),
        hardware=hardware or None,
        versions=", ".join(versions) or None,
        commit=_short(measured.get("commit")),
        data=None if count is None else f"{count:,} of {images.get('name', 'unknown')}, {checksum[:8]}",
        anchor=anchor,
    )


def provenance_table(sources: Sequence[Source], caption: str = "One row a run") -> Table:
    """One row a run; a cell elsewhere with ``link="#ANCHOR"`` leads a reader to the source with that anchor."""
    rows = [
        {
            column.key: Cell(
                getattr(source, column.key),
                anchor=source.anchor if column.key == "run" else "",
                why="not recorded",
            )
            for column in _COLUMNS
        }
        for source in sources
    ]
    return Table(_COLUMNS, rows, caption)


def _short(commit: str | None) -> str | None:
    """A commit with ten of its forty digits, and whatever stands beside it."""
    return None if commit is None else re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", commit)


def _hardware(environment: Mapping[str, Any]) -> str:
    if environment.get("gpu"):
        return str(environment["gpu"])
    if not environment.get("cpu"):
        return ""
    threads = environment.get("threads")
    return f"{environment['cpu']}" + (f", {threads} thread{'s' if threads != 1 else ''}" if threads else "")

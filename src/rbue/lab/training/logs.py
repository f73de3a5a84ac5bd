"""The log of a run: one JSON line an epoch, and TensorBoard's files when it is installed."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rbue.files import append_text, parse_json, write_bytes
from rbue.lab.training.trainer import EpochReport


class EpochLog:
    """Adds epochs to a log; an epoch that was lost in a stop and run again replaces its line.

    Training does not wait for a line to be on the disk, so the last ones may be missing after a loss of power.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path, self.tensorboard = path, tensorboard
        self.writer: Any = None
        self.begun = False

    def __call__(self, report: EpochReport) -> None:
        """Note one epoch."""
        lines = [asdict(report)]
        if self.begun:
            append_text(self.path, _text(lines))
        else:
            lines = [line for line in read_log(self.path) if line["epoch"] < report.epoch] + lines
            write_bytes(self.path, _text(lines).encode())
            self.begun = True
        if self.tensorboard is not None and find_spec("tensorboard") is not None:
            self._to_tensorboard(report)

    def _to_tensorboard(self, report: EpochReport) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self.writer = SummaryWriter(str(self.tensorboard), purge_step=report.epoch)
        for name in ("loss", "accuracy", "rate", "seconds"):
            self.writer.add_scalar(f"train/{name}", getattr(report, name), report.epoch)
        self.writer.flush()

    def close(self) -> None:
        """End the log."""
        if self.writer is not None:
            self.writer.close()


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The epochs of a log, each as it was written last; a line cut off by a stop, or otherwise damaged, ends it."""
    if not path.exists():
        return []
    entries: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = parse_json(line.decode())
        except ValueError:  # neither UTF-8 nor JSON
            break
        if not (isinstance(entry, dict) and isinstance(entry.get("epoch"), int)):
            break
        entries[entry["epoch"]] = entry
    return [entries[epoch] for epoch in sorted(entries)]

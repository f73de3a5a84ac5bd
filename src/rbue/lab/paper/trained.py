"""Where networks were trained and beside how many others: without it a training time says little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbue.lab.paper.numbers import printed
from rbue.lab.runs.folders import RunConfig, RunFolder


@dataclass(frozen=True)
class Trained:
    """How some networks were trained.

    Attributes:
        machines: what they were trained on, in words.
        side_by_side: the numbers of networks that were trained at a time.
    """

    machines: tuple[str, ...]
    side_by_side: tuple[int, ...]

    def note(self) -> str:
        """What stands below a table of training times."""
        return (
            f"Training times count compiling and saving, on {' or '.join(self.machines)}; the paper's are from "
            f"{printed()['hardware']}, so no difference is shown. Networks trained side by side (here "
            f"{' or '.join(map(str, self.side_by_side))} at a time) share the time."
        )


def machine_of(device: str, environment: Mapping[str, Any]) -> str | None:
    """What computed on a type of device: the GPU, or the CPU with its cores; None where that was not noted.

    >>> machine_of("cpu", {"cpu": "Xeon", "cores": 16, "gpu": "H200"})
    'Xeon, 16 cores'
    """
    if device == "cuda":
        return environment.get("gpu")
    known = environment.get("cpu") and environment.get("cores")
    return f"{environment['cpu']}, {environment['cores']} cores" if known else None


def how_trained(configs: Iterable[RunConfig], root: Path) -> Trained | None:
    """How the networks of runs were trained; None if none of them says."""
    machines: set[str] = set()
    counts: set[int] = set()
    for member in dict.fromkeys(member for config in configs for member in config.members()):
        folder = RunFolder.of(member, root)
        training = folder.read("training") or {}
        machine = machine_of(training.get("device", ""), folder.read("environment") or {})
        if machine is not None and training:
            machines.add(machine)
            counts.add(training.get("side_by_side", 1))
    return Trained(tuple(sorted(machines)), tuple(sorted(counts))) if machines else None

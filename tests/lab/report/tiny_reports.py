"""Run folders for reports, made once: a few networks of a few hundred weights, trained for one epoch."""

from __future__ import annotations

from pathlib import Path

from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for

CPU = "cpu"


def config(method: str, seed: int = 0, epochs: int = 1) -> RunConfig:
    return RunConfig(method=method, seed=seed, width=0.25, recipe=recipe_for("digits", epochs=epochs, batch=128))


def make_runs(root: Path) -> Path:
    """Two seeds of mc-droprelu, one measured twice; an ensemble; an unmeasured run; one that never began."""
    import torch

    device = torch.device(CPU)
    for method, seed in (("single", 0), ("mc-droprelu:0.9", 0), ("mc-droprelu:0.9", 1), ("deep-ensemble:2", 0)):
        chosen = config(method, seed)
        train_run(chosen, root, device)
        evaluate_run(chosen, root, device, samples=8 if seed else 5)
    evaluate_run(config("mc-droprelu:0.9"), root, device, samples=8)
    train_run(config("mc-rrelu"), root, device)
    begun = config("svi")
    RunFolder.of(begun, root).open(begun, facts())
    return root

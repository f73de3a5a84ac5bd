"""Draw from trained networks with random ReLUs in all or one of their stages: ``draws_by_stage.py RUN...``.

The runs are of ResNet-18, one network each, trained with ``--holdout``. Their held-out images are measured clean and
with the four kinds of noise: as the network was trained, and with other random ReLUs by channel in its place. No
weight and no statistic of BatchNorm changes. What comes out is added to ``results/draws_by_stage.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rbue import DropReLU, convert
from rbue.files import read_json, write_json
from rbue.lab.corruptions import CORRUPTIONS, corrupted
from rbue.lab.environment import facts
from rbue.lab.runs.loading import TrainedRun, load_run
from rbue.lab.runs.measuring import images_of, measure, predict_images
from rbue.lab.runs.passes import Passes

RESULT = Path(__file__).parents[1] / "results" / "draws_by_stage.json"
GRID = {"all": (0.998, 0.995, 0.99, 0.98, 0.97), "stages.0.*": (0.98, 0.95, 0.9, 0.8), "stages.3.*": (0.99, 0.98, 0.95)}
"""Which ReLUs are random, and how often each is kept."""
PASSES = Passes(12, draws="balanced", augment="flip,shift:2")
SEVERITIES = (1, 3, 5)
SCORES = ("accuracy", "ece", "nll", "mutual_information")


def drawn(run: TrainedRun) -> list[dict[str, Any]]:
    """The scores of a run's network as trained, and with each of the random ReLUs."""
    (network,) = run.networks
    clean = images_of(run.config, "validation")
    labels = torch.from_numpy(clean.labels).to(run.device)
    noises = [name for name in CORRUPTIONS if name.endswith("_noise")]
    noisy = [corrupted(clean, name, severity) for name in noises for severity in SEVERITIES]

    def scores(method: str) -> dict[str, dict[str, float]]:
        config = replace(run.config, method=method)
        found = [measure(predict_images(config, [network], one, PASSES, run.device), labels) for one in (clean, *noisy)]
        return {
            "clean": {name: found[0][name] for name in SCORES},
            "noise": {name: fmean(one[name] for one in found[1:]) for name in SCORES},
        }

    rows = [{"where": "as trained", **scores(run.config.method)}]
    example = torch.zeros(2, run.shape[2], *run.shape[:2], device=run.device)
    for where, q in [(where, q) for where, several in GRID.items() for q in several]:
        convert(network, DropReLU(q, mask="channel"), where=where, example=example)
        rows.append({"where": where, "q": q, **scores(f"mc-droprelu:{q},{where},channel")})
    return rows


def main(args: Sequence[str] | None = None) -> None:
    """Measure the runs that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of trained runs")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(args)
    known = read_json(options.output) if options.output.exists() else []
    for path in options.runs:
        run = load_run(path)
        known.append({"config": run.config.as_json(), "rows": drawn(run), "environment": facts()})
        write_json(options.output, known)


if __name__ == "__main__":
    main()

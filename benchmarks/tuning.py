"""What ``rbue.tune`` makes of networks that were trained plainly, on test images that it has not seen.

    python benchmarks/tuning.py RUN... [--runs DIR] [--samples 50] [--out FILE]

The runs are of the method ``single``, trained with ``--holdout``. Each network is tuned with its held-out images, and
BatchNorm statistics come from its training images without labels. Beside it stand the plain network, with and without a
temperature, and MC-Dropout without training, which gets the same search: placements, rates, statistics, temperature.
All of it is done again with augmented passes, but for MC-Dropout.
Everything is chosen on the held-out images, and measured once on the test images.
Goal: an accuracy loss of at most 0.2 points, and an NLL below that of the plain network with a temperature.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rbue
from rbue import metrics
from rbue.augment import Flip, Shift
from rbue.files import write_json
from rbue.lab import data
from rbue.lab.cli.options import find_run
from rbue.lab.environment import default_device, facts
from rbue.lab.runs.folders import RunConfig, settings_and_root
from rbue.lab.runs.networks import load_networks
from rbue.lab.training import Normalise
from rbue.tuning import Candidate, Tuned

SCORES = ("accuracy", "ece", "nll", "brier")
AUGMENT = [Flip(), Shift(2)]


def tensors(images: data.ImageSet, device: torch.device) -> tuple[Tensor, Tensor]:
    normalise = Normalise(images.mean, images.std, device)
    pixels = torch.from_numpy(np.ascontiguousarray(images.images)).to(device)
    return normalise(pixels), torch.from_numpy(images.labels).to(device)


def scores(network: nn.Module, x: Tensor, y: Tensor, samples: int, **how: Any) -> dict[str, Any]:
    """The quality on the test images of a network as it is converted."""
    start = time.perf_counter()
    found = rbue.predict(network, (part for part in x.split(2000)), samples=samples, **how)
    values = {name: finite(float(getattr(metrics, name)(found.probs, y))) for name in SCORES}
    wrong = found.label != y
    values["auroc_of_errors"] = float(metrics.auroc(found.entropy, wrong))
    return {**values, "seconds": time.perf_counter() - start}


def finite(value: float) -> float | None:
    """JSON has no infinity; an NLL is infinite where a label's probability is zero."""
    return value if math.isfinite(value) else None


def described(one: Candidate) -> dict[str, Any]:
    names = ("where", "q", "sites", "temperature", "accuracy", "nll", "scaled_nll", "allowed", "seconds")
    return {name: getattr(one, name) for name in names}


def rows_of(network: nn.Module, parts: dict[str, tuple[Tensor, Tensor]], samples: int) -> dict[str, Any]:
    """The rows of one network, and what was tried for them."""
    unlabelled = list(parts["training"][0].split(1000))
    x, y = parts["test"]
    rows: list[dict[str, Any]] = []
    searches: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {
        "random ReLUs": {},
        "MC-Dropout": {"activation": lambda q: rbue.Dropout(round(1 - q, 9))},
        "random ReLUs, augmented passes": {"augment": AUGMENT},
    }
    for name, how in kinds.items():
        own, passes = copy.deepcopy(network), {"augment": how.get("augment")}
        start = time.perf_counter()
        tuned: Tuned = rbue.tune(own, parts["held out"], unlabelled, progress=True, **how)
        seconds = time.perf_counter() - start
        print(tuned, flush=True)
        searches[name] = {"seconds": seconds, "tried": [described(one) for one in tuned.tried]}
        if name != "MC-Dropout":
            plain, count = tuned.tried[0], samples if passes["augment"] else 1
            words = f"plain{', augmented passes' if passes['augment'] else ''}"
            tuned.use(plain)
            for row, scaled in ((words, False), (f"{words} + temperature", True)):
                found = scores(own, x, y, count, temperature=scaled, **passes)
                rows.append({"row": row, **described(plain), "test": found})
        random = [one for one in tuned.tried if one.q < 1 and one.allowed]
        if random:
            best = min(random, key=lambda one: one.scaled_nll)
            tuned.use(best)
            rows.append({"row": f"{name}, tuned", **described(best), "test": scores(own, x, y, samples, **passes)})
            rows[-1]["chosen"] = best is tuned.best
        if passes["augment"]:
            continue
        first = next(one for one in tuned.tried if one.q < 1)
        untouched = rbue.convert(tuned.revert(), how.get("activation", rbue.DropReLU)(0.8), example=x[:2])
        untouched_row = {"row": f"{name}, q=0.8 at all sites, as it is", "sites": first.sites}
        rows.append({**untouched_row, "test": scores(untouched, x, y, samples)})
    return {"rows": rows, "searches": searches}


def measure(config: RunConfig, root: Path, samples: int) -> dict[str, Any]:
    device = default_device()
    if config.method != "single" or not config.holdout:
        raise rbue.InvalidInput(f"{config.method} must be single, trained with --holdout; train such a run.")
    network = load_networks(config, root, device)[0].eval()
    training, held_out = data.holdout(data.load(config.data, "train"), config.holdout, config.holdout_seed)
    sets = {"training": training, "held out": held_out, "test": data.load(config.data, "test")}
    parts = {name: tensors(images, device) for name, images in sets.items()}
    return {"config": config.as_json(), **rows_of(network, parts, samples)}


def show(run: dict[str, Any]) -> None:
    config = run["config"]
    title = f"{config['model']} on {config['data']}, trained plainly on all but {config['holdout']} images"
    table = Table(title=title, title_justify="left")
    for heading in ("", "where", "q", "T", *SCORES, "AUROC of errors", "seconds"):
        table.add_column(heading, justify="left" if heading in ("", "where") else "right")
    for row in run["rows"]:
        found = row["test"]
        numbers = ("inf" if found[name] is None else f"{found[name]:.4f}" for name in (*SCORES, "auroc_of_errors"))
        scaled = f"{row['temperature']:.3f}" if "temperature" in row and row["row"] != "plain" else ""
        q = f"{row['q']:g}" if row.get("q", 1) < 1 else ""
        table.add_row(row["row"], row.get("where", ""), q, scaled, *numbers, f"{found['seconds']:.2f}")
    console = Console(width=170)
    console.print(table)
    console.print(", ".join(f"{name}: searched in {one['seconds']:.1f} s" for name, one in run["searches"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="+", help="run folders, or the ends of their names")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("results/tuning.json"))
    options = parser.parse_args()
    runs = []
    for name in options.run:
        config, root = settings_and_root(find_run(name, options.runs))
        runs.append({**measure(config, root, options.samples), "environment": facts()})
        show(runs[-1])
        write_json(options.out, {"date": str(date.today()), "runs": runs})
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()

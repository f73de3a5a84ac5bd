"""How many samples an image needs: adaptive sampling against a fixed number, on a trained run.

    python benchmarks/adaptive_sampling.py RUN [--samples 100] [--out FILE]

For every setting: the mean number of samples an image got, accuracy, ECE and NLL, their difference from the fixed
number, and the time. The first setting is the library's default; shorter first rounds are cheaper and keep the stated
confidence less well.
Goal, on CIFAR-10: at most 20 samples an image for the accuracy (within 0.05 points) and ECE (within 0.001) of 100.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rbue
from rbue import metrics
from rbue.files import write_json
from rbue.lab import data
from rbue.lab.cli.options import find_run, settings_and_root
from rbue.lab.environment import default_device, facts
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks

SETTINGS = [rbue.Adaptive()] + [
    rbue.Adaptive(tolerance=tolerance, first=first)
    for first, tolerance in product((16, 8, 4), (0.01, 0.02, 0.05))
    if (first, tolerance) != (16, 0.02)
]


def timed(predict: Callable[[], rbue.Prediction]) -> tuple[rbue.Prediction, float]:
    start = time.perf_counter()
    prediction = predict()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return prediction, time.perf_counter() - start


def scores(prediction: rbue.Prediction, labels: Tensor, seconds: float) -> dict[str, float]:
    return {
        "samples_an_image": float(prediction.samples_used.float().mean()),
        "accuracy": float(metrics.accuracy(prediction.probs, labels)),
        "ece": float(metrics.ece(prediction.probs, labels)),
        "nll": float(metrics.nll(prediction.probs, labels)),
        "seconds": seconds,
    }


def compare(config: RunConfig, networks: Sequence[nn.Module], samples: int) -> list[dict[str, Any]]:
    """The fixed number first, then every setting."""
    images, device = data.load(config.data, "test"), next(networks[0].parameters()).device
    labels = torch.from_numpy(images.labels).to(device)
    rows: list[dict[str, Any]] = []
    for setting in (None, *SETTINGS):
        for _ in range(2):  # the first time finds its kernels
            prediction, seconds = timed(
                lambda setting=setting: predict_images(
                    config, networks, images, samples, seed=0, device=device, adaptive=setting
                )
            )
        name = "fixed" if setting is None else f"first {setting.first}, tolerance {setting.tolerance}"
        rows.append({"setting": name, **scores(prediction, labels, seconds)})
        for score in ("accuracy", "ece", "nll"):
            rows[-1][f"{score}_difference"] = rows[-1][score] - rows[0][score]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run folder, or the start of its name")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/adaptive_sampling.json"))
    options = parser.parse_args()
    config, root = settings_and_root(find_run(options.run, options.runs))
    rows = compare(config, load_networks(config, root, default_device()), options.samples)
    header = {"config": config.as_json(), "samples": options.samples, "date": str(date.today()), "environment": facts()}
    show(rows, f"{config.model} on {config.data}, {config.method}, at most {options.samples} samples")
    write_json(options.out, {**header, "rows": rows})
    print(f"written to {options.out}")


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    headings = ("setting", "samples an image", "accuracy, %", "difference", "ECE", "difference", "NLL", "seconds")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in rows:
        table.add_row(
            row["setting"],
            f"{row['samples_an_image']:.1f}",
            f"{100 * row['accuracy']:.2f}",
            f"{100 * row['accuracy_difference']:+.2f}",
            f"{row['ece']:.4f}",
            f"{row['ece_difference']:+.4f}",
            f"{row['nll']:.4f}",
            f"{row['seconds']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()

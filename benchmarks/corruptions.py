"""How long it takes to damage a CIFAR-size test set in all 19 ways at all 5 severities, and how that time divides.

    python benchmarks/corruptions.py [--count 10000] [--threads 2] [--out results/corruptions.json]

Goals: 10,000 images x 19 x 5 on two cores in under 15 minutes, and no corruption slower than ten times the median one.
Every set is generated in full, in memory; nothing is extrapolated unless --count is smaller.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rbue.files import write_json
from rbue.lab import data
from rbue.lab.corruptions import CORRUPTIONS, SCHEME, SEVERITIES, corrupt, frost_source
from rbue.lab.environment import facts

FULL = 10_000
LIBRARIES = ("numpy", "scipy", "pillow", "opencv-python-headless")


def test_images(count: int) -> tuple[np.ndarray, str]:
    """CIFAR-10's test images, or noise of the same size where they are not at hand."""
    try:
        return np.array(data.load("cifar10", "test").images[:count]), "CIFAR-10 test images"
    except data.DataError:
        return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8), "uniform noise"


def measure(images: np.ndarray, threads: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds by the clock, severity by severity, and of processor time, which a busy machine changes less."""
    seconds: dict[str, list[float]] = {}
    processor: dict[str, float] = {}
    for name in CORRUPTIONS:
        corrupt(images[:64], name, 1, threads=threads)  # what is made once and kept: imports, textures, matrices
        seconds[name] = []
        processor_start = time.process_time()
        for severity in SEVERITIES:
            start = time.perf_counter()
            corrupt(images, name, severity, threads=threads)
            seconds[name].append(time.perf_counter() - start)
        processor[name] = time.process_time() - processor_start
    return seconds, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=FULL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/corruptions.json"))
    options = parser.parse_args()
    images, what = test_images(options.count)
    scale = FULL / len(images)
    load = os.getloadavg()[0]
    seconds, processor = measure(images, options.threads)

    totals = {name: scale * sum(values) for name, values in seconds.items()}
    total, median = sum(totals.values()), statistics.median(totals.values())
    slowest = max(totals, key=totals.__getitem__)
    table = Table("corruption", *(f"at {s}" for s in SEVERITIES), "seconds", "share", "x median", "CPU s")
    for name, value in sorted(totals.items(), key=lambda item: -item[1]):
        each = (f"{scale * one:.2f}" for one in seconds[name])
        table.add_row(
            name,
            *each,
            f"{value:.1f}",
            f"{value / total:.1%}",
            f"{value / median:.1f}",
            f"{scale * processor[name]:.1f}",
        )
    Console(width=110).print(table)
    content: dict[str, Any] = {
        "facts": {
            **facts(),
            "date": date.today().isoformat(),
            **{library: version(library) for library in LIBRARIES},
            "scheme": SCHEME,
            "frost": str(frost_source()),
        },
        "images": what,
        "measured_images": len(images),
        "threads": options.threads,
        "trials": 1,
        "load_average_before": round(load, 2),
        "seconds_for_10000_images": {
            name: {str(s): round(scale * one, 3) for s, one in zip(SEVERITIES, values, strict=True)}
            for name, values in seconds.items()
        },
        "processor_seconds": {name: round(scale * value, 2) for name, value in processor.items()},
        "total_seconds": round(total, 1),
        "total_processor_seconds": round(scale * sum(processor.values()), 1),
        "median_seconds_per_corruption": round(median, 2),
        "slowest": slowest,
        "slowest_over_median": round(totals[slowest] / median, 2),
        "slowest_over_median_processor": round(max(processor.values()) / statistics.median(processor.values()), 2),
        "goals": {
            "total under 15 minutes": total < 15 * 60,
            "slowest within ten times the median": totals[slowest] < 10 * median,
        },
    }
    print(
        f"{FULL:,} images of 32x32 x {len(CORRUPTIONS)} x {len(SEVERITIES)} on {options.threads} threads: "
        f"{total / 60:.1f} minutes; slowest is {slowest} with {totals[slowest] / median:.1f} times the median."
    )
    write_json(options.out, content)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()

"""Whether more samples need more memory: the peak of 1,000 against that of 10; and which budget is fastest.

    python benchmarks/sampling_memory.py [--device cuda] [--out FILE]
    python benchmarks/sampling_memory.py --budgets [--trials 5] [--out results/cpu_budgets.json]

Each number of samples runs in a fresh process. On a GPU it is ResNet-18 and the peak that torch allocated, for 1,000
and for 4,000 images: passes take no more than a set share of the memory, which ten samples of few images do not fill,
so that there the ratio says how far they are from it. On a CPU it is a 16-32-64 CNN, 128 images and the resident peak.
Goal: within 1.05x for as many images as fill a pass.

``--budgets`` times predictions on a CPU with different memory budgets, in turns: processor time of user and system,
wall clock, and page faults. Fewer rows in a pass cost more calls. More rows fall out of the caches, and blocks above
32 MiB are given back to the system at each free by glibc's malloc, so that every one is faulted in again.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import rbue
from cpu_forward import PlainCNN
from rbue.files import write_json
from rbue.lab.environment import facts
from rbue.lab.models.resnet18 import ResNet18

FEW, MANY = 10, 1000
IMAGES = {"cuda": (1000, 4000), "cpu": (128,)}
NETWORKS: dict[str, type[nn.Module]] = {"cuda": ResNet18, "cpu": PlainCNN}


def peak_bytes(device: str, images: int, samples: int) -> int:
    """Peak of a fresh process that draws this many samples."""
    words = ["--device", device, "--peak", str(images), str(samples)]
    run = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return int(run.stdout.split()[-1])


def sample_and_tell(device: str, images: int, samples: int) -> None:
    """Draw the samples in this process and print its peak."""
    torch.manual_seed(0)
    network = NETWORKS[device]().eval().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(images, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    rbue.convert(network, rbue.DropReLU(0.9), example=x[:2])
    with torch.autocast(device, torch.float16, enabled=device == "cuda"):
        rbue.predict(network, x, samples=samples)
    on_gpu = device == "cuda"
    print(torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


MIB = (16, 32, 64, 128, 256)
BASE = 256  # the budget of earlier versions


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "16-32-64 CNN, 256 images, 30 samples": (PlainCNN, (256, 3, 32, 32), 30),
    "16-32-64 CNN, 1000 images, 30 samples": (PlainCNN, (1000, 3, 28, 28), 30),
    "ResNet-18, 1 image, 30 samples": (ResNet18, (1, 3, 32, 32), 30),
    "ResNet-18, 16 images, 20 samples": (ResNet18, (16, 3, 32, 32), 20),
    "ResNet-18, 64 images, 5 samples": (ResNet18, (64, 3, 32, 32), 5),
    "MLP, 1000 images, 50 samples": (perceptron, (1000, 256), 50),
}


def cost(run: Callable[[], Any]) -> dict[str, float]:
    """What one run took of this process."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"cpu": user + system, "system": system, "wall": seconds, "faults": after.ru_minflt - before.ru_minflt}


def budgets(trials: int) -> dict[str, Any]:
    """Medians for each case and budget, and processor time over that of the largest."""
    found: dict[str, Any] = {}
    for name, (build, shape, samples) in CASES.items():
        torch.manual_seed(0)
        network, x = build().eval(), torch.randn(shape)
        rbue.convert(network, rbue.DropReLU(0.9), example=x[:2])
        rows: dict[int, list[dict[str, float]]] = {mib: [] for mib in MIB}
        rbue.warm_up(network, x, samples=1)
        for mib in MIB * trials:
            rows[mib].append(cost(partial(rbue.predict, network, x, samples=samples, memory=mib << 20)))
        medians = {mib: {key: statistics.median(row[key] for row in rows[mib]) for key in rows[mib][0]} for mib in MIB}
        found[name] = {
            "medians": {str(mib): {key: round(value, 4) for key, value in row.items()} for mib, row in medians.items()},
            "cpu_over_256": {str(mib): round(row["cpu"] / medians[BASE]["cpu"], 3) for mib, row in medians.items()},
        }
        table = Table("MiB", "CPU s", "of it system", "wall s", "page faults", f"CPU over {BASE} MiB", title=name)
        for mib, row in medians.items():
            numbers = (f"{row[key]:.3f}" for key in ("cpu", "system", "wall"))
            table.add_row(str(mib), *numbers, f"{row['faults']:,.0f}", f"{found[name]['cpu_over_256'][str(mib)]:.2f}")
        Console().print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=sorted(IMAGES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--peak", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        sample_and_tell(options.device, *options.peak)
        return
    header = {"date": date.today().isoformat(), "environment": facts()}
    if options.budgets:
        found = {"trials": options.trials, "cases": budgets(options.trials), **header}
        write_json(options.out or Path("results/cpu_budgets.json"), found)
        return
    network, counts = NETWORKS[options.device].__name__, IMAGES[options.device]
    peaks = {(n, s): peak_bytes(options.device, n, s) for n, s in product(counts, (FEW, MANY))}
    ratios = {n: round(peaks[n, MANY] / peaks[n, FEW], 4) for n in counts}
    table = Table("images", f"{FEW} samples", f"{MANY:,} samples", "ratio", title=f"Peak MiB of {network}")
    for n in counts:
        table.add_row(f"{n:,}", *(f"{peaks[n, s] / 2**20:,.0f}" for s in (FEW, MANY)), f"{ratios[n]:.3f}")
    Console().print(table)
    out = options.out or Path(f"results/sampling_memory_{options.device}.json")
    content = {
        "network": network,
        "peak_bytes": [{"images": n, "samples": s, "bytes": value} for (n, s), value in peaks.items()],
        "memory_1000_over_10": {str(n): ratio for n, ratio in ratios.items()},
        **header,
    }
    write_json(out, content)
    print(f"written to {out}")


if __name__ == "__main__":
    main()

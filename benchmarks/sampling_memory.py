"""Whether more samples need more memory: the peak of 1,000 against that of 10.

    python benchmarks/sampling_memory.py [--device cuda] [--out FILE]

Each number of samples runs in a fresh process. On a GPU it is ResNet-18 and the peak that torch allocated, for 1,000
and for 4,000 images: passes take no more than a set share of the memory, which ten samples of few images do not fill,
so that there the ratio says how far they are from it. On a CPU it is a 16-32-64 CNN, 128 images and the resident peak.
Goal: within 1.05x for as many images as fill a pass.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from datetime import date
from itertools import product
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=sorted(IMAGES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        sample_and_tell(options.device, *options.peak)
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
        "date": date.today().isoformat(),
        "environment": facts(),
    }
    write_json(out, content)
    print(f"written to {out}")


if __name__ == "__main__":
    main()

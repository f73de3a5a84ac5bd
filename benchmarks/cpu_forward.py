"""What random ReLUs cost on a CPU: against plain ReLU and against torch's own random numbers, in one run.

    python benchmarks/cpu_forward.py [--trials 15] [--out results/cpu_forward.json]
    python benchmarks/cpu_forward.py --one-image [--trials 7] [--out results/one_image_cpu.json]

Goals: a stochastic forward pass within 1.10x of the plain one for ResNet-18 (batch 32, 32x32) and within 1.30x for a
16-32-64 CNN (batch 128); 100 samples with `last` placement within 1.10x of one forward pass of ResNet-18.

``--one-image`` takes the processor time of 30 samples of one image with ResNet-18, each trial in a new process: the
first prediction and later ones, against 30 plain passes and a plain batch of 30. Goals: a later one at most 0.5 of the
passes, the first at most 1.2 times a later one and a pass.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from harness import medians
from peers import PEERS, Relu, with_relu
from rbue.files import write_json
from rbue.lab.environment import facts
from rbue.lab.models.resnet18 import ResNet18


class PlainCNN(nn.Module):
    """Convolutions of 16, 32 and 64 channels and nothing else, so that activations weigh as much as they can."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.conv3, self.head = nn.Conv2d(32, 64, 3, 2, 1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.head(F.relu(self.conv3(x)).mean((2, 3)))


def patched(network: nn.Module, relu: Relu, x: Tensor) -> Tensor:
    with with_relu(relu):
        return network(x)


def forward_passes(network: nn.Module, x: Tensor, trials: int) -> dict[str, float]:
    """Milliseconds of one pass, plain and in four random forms."""
    drop = rbue.convert(copy.deepcopy(network), rbue.DropReLU(0.9), example=x)
    rrelu = rbue.convert(copy.deepcopy(network), rbue.RReLU(), example=x)
    variants: dict[str, Callable[[], Any]] = {
        "plain ReLU": lambda: network(x),
        "rbue DropReLU": lambda: drop(x),
        "rbue RReLU": lambda: rrelu(x),
    }
    for name, relu in PEERS.items():
        variants[name] = partial(patched, network, relu, x)
    return {name: 1e3 * seconds for name, seconds in medians(variants, trials).items()}


def last_placement(network: nn.Module, x: Tensor, trials: int) -> dict[str, float]:
    """Milliseconds of one plain pass and of 100 samples with only the last ReLU random."""
    last = rbue.convert(copy.deepcopy(network), rbue.DropReLU(0.9), where="last", example=x)
    variants = {"plain ReLU": lambda: network(x), "100 samples, last": lambda: rbue.predict(last, x, samples=100)}
    return {name: 1e3 * seconds for name, seconds in medians(variants, trials).items()}


def time_one_image(samples: int) -> None:
    """Print the processor seconds of one image in this process, in turns: a pass, as many plain ones, predictions."""
    torch.manual_seed(0)
    plain, x = ResNet18().eval(), torch.randn(1, 3, 32, 32)
    network = rbue.convert(copy.deepcopy(plain), rbue.DropReLU(0.9), example=x)

    def passes(count: int, x: Tensor = x) -> None:
        with torch.no_grad():
            for _ in range(count):
                plain(x)

    def seconds(run: Callable[..., Any], *args: Any, **settings: Any) -> float:
        start = time.process_time()
        run(*args, **settings)
        return time.process_time() - start

    passes(3)
    one = statistics.median(seconds(passes, 1) for _ in range(9))
    first = seconds(rbue.predict, network, x, samples=samples)
    batch = x.repeat(samples, 1, 1, 1)
    turns = [
        (seconds(passes, samples), seconds(passes, 1, batch), seconds(rbue.predict, network, x, samples=samples))
        for _ in range(6)
    ][1:]  # the first batch has its convolutions prepared
    many, stacked, later = (statistics.median(column) for column in zip(*turns, strict=True))
    print(json.dumps({"a pass": one, "plain passes": many, "a plain batch": stacked, "first": first, "later": later}))


def one_image(trials: int, samples: int = 30) -> dict[str, Any]:
    """Medians over new processes, and the two ratios that have goals."""
    command = [sys.executable, __file__, "--time-one-image", str(samples)]
    rows = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout) for _ in range(trials)
    ]
    found = {
        "seconds": {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]},
        "later_over_plain_passes": round(statistics.median(row["later"] / row["plain passes"] for row in rows), 3),
        "later_over_a_plain_batch": round(statistics.median(row["later"] / row["a plain batch"] for row in rows), 3),
        "first_over_limit": round(
            statistics.median(row["first"] / (1.2 * row["later"] + row["a pass"]) for row in rows), 3
        ),
    }
    Console().print(found)
    return {"samples": samples, "trials": trials, **found, "facts": {**facts(), "date": date.today().isoformat()}}


def ratios(times: dict[str, float]) -> dict[str, float]:
    return {name: round(value / times["plain ReLU"], 3) for name, value in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one-image", action="store_true")
    parser.add_argument("--time-one-image", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time_one_image:
        time_one_image(options.time_one_image)
        return
    if options.one_image:
        write_json(options.out or Path("results/one_image_cpu.json"), one_image(options.trials))
        return
    out = options.out or Path("results/cpu_forward.json")
    torch.manual_seed(0)
    content: dict[str, Any] = {
        "facts": {**facts(), "date": date.today().isoformat()},
        "trials": options.trials,
        "milliseconds": {},
        "ratio_to_plain": {},
    }
    with torch.no_grad():
        small, resnet = PlainCNN().eval(), ResNet18().eval()
        runs = {
            "16-32-64 CNN, batch 128": forward_passes(small, torch.randn(128, 3, 32, 32), 3 * options.trials),
            "ResNet-18, batch 32": forward_passes(resnet, torch.randn(32, 3, 32, 32), options.trials),
            "ResNet-18, batch 32, last": last_placement(resnet, torch.randn(32, 3, 32, 32), options.trials),
        }
    table = Table("network", "variant", "milliseconds", "ratio")
    for name, times in runs.items():
        content["milliseconds"][name] = {variant: round(value, 2) for variant, value in times.items()}
        content["ratio_to_plain"][name] = ratios(times)
        for variant, value in times.items():
            table.add_row(name, variant, f"{value:.1f}", f"{value / times['plain ReLU']:.2f}")
        table.add_section()
    Console().print(table)
    write_json(out, content)
    print(f"written to {out}")


if __name__ == "__main__":
    main()

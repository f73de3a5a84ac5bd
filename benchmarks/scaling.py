"""What predictions and training cost by samples, images, parameters and processes, on a CPU.

    python benchmarks/scaling.py [--trials 5] [--out results/scaling.json]

ResNet-18 of a quarter of the width on random CIFAR-sized images, one thread. Times are processor seconds, so that
others on the machine do not count; the variants take turns, and medians of trials are kept. Processes are started by
``torchrun``, with gloo: of each number of them the longest processor time of one, which is the time on as many free
cores, and the sum of all. What they wait for each other is in neither. A GPU is not measured here;
``results/mc_inference_cuda.json`` and ``results/training_step.json`` are about one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import rbue
from harness import medians, products
from rbue.files import read_json, write_json
from rbue.lab.data import ImageSet
from rbue.lab.environment import facts
from rbue.lab.models import parameters
from rbue.lab.models.resnet18 import ResNet18
from rbue.lab.processes import PATIENCE, data_parallel, joined
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import fresh_network
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import batches_for
from rbue.lab.training.recipe import Recipe
from rbue.lab.training.step import TrainingStep

CPU = torch.device("cpu")
WIDTH, Q = 0.25, 0.9
SAMPLES, IMAGES, WIDTHS, PROCESSES = (1, 2, 5, 10, 20, 50, 100), (4, 16, 64, 256), (0.125, 0.25, 0.5, 1.0), (1, 2, 4)
FEW_IMAGES, FEW_SAMPLES = 16, 4
STEPS, BATCH = 4, 64

processor_seconds = partial(medians, warmup=1, clock=time.process_time)


def network(width: float = WIDTH, where: str | None = None) -> nn.Module:
    """A network as it is, or with random ReLUs."""
    torch.manual_seed(0)
    plain = ResNet18(10, 3, width).eval()
    return plain if where is None else rbue.convert(plain, rbue.DropReLU(Q), where=where, example=images(2))


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def plain_pass(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad():
            for part in x.split(FEW_IMAGES):
                model(part)

    return run


def by_samples(trials: int) -> list[dict[str, Any]]:
    """Seconds of some numbers of samples, over those of a plain pass."""
    x, plain = images(FEW_IMAGES), network()
    found: dict[str, dict[Any, float]] = {}
    for where in ("all", "last"):
        model = network(where=where)
        variants: dict[Any, Callable[[], Any]] = {"pass": plain_pass(plain, x)}
        variants |= {count: _predicting(model, x, count) for count in SAMPLES}
        found[where] = processor_seconds(variants, trials)
    return [
        {"samples": count, **{where: round(times[count] / times["pass"], 3) for where, times in found.items()}}
        for count in SAMPLES
    ]


def _predicting(model: nn.Module, x: Tensor, samples: int) -> Callable[[], Any]:
    return lambda: rbue.predict(model, x, samples=samples)


def by_images(trials: int) -> list[dict[str, Any]]:
    """Milliseconds an image, with few samples."""
    model = network(where="all")
    times = processor_seconds({count: _predicting(model, images(count), FEW_SAMPLES) for count in IMAGES}, trials)
    return [{"images": count, "ms_per_image": round(1000 * times[count] / count, 3)} for count in IMAGES]


def by_parameters(trials: int) -> list[dict[str, Any]]:
    """Seconds of wider networks, with what they have to compute."""
    x = images(FEW_IMAGES)
    models = {width: network(width, "all") for width in WIDTHS}
    times = processor_seconds({width: _predicting(model, x, FEW_SAMPLES) for width, model in models.items()}, trials)
    return [
        {
            "width": width,
            "parameters": parameters(models[width]),
            "gigaflops_per_image": round(products(network(width), x) / len(x) / 1e9, 4),
            "ms_per_image": round(1000 * times[width] / len(x), 3),
        }
        for width in WIDTHS
    ]


def by_processes(trials: int) -> list[dict[str, Any]]:
    """Processor seconds of so many processes that share the images, and the batch of each training step."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        for count in PROCESSES:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            command = [sys.executable, *launcher, __file__, "--worker", "--trials", str(trials), "--out", str(out)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            row: dict[str, Any] = {"processes": count}
            for what, seconds in read_json(out).items():  # of each process
                row |= {f"{what}_longest_s": round(max(seconds), 3), f"{what}_sum_s": round(sum(seconds), 3)}
            rows.append(row)
    return rows


def work(trials: int, out: Path) -> None:
    """Be one of several processes; the first one writes what all of them took."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    shape, classes = (IMAGES[-1], 32, 32, 3), tuple("0123456789")
    pixels, labels = rng.integers(0, 256, shape, dtype=np.uint8), rng.integers(0, 10, shape[0])
    these = ImageSet(pixels, labels, classes, "random", "test", (0.5,) * 3, (0.25,) * 3)
    recipe = Recipe(epochs=1, batch=BATCH)
    config = RunConfig(data="cifar10", model="resnet18", width=WIDTH, method=f"mc-droprelu:{Q}", recipe=recipe)
    with joined(CPU, PATIENCE) as rank:
        model = fresh_network(config, these, CPU)
        step = TrainingStep(
            data_parallel(model, rank, CPU), config.parsed, batches_for(config, these, CPU), recipe, 0, rank
        )

        def train() -> None:
            step.start_epoch(0)
            for _ in range(STEPS):
                step(BATCH)

        def predict() -> None:
            predict_images(config, [model], these, Passes(FEW_SAMPLES), CPU, rank=rank)

        own = processor_seconds({"predicting": predict, "training": train}, trials)
        taken = {name: rank.of_all(seconds) for name, seconds in own.items()}
        if rank.index == 0:
            write_json(out, taken)


def main() -> int:
    """Measure everything and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/scaling.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.trials, given.out)
        return 0
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "network": f"ResNet-18 of width {WIDTH:g}, DropReLU({Q:g})",
        "trials": given.trials,
        "samples_of_images": FEW_SAMPLES,
        "images_of_samples": FEW_IMAGES,
        "training_batch": BATCH,
        "training_steps": STEPS,
        "by_samples": by_samples(given.trials),
        "by_images": by_images(given.trials),
        "by_parameters": by_parameters(given.trials),
        "by_processes": by_processes(given.trials),
        "date": date.today().isoformat(),
        "environment": facts(),
    }
    write_json(given.out, result)
    print(json.dumps({name: value for name, value in result.items() if name.startswith("by_")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

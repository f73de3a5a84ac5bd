"""What random ReLUs cost in training on a GPU: step time and peak memory against plain ReLU in the same engine.

    python benchmarks/training_step.py [--compiled resnet18 vgg13] [--captured resnet18 vgg13 densenet121]
                                       [--variants NAME ...] [--peaks FILE] [--out FILE]

Every variant of a network is made ready, then they take turns: medians of rounds of 100 steps at batch 128, once with
compiled steps and once with steps that are only captured (DenseNet-121 takes minutes to compile). The peers are the
same network with torch's own ``F.rrelu``, and with DropReLU as most people would write it. Memory is the peak of a step
in a fresh process for each variant; since other work on the GPU does not change it, ``--peaks FILE`` measures only it
and keeps it, and takes it from there if it was measured before. What those processes compiled is kept beside it, but
not what they tuned, many at once on one GPU: that is done again for the timing, with the GPU to itself. The products of
a step (three times those of a forward pass) are set against a large matrix product in the same run. Goals: step and
memory within 1.02x of plain ReLU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from harness import CEILING, matrix_product_teraflops, medians, products
from peers import PEERS, with_relu
from rbue.files import write_json
from rbue.lab import models
from rbue.lab.environment import facts
from rbue.lab.methods import parse
from rbue.lab.runs.networks import prepared
from rbue.lab.training import Batches, Recipe
from rbue.lab.training.engines import Engine, engine_for
from rbue.lab.training.step import TrainingStep

BATCH, STEPS = 128, 100
PLAIN = "plain ReLU"
METHODS = {
    PLAIN: "single",
    "rbue DropReLU": "mc-droprelu:0.9",
    "rbue DropReLU by channel": "mc-droprelu:0.98,all,channel",
    "rbue RReLU": "mc-rrelu",
}
VARIANTS = (*METHODS, *PEERS)


class Case(NamedTuple):
    """A network, the engine of its steps, and what takes the place of its ReLUs."""

    model: str
    engine: str
    variant: str


def ready(case: Case) -> Engine:
    """The engine of a network with one activation, ready to run steps."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    method = parse(METHODS.get(case.variant, "single"))
    network = prepared(models.create(case.model, classes=10), method, (3, 32, 32), device)
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (20 * BATCH, 32, 32, 3), np.uint8), random.integers(0, 10, 20 * BATCH)
    batches = Batches(images, labels, [0.5] * 3, [0.25] * 3, batch=BATCH, padding=4, flip=True, seed=0, device=device)
    step = TrainingStep(network, method, batches, Recipe(epochs=10_000), run_seed=0)
    step.start_epoch(0)
    with with_relu(PEERS.get(case.variant)):
        engine = engine_for(step, case.engine)
    engine.wait()
    return engine


def run_steps(engine: Engine) -> None:
    for _ in range(STEPS):
        engine.start_step(BATCH)
    engine.wait()


class PeakFromHere(torch.cuda.graph):
    """A capture that forgets what was used before it, when libraries tried their kernels."""

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        super().__enter__()


def peak_memory(case: Case) -> float:
    """Peak MiB of a fresh process that trains this case."""
    few = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}  # of each process, as many processes run at once
    command = [sys.executable, __file__, "--memory-of", *case]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=few)
    return round(int(run.stdout.split()[-1]) / 2**20, 1)


def peak_memories(cases: list[Case], processes: int) -> dict[Case, float]:
    """Peak MiB of each case; what their processes compile is kept by torch for the timing."""
    with ThreadPoolExecutor(processes) as pool:
        return dict(zip(cases, pool.map(peak_memory, cases), strict=True))


@contextmanager
def compiling_into_own_folder(peaks: Path | None) -> Iterator[Path]:
    """Have torch keep what it compiles in a folder beside the peaks, or in one that is gone afterwards."""
    with TemporaryDirectory() as passing:
        folder = Path(passing) if peaks is None else peaks.resolve().with_suffix(".compiled")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        yield folder


def forget_tuning(cache: Path) -> None:
    """Have torch's compiler choose the forms of its kernels anew, of all that it keeps here."""
    for choice in cache.rglob("*.best_config"):
        choice.unlink()


def read_peaks(file: Path, cases: list[Case]) -> dict[Case, float]:
    """Peaks that were measured before, if they are of these cases and of this place."""
    kept = json.loads(file.read_text())
    peaks = {Case(*case): peak for *case, peak in kept["peaks"]}
    if kept["environment"] != facts() or not set(cases) <= set(peaks):
        sys.exit(f"{file} is of other networks, another machine or other code; remove it to measure memory again")
    return peaks


def measure(
    model: str, engine: str, variants: list[str], trials: int, memory: dict[Case, float]
) -> dict[str, dict[str, float]]:
    """Milliseconds a step, its ratio to plain ReLU, TFLOP/s, peak MiB and its ratio; for each variant."""
    cases = {name: Case(model, engine, name) for name in variants}
    engines = {name: ready(case) for name, case in cases.items()}
    work = 3 * BATCH * products(models.create(model, classes=10).eval(), torch.zeros(1, 3, 32, 32)) / 1e12
    times = medians({name: lambda made=made: run_steps(made) for name, made in engines.items()}, trials)
    return {
        name: {
            "step_ms": round(1e3 * seconds / STEPS, 4),
            "step_ratio": round(seconds / times[PLAIN], 4),
            "teraflops": round(work * STEPS / seconds, 1),
            "peak_mib": memory[cases[name]],
            "memory_ratio": round(memory[cases[name]] / memory[cases[PLAIN]], 4),
        }
        for name, seconds in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiled", nargs="*", metavar="NETWORK", default=["resnet18", "vgg13"])
    parser.add_argument("--captured", nargs="*", metavar="NETWORK", default=["resnet18", "vgg13", "densenet121"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help=f"beside {PLAIN}")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--processes", type=int, default=8, help="how many measure memory at once")
    parser.add_argument("--peaks", type=Path, help="measure only memory, into this file; or read it from there")
    parser.add_argument("--out", type=Path, default=Path("results/training_step.json"))
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    if options.memory_of:
        torch.cuda.graph = PeakFromHere  # type: ignore[misc]
        run_steps(ready(Case(*options.memory_of)))
        print(torch.cuda.max_memory_allocated())
        return
    wanted = [(name, engine) for engine in ("captured", "compiled") for name in getattr(options, engine)]
    variants = [PLAIN, *(name for name in options.variants if name != PLAIN)]
    cases = [Case(*pair, variant) for pair in wanted for variant in variants]
    with compiling_into_own_folder(options.peaks) as folder:
        if options.peaks is not None and not options.peaks.exists():
            peaks = [[*case, peak] for case, peak in peak_memories(cases, options.processes).items()]
            write_json(options.peaks, {"peaks": peaks, "environment": facts()})
            return
        memory = peak_memories(cases, options.processes) if options.peaks is None else read_peaks(options.peaks, cases)
        forget_tuning(folder)
        time_all(wanted, variants, options.trials, memory, options.out)


def time_all(
    wanted: list[tuple[str, str]], variants: list[str], trials: int, memory: dict[Case, float], out: Path
) -> None:
    """Time the wanted networks and engines; what is known after each is written."""
    found: dict[str, dict[str, object]] = {engine: {} for _, engine in wanted}
    for model, engine in wanted:
        rows = measure(model, engine, variants, trials, memory)
        show(model, engine, rows)
        torch.cuda.empty_cache()
        found[engine][model] = rows
        header = {"batch": BATCH, "trials": trials, "date": str(date.today()), "environment": facts()}
        ceiling = round(matrix_product_teraflops(torch.device("cuda"), torch.bfloat16), 1)
        write_json(out, {"engines": found, "teraflops": {CEILING: ceiling}, **header})


def show(model: str, engine: str, rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{model}, {engine}, batch {BATCH}", title_justify="left")
    columns = ("step_ms", "step_ratio", "teraflops", "peak_mib", "memory_ratio")
    for heading in ("variant", *columns):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for name, row in rows.items():
        table.add_row(name, *(str(row.get(column, "–")) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()

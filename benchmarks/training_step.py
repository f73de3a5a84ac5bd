"""What random ReLUs cost in training on a GPU: step time and peak memory against plain ReLU in the same engine.

    python benchmarks/training_step.py [--models resnet18 vgg13 densenet121] [--engine compiled] [--out FILE]

Every variant of a network is captured, then they take turns: medians of rounds of 100 steps at batch 128. The peers are
the same network with torch's own ``F.rrelu``, and with DropReLU as most people would write it. Memory is the peak of a
fresh process for each variant. Goals: step and memory within 1.02x of plain ReLU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from harness import medians
from peers import PEERS, with_relu
from rbue import models
from rbue.environment import facts
from rbue.files import write_json
from rbue.methods import parse
from rbue.training import Batches, Recipe
from rbue.training.engines import Engine, engine_for
from rbue.training.step import TrainingStep

BATCH, STEPS = 128, 100
PLAIN = "plain ReLU"
METHODS = {PLAIN: "single", "rbue DropReLU": "mc-droprelu:0.9", "rbue RReLU": "mc-rrelu"}


def captured(model: str, variant: str, engine: str) -> tuple[Engine, float]:
    """A network's engine with one activation, and the seconds it took to make."""
    start = time.perf_counter()
    device = torch.device("cuda")
    torch.manual_seed(0)
    network = models.create(model, classes=10).to(device).to(memory_format=torch.channels_last)
    method = parse(METHODS.get(variant, "single"))
    method.prepare(network, torch.zeros(2, 3, 32, 32, device=device))
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (20 * BATCH, 32, 32, 3), np.uint8), random.integers(0, 10, 20 * BATCH)
    batches = Batches(images, labels, [0.5] * 3, [0.25] * 3, batch=BATCH, padding=4, flip=True, seed=0, device=device)
    step = TrainingStep(network, method, batches, Recipe(epochs=10_000), run_seed=0)
    step.start_epoch(0)
    with with_relu(PEERS.get(variant)):
        made = engine_for(step, engine)
    made.wait()
    return made, time.perf_counter() - start


def run_steps(engine: Engine) -> None:
    for _ in range(STEPS):
        engine.run_epoch_part(BATCH)
    engine.wait()


def peak_memory(model: str, variant: str, engine: str) -> int:
    """Peak bytes of a fresh process that trains this variant."""
    words = ["--models", model, "--engine", engine, "--memory-of", variant]
    run = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1])


def measure(model: str, engine: str, trials: int, peers: bool, memory: bool) -> dict[str, dict[str, float]]:
    """Milliseconds a step, its ratio to plain ReLU, peak MiB and its ratio, seconds to capture; for each variant."""
    names = [*METHODS, *(PEERS if peers else ())]
    engines: dict[str, Engine] = {}
    rows: dict[str, dict[str, float]] = {}
    for name in names:
        engines[name], seconds = captured(model, name, engine)
        rows[name] = {"prepare_s": round(seconds, 1)}
    times = medians({name: lambda made=made: run_steps(made) for name, made in engines.items()}, trials)
    for name, row in rows.items():
        row["step_ms"] = round(1e3 * times[name] / STEPS, 4)
        row["step_ratio"] = round(times[name] / times[PLAIN], 4)
    engines.clear()
    torch.cuda.empty_cache()
    for name in METHODS if memory else ():
        rows[name]["peak_mib"] = round(peak_memory(model, name, engine) / 2**20, 1)
        rows[name]["memory_ratio"] = round(rows[name]["peak_mib"] / rows[PLAIN]["peak_mib"], 4)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet18", "vgg13", "densenet121"])
    parser.add_argument("--engine", default="compiled", choices=["plain", "captured", "compiled"])
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/training_step.json"))
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    if options.memory_of:
        engine, _ = captured(options.models[0], options.memory_of, options.engine)
        run_steps(engine)
        print(torch.cuda.max_memory_allocated())
        return
    found: dict[str, object] = {}
    for model in options.models:
        found[model] = measure(
            model, options.engine, options.trials, not options.no_peers, memory=not options.no_memory
        )
        show(model, options.engine, found[model])  # type: ignore[arg-type]
        print(json.dumps({model: found[model]}), flush=True)
        result = {"engine": options.engine, "batch": BATCH, "trials": options.trials, "networks": found}
        write_json(options.out, {**result, "date": str(date.today()), "environment": facts()})


def show(model: str, engine: str, rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{model}, {engine}, batch {BATCH}", title_justify="left")
    columns = ("step_ms", "step_ratio", "peak_mib", "memory_ratio", "prepare_s")
    for heading in ("variant", *columns):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for name, row in rows.items():
        table.add_row(name, *(str(row.get(column, "–")) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()

"""What a whole training of ResNet-18 with DropReLU(0.9) on CIFAR-10 takes, beside the loop most people write.

    python benchmarks/full_training.py [--epochs 200] [--whole RUNS] [--out FILE]

The peer is eager torch in float32 with TF32 products, channels first, fed by a DataLoader whose workers crop and flip;
once with plain ReLU and once with DropReLU as most people would write it. It runs 500 steps after a warm-up, from which
the whole training is extrapolated; how long the loop waits for its loader is noted, since a loader that cannot keep up
would be no fair peer. Ours, in bfloat16 autocast, is prepared (compiling counted) and runs 500 steps in the same way;
with ``--whole`` it is trained and evaluated in full, as `rbue train` and `rbue evaluate` do, into the folder RUNS.
Goals, on an H200: at most 210 s for 200 epochs with compiling and evaluation; at least 2.5x as fast as the peer.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from peers import rand_formula, with_relu
from rbue.files import write_json
from rbue.lab import data
from rbue.lab.environment import default_device, facts
from rbue.lab.models.resnet18 import ResNet18
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.networks import fresh_network
from rbue.lab.runs.training import batches_for, train_run, training_images
from rbue.lab.training import Recipe
from rbue.lab.training.engines import engine_for
from rbue.lab.training.step import TrainingStep
from rbue.lab.training.trainer import read_log

METHOD, MODEL, DATA = "mc-droprelu:0.9", "resnet18", "cifar10"
WARM_UP = 20
OURS = "rbue DropReLU"


class Augmented(Dataset):
    """Images cropped and flipped at random one by one, as data loaders do."""

    def __init__(self, images: data.ImageSet) -> None:
        padded = np.pad(images.images, ((0, 0), (4, 4), (4, 4), (0, 0)))
        self.images, self.labels = torch.from_numpy(padded), torch.from_numpy(images.labels)
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (images.mean, images.std))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left, flip = (int(torch.randint(end, ())) for end in (9, 9, 2))
        image = self.images[index, top : top + 32, left : left + 32].permute(2, 0, 1).float() / 255
        image = image.flip(2) if flip else image
        return (image - self.mean) / self.std, int(self.labels[index])


class EagerLoop:
    """A plain training loop; call it to take some steps."""

    def __init__(self, images: data.ImageSet, recipe: Recipe, device: torch.device, workers: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.device, self.waited = device, 0.0
        self.loader = DataLoader(
            Augmented(images),
            recipe.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=8 if workers else None,
        )
        self.network = ResNet18().to(device).train()
        self.optimiser = torch.optim.SGD(
            self.network.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.batches = iter(self.loader)

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            start = time.perf_counter()
            try:
                x, y = next(self.batches)
            except StopIteration:
                self.batches = iter(self.loader)
                x, y = next(self.batches)
            self.waited += time.perf_counter() - start
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            self.optimiser.zero_grad()
            F.cross_entropy(self.network(x), y).backward()
            self.optimiser.step()
        wait_for(self.device)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def eager_steps(loop: EagerLoop, steps: int, relu: Any) -> dict[str, float]:
    """Milliseconds a step, and how many of them were spent waiting for the loader."""
    with with_relu(relu):
        loop(WARM_UP)
        loop.waited, start = 0.0, time.perf_counter()
        loop(steps)
        seconds = time.perf_counter() - start
    return {"step_ms": 1e3 * seconds / steps, "waiting_for_the_loader_ms": 1e3 * loop.waited / steps}


def our_steps(config: RunConfig, images: data.ImageSet, steps: int, device: torch.device) -> dict[str, float]:
    """Seconds to prepare, and milliseconds a step."""
    start = time.perf_counter()
    network = fresh_network(config, images, device)
    step = TrainingStep(network, config.parsed, batches_for(config, images, device), config.recipe, run_seed=0)
    engine = engine_for(step, "compiled")
    engine.wait()
    prepared, done, epoch = time.perf_counter() - start, 0, 0
    while done < WARM_UP + steps:  # whole epochs as in training, the small last batch with them
        step.start_epoch(epoch)
        for rows in step.batch_sizes():
            if done == WARM_UP:
                engine.wait()
                start = time.perf_counter()
            if done < WARM_UP + steps:
                engine.start_step(rows)
                done += 1
        epoch += 1
    engine.wait()
    return {"prepare_s": prepared, "step_ms": 1e3 * (time.perf_counter() - start) / steps}


def whole_run(config: RunConfig, root: Path, device: torch.device) -> dict[str, float]:
    """Seconds of training (and what its epochs were of them) and evaluating for real."""
    folder = RunFolder.of(config, root)
    if folder.path.exists():
        raise SystemExit(f"{folder.path} is there already, so its time cannot be measured; give --whole a new folder.")
    start = time.perf_counter()
    train_run(config, root, device)
    trained = time.perf_counter()
    result = evaluate_run(config, root, device, samples=100, seed=0)
    ended = time.perf_counter()
    return {
        "training_s": trained - start,
        "epochs_s": sum(epoch["seconds"] for epoch in read_log(folder.log)),
        "evaluation_s": ended - trained,
        "total_s": ended - start,
        "accuracy": result["accuracy"],
        "ece": result["ece"],
    }


def extrapolate(rows: dict[str, dict[str, float]], steps: int, whole: dict[str, float] | None) -> None:
    """Add the seconds of a whole training and their ratio to ours.

    Ours is the one trained in full, if it was: what that compiled made the steps timed after it ready sooner.
    """
    for row in rows.values():
        row["whole_s"] = row["step_ms"] * steps / 1e3 + row.get("prepare_s", 0.0)
    if whole is not None:
        rows[OURS]["prepare_again_s"] = rows[OURS].pop("prepare_s")
        rows[OURS]["whole_s"] = whole["total_s"]
    for row in rows.values():
        row["over_ours"] = row["whole_s"] / rows[OURS]["whole_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--whole", type=Path, metavar="RUNS", help="train and evaluate in full, into this folder")
    parser.add_argument("--out", type=Path, default=Path("results/full_training.json"))
    options = parser.parse_args()
    device = default_device()
    config = RunConfig(data=DATA, model=MODEL, method=METHOD, recipe=Recipe(epochs=options.epochs))
    images = training_images(config)
    whole_steps = options.epochs * math.ceil(len(images) / config.recipe.batch)
    # Ours come first: the peer's settings of torch and its workers stay until the process ends.
    whole = None if options.whole is None else whole_run(config, options.whole, device)
    ours = our_steps(config, images, options.steps, device)
    loop = EagerLoop(images, config.recipe, device, options.workers)
    rows: dict[str, dict[str, float]] = {
        OURS: ours,
        "eager TF32, plain ReLU": eager_steps(loop, options.steps, None),
        "eager TF32, torch.rand formula": eager_steps(loop, options.steps, rand_formula),
    }
    extrapolate(rows, whole_steps, whole)
    result: dict[str, Any] = {
        "epochs": options.epochs,
        "steps_timed": options.steps,
        "steps_of_a_whole_training": whole_steps,
        "loader_workers": options.workers,
        "rows": {name: {key: round(value, 4) for key, value in row.items()} for name, row in rows.items()},
        "date": str(date.today()),
        "environment": facts(),
    }
    if whole is not None:
        result["whole_run"] = {name: round(value, 4) for name, value in whole.items()}
    show(result)
    write_json(options.out, result)
    print(f"written to {options.out}")


def show(result: dict[str, Any]) -> None:
    title = f"ResNet-18, CIFAR-10, {result['epochs']} epochs, extrapolated from {result['steps_timed']} steps"
    table = Table(title=title, title_justify="left")
    columns = {
        "step_ms": "step, ms",
        "waiting_for_the_loader_ms": "waiting, ms",
        "prepare_s": "prepare, s",
        "whole_s": "whole, s",
        "over_ours": "over ours",
    }
    for heading in ("loop", *columns.values()):
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    for name, row in result["rows"].items():
        table.add_row(name, *(f"{row[column]:.2f}" if column in row else "–" for column in columns))
    Console().print(table)
    if "whole_run" in result:
        print("trained and evaluated in full:", result["whole_run"])


if __name__ == "__main__":
    main()

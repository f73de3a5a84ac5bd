"""The training loop: the same on a CPU and a GPU, and the same whether it was interrupted or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from rbue.call_sites import innermost, seed
from rbue.call_sites.following import CONVERSION
from rbue.methods.base import Method, TrainingProgress
from rbue.training.batches import Batches, epoch_seed
from rbue.training.checkpoint import load_checkpoint, save_checkpoint
from rbue.training.recipe import Recipe


@dataclass(frozen=True)
class EpochReport:
    """What one epoch came to."""

    epoch: int
    loss: float
    accuracy: float
    rate: float
    seconds: float


@dataclass(frozen=True)
class TrainingSummary:
    """What a whole training came to, interruptions included."""

    epochs: int
    seconds: float
    loss: float
    accuracy: float


def train(
    network: nn.Module,
    method: Method,
    batches: Batches,
    recipe: Recipe,
    *,
    run_seed: int,
    checkpoint: Path | None = None,
    every: int = 1,
    report: Callable[[EpochReport], None] | None = None,
) -> TrainingSummary:
    """Train a prepared network with a method's loss, continuing from ``checkpoint`` if there is one.

    All randomness of an epoch (order, augmentation, masks, weight noise) follows from ``run_seed`` and the epoch's
    number, so a run that was stopped and continued ends in the same weights, bit for bit, on a CPU.

    Args:
        network: the network, prepared by the method, on its device.
        method: says what to minimise.
        batches: the training data.
        recipe: epochs and optimiser settings.
        run_seed: seed of the run.
        checkpoint: file to continue from and to write to; None keeps nothing.
        every: epochs between checkpoints; the last epoch is always kept.
        report: called after each epoch.
    """
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=recipe.rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )
    progress = {"epoch": 0, "seconds": 0.0, "loss": 0.0, "accuracy": 0.0}
    if checkpoint is not None and checkpoint.exists():
        progress = load_checkpoint(checkpoint, network, optimiser)
    for epoch in range(int(progress["epoch"]), recipe.epochs):
        start = time.perf_counter()
        loss, accuracy = _epoch(network, method, batches, recipe, optimiser, run_seed, epoch)
        seconds = time.perf_counter() - start
        progress = {
            "epoch": epoch + 1,
            "seconds": progress["seconds"] + seconds,
            "loss": loss,
            "accuracy": accuracy,
        }
        if checkpoint is not None and ((epoch + 1) % every == 0 or epoch + 1 == recipe.epochs):
            save_checkpoint(checkpoint, network, optimiser, progress)
        if report is not None:
            report(EpochReport(epoch, loss, accuracy, recipe.rate_at(epoch), seconds))
    return TrainingSummary(recipe.epochs, progress["seconds"], progress["loss"], progress["accuracy"])


def _epoch(
    network: nn.Module,
    method: Method,
    batches: Batches,
    recipe: Recipe,
    optimiser: torch.optim.Optimizer,
    run_seed: int,
    epoch: int,
) -> tuple[float, float]:
    """One pass over the data; mean loss and training accuracy."""
    network.train()
    _restart_randomness(network, run_seed, epoch)
    for group in optimiser.param_groups:
        group["lr"] = recipe.rate_at(epoch)
    images = len(batches.images)
    steps = len(batches)
    total = torch.zeros((), device=batches.images.device)
    correct = torch.zeros((), dtype=torch.int64, device=batches.images.device)
    outputs: list[torch.Tensor] = []
    hook = network.register_forward_hook(lambda _, __, out: outputs.append(out.detach()))
    try:
        for step, (x, y) in enumerate(batches.epoch(epoch)):
            outputs.clear()
            progress = TrainingProgress((epoch + step / steps) / recipe.epochs, images)
            loss = method.loss(network, x, y, progress)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(y)
            correct += (outputs[-1].argmax(1) == y).sum()
    finally:
        hook.remove()
    return float(total) / images, int(correct) / images


def _restart_randomness(network: nn.Module, run_seed: int, epoch: int) -> None:
    fresh = epoch_seed(run_seed, epoch)
    torch.manual_seed(fresh)
    if CONVERSION in innermost(network).__dict__:
        seed(network, fresh)

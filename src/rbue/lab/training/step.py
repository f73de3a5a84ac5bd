"""One training step of one network, written so that it can be captured: whatever changes on the way is a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rbue.call_sites import count_call, innermost, seed, uncounted
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.table import path_word
from rbue.errors import InvalidInput
from rbue.lab.methods.base import Loss, Method, TrainingProgress
from rbue.lab.training.batches import Batches, epoch_seed
from rbue.lab.training.recipe import Recipe


@dataclass(frozen=True)
class Share:
    """Which part of each batch a process trains on."""

    rank: int = 0
    processes: int = 1

    def of(self, rows: int) -> range:
        """The places of a batch that are this process's."""
        return range(rows * self.rank // self.processes, rows * (self.rank + 1) // self.processes)


class TrainingStep:
    """Take a batch, minimise the method's loss on it, count what came of it.

    Call :meth:`start_epoch`, then the step once for each batch.
    """

    def __init__(
        self,
        network: nn.Module,
        method: Method,
        batches: Batches,
        recipe: Recipe,
        run_seed: int,
        share: Share | None = None,
    ) -> None:
        self.network, self.method, self.batches, self.recipe, self.run_seed = network, method, batches, recipe, run_seed
        self.share = share or Share()
        if batches.batch < self.share.processes:
            raise InvalidInput(
                f"a batch of {batches.batch} cannot be shared by {self.share.processes} processes; use a larger one."
            )
        self.device = batches.images.device
        self.optimiser = _optimiser(network, method, recipe, self.device)
        self.plan = batches.plan(0)
        self.planned = 0, self.plan
        self.rows = torch.arange(batches.batch, device=self.device)
        self.numbers = self.rows.to(torch.int32)
        self.done = torch.zeros((), dtype=torch.int64, device=self.device)
        self.loss_sum = torch.zeros((), device=self.device)
        self.correct = torch.zeros((), dtype=torch.int64, device=self.device)
        self.forward: Callable[[Tensor], tuple[Loss, Tensor]] = self.loss_at
        """What computes the loss; a compiled form of :meth:`loss_at` may be put here."""

    def start_epoch(self, epoch: int) -> None:
        """Set everything that an epoch's number decides."""
        self.network.train()
        restart_randomness(self.network, self.run_seed, epoch, self.share.rank)
        if self.planned[0] != epoch:
            self.plan_ahead(epoch)
        self.plan.copy_(self.planned[1])
        self.done.fill_(epoch * len(self.batches))
        self.loss_sum.zero_()
        self.correct.zero_()
        rate = self.recipe.rate_at(epoch)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def plan_ahead(self, epoch: int) -> None:
        """Draw the plan of an epoch before it starts."""
        self.planned = epoch, self.batches.plan(epoch)

    def loss_at(self, places: Tensor) -> tuple[Loss, Tensor]:
        """The loss and class scores of the images at some places of the epoch, and their labels."""
        x, y = self.batches.take(self.plan, places)
        fraction = self.done / (self.recipe.epochs * len(self.batches))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.method.loss(self.network, x, y, TrainingProgress(fraction, len(self.batches.images))), y

    def next_loss(self, rows: int, forward: Callable[[Tensor], tuple[Loss, Tensor]]) -> tuple[Loss, Tensor]:
        """What ``forward`` makes of this process's share of the next ``rows`` images of the epoch."""
        share = self.share.of(rows)
        start = self.done % len(self.batches) * self.batches.batch + share.start
        with uncounted(self.network, self.numbers[share.start : share.stop]):
            try:
                return forward(start + self.rows[: len(share)])
            except ValueError as error:
                if len(share) > 1 or "more than 1 value per channel" not in str(error):
                    raise
                raise InvalidInput(
                    "BatchNorm cannot normalise a single image where its feature map has shrunk to 1x1; use a batch of "
                    "at least 2."
                ) from error

    def __call__(self, rows: int) -> None:
        """Train on the next ``rows`` images of the epoch."""
        share = self.share.of(rows)
        (loss, logits), y = self.next_loss(rows, self.forward)
        self.optimiser.zero_grad(set_to_none=True)
        (loss * (len(share) * self.share.processes / rows)).backward()
        count_call(self.network)
        self.optimiser.step()
        self.loss_sum += loss.detach() * len(share)
        self.correct += (logits.detach().argmax(1) == y).sum()
        self.done += 1

    def batch_sizes(self) -> Iterator[int]:
        """The sizes of an epoch's batches; the last one may be smaller, and is trained on.

        Only a smaller one that leaves a process with a single image or none is left out: BatchNorm cannot normalise it.
        """
        images, batch = len(self.batches.images), self.batches.batch
        for start in range(0, images, batch):
            rows = min(batch, images - start)
            smaller = start > 0 and rows < batch
            if rows >= (2 if smaller else 1) * self.share.processes:
                yield rows

    def epoch_means(self) -> tuple[float, float]:
        """Mean loss and training accuracy of the epoch so far."""
        sums = torch.stack([self.loss_sum.double(), self.correct.double()])
        if self.share.processes > 1:
            torch.distributed.all_reduce(sums)
        loss, correct = sums.tolist()
        images = sum(self.batch_sizes())
        return loss / images, correct / images

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Steps taken inside leave no trace."""
        tensors = [*self.network.parameters(), *self.network.buffers(), self.done, self.loss_sum, self.correct]
        tensors += [value for state in self.optimiser.state.values() for value in state.values() if value is not None]
        kept = [tensor.detach().clone() for tensor in tensors]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, kept, strict=True):
                    tensor.copy_(value)


def restart_randomness(network: nn.Module, run_seed: int, epoch: int, rank: int = 0) -> None:
    """Begin the random numbers of one epoch: torch's own, different for each process, and the network's stream.

    The stream numbers the images of a batch, so that all processes share its seed. Converted networks inside of others
    have streams of their own.
    """
    fresh = epoch_seed(run_seed, epoch)
    torch.manual_seed(epoch_seed(fresh, rank) if rank else fresh)
    for path, module in innermost(network).named_modules():
        if CONVERSION in module.__dict__:
            seed(module, epoch_seed(fresh, path_word(path)) if path else fresh)


def _optimiser(network: nn.Module, method: Method, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    on_gpu = device.type == "cuda"
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in network.named_parameters():
        groups[name.rpartition(".")[2] in method.undecayed]["params"].append(parameter)
    optimiser = torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=torch.tensor(recipe.rate, device=device) if on_gpu else recipe.rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=on_gpu or None,
    )
    if on_gpu and recipe.momentum > 0:  # a captured step must not be the first, which would set it instead of adding
        for parameter in network.parameters():
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser

"""One training step of one network, in one process or in each of those that ``torchrun`` starts.

It is written so that it can be captured: whatever changes on the way is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from rbue.batchnorm import update_bn
from rbue.call_sites import count_call, innermost, seed, uncounted
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.table import path_word
from rbue.errors import InvalidInput, RbueError, a_kind
from rbue.lab.methods.base import Loss, Method, TrainingProgress
from rbue.lab.processes import Rank
from rbue.lab.training.averaging import WeightAverage
from rbue.lab.training.batches import Batches, epoch_seed
from rbue.lab.training.recipe import Recipe

FEWEST = 8
"""Images of a smaller last batch that BatchNorm can normalise by: where a feature map has shrunk to 1x1, each is one
value of a channel. Two of them are always -1 and 1, and one step with them undoes what an epoch has taught."""


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
        rank: Rank | None = None,
    ) -> None:
        self.network, self.method, self.batches, self.recipe, self.run_seed = network, method, batches, recipe, run_seed
        self.rank = rank or Rank()
        if batches.batch < self.rank.world_size:
            raise InvalidInput(
                f"a batch of {batches.batch} cannot be shared by {self.rank.world_size} processes; use a larger one."
            )
        self.device = batches.images.device
        method.check_training(recipe.epochs, recipe.average)
        self.optimiser = _optimiser(network, method, recipe, self.device)
        self.learning_rates, self.noise = self._own_schedule()
        self.average = None if recipe.average is None else WeightAverage(network, recipe)
        self.plan = batches.plan(0)
        self.planned = 0, self.plan
        self.rows = torch.arange(batches.batch, device=self.device)
        self.numbers = self.rows.to(torch.int32)
        self.done = torch.zeros((), dtype=torch.int64, device=self.device)
        self.loss_sum = torch.zeros((), device=self.device)
        self.correct = torch.zeros((), dtype=torch.int64, device=self.device)
        self.checked = False
        self.forward: Callable[..., tuple[Loss, Tensor]] | None = None
        """A compiled form of :meth:`loss_at` to compute the loss. Not that method itself: a step that holds itself
        would keep its memory on the device until Python looks for cycles."""

    def _own_schedule(self) -> tuple[Tensor | None, Tensor | None]:
        """The learning rate of every step and the noise after it, where the method says what they are."""
        recipe, method, steps = self.recipe, self.method, len(self.batches)
        if method.learning_rate(recipe.learning_rate, recipe.epochs, 0.0) is None:
            return None, None
        times = [step / steps for step in range(recipe.epochs * steps)]
        rates = [method.learning_rate(recipe.learning_rate, recipe.epochs, at) or 0.0 for at in times]
        images = len(self.batches.images)
        noise = [
            method.weight_noise(rate, recipe.momentum, images, recipe.epochs, at)
            for rate, at in zip(rates, times, strict=True)
        ]
        return torch.tensor(rates, device=self.device), torch.tensor(noise, device=self.device) if any(noise) else None

    def learning_rate_at(self, epoch: int) -> float:
        """The learning rate with which an epoch, counted from 0, begins."""
        own = self.method.learning_rate(self.recipe.learning_rate, self.recipe.epochs, float(epoch))
        return self.recipe.learning_rate_at(epoch) if own is None else own

    def start_epoch(self, epoch: int) -> None:
        """Set everything that an epoch's number decides."""
        self.network.train()
        restart_randomness(self.network, self.run_seed, epoch, self.rank.index)
        if self.planned[0] != epoch:
            self.plan_ahead(epoch)
        self.plan.copy_(self.planned[1])
        self.done.fill_(epoch * len(self.batches))
        self.loss_sum.zero_()
        self.correct.zero_()
        self._set_learning_rate(self.learning_rate_at(epoch))
        if self.average is not None:
            self.average.start_epoch(epoch)

    def _set_learning_rate(self, learning_rate: float | Tensor) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = float(learning_rate)

    def _now(self, schedule: Tensor) -> Tensor:
        """The value of a schedule at the running step, without a GPU being waited for."""
        return schedule.gather(0, self.done.reshape(1))[0]

    def plan_ahead(self, epoch: int) -> None:
        """Draw the plan of an epoch before it starts."""
        self.planned = epoch, self.batches.plan(epoch)

    def loss_at(self, places: Tensor, partners: Tensor | None = None) -> tuple[Loss, Tensor]:
        """The loss and class scores of the images at some places of the epoch, and their labels.

        ``partners`` are the places of the images they are mixed with, if that are not the same ones in reverse.
        """
        x, y = self.batches.take(self.plan, places)
        others = None if partners is None else self.batches.take(self.plan, partners)
        x, target = self.batches.soften(self.plan, places, x, y, self.recipe.label_smoothing, others)
        fraction = self.done / (self.recipe.epochs * len(self.batches))
        with self._precision():
            return self.method.loss(self.network, x, target, TrainingProgress(fraction, len(self.batches.images))), y

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _own(self, rows: int) -> tuple[range, int]:
        """This process's part of the next ``rows`` images, and how many of it count.

        A process for which a last batch has no image takes one of another's, which counts for nothing: all processes
        have to take part in the step.
        """
        own = self.rank.rows(rows)
        return own or range(own.start, own.start + 1), len(own)

    def next_loss(self, rows: int, forward: Callable[..., tuple[Loss, Tensor]]) -> tuple[Loss, Tensor]:
        """What ``forward`` makes of this process's part of the next ``rows`` images of the epoch."""
        own, _ = self._own(rows)
        start = self.done % len(self.batches) * self.batches.batch
        places = [start + own.start + self.rows[: len(own)]]
        if self.plan.parts is not None and self.rank.world_size > 1:  # pairs are those of the whole batch
            places.append(start + rows - 1 - own.start - self.rows[: len(own)])
        with uncounted(self.network, self.numbers[own.start : own.stop]):
            try:
                return forward(*places)
            except ValueError as error:
                if len(own) > 1 or "more than 1 value per channel" not in str(error):
                    raise
                raise InvalidInput(
                    "BatchNorm cannot normalise a single image where its feature map has shrunk to 1x1; use a batch of "
                    "at least 2."
                ) from error

    def __call__(self, rows: int) -> None:
        """Train on the next ``rows`` images of the epoch."""
        _, counted = self._own(rows)
        found, y = self.next_loss(rows, self.forward or self.loss_at)
        if not self.checked:  # once, and outside of what is compiled
            self._check_loss(found, len(y))
        loss, logits = found
        self.optimiser.zero_grad(set_to_none=True)
        (loss * (counted * self.rank.world_size / rows)).backward()
        count_call(self.network)
        if self.learning_rates is not None:
            self._set_learning_rate(self._now(self.learning_rates))
        self.optimiser.step()
        if self.noise is not None:
            self._add_noise(self._now(self.noise))
        if self.average is not None:
            self.average.after_step()
        self.loss_sum += loss.detach() * counted
        self.correct += (logits.detach().argmax(1) == y).sum() * min(counted, 1)
        self.done += 1

    def _check_loss(self, found: Any, images: int) -> None:
        """Refuse what cannot be minimised or counted, as a method of a user's own may return."""
        loss, logits = found if isinstance(found, tuple | list) and len(found) == 2 else (None, None)
        if loss is None and logits is None:
            fault = a_kind(found)
        elif not isinstance(loss, Tensor) or not isinstance(logits, Tensor):
            fault = f"{a_kind(loss)} and {a_kind(logits)}"
        elif loss.shape:
            fault = f"a loss of shape {tuple(loss.shape)}"
        elif not loss.requires_grad:
            fault = "a loss without a gradient"
        elif logits.ndim != 2 or len(logits) != images:
            fault = f"logits of shape {tuple(logits.shape)} for {images} images"
        else:
            self.checked = True
            return
        raise RbueError(
            f"{self.method.name}.loss returned {fault}; it must return (loss, logits): one number to minimise, and a "
            "row of class scores for each image."
        )

    @torch.no_grad()
    def _add_noise(self, std: Tensor) -> None:
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * std)

    def batch_sizes(self) -> Iterator[int]:
        """The sizes of an epoch's batches; the last one may be smaller, and is trained on.

        Only a smaller one that leaves BatchNorm too few images is left out; other ones come last in the next epoch.
        Without BatchNorm the number of processes makes no difference.
        """
        images, batch = len(self.batches.images), self.batches.batch
        for start in range(0, images, batch):
            rows = min(batch, images - start)
            if start == 0 or rows == batch or rows >= self._least:
                yield rows

    @cached_property
    def _least(self) -> int:
        """The fewest images of a smaller last batch: for each process, or for all if BatchNorm sees those of all."""
        layers = [one for one in self.network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        if not layers:
            return 2
        whole = all(isinstance(one, nn.SyncBatchNorm) for one in layers)
        return max(FEWEST, self.rank.world_size) if whole else FEWEST * self.rank.world_size

    def epoch_means(self) -> tuple[float, float]:
        """Mean loss and training accuracy of the epoch so far; under mixup the label of the larger part counts."""
        sums = torch.stack([self.loss_sum.double(), self.correct.double()])
        if self.rank.world_size > 1:
            distributed.all_reduce(sums)
        loss, correct = sums.tolist()
        images = sum(self.batch_sizes())
        return loss / images, correct / images

    def end_epoch(self, epoch: int) -> None:
        """Take the weights at an epoch's end into the average; at the end of training, the average into the network.

        No step has seen those weights, so BatchNorm's statistics are estimated again: over one more epoch of training
        images, augmented as in training but not mixed, under the method's own randomness. Its plan and random numbers
        are those of the epoch that would come next. Every process does all of it, so that they end with the same
        network. Then the method takes what it needs of the network.
        """
        following = epoch + 1
        if self.average is not None:
            self.average.end_epoch(epoch)
        if self.average is not None and following == self.recipe.epochs:
            self.average.into_network()
            restart_randomness(self.network, self.run_seed, following)
            images = (x for x, _ in self._batches_of(following))
            with self._precision():
                update_bn(self.network, images, seed=epoch_seed(self.run_seed, following))
        batches = partial(self._batches_of, following)
        self.method.end_epoch(innermost(self.network), following, self.recipe.epochs, batches)

    def _batches_of(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and labels of an epoch, not mixed."""
        plan, start = self.batches.plan(epoch), 0
        for rows in self.batch_sizes():
            yield self.batches.take(plan, start + self.rows[:rows])
            start += rows

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Steps taken inside leave no trace."""
        tensors = [*self.network.parameters(), *self.network.buffers(), self.done, self.loss_sum, self.correct]
        tensors += [value for state in self.optimiser.state.values() for value in state.values() if value is not None]
        tensors += [] if self.average is None else self.average.tensors.values()
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
    _seed_torch(epoch_seed(fresh, rank) if rank else fresh)
    for path, module in innermost(network).named_modules():
        if CONVERSION in module.__dict__:
            seed(module, epoch_seed(fresh, path_word(path)) if path else fresh)


def _seed_torch(seed: int) -> None:
    """What ``torch.manual_seed`` does to the generators that training uses.

    That one also writes down its whole stack for every kind of device that is not there, which takes a millisecond: as
    long as an epoch of few images on a GPU.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _optimiser(network: nn.Module, method: Method, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    on_gpu = device.type == "cuda"
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in network.named_parameters():
        groups[name.rpartition(".")[2] in method.undecayed]["params"].append(parameter)
    optimiser = torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=torch.tensor(recipe.learning_rate, device=device) if on_gpu else recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=on_gpu or None,
    )
    if on_gpu and recipe.momentum > 0:  # a captured step must not be the first, which would set it instead of adding
        for parameter in (one for one in network.parameters() if one.requires_grad):
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser

"""Training batches: a data set held as bytes on the device, shuffled, cropped, flipped and normalised there.

What an epoch does depends only on the seed and the epoch's number, so a run can be continued at any epoch and sees the
same batches. The random numbers are drawn on the CPU, so every device sees the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.lab.training.recipe import whole_number
from rbue.random_stream import mix_int, seed_lanes

_LARGEST_PADDING = 4
"""In sides of an image; the usual 4 pixels suit every image."""


@dataclass(frozen=True)
class EpochPlan:
    """What an epoch does with each image, in the order it comes to them: its number, where it is cut, if it is flipped.

    Tensors on the device, so that a captured graph can read the plan of the epoch that is running.
    """

    order: Tensor
    shifts: Tensor
    flips: Tensor

    def copy_(self, other: EpochPlan) -> None:
        """Become another epoch's plan, in place."""
        for mine, given in ((self.order, other.order), (self.shifts, other.shifts), (self.flips, other.flips)):
            mine.copy_(given)


class Batches:
    """Epochs of ``(images, labels)`` from ``uint8`` images ``(N, H, W, C)``; a batch has at most all of them."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        batch: int,
        padding: int,
        flip: bool,
        seed: int,
        device: torch.device,
    ) -> None:
        _check_images(images, mean, std)
        self.images = torch.from_numpy(np.ascontiguousarray(images)).to(device)
        self.labels = torch.from_numpy(_class_numbers(labels, len(images))).to(device)
        self.normalise = Normalise(mean, std, device)
        self.batch = min(whole_number("batch", batch, 1), len(images))
        self.padding = _sensible_padding(padding, images)
        self.flip, self.seed = flip, seed

    def __len__(self) -> int:
        """Batches an epoch; the last one may be smaller, and is used."""
        return -(-len(self.images) // self.batch)

    def plan(self, number: int) -> EpochPlan:
        """The plan of one epoch, always the same for the same seed and number."""
        generator = torch.Generator("cpu").manual_seed(epoch_seed(self.seed, number))
        count = len(self.images)
        order = torch.randperm(count, generator=generator, device="cpu")
        shifts = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator, device="cpu")
        flips = torch.rand(count, generator=generator, device="cpu") < 0.5
        return EpochPlan(*(drawn.to(self.images.device) for drawn in (order, shifts.T.contiguous(), flips)))

    def take(self, plan: EpochPlan, places: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels that stand at these places of an epoch's plan."""
        numbers = plan.order[places]
        x = self.images[numbers]
        if self.padding:
            x = crop(x, self.padding, plan.shifts[places])
        if self.flip:
            x = torch.where(plan.flips[places][:, None, None, None], x.flip(2), x)
        return self.normalise(x), self.labels[numbers]


def _check_images(images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InvalidInput(f"images must be uint8 of shape (N, H, W, C), not {images.dtype} {images.shape}.")
    if not len(images):
        raise InvalidInput(f"there is nothing to train on: images of shape {images.shape} are none.")
    if not len(mean) == len(std) == images.shape[3]:
        raise InvalidInput(
            f"mean and std need one number a channel ({images.shape[3]}), not {len(mean)} and {len(std)}."
        )


def _class_numbers(labels: np.ndarray, count: int) -> np.ndarray:
    """One class of each image as ``int64``."""
    labels = np.asarray(labels)
    if labels.shape[:1] != (count,):
        raise InvalidInput(f"there are {count} images but {len(np.atleast_1d(labels))} labels.")
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise InvalidInput(
            f"labels must be whole numbers of shape ({count},), one class an image, not {labels.dtype} {labels.shape}."
        )
    if labels.min() < 0:
        raise InvalidInput(f"labels must be class numbers from 0, not {labels.min()}.")
    return labels.astype(np.int64, copy=False)


def _sensible_padding(padding: int, images: np.ndarray) -> int:
    """Refuse a padding from which hardly a crop would show its image, and which no memory can hold."""
    padding, side = whole_number("padding", padding, 0), max(images.shape[1:3])
    if padding > _LARGEST_PADDING * side:
        raise InvalidInput(
            f"padding must be at most {_LARGEST_PADDING * side} pixels, {_LARGEST_PADDING} times the side of the "
            f"images, not {padding}."
        )
    return padding


class Normalise:
    """Bytes ``(B, H, W, C)`` to zero mean and unit variance by channel, ``(B, C, H, W)`` in channels-last memory."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.scale = 1 / (255 * torch.tensor(std, device=device))
        self.shift = torch.tensor(mean, device=device) / torch.tensor(std, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        return (x.to(torch.float32) * self.scale - self.shift).permute(0, 3, 1, 2)


def crop(x: Tensor, padding: int, shifts: Tensor) -> Tensor:
    """Each image padded with zeros by ``padding`` and cut back at its own place ``shifts``, a row and a column."""
    count, height, width, _ = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, padding, padding, padding, padding))
    rows = shifts[:, 0, None] + torch.arange(height, device=x.device)
    columns = shifts[:, 1, None] + torch.arange(width, device=x.device)
    images = torch.arange(count, device=x.device)[:, None, None]
    return padded[images, rows[:, :, None], columns[:, None, :]]


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed of 63 bits for one epoch of a run; unlike sums, no two runs and epochs share one by accident."""
    first, second = (mix_int(lane ^ epoch) for lane in seed_lanes(seed))
    return (first >> 1) << 32 | second

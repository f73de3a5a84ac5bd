"""Training batches: a data set held as bytes on the device, shuffled, augmented and normalised there.

What an epoch does depends only on the seed and the epoch's number, so a run can be continued at any epoch and sees the
same batches. The random numbers are drawn on the CPU, so every device sees the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.lab.training.augmentation import add_noise, augmix, cutout
from rbue.lab.training.recipe import whole_number
from rbue.random_stream import mix_int, seed_lanes

_LARGEST_PADDING = 4
"""In sides of an image; the usual 4 pixels suit every image."""

_CUTOUT, _MIXUP, _NOISE, _AUGMIX, _PIXEL_NOISE = range(5)
"""Which random numbers of an epoch are whose: none depend on what else is on."""


@dataclass(frozen=True)
class EpochPlan:
    """What an epoch does with each image, in the order it comes to them: its number, where it is cut, if it is flipped.

    Tensors on the device, so that a captured graph can read the plan of the epoch that is running. What is off is None.

    Attributes:
        centres: of cutout, for each image.
        parts: of mixup, for each batch: the larger of two.
        images: of this epoch, by their numbers, where AugMix or noise has changed them.
    """

    order: Tensor
    shifts: Tensor
    flips: Tensor
    centres: Tensor | None = None
    parts: Tensor | None = None
    images: Tensor | None = None

    def copy_(self, other: EpochPlan) -> None:
        """Become another epoch's plan, in place."""
        for field in fields(self):
            mine = getattr(self, field.name)
            if mine is not None:
                mine.copy_(getattr(other, field.name))


class Batches:
    """Epochs of ``(images, labels)`` from ``uint8`` images ``(N, H, W, C)``; a batch has at most all of them.

    An image goes through AugMix, noise, crop, flip and cutout, as far as they are on; :class:`.Recipe` says what they
    are. ``classes`` may be more than there are labels of.
    """

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
        cutout: int = 0,
        mixup: float = 0.0,
        noise: float = 0.0,
        augmix: float = 0.0,
        classes: int | None = None,
    ) -> None:
        _check_images(images, mean, std)
        self.images = torch.from_numpy(np.ascontiguousarray(images)).to(device)
        self.labels = torch.from_numpy(_class_numbers(labels, len(images))).to(device)
        self.normalise = Normalise(mean, std, device)
        self.batch = min(whole_number("batch", batch, 1), len(images))
        self.padding = _sensible_padding(padding, images)
        self.flip, self.seed = flip, seed
        self.cutout = _sensible_cutout(cutout, images)
        self.mixup, self.noise, self.augmix = mixup, noise, augmix
        self.classes = int(self.labels.max()) + 1 if classes is None else classes

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
        order, shifts, flips = (drawn.to(self.images.device) for drawn in (order, shifts.T.contiguous(), flips))
        return EpochPlan(order, shifts, flips, self._centres(number), self._parts(number), self._changed(number))

    def _numbers(self, epoch: int, purpose: int) -> np.random.Generator:
        """Random numbers of one epoch for one purpose, apart from those of order, crops and flips."""
        return np.random.default_rng(epoch_seed(epoch_seed(self.seed, epoch), purpose))

    def _centres(self, epoch: int) -> Tensor | None:
        if not self.cutout:
            return None
        count, height, width, _ = self.images.shape
        drawn = self._numbers(epoch, _CUTOUT).integers(0, [height, width], (count, 2))
        return torch.from_numpy(drawn).to(self.images.device)

    def _parts(self, epoch: int) -> Tensor | None:
        if not self.mixup:
            return None
        drawn = self._numbers(epoch, _MIXUP).beta(self.mixup, self.mixup, len(self))
        # Each image of a pair is mixed with the other one, so that the smaller part is there all the same.
        return torch.from_numpy(np.maximum(drawn, 1 - drawn).astype(np.float32)).to(self.images.device)

    def _changed(self, epoch: int) -> Tensor | None:
        images = self.images
        if self.augmix:
            images = augmix(images, self._numbers(epoch, _AUGMIX), self.augmix)
        if self.noise:
            rng = self._numbers(epoch, _NOISE)
            std = rng.uniform(0, self.noise, len(images)) * (rng.random(len(images)) < 0.5)
            amounts = torch.from_numpy(std.astype(np.float32)).to(images.device)
            images = add_noise(images, amounts, epoch_seed(epoch_seed(self.seed, epoch), _PIXEL_NOISE))
        return None if images is self.images else images

    def take(self, plan: EpochPlan, places: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels that stand at these places of an epoch's plan."""
        numbers = plan.order[places]
        x = (self.images if plan.images is None else plan.images)[numbers]
        if self.padding:
            x = crop(x, self.padding, plan.shifts[places])
        if self.flip:
            x = torch.where(plan.flips[places][:, None, None, None], x.flip(2), x)
        x = self.normalise(x)
        if plan.centres is not None:
            x = cutout(x, self.cutout, plan.centres[places])
        return x, self.labels[numbers]

    def soften(
        self,
        plan: EpochPlan,
        places: Tensor,
        x: Tensor,
        y: Tensor,
        smoothing: float,
        others: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Images and targets of a batch under mixup and label smoothing; the labels themselves where both are off.

        Targets are the probability of each class, which cross-entropy takes in place of labels: it is linear in them,
        so that the loss is the mixture of the labels' losses. In mixup (Zhang et al., 2018) an image keeps the larger
        part of a pair, and takes the other from the image at its place counted from the end of the batch. ``others``
        are those images and labels if ``x`` is a process's part of a batch.
        """
        if plan.parts is None and not smoothing:
            return x, y
        target = self._probabilities(y, x.dtype, smoothing)
        if plan.parts is not None:
            part = plan.parts[places // self.batch][:, None]
            other = target.flip(0) if others is None else self._probabilities(others[1], x.dtype, smoothing)
            target = part * target + (1 - part) * other
            part = part[:, :, None, None]
            x = part * x + (1 - part) * (x.flip(0) if others is None else others[0])
        return x, target

    def _probabilities(self, y: Tensor, dtype: torch.dtype, smoothing: float) -> Tensor:
        """Smoothed labels, ``(B, classes)``."""
        target = (y[:, None] == torch.arange(self.classes, device=y.device)).to(dtype)
        return target * (1 - smoothing) + smoothing / self.classes


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


def _sensible_cutout(side: int, images: np.ndarray) -> int:
    """Refuse a square that would leave hardly a pixel of most images."""
    side, largest = whole_number("cutout", side, 0), max(images.shape[1:3])
    if side > largest:
        raise InvalidInput(f"cutout must be at most {largest} pixels, the side of the images, not {side}.")
    return side


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

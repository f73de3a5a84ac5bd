"""Augmented passes: every sample of an image sees it flipped, shifted or cropped in its own way.

An augmentation is a function ``augment(x, uniform) -> x`` of the rows of a pass, ``(rows, ...)``, and keeps their shape
and type. It changes each row by numbers of its own: ``uniform(n)`` has ``n`` of them for each row, ``(rows, n)``, in
``(0, 1)``. They come from the random stream, so sample ``k`` of image ``i`` sees the same picture whatever the batch
size, the device and the number of samples. Balanced samples have them in mirrored pairs, ``u`` and ``1 - u``: of two
samples one is flipped, and they are shifted to opposite sides. Of several inputs the first is augmented. Those of this
module move pixels, and are for networks that answer for an image as a whole.

Several are given as a list and are applied in turn, each with numbers of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue import random_stream
from rbue.errors import InvalidInput, warn, whole_number
from rbue.kernels import site_keys

__all__ = ["Augment", "Crop", "Flip", "Shift"]

Uniform = Callable[[int], Tensor]
Augment = Callable[[Tensor, Uniform], Tensor]
"""What :func:`rbue.predict` takes as ``augment``: a function of the rows of a pass and their uniform numbers."""

_PAIRS = random_stream.Cycle(2, -1.0, mirrored=True)


@dataclass(frozen=True)
class Flip:
    """Turn every second image around, left to right.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> Flip()(x, lambda n: torch.full((1, n), 0.2)).flatten()
    tensor([1., 0., 3., 2.])
    """

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Flip the rows whose number is below a half."""
        _check_images(x, self)
        return torch.where(uniform(1)[:, :, None, None] < 0.5, x.flip(3), x)


@dataclass(frozen=True)
class Shift:
    """Move an image by up to ``pixels`` each way, and fill what comes in from outside.

    ``fill`` is a value of the network's input, or one for each channel: 0 is the mean of images that are normalised.

    >>> x = torch.arange(1.0, 5).reshape(1, 1, 2, 2)
    >>> Shift(1)(x, lambda n: torch.full((1, n), 0.9)).flatten()  # a row down and a column to the right
    tensor([0., 0., 0., 1.])
    """

    pixels: int = 2
    fill: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        whole_number(self.pixels, "pixels")
        try:
            finite = bool(torch.as_tensor(self.fill, dtype=torch.float64).isfinite().all())
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise InvalidInput(f"fill is {self.fill!r}; give a finite number, or one for each channel.")

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Shift each row by whole pixels."""
        _check_images(x, self)
        count, channels, height, width = x.shape
        side = min(height, width)
        if self.pixels >= side:
            seen = f"moves images of {height}x{width} out of sight; shift by less, such as {max(1, side // 16)}"
            raise InvalidInput(f"a shift by {self.pixels} pixels {seen}.")
        exact = torch.as_tensor(self.fill, dtype=torch.float64, device="cpu").reshape(-1)
        fill = exact.to(x.dtype)
        if not x.is_floating_point() and not fill.double().equal(exact):
            raise InvalidInput(f"fill is {self.fill}, which {x.dtype} cannot hold; give a value of the images' type.")
        if len(fill) not in (1, channels):
            raise InvalidInput(f"fill is {self.fill} for images of {channels} channels; give one, or one for each.")
        edge, steps = self.pixels, 2 * self.pixels + 1
        size = count, height + 2 * edge, width + 2 * edge, channels
        outside = torch.stack([x.new_full((), value) for value in fill.tolist()])  # a GPU would wait for a copy
        padded = outside.expand(size).clone(memory_format=torch.contiguous_format)
        padded[:, edge:-edge, edge:-edge] = x.permute(0, 2, 3, 1)
        # Where the window lies in the padded image: moved to the left, it shows the image moved to the right.
        down, right = (steps - 1 - (uniform(2) * steps).long()).unbind(1)
        windows = padded.unfold(1, height, 1).unfold(2, width, 1)  # (count, steps, steps, channels, height, width)
        return windows[torch.arange(count, device=x.device), down, right]


@dataclass(frozen=True)
class Crop:
    """Cut a window out of an image and enlarge it to the old size, bilinearly.

    Its sides are those of the image times a number between ``smallest`` and 1, and it may lie anywhere.
    """

    smallest: float = 0.8

    def __post_init__(self) -> None:
        if not isinstance(self.smallest, Real) or not 0 < self.smallest <= 1:
            raise InvalidInput(f"smallest is a part of an image's side and must lie in (0, 1], not {self.smallest!r}.")

    def __call__(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Cut each row at a place of its own."""
        _check_images(x, self)
        size, across, down = uniform(3).unbind(1)
        side = self.smallest + (1 - self.smallest) * size
        free = 1 - side  # in units in which an image reaches from -1 to 1
        zero = torch.zeros_like(side)
        moves = [side, zero, free * (2 * across - 1), zero, side, free * (2 * down - 1)]
        grid = F.affine_grid(torch.stack(moves, 1).reshape(-1, 2, 3), list(x.shape), align_corners=False)
        images = x if x.is_floating_point() else x.float()
        found = F.grid_sample(images, grid.to(images.dtype), padding_mode="border", align_corners=False)
        return found if images is x else found.round().to(x.dtype)


def _check_images(x: Tensor, step: object) -> None:
    if x.dim() != 4:
        raise InvalidInput(f"{type(step).__name__} needs images of shape (B, C, H, W), not {tuple(x.shape)}.")


class Augmentation:
    """Augmentations under a seed, applied to numbered samples of numbered images."""

    def __init__(
        self, augment: Augment | Sequence[Augment], seed: int, device: torch.device, draws: str = "independent"
    ) -> None:
        self.steps = tuple(augment) if isinstance(augment, (list, tuple)) else (augment,)
        for step in self.steps:
            if isinstance(step, type) or not _takes_two(step):  # Flip for Flip()
                raise InvalidInput(
                    f"augment must be a function of images and uniform numbers, augment(x, uniform), such as "
                    f"rbue.augment.Flip(), or a list of them, not {step!r}."
                )
        self.balanced = draws == "balanced"
        self.state = random_stream.augmented_state(random_stream.seed_state(seed, device))

    def warn_of_unmoved(self, images: Tensor, others: Sequence[Tensor]) -> None:
        """Say so if another input looks as if it belonged to the pixels of the images, such as a mask or a depth."""
        step = self._moving()
        if step is not None and any(x.dim() > 2 and x.shape[-2:] == images.shape[-2:] for x in others):
            warn(
                f"{step!r} moves the pixels of the first input alone; another one has the same height and width and "
                "keeps its own."
            )

    def refuse_maps(self, images: Tensor, out: Tensor) -> None:
        """Raise if pixels are moved and the network answers for each of them: means would mix places."""
        step = self._moving()
        if step is None or images.dim() != 4 or out.dim() < 3 or out.shape[2:].numel() == 1:
            return
        if out.dim() > 3 or out.shape[-2:] == images.shape[-2:]:
            raise InvalidInput(
                f"{step!r} moves the pixels of an image, and the network answers for each of them, with "
                f"{tuple(out.shape[1:])} an image; leave it out, or augment by what changes colours alone."
            )

    def _moving(self) -> Augment | None:
        return next((step for step in self.steps if isinstance(step, (Flip, Shift, Crop))), None)

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Tensor:
        """The rows ``x`` as these samples of these images see them; one sample number may stand for all."""
        cycles, turns = random_stream.turns(samples, _PAIRS) if self.balanced else (samples, None)
        numbers = torch.arange(len(self.steps), dtype=torch.int32, device=images.device)
        keys = site_keys(self.state, cycles, images, numbers)
        for number, step in enumerate(self.steps):
            try:
                found = step(x, _uniform(keys[:, number], turns))
            except (AttributeError, LookupError, TypeError) as error:  # as kornia's, whose second argument is a dict
                raise InvalidInput(
                    f"{step!r} failed ({type(error).__name__}: {error}); it was called as augment(x, uniform), where "
                    "uniform(n) gives n numbers for each row; write a function of these two around it."
                ) from error
            if _kind(found) != _kind(x):
                raise InvalidInput(f"augment must keep images of {_kind(x)}, but {step!r} gave {_kind(found)}.")
            x = found
        return x


def _kind(x: object) -> str:
    if isinstance(x, Tensor):
        return f"shape {tuple(x.shape)} and {x.dtype} on {x.device}"
    return f"{type(x).__name__}, called as augment(x, uniform)"


def _takes_two(step: Augment) -> bool:
    """Whether it is a function that can be called with two arguments, or does not tell."""
    try:
        inspect.signature(step.forward if isinstance(step, nn.Module) else step).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _uniform(keys: Tensor, turns: Tensor | None) -> Uniform:
    """The numbers of rows with these keys, ``(2, rows)``."""

    def uniform(count: int) -> Tensor:
        table = random_stream.element_table(count, keys.device)
        words = random_stream.bits(table, *keys.unsqueeze(-1))
        if turns is not None:
            words = random_stream.turned(words, turns.unsqueeze(-1), mirrored=True)
        return 0.5 + random_stream.odd_words(words) / (1 << 24)

    return uniform

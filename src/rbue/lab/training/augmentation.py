"""Augmentations beyond crops and flips, on any device.

:func:`cutout` is of a batch, inside a step. :func:`augmix` and :func:`add_noise` are of all images of an epoch, as
bytes ``(N, H, W, C)``, before it starts: each operation runs once over the images that drew it, and a step, captured or
not, costs nothing more.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rbue.random_stream import absorb, bits, element_table, odd_words, seed_state

CHAINS, DEPTH, SEVERITY = 3, 3, 3
"""Of AugMix: chains mixed, the most operations of one, and the largest strength in tenths of the strongest."""

_PIXELS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Of the images that are changed at once: what is written on the way is a few times as large."""

_POINT_OPERATIONS, _OPERATIONS = 4, 9  # autocontrast, equalize, posterize, solarize; then those that move pixels
_ROTATE, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = range(_POINT_OPERATIONS, _OPERATIONS)


def cutout(x: Tensor, side: int, centres: Tensor) -> Tensor:
    """A square of zeros in each image ``(B, C, H, W)``, around its own row and column (DeVries and Taylor, 2017).

    Of normalised images zero is the mean colour. The centre is any pixel, so that squares are cut off at the border. Of
    an even side, it is the pixel after the middle.
    """
    inside = []
    for axis in (0, 1):
        offset = torch.arange(x.shape[2 + axis], device=x.device) - (centres[:, axis, None] - side // 2)
        inside.append((offset >= 0) & (offset < side))
    rows, columns = inside
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def add_noise(images: Tensor, std: Tensor, seed: int) -> Tensor:
    """Gaussian noise with a standard deviation for each image, as a part of the range of bytes; rounded to bytes.

    The noise is a hash of the seed and the numbers of image and value, so every device adds the same. Images with a
    standard deviation of 0 stay as they are.
    """
    out, table = images.clone(), element_table(math.prod(images.shape[1:]), images.device)
    lanes = seed_state(seed, images.device)[:, None]
    for piece in torch.nonzero(std).squeeze(1).split(_images_at_once(images)):
        k1, k2 = absorb(lanes, piece.to(torch.int32)[None])
        uniform = odd_words(bits(table, k1[:, None], k2[:, None])) / (1 << 23)  # on (-1, 1)
        noise = torch.special.erfinv(uniform) * (255 * math.sqrt(2) * std[piece, None])
        out[piece] = _to_bytes(images[piece] + noise.view(-1, *images.shape[1:]))
    return out


def augmix(images: Tensor, rng: np.random.Generator, part: float = 1.0) -> Tensor:
    """AugMix without its consistency loss (Hendrycks et al., 2020): an image mixed with three changed forms of it.

    Each form is a chain of one to three operations: autocontrast, equalize, posterize, solarize, rotate, shear and
    translate by rows or columns. None of them is a corruption of CIFAR-10-C. The forms are mixed with Dirichlet
    weights, and what comes of it with the image by a uniform weight, Beta(1, 1). Each image is changed with the
    probability ``part``.
    """
    count = len(images)
    operations = rng.integers(0, _OPERATIONS, (count, CHAINS, DEPTH))
    operations[np.arange(DEPTH) >= rng.integers(1, DEPTH + 1, (count, CHAINS, 1))] = -1  # past the end of a chain
    strengths = rng.uniform(0.1, SEVERITY, operations.shape) / 10
    strengths *= rng.choice([-1, 1], operations.shape)
    shares = rng.beta(1, 1, (count, 1)) * rng.dirichlet([1] * CHAINS, count)
    if part < 1:
        shares[rng.random(count) >= part] = 0
    weights = torch.from_numpy(shares.astype(np.float32)).to(images.device)[..., None, None, None]
    out = torch.empty_like(images)
    size = _images_at_once(images)
    for start in range(0, count, size):
        piece = slice(start, start + size)
        mixed = images[piece] * (1 - weights[piece].sum(1))
        for chain in range(CHAINS):
            x = images[piece].clone()
            for step in range(DEPTH):
                _apply_(x, operations[piece, chain, step], strengths[piece, chain, step])
            mixed += weights[piece, chain] * x
        out[piece] = _to_bytes(mixed)
    return out


def _images_at_once(images: Tensor) -> int:
    return max(1, _PIXELS.get(images.device.type, _PIXELS["cpu"]) // math.prod(images.shape[1:3]))


def _to_bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


def _apply_(x: Tensor, operations: np.ndarray, strengths: np.ndarray) -> None:
    """Change each image in place by its own operation and strength, from -1 to 1; operation -1 is none."""
    for operation in range(_POINT_OPERATIONS + 1):
        moves = operation == _POINT_OPERATIONS  # all that move pixels are one sampling
        chosen = np.flatnonzero(operations >= operation if moves else operations == operation)
        if not len(chosen):
            continue
        places = torch.from_numpy(chosen).to(x.device)
        if moves:
            x[places] = affine(x[places], _affine_maps(operations[chosen], strengths[chosen], x.shape[1:3]))
        else:
            strength = torch.from_numpy(np.abs(strengths[chosen])).to(x.device)[:, None, None, None]
            x[places] = (autocontrast, equalize, posterize, solarize)[operation](x[places], strength)


def autocontrast(x: Tensor, _: Tensor | None = None) -> Tensor:
    """Each channel stretched to the whole range of bytes; one of a single value stays."""
    low, high = (extreme(x, (1, 2)).to(torch.float32)[:, None, None] for extreme in (torch.amin, torch.amax))
    return torch.where(high > low, _to_bytes((x - low) * (255 / (high - low).clamp(min=1))), x)


def equalize(x: Tensor, _: Tensor | None = None) -> Tensor:
    """Each channel with as even a histogram as a table of its values can give; one of hardly any values stays."""
    count, height, width, channels = x.shape
    values = x.permute(0, 3, 1, 2).reshape(count * channels, height * width).to(torch.int64)
    histogram = torch.zeros(count * channels, 256, dtype=torch.int64, device=x.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    largest = histogram.gather(1, values.amax(1, keepdim=True))
    step = (height * width - largest) // 255
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    equal = torch.where(step > 0, table.gather(1, values), values)
    return equal.to(torch.uint8).view(count, channels, height, width).permute(0, 2, 3, 1)


def posterize(x: Tensor, strength: Tensor) -> Tensor:
    """The highest bits of each value: four, and fewer with strength."""
    lost = (4 + (4 * strength).floor()).to(torch.int64)
    return (x >> lost << lost).to(torch.uint8)


def solarize(x: Tensor, strength: Tensor) -> Tensor:
    """Values from a threshold on are inverted; it falls with strength from 256."""
    return torch.where(x < 256 - (256 * strength).floor(), x, 255 - x)


def affine(x: Tensor, maps: np.ndarray) -> Tensor:
    """Each image sampled, bilinearly, where its map ``(2, 3)`` sends the pixels; outside is zero.

    A map takes ``(column, row, 1)`` of a pixel, counted from the middle of the image, to where its value comes from.
    """
    _, height, width, _ = x.shape
    to_unit = np.array([[1, height / width, 2 / width], [width / height, 1, 2 / height]])  # torch's range is -1 to 1
    theta = torch.from_numpy((maps * to_unit).astype(np.float32)).to(x.device)
    planes = x.permute(0, 3, 1, 2).to(torch.float32)
    grid = F.affine_grid(theta, list(planes.shape), align_corners=False)
    return _to_bytes(F.grid_sample(planes, grid, align_corners=False)).permute(0, 2, 3, 1)


def _affine_maps(operations: np.ndarray, strengths: np.ndarray, size: torch.Size) -> np.ndarray:
    """Up to 30 degrees, a slope of 0.3 or whole pixels of a third of the side, times the strength."""
    maps = np.tile(np.eye(2, 3), (len(operations), 1, 1))
    for operation, row, column, largest in (
        (_SHEAR_X, 0, 1, 0.3),
        (_SHEAR_Y, 1, 0, 0.3),
        (_TRANSLATE_X, 0, 2, size[1] / 3),
        (_TRANSLATE_Y, 1, 2, size[0] / 3),
    ):
        chosen = operations == operation
        amounts = strengths[chosen] * largest
        maps[chosen, row, column] = np.trunc(amounts) if column == 2 else amounts
    turned = operations == _ROTATE
    maps[turned, :, :2] = rotation(30 * strengths[turned])
    return maps


def rotation(degrees: np.ndarray) -> np.ndarray:
    """The maps of :func:`affine`, without their last column, that turn images clockwise as they are seen."""
    angle = np.deg2rad(degrees)
    return np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)

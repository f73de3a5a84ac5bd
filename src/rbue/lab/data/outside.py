"""Images from elsewhere, as the networks of a run take them: without its classes, in its size and channels.

Classes that two sets share are left out. Between TinyImageNet and CIFAR they are listed, with the reasons, in
``sets/tiny_imagenet_overlaps.txt``. CIFAR-10 and CIFAR-100 were made to have none in common, and SVHN and Fashion-MNIST
share none with photographs. Any other two sets are compared by their class names. Where both have just the same, as
for digits of another source, nothing is left out: there the pictures differ, not the classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from rbue.errors import InvalidInput
from rbue.lab.data import registry
from rbue.lab.data.folder import folder_of
from rbue.lab.data.images import Bytes, ImageSet, blocks, grey
from rbue.lab.data.store import load

_BLOCK = 16 << 20
_TINY = "tiny-imagenet"
USUAL = {"cifar10": (("cifar100", _TINY), ("svhn",)), "cifar100": (("cifar10", _TINY), ("svhn",))}
"""Sets near to one and far from it, where nobody names others. Those of CIFAR are the usual ones (Zhang et al., OpenOOD
v1.5: Enhanced Benchmark for Out-of-Distribution Detection, 2023, with more far ones)."""


@dataclass(frozen=True)
class Outside:
    """Images from elsewhere.

    Attributes:
        images: what networks take; its variant says what was changed.
        left_out: classes whose images were left out, because the set inside has them too.
    """

    images: ImageSet
    left_out: tuple[str, ...]


def outside(name: str, inside: ImageSet, most: int | None = None) -> Outside:
    """The test images of the set ``name`` for networks of ``inside``, at most so many of them, evenly spaced."""
    if _lies_in(name, inside.name):
        raise InvalidInput(
            f"{name} is the data set that the run was trained on, or lies in it; choose sets from elsewhere."
        )
    images = load(name, "test")
    shared = shared_classes(images, inside)
    kept = np.flatnonzero(~np.isin(images.labels, sorted(shared)))
    if not len(kept):
        raise InvalidInput(f"{name} has only classes that {inside.name} has too; choose sets with others.")
    chosen = images if not shared else images.take(kept, "test", None)
    fitted = like(at_most(chosen, most), inside)
    return Outside(fitted, tuple(images.classes[label] for label in sorted(shared)))


def at_most(images: ImageSet, most: int | None) -> ImageSet:
    """So many of the images, evenly spaced, because sets may be sorted by class."""
    if most is None or len(images) <= most:
        return images
    which = np.arange(most, dtype=np.int64) * len(images) // most
    return replace(images.take(which, images.split, images.held_out), variant=f"{images.variant}, {most} of them")


def shared_classes(images: ImageSet, inside: ImageSet) -> set[int]:
    """The labels in ``images`` of classes that ``inside`` has too."""
    if {images.name, inside.name} == {"cifar10", "cifar100"}:
        return set()
    tiny, other = (images, inside) if images.name == _TINY else (inside, images)
    listed = _overlaps().get(other.name, []) if tiny.name == _TINY else []
    if listed:
        codes = registry.get(_TINY).codes
        if images.name == _TINY:
            return {codes.index(code) for _, code in listed}
        return {images.classes.index(name) for name, _ in listed}
    known, names = ([_plain(name) for name in one.classes] for one in (inside, images))
    return set() if set(names) == set(known) else {label for label, name in enumerate(names) if name in known}


def _lies_in(name: str, other: str) -> bool:
    """Whether a set is another one or a part of it: a folder can be written in many ways, and its images scaled."""
    if not name.startswith(registry.FOLDER_PREFIX) or not other.startswith(registry.FOLDER_PREFIX):
        return name == other
    return folder_of(name).is_relative_to(folder_of(other))


def _plain(name: str) -> str:
    return name.replace("_", " ").strip().lower()


@cache
def _overlaps() -> dict[str, list[tuple[str, str]]]:
    """By the name of a set, its classes and the WordNet codes of TinyImageNet that are kinds of them."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = Path(__file__).with_name("sets").joinpath("tiny_imagenet_overlaps.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            name, kind, code, _ = line.split(" ", 3)
            found.setdefault(name, []).append((kind.replace("_", " "), code))
    return found


def like(images: ImageSet, inside: ImageSet) -> ImageSet:
    """Images in the size and channels of another set, to be normalised as those.

    Sizes change by antialiased bilinear interpolation: a triangle as wide as the pixels of the smaller image.
    """
    pixels, variant = images.images, images.variant
    channels, wanted = pixels.shape[3], inside.images.shape[3]
    if channels > wanted:
        pixels, variant = grey(pixels), f"{variant}, as grey"
    elif channels < wanted:
        pixels, variant = np.repeat(pixels, wanted, 3), f"{variant}, in {wanted} channels"
    before, size = pixels.shape[1:3], inside.images.shape[1:3]
    if before != size:
        pixels = resized(pixels, (size[0], size[1]))
        variant += f", resized from {before[0]}x{before[1]} to {size[0]}x{size[1]} (antialiased bilinear)"
    return replace(images, images=pixels, variant=variant, mean=inside.mean, std=inside.std)


def resized(images: Bytes, size: tuple[int, int]) -> Bytes:
    """Images ``(N, H, W, C)`` in another height and width."""
    out = np.empty((len(images), *size, images.shape[3]), dtype=np.uint8)
    start = 0
    for block in blocks(images, _BLOCK):
        x = torch.from_numpy(np.ascontiguousarray(block)).permute(0, 3, 1, 2).float()
        x = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
        out[start : start + len(block)] = x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        start += len(block)
    return out


def short_name(name: str) -> str:
    """A set as a heading: of a folder its own name, since the way to it means nothing elsewhere.

    >>> short_name("svhn"), short_name("folder:photos/textures"), short_name("folder:textures:32")
    ('svhn', 'textures', 'textures:32')
    """
    return Path(name.removeprefix(registry.FOLDER_PREFIX)).name

"""Augmented passes of any method, named by a short text: ``flip``, ``shift:2``, ``crop:0.8``, or several of them.

Every method gets them in the same way, so that comparisons stay fair: sample ``k`` sees the images as sample ``k`` of
:func:`rbue.predict` does. A method with ``N`` samples and no more starts again with the first, on other versions of the
images: sample ``k`` of an ensemble is member ``k mod N``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from rbue.augment import Augment, Augmentation, Crop, Flip, Shift
from rbue.errors import InvalidInput, did_you_mean
from rbue.sampling.collect import SampleStream

_NUMBERS: dict[str, Any] = {"flip": None, "shift": 2, "crop": 0.8}
"""The augmentations that can be named, each with its number if that is left out; a flip has none."""
_MAKE: dict[str, Callable[[Any, Sequence[float]], Augment]] = {
    "flip": lambda _, __: Flip(),
    "shift": lambda pixels, black: Shift(pixels, tuple(black)),
    "crop": lambda smallest, _: Crop(smallest),
}


def parse_augment(text: str, black: Sequence[float] = (0.0,)) -> list[Augment]:
    """The augmentations that a text names; ``black`` is what a black pixel is to the network, as in training's crops.

    >>> parse_augment("flip,shift:2")
    [Flip(), Shift(pixels=2, fill=(0.0,))]
    """
    return [_MAKE[name](number, black) for name, number in _named(text)]


def canonical(text: str) -> str:
    """The text that results are kept under.

    >>> canonical(" flip, shift"), canonical("crop:0.80"), canonical("")
    ('flip,shift:2', 'crop:0.8', '')
    """
    parse_augment(text)
    return ",".join(name if number is None else f"{name}:{number}" for name, number in _named(text))


def _named(text: str) -> Iterator[tuple[str, Any]]:
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, value = part.partition(":")
        if name not in _NUMBERS:
            raise InvalidInput(
                f"there is no augmentation {name!r}{did_you_mean(name, _NUMBERS)}; there are {', '.join(_NUMBERS)}."
            )
        number = _NUMBERS[name]
        if colon:
            try:
                number = type(number)(value)
                _MAKE[name](number, ())
            except (TypeError, ValueError):
                raise InvalidInput(
                    f"{part!r} is no augmentation; write flip, shift:2 (pixels, from 1 on) or crop:0.8 (a part of the "
                    "sides, up to 1)."
                ) from None
        yield name, number


def augmented(stream: SampleStream, augmentation: Augmentation, limit: int | None) -> SampleStream:
    """The samples of a stream, each on images of its own; ``limit`` is how many the stream has."""

    def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        for place in range(len(samples)):
            one = samples[place : place + 1]
            rows = augmentation(x, one, images)
            for batch, _, out in stream(rows, one if limit is None else one % limit, images):
                yield batch, slice(place, place + 1), out

    return draw

"""The scikit-learn digits as 16x16 colour images: a set that needs no download and suits networks for RGB.

Made from :mod:`rbue.lab.data.sets.digits`, with its split. Each 8x8 image is doubled by bilinear interpolation and
painted in a light colour on a dark ground. The two colours are drawn for every image on its own, so they say nothing
about the class: what is to be learnt is still the shape. All arithmetic is exact, so the bytes are the same everywhere.
A small form holds the first images of every class only: `rbue paper run --quick` measures 19 corruptions on it in
minutes.

It exists to try things end to end on a CPU. Results on it say nothing about CIFAR.
"""

from collections.abc import Callable

import numpy as np

from rbue.lab.data.registry import Chunk, DataSet, Published, official, register
from rbue.lab.data.sets.digits import read_digits

DARKEST_INK, LIGHTEST_GROUND = 160, 96
SEEDS = {"train": 0, "test": 1}
FEW = {"train": 20, "test": 10}
"""Images of each class in the small form."""


def _read(split: str) -> Chunk:
    digits, labels = read_digits(split)
    ink = _doubled(np.rint(digits[..., 0] / 255 * 16).astype(np.int64))
    random = np.random.RandomState(SEEDS[split])  # numpy keeps this stream unchanged
    ground = random.randint(0, LIGHTEST_GROUND, (len(ink), 1, 1, 3))
    light = random.randint(DARKEST_INK, 256, (len(ink), 1, 1, 3))
    painted = (ground * 256 + (light - ground) * ink[..., None] + 128) // 256
    return painted.astype(np.uint8), labels


def _doubled(ink: np.ndarray) -> np.ndarray:
    """Twice the height and width, with weights of 3/4 and 1/4 towards the neighbour: 0..16 becomes 0..256."""
    for axis in (1, 2):
        last = ink.shape[axis] - 1
        before = np.take(ink, [0, *range(last)], axis)
        after = np.take(ink, [*range(1, last + 1), last], axis)
        pairs = np.stack([3 * ink + before, 3 * ink + after], axis + 1)
        ink = pairs.reshape([2 * size if place == axis else size for place, size in enumerate(ink.shape)])
    return ink


def _read_few(split: str) -> Chunk:
    images, labels = _read(split)
    first = np.sort(np.concatenate([np.flatnonzero(labels == digit)[: FEW[split]] for digit in range(10)]))
    return images[first], labels[first]


def _register(name: str, title: str, read: Callable[[str], Chunk], train: Published, test: Published) -> None:
    register(
        DataSet(
            name=name,
            title=title,
            classes=tuple("0123456789"),
            shape=(16, 16, 3),
            mean=(0.3734, 0.3782, 0.379),
            std=(0.2235, 0.2207, 0.2226),
            splits=official(train, test),
            embedded=read,
        )
    )


_register(
    "colour-digits",
    "Colour digits: the digits at 16x16 in random colours, 10 classes; comes with scikit-learn",
    _read,
    train=Published(
        1442,
        "55bfdae441c282a63fe729c7478a7f2bd29fc9655b2499abd563ffb8c76f5e94",
        "a2e9b5aad772889452f916b3583eb978fb46384ff7116fda4a634c7c4caa4586",
    ),
    test=Published(
        355,
        "e9fbc3a88043e9d67740f3897322f6b21cf2c2af58105521f5f7e4365b3146ce",
        "ae868ceb6e5b065cfdba65e639e01c0dbb262d32bea34ba86eab9eb6eddd8d59",
    ),
)
_register(
    "colour-digits-few",
    "Few colour digits: the first 20 and 10 colour digits of each class, to try things in minutes",
    _read_few,
    train=Published(
        200,
        "102c2b8136a6b72abbce615f27cfe902c5947525602c0b55f2ef89c1d8bf0268",
        "2176fd5565c08b34458d9a7a3d19c2792005ce2d0f120e3ba21df6b0e2ab599a",
    ),
    test=Published(
        100,
        "c6cc8363c236ae39acde5fe4067105b19e22f84eb5f6184b0680b8c93d735000",
        "f1a92c077af62adec4845bad437715e5076dc41d9c7192c0c676d9e62431023f",
    ),
)

"""The 19 corruptions by name, each with its five severities for small and for larger images."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rbue.errors import InvalidInput, did_you_mean
from rbue.lab.data.images import Bytes

# The published files carry these names. A corruption's place in this list is part of its random key: only append.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "speckle_noise",
    "defocus_blur",
    "gaussian_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "spatter",
    "brightness",
    "contrast",
    "saturate",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
# Published beside the 15 main ones, and left out of averages by some papers.
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = (1, 2, 3, 4, 5)
CIFAR = "cifar"
TINY_IMAGENET = "tiny-imagenet"
CIFAR_UP_TO = 48  # pixels: the longest side that gets CIFAR's constants

Constants = tuple[float, ...]
Damage = Callable[..., Bytes]


@dataclass(frozen=True)
class Corruption:
    """A corruption: what it does to a :class:`~rbue.lab.corruptions.batch.Batch`, and with which constants.

    Attributes:
        name: As the published files call it.
        damage: ``damage(batch, *constants)`` gives the damaged pixels.
        table: By set of constants (``cifar``, ``tiny-imagenet``), one tuple a severity.
        threaded: Whether threads speed it up; not if it is thousands of short calls that wait for Python's lock.
    """

    name: str
    damage: Damage
    table: dict[str, tuple[Constants, ...]]
    threaded: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the constants are called."""
        return tuple(inspect.signature(self.damage).parameters)[1:]

    def constants(self, severity: int, side: int, given: str | float | Sequence[float] | None) -> Constants:
        """The constants to use: the table's for a longest side, those of a named set, or the caller's own."""
        if given is None:
            given = CIFAR if side <= CIFAR_UP_TO else TINY_IMAGENET
        if isinstance(given, str):
            if given not in self.table:
                raise InvalidInput(
                    f"there are no constants called {given!r}{did_you_mean(given, self.table)}; "
                    f"known are {' and '.join(map(repr, self.table))}, or give a tuple ({', '.join(self.parameters)})."
                )
            return self.table[given][severity - 1]
        own = _as_tuple(given)
        numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in own)
        if len(own) != len(self.parameters) or not numbers:
            raise InvalidInput(
                f"{self.name} takes {len(self.parameters)} finite numbers ({', '.join(self.parameters)}), "
                f"got {given!r}."
            )
        return own


_FOUND: dict[str, Corruption] = {}


def corruption(cifar: Sequence[Any], tiny_imagenet: Sequence[Any], threaded: bool = True) -> Callable[[Damage], Damage]:
    """Registers a function under its own name with its constants for severities 1 to 5."""

    def register(damage: Damage) -> Damage:
        name = damage.__name__
        assert name in CORRUPTIONS, name
        assert len(cifar) == len(tiny_imagenet) == len(SEVERITIES), name
        table = {CIFAR: tuple(map(_as_tuple, cifar)), TINY_IMAGENET: tuple(map(_as_tuple, tiny_imagenet))}
        _FOUND[name] = Corruption(name, damage, table, threaded)
        return damage

    return register


def find(name: str) -> Corruption:
    """The corruption of a name.

    Raises:
        InvalidInput: No such corruption; the message suggests the nearest name.
    """
    if name not in CORRUPTIONS:
        raise InvalidInput(
            f"there is no corruption called {name!r}{did_you_mean(str(name), CORRUPTIONS)}; "
            f"known are {', '.join(CORRUPTIONS)}."
        )
    return _FOUND[name]


def check_severity(severity: int) -> int:
    """Refuse a severity other than 1 to 5."""
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InvalidInput(f"A severity is 1, 2, 3, 4 or 5, got {severity!r}; severity 0 is the clean image.")
    return int(severity)


def _as_tuple(value: float | Sequence[float]) -> Constants:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)  # type: ignore[return-value]

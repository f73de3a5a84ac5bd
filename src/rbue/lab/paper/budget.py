"""How long to work: a text such as 25m, and a clock that says when it is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from rbue.errors import InvalidInput

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")

Clock = Callable[[], float]


def parse_duration(text: str) -> float:
    """Seconds in a text such as ``90s``, ``25m``, ``1h`` or ``1h30m``.

    >>> parse_duration("90s"), parse_duration("25m"), parse_duration("1h30m")
    (90.0, 1500.0, 5400.0)
    """
    plain = text.strip().lower().replace(" ", "")
    parts = _PART.findall(plain)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(map("".join, parts)) != plain or seconds <= 0:
        raise InvalidInput(f"--time-budget must be a time such as 90s, 25m or 1h30m, not {text!r}.")
    return seconds


class TimeBudget:
    """Time that begins to run when it is made; None never ends."""

    def __init__(self, seconds: float | None = None, clock: Clock = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._start = clock()

    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._start

    def over(self) -> bool:
        """Whether nothing new should be begun."""
        return self.seconds is not None and self.spent() >= self.seconds

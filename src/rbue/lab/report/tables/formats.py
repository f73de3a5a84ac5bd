"""How numbers are written in tables."""

from __future__ import annotations


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.2f}\u00a0%"


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{'−' if difference < 0 else '+'}{abs(100 * difference):.2f}"


def whole(value: float) -> str:
    """A whole number with commas between thousands."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    r"""Seconds as people write them.

    >>> duration(8.3), duration(125), duration(3725)
    ('8.3\xa0s', '2:05', '1:02:05')
    """
    if seconds < 59.95:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""Cards: an image with what was said about it, and bars of class probabilities with their spread."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from rbue.errors import InvalidInput


@dataclass(frozen=True)
class Bar:
    """One class: its mean probability and, where there are samples, the range most of them lie in."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    marked: bool = False


@dataclass(frozen=True)
class Card:
    """One image.

    Attributes:
        pixels: uint8, ``(H, W, C)`` or ``(H, W)``.
        alt: what is on it and what was said about it.
        title: a few words below it.
        facts: a quieter line.
        bars: its most probable classes.
        good: whether the answer was right; None if that is not the question.
    """

    pixels: ArrayLike
    alt: str
    title: str
    facts: str = ""
    bars: Sequence[Bar] = ()
    good: bool | None = None

    def html(self) -> str:
        """As a list item."""
        verdict = {True: '<span class="right">✓ right</span>', False: '<span class="wrong">✗ wrong</span>', None: ""}
        bars = "".join(_bar(bar) for bar in self.bars)
        return (
            f'<li class="card"><img src="{png_uri(self.pixels)}" alt="{escape(self.alt)}">'
            f'<div><p class="card-title">{escape(self.title)} {verdict[self.good]}</p>'
            f'<p class="facts">{escape(self.facts)}</p>'
            + (f'<ul class="bars">{bars}</ul>' if bars else "")
            + "</div></li>"
        )


@dataclass(frozen=True)
class Cards:
    """Cards side by side under a small heading."""

    title: str
    cards: Sequence[Card]

    def html(self, name: str) -> str:
        """As a list."""
        inside = "".join(card.html() for card in self.cards)
        return f'<p class="cards-title" id="{name}-title">{escape(self.title)}</p>' + (
            f'<ul class="cards" aria-labelledby="{name}-title">{inside}</ul>'
        )

    def markdown(self) -> str:
        """Nothing: a Markdown file cannot hold it."""
        return ""

    def latex(self, name: str) -> str:
        """Nothing: a LaTeX file cannot hold it."""
        return ""


def png_uri(pixels: ArrayLike) -> str:
    """Pixels as an address that contains the image itself."""
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.size == 0:
        raise InvalidInput(f"an image must be uint8 of shape (H, W, C), not {array.dtype} {array.shape}.")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _bar(bar: Bar) -> str:
    spread, said = "", ""
    if bar.low is not None and bar.high is not None:
        spread = f'<i style="left:{100 * bar.low:.1f}%;width:{100 * (bar.high - bar.low):.1f}%"></i>'
        said = f'<span class="unseen">, most samples from {100 * bar.low:.0f} to {100 * bar.high:.0f} %</span>'
    mark = ' class="marked"' if bar.marked else ""
    return (
        f'<li{mark}><span class="bar-label">{escape(bar.label)}</span>'
        f'<span class="track" aria-hidden="true"><b style="width:{100 * bar.value:.1f}%"></b>{spread}</span>'
        f'<span class="bar-value">{_percent(bar.value)}{said}</span></li>'
    )


def _percent(value: float) -> str:
    return "100 %" if value > 0.9995 else f"{100 * value:.1f} %"

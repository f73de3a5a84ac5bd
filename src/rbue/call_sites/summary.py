"""What a network is, in one line: which of its activations are random, and which stayed plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from rbue import random_stream
from rbue.activations import Randomness, RandomSlope
from rbue.call_sites import following, tracing
from rbue.call_sites.table import Placement, SiteTable
from rbue.errors import warn

LIKELY_MEANT = ("GELU", "SiLU", "Hardswish", "Mish", "LeakyReLU", "PReLU", "ELU")
"""Activations of hidden layers that DropActivation knows. Tanh and Sigmoid are gates and outputs as often."""


@dataclass(frozen=True)
class ConversionSummary:
    """What :func:`rbue.conversion` says of a network; false in an ``if`` for a plain one.

    Attributes:
        network: the name of its class.
        activation: what is random in it; None if nothing is.
        sites: every call site that the example of :func:`rbue.convert` reached.
        random: those of them that are random.
        everywhere: whether sites that the example did not reach, or all if there was none, are random too.
        plain: how often the example met an activation of another kind, which stays as it is, by its name.
        temperature: what :func:`rbue.predict` scales mean probabilities by; 1 leaves them alone.
        classes: the names of the classes, if :func:`rbue.save` was given some.
        stream_version: version of the random stream; equal seeds, draws and versions mean equal bits.
    """

    network: str
    activation: Randomness | None = None
    sites: SiteTable = field(default_factory=lambda: SiteTable(()), repr=False)
    random: SiteTable = field(default_factory=lambda: SiteTable(()), repr=False)
    everywhere: bool = False
    plain: Mapping[str, int] = field(default_factory=dict)
    temperature: float = 1.0
    classes: tuple[str, ...] | None = None
    stream_version: int = random_stream.VERSION

    def __bool__(self) -> bool:
        return self.activation is not None

    def __repr__(self) -> str:
        return f"{self.network}: {self.line}" if self else f"{self.network} is not converted."

    @property
    def line(self) -> str:
        """Everything but the name, in one line."""
        if self.activation is None:
            return "not converted"
        where = f"{len(self.random)} of {len(self.sites)} {self.activation.noun} call sites"
        parts = [f"{self.activation!r} at {where if self.sites else f'every {self.activation.noun} call site'}"]
        parts += [f"{count} {name} plain" for name, count in self.plain.items()]
        if self.temperature != 1:
            parts.append(f"temperature {self.temperature:.4g}")
        if self.classes is not None:
            parts.append(f"{len(self.classes)} classes")
        return "; ".join(parts)


def conversion(model: nn.Module) -> ConversionSummary:
    """Say what a network is: what is random in it and where, which activations stay plain, its temperature.

    ``print(model)`` shows the same line.

    >>> import torch
    >>> from rbue import DropReLU, convert
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> conversion(net)
    Sequential is not converted.
    >>> conversion(convert(net, DropReLU(q=0.9), example=torch.zeros(2, 4)))
    Sequential: DropReLU(q=0.9) at 1 of 1 ReLU call sites
    """
    network = tracing.innermost(model)
    found = network.__dict__.get(following.CONVERSION)
    summary: ConversionSummary = ConversionSummary(type(network).__name__) if found is None else found.summary(network)
    return summary


def warn_of_plain(summary: ConversionSummary, where: Placement) -> None:
    """Say that activations stayed plain which the user likely meant too.

    Who asks for all or the last ReLUs may not know that the network has other activations; who names sites does.
    """
    others = [f"{count} {name}" for name, count in summary.plain.items() if name in LIKELY_MEANT]
    by_word = isinstance(where, str) and where in ("all", "first", "last")
    if others and by_word and isinstance(summary.activation, RandomSlope):
        warn(
            f"{len(summary.random)} ReLU random; {', '.join(others)} plain: use rbue.DropActivation(q) to include "
            'them, or where="*" to leave them out without this warning.'
        )

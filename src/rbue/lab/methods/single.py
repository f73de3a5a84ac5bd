"""Single: one plain network, one pass. The baseline every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.lab.methods.base import Method, register


@register("single")
@dataclass(frozen=True)
class Single(Method):
    """A plain network with the softmax as its only uncertainty."""

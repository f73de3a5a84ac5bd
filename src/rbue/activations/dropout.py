"""Dropout whose masks come from the stateless stream, with the same keys for the same sample of the same image."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.activations.definitions import Dropout
from rbue.activations.layout import ElementLayout
from rbue.activations.operator import expanded, random_words
from rbue.random_stream import threshold


def random_dropout(x: Tensor, dropout: Dropout, keys: Tensor, *, repeat: int = 1) -> Tensor:
    """``0`` with probability ``p``, else ``x / (1 - p)``, under given keys.

    Dropped values are selected, not multiplied by zero. The formula is the only form: it sits before the classifier,
    where tensors are small, and compilers fuse it.

    Args:
        x: floating-point input; its first dimension is a multiple of ``rows / repeat``.
        dropout: the probability.
        keys: ``int32`` of shape ``(2, rows)``, one 64-bit key for each row.
        repeat: copies of ``x`` to make, each with keys of its own (samples first). Not differentiable.
    """
    layout = ElementLayout.of(x, keys.shape[-1], repeat)
    if repeat > 1:
        x = expanded(x, layout)
    if dropout.p == 0:
        return x
    dropped = random_words(keys, layout) < threshold(dropout.p)
    return torch.where(dropped, 0.0, x / (1 - dropout.p))

"""DropActivation: any activation ``f`` is kept with probability ``q``, otherwise the input passes (Liang et al., 2018).

The drop form of the paper's strategy I for networks without ReLUs: ``y = f(x)`` with probability ``q``, else ``x``. For
``f = ReLU`` it is DropReLU, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rbue import random_stream
from rbue.activations.base import Activation, Randomness, check_mask, check_probability_kept
from rbue.activations.calls import FORMS, SiteCall, arguments_of, dense_input, read_relu
from rbue.activations.relu import DropReLU

_Entry = tuple[str, tuple[str, ...], Callable[..., Tensor], tuple[str, ...], bool]


def _entry(form: str, plain: Callable, *names: str, operands: tuple[str, ...] = (), inplace: bool = False) -> _Entry:
    return form, ("input", *names), plain, operands, inplace


_CALLS: dict[Callable, _Entry] = {
    F.gelu: _entry("F.gelu", F.gelu),
    F.silu: _entry("F.silu", F.silu, "inplace"),
    F.hardswish: _entry("F.hardswish", F.hardswish, "inplace"),
    F.mish: _entry("F.mish", F.mish, "inplace"),
    F.leaky_relu: _entry("F.leaky_relu", F.leaky_relu, "negative_slope", "inplace"),
    F.leaky_relu_: _entry("F.leaky_relu_", F.leaky_relu, "negative_slope", inplace=True),
    F.elu: _entry("F.elu", F.elu, "alpha", "inplace"),
    F.elu_: _entry("F.elu_", F.elu, "alpha", inplace=True),
    F.prelu: _entry("F.prelu", F.prelu, "weight", operands=("weight",)),
    F.tanh: _entry("F.tanh", torch.tanh),
    torch.tanh: _entry("torch.tanh", torch.tanh),
    torch.tanh_: _entry("torch.tanh_", torch.tanh, inplace=True),
    Tensor.tanh: _entry("Tensor.tanh", torch.tanh),
    Tensor.tanh_: _entry("Tensor.tanh_", torch.tanh, inplace=True),
}
"""Each call: its name, its positional arguments, its out-of-place form, its further tensors, and whether in place."""


@dataclass(frozen=True, repr=False)
class DropActivation(Activation):
    """Keep each activation with probability ``q``, otherwise pass the input through.

    It makes GELU (both forms), SiLU, Hardswish, LeakyReLU, PReLU, ELU, Mish, Tanh and every spelling of ReLU random.
    ``q=1`` is the plain network. A ``tanh`` that is not an activation (a gate, a squashed output, a GELU written out by
    hand) is one to this class too: leave it out with ``where=``; :func:`rbue.sites` lists them. ``mask`` is that of
    :class:`DropReLU`; dimension 1 of a transformer's maps counts its tokens.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    >>> import rbue
    >>> rbue.sites(net, torch.zeros(2, 4), DropActivation(q=0.9))
    index  site  form    shape
    0      1     F.gelu  2x8
    """

    q: float = 0.9
    mask: str = "element"

    calls = (*FORMS, *_CALLS)

    def __post_init__(self) -> None:
        check_probability_kept(self, "an activation")
        check_mask(self)

    @property
    def cycle(self) -> random_stream.Cycle:  # type: ignore[override]
        """Each activation is dropped once, or kept once if that is rarer."""
        return random_stream.drop_cycle(self.q)

    def read(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
        """A spelling of ReLU, or one of the activations below."""
        entry = _CALLS.get(func)
        if entry is None:
            return read_relu(func, args, kwargs)
        form, names, plain, operands, inplace = entry
        arguments = arguments_of(names, args, kwargs)
        x = dense_input(form, arguments)
        if x is None:
            return None
        inplace = inplace or bool(arguments.pop("inplace", False))
        others = tuple(arguments[name] for name in operands)
        settings = {name: value for name, value in arguments.items() if name not in ("input", *operands)}

        def function(x: Tensor, *others: Tensor) -> Tensor:
            return plain(x, *others, **settings)

        return SiteCall(form, x, inplace, function=function, operands=others)

    def at(self, call: SiteCall) -> Randomness:
        """DropReLU where the network has a ReLU, with its kernels."""
        return DropReLU(self.q, self.mask) if call.function is None else self

    def formula(self, x: Tensor, words: Tensor, call: SiteCall) -> Tensor:
        """``f(x)`` with probability ``q``, else ``x``: selected, so that NaN and infinity stay what they are."""
        if self.q == 0:  # the one probability without a 32-bit threshold
            return x.clone()
        return torch.where(words < random_stream.threshold(1 - self.q), x, call.plain(x))

    def mean(self, x: Tensor, call: SiteCall) -> Tensor:
        """``q f(x) + (1 - q) x``."""
        return self.q * call.plain(x) + (1 - self.q) * x

    def variance(self, x: Tensor, call: SiteCall) -> Tensor:
        """``q (1 - q) (f(x) - x)**2``."""
        return self.q * (1 - self.q) * (call.plain(x) - x) ** 2

"""Run what comes before the first random site once for all samples.

A sampler hands the network ``B`` rows and wants ``S * B``. Up to the first random site all samples are equal, so
the rows stay ``B``; that site turns them into ``S * B``. A tensor from before it that later meets sampled rows (a
skip connection, a dense concatenation) is repeated on the spot. Tensors are marked as they flow, so that a weight
or a constant that happens to have ``B`` rows is not taken for a batch.

This is a shortcut the network's code can defeat (by remembering its batch size, say), so the sampler checks it
against the plain way before it relies on it: see :mod:`rbue.sampling.plans`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from rbue.activations import Randomness, SiteCall
from rbue.call_sites.draws import Draw
from rbue.call_sites.interception import SiteHandler, SiteMode, keep_in_sight, proceed_with
from rbue.call_sites.nested import row_numbers, tensors_in
from rbue.call_sites.postponing import Postponing, is_look
from rbue.call_sites.scope import Scope
from rbue.errors import ConversionError

_MARK = "_rbue_mark"
_serial = count()


def is_unsampled(x: Tensor) -> bool:
    """Whether ``x`` still has one row for all samples."""
    return getattr(x, _MARK, (None, True))[1] is False


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """``times`` copies of ``x`` along its first dimension, in the same memory format."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    memory_format = last if not x.is_contiguous() and x.is_contiguous(memory_format=last) else torch.contiguous_format
    shape = (times * x.shape[0], *x.shape[1:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format)
    out.unflatten(0, (times, x.shape[0])).copy_(x)
    return out


class NotShareable(ConversionError):
    """The rows of all samples are picked by numbers from before the first random site, such as the order of a batch."""


class SharingMode(SiteMode):
    """A :class:`SiteMode` whose pass begins with one row an image and ends with one a sample and image."""

    def __init__(
        self,
        scope: Scope,
        activation: Randomness,
        handler: SiteHandler,
        draw: Draw,
        inputs: Any,
        postponing: Postponing,
    ) -> None:
        super().__init__(scope, activation, handler)
        self.postponing = postponing
        self.repeat = draw.repeat
        self.live = draw.live
        self.images = draw.rows // draw.repeat
        self.serial = next(_serial)
        if self.live is not None:
            postponing.when_filled = self._note_again
        for x in tensors_in(inputs):
            if x.dim() and x.shape[0] == self.images:
                self._mark(x, False)

    def _mark(self, x: Tensor, sampled: bool) -> None:
        setattr(x, _MARK, (self.serial, sampled))
        if self.live is not None:
            self.live.note(x, self._rows(sampled), sampled)

    def _note_again(self, x: Tensor) -> None:
        """Count the memory that a tensor has been given since it was marked."""
        sampled = self._sampled(x)
        if sampled is not None:
            self._mark(x, sampled)

    def _rows(self, sampled: bool) -> int:
        return self.images * (self.repeat if sampled else 1)

    def _sampled(self, x: Tensor) -> bool | None:
        """True or False for a tensor that carries the batch, None for any other."""
        serial, sampled = getattr(x, _MARK, (None, None))
        return sampled if serial == self.serial else None

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_look(func):
            return func(*args, **kwargs)
        keep_in_sight(func)
        tensors = tensors_in(args) + tensors_in(kwargs)
        states = [self._sampled(x) for x in tensors]
        sampled, unsampled = True in states, False in states
        if sampled and unsampled:
            self.postponing.settle(tensors)
            if any(self._sampled(numbers) is False for numbers in row_numbers(func, args, kwargs)):
                raise NotShareable  # repeated they would name the rows of the first sample each time
            if _writes_first(func) and isinstance(args[0], Tensor) and self._sampled(args[0]) is False:
                args[0].set_(repeat_rows(args[0], self.repeat))  # type: ignore[call-overload]
                self._mark(args[0], True)
            args, kwargs = self._repeated(args), self._repeated(kwargs)
        call = None if self.scope.suspended else self.activation.read(func, args, kwargs)
        if call is None:
            out = self.postponing.take(func, args, kwargs)
            if out is None:
                self.postponing.prepare(func, tensors)
                out = self._run(func, args, kwargs, sampled)
        else:
            rows = call.x.shape[0]
            path, number = self.scope.path, self.scope.next_call()
            out = self.handler(call, path, number, self._proceed_with(call, func, args, kwargs, tensors))
            sampled = sampled or out.shape[0] != rows
        if sampled or unsampled:
            for x in tensors_in(out):
                self._mark(x, sampled)
        return out

    def _proceed_with(
        self, call: SiteCall, func: Callable, args: tuple, kwargs: Any, tensors: list[Tensor]
    ) -> Callable[..., Any]:
        if self.postponing.waits_for_relu(call.x):
            return lambda: self.postponing.plain_relu(call)
        self.postponing.settle(tensors)
        return proceed_with(func, args, kwargs)

    def _run(self, func: Callable, args: tuple, kwargs: Any, sampled: bool) -> Any:
        if self.live is None:
            return func(*args, **kwargs)
        carrying = [x for x in tensors_in((args, kwargs)) if self._sampled(x) is not None]
        with self.live.inside(carrying, self._rows(sampled), sampled):
            return func(*args, **kwargs)

    def _repeated(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return repeat_rows(value, self.repeat) if self._sampled(value) is False else value
        if isinstance(value, dict):
            return {key: self._repeated(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self._repeated(item) for item in value)
        return value


def _writes_first(func: Callable) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))

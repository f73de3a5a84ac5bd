"""Run what comes before the first random site once for all samples.

A sampler hands the network ``B`` rows and wants ``S * B``. Up to the first random site all samples are equal, so
the rows stay ``(B, ...)``; that site turns them into ``(S * B, ...)``, samples first. A ``(B, ...)`` tensor from before
it that later meets sampled rows (a skip connection, a dense concatenation) is repeated on the spot. Tensors are marked
as they flow, so that a weight or a constant that happens to have ``B`` rows is not taken for a batch.

This is a shortcut the network's code can defeat (by remembering its batch size, say), so the sampler checks it
against the plain way before it relies on it: see :mod:`rbue.sampling.plans`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rbue.activations import Randomness, RandomSlope, SiteCall
from rbue.call_sites.draws import tensors_in, with_tensors
from rbue.call_sites.interception import Scope, SiteHandler, SiteMode, keep_in_sight, proceed_with
from rbue.errors import ConversionError
from rbue.kernels.layout import repeat_rows
from rbue.kernels.triton_support import triton_fused
from rbue.sampling.fusing import DeferredCalls, is_look
from rbue.sampling.watching import HostReads, LiveRows

UNSHAREABLE = -1
_MARK = "_rbue_mark"
_serial = count()
_WHOLE = (torch.int64, torch.int32, torch.int16)
_ALONG_A_DIMENSION = {"gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"}
_ALONG_A_DIMENSION |= {"scatter", "scatter_add", "scatter_reduce", "take_along_dim"}


@dataclass(eq=False)
class SampledPass:
    """What the sampler does in one pass; the :class:`~rbue.call_sites.draws.PassHook` of its draw.

    Attributes:
        images: rows of the input.
        repeat: how many samples share each of them until the first random site (1: none do).
        fuse: whether calls may be fused.
        live: where a pass that shares rows notes the memory it holds.
        seen: where random sites note how many rows they have, in the order they run: those that they make, where the
            rows of their input are shared. :data:`UNSHAREABLE` follows where that cannot be right.
        reads: what follows the results of random sites.
    """

    images: int
    repeat: int = 1
    fuse: bool = True
    live: LiveRows | None = None
    seen: list[int] | None = None
    reads: HostReads | None = None

    def __post_init__(self) -> None:
        self.deferred = DeferredCalls(active=False)
        self.relu = self.deferred.relu if self.seen is None else self._noted_relu

    def mode(self, scope: Scope, activation: Randomness, handler: SiteHandler, inputs: Any) -> SiteMode:
        """The mode in which the network runs on ``inputs``; rows that are not shared gain by kernels alone.

        Their first random site is fused too, which no plan has tried. A network that writes to what it read shows by
        torch's count of writes, which there is none of in inference mode.
        """
        fuse = self.fuse and isinstance(activation, RandomSlope)
        if self.repeat == 1 and not (fuse and triton_fused() and not torch.is_inference_mode_enabled()):
            return SiteMode(scope, activation, handler)
        self.deferred.active = fuse
        return SharingMode(scope, activation, handler, self, inputs)

    def before_site(self, x: Tensor) -> int:
        """How many samples each row of a random site's input is still to become."""
        repeat = self.repeat if self.repeat > 1 and _is_unsampled(x) else 1
        if self.seen is not None:
            self.seen.append(x.shape[0] * repeat)
        return repeat

    def _noted_relu(self, x: Tensor, *settings: Any, repeat: int, inplace: bool, **more: Any) -> Tensor:
        """Note a base that the network goes on to read: ``x``, a view of it, becomes the samples, and it does not."""
        assert self.seen is not None
        # Two references are the argument's; a base that only its view keeps alive has no others.
        if repeat > 1 and inplace and x._is_view() and sys.getrefcount(x._base) > 2:
            self.seen.append(UNSHAREABLE)
        return self.deferred.relu(x, *settings, repeat=repeat, inplace=inplace, **more)

    def after_site(self, out: Any) -> None:
        """Follow what a random site has made."""
        if self.reads is not None:
            self.reads.follow(out)

    def finish(self) -> None:
        """Compute what the network leaves deferred."""
        self.deferred.finish()


class NotShareable(ConversionError):
    """The rows of all samples are picked by numbers of one sample's rows, such as the order of a batch."""


class SharingMode(SiteMode):
    """A :class:`SiteMode` whose pass begins with ``images`` rows and ends with ``repeat * images``.

    Each tensor that carries the batch is marked with the number of the pass and whether it is *sampled*: False for
    ``(images, ...)``, True for ``(repeat * images, ...)``.
    """

    def __init__(
        self, scope: Scope, activation: Randomness, handler: SiteHandler, settings: SampledPass, inputs: Any
    ) -> None:
        super().__init__(scope, activation, handler)
        self.deferred, self.live = settings.deferred, settings.live
        self.repeat, self.images = settings.repeat, settings.images
        self.serial = next(_serial)
        if self.live is not None:
            self.deferred.when_filled = self._note_again
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
        if sampled and not all(self._every_row(one, tensors[0]) for one in row_numbers(func, args, kwargs)):
            raise NotShareable  # they would name the rows of the first sample each time
        if sampled and unsampled:
            self.deferred.settle(tensors)
            if _writes_first(func) and isinstance(args[0], Tensor) and self._sampled(args[0]) is False:
                args = (self._sampled_in_place(args[0]), *args[1:])
            args, kwargs = with_tensors(self._repeated, args), with_tensors(self._repeated, kwargs)
        call = None if self.scope.suspended else self.activation.read(func, args, kwargs)
        if call is None:
            out = self.deferred.take(func, args, kwargs)
            if out is None:
                self.deferred.prepare(func, tensors)
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

    def _every_row(self, numbers: Any, x: Tensor) -> bool:
        """Whether numbers of rows of ``x`` can be meant for all samples.

        Those that carry no batch may be ``arange(B)`` or ``:B``, of the batch that went in: as many as one sample has.
        """
        own = self._sampled(numbers) if isinstance(numbers, Tensor) else None
        if own is not None or not self._sampled(x):
            return own is not False
        if isinstance(numbers, slice) and numbers == slice(None):  # of any number of rows, as when exporting
            return True
        count = len(range(*numbers.indices(len(x)))) if isinstance(numbers, slice) else len(numbers)
        rows = self._rows(True)
        return count % rows == 0 or len(x) % rows > 0

    def _proceed_with(
        self, call: SiteCall, func: Callable, args: tuple, kwargs: Any, tensors: list[Tensor]
    ) -> Callable[..., Any]:
        if self.deferred.waits_for_relu(call.x):
            return lambda: self.deferred.plain_relu(call)
        self.deferred.settle(tensors)
        return proceed_with(func, args, kwargs)

    def _run(self, func: Callable, args: tuple, kwargs: Any, sampled: bool) -> Any:
        if self.live is None:
            return func(*args, **kwargs)
        carrying = [x for x in tensors_in((args, kwargs)) if self._sampled(x) is not None]
        with self.live.inside(carrying, self._rows(sampled), sampled):
            return func(*args, **kwargs)

    def _sampled_in_place(self, x: Tensor) -> Tensor:
        """``x``, ``(images, ...)``, with the rows of all samples, to be written to; its old name sees them too."""
        x.set_(repeat_rows(x, self.repeat))  # type: ignore[call-overload]
        self._mark(x, True)
        return x

    def _repeated(self, x: Tensor) -> Tensor:
        return repeat_rows(x, self.repeat) if self._sampled(x) is False else x


def _is_unsampled(x: Tensor) -> bool:
    """Whether ``x`` still has one row for all samples."""
    return getattr(x, _MARK, (None, True))[1] is False


def row_numbers(func: Callable, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    """Whole numbers, in any form that torch takes, or the slice by which a call picks rows of another tensor."""
    name = getattr(func, "__name__", "")
    if not name.startswith("__"):
        name = name.rstrip("_")
    found: list[Any] = []
    if name in ("__getitem__", "__setitem__", "index_put", "take"):
        where = args[1] if len(args) > 1 else kwargs.get("indices", kwargs.get("index"))
        found = [where[0] if isinstance(where, (tuple, list)) and where and not _are_whole(where) else where]
    elif name in _ALONG_A_DIMENSION:
        given = [*args[1:], *kwargs.values()]
        dimension = kwargs.get("dim", next((one for one in args[1:] if isinstance(one, int)), 0))
        found = given if dimension in (0, -tensors_in([args, kwargs])[0].dim()) else []
    return [x for x in found if _are_whole(x)]


def _are_whole(x: Any) -> bool:
    """Whether these are, or stand for, several whole numbers."""
    if isinstance(x, Tensor):
        return x.dtype in _WHOLE and x.dim() > 0
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "iu" and x.ndim > 0
    return isinstance(x, (range, slice)) or (isinstance(x, list) and all(type(one) is int for one in x))


def _writes_first(func: Callable) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))

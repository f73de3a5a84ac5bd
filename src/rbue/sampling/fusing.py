"""Fuse calls of a pass: defer one until the next is known, because both may run as one kernel.

Between its convolutions a pass is bound by memory: BatchNorm, a skip connection and a ReLU each read and write the same
map ``(rows, channels, pixels...)``, and the mean over the pixels reads it again. Fused they read it once
(:mod:`rbue.kernels.fused`). So BatchNorm waits for a sum or a ReLU, the sum for a ReLU, and the ReLU that makes
``(samples * images, ...)`` of ``(images, ...)`` waits for the mean, which then never has the large map in memory.

A deferred result is a tensor of the right shape whose numbers are not there yet. The next call of the pass, whichever
it is, has them computed first, unless they wait for it. Two kinds let a BatchNorm wait on: convolutions,
which write into nothing, and another BatchNorm with its ReLU. One of two BatchNorms may be that of a skip connection,
and both run with the ReLU of their sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from rbue.activations import RandomSlope, SiteCall
from rbue.errors import RbueError
from rbue.kernels import random_relu
from rbue.kernels.fused import Normalised, can_be_fused, can_be_pooled, normalised_relu, pooled_relu

_MARK = "_rbue_deferred"
_LOOKS = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")),
    *(Tensor.dim, Tensor.size, Tensor.ndimension, Tensor.is_floating_point, Tensor.numel, Tensor.__len__),
}
"""Questions that a tensor answers without its numbers."""
_SUMS = {torch.add: False, Tensor.add: False, Tensor.add_: True}
"""Whether they write into their first argument; ``+`` and ``+=`` arrive as these too."""
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
_MEANS = {torch.mean, Tensor.mean}
_POOLS = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3}


@dataclass(frozen=True)
class SampledRelu:
    """A random ReLU that makes ``repeat`` samples of each image; not computed."""

    x: Tensor
    activation: RandomSlope
    keys: Tensor
    repeat: int
    cap: float | None

    def compute(self) -> Tensor:
        """The samples."""
        return random_relu(self.x, self.activation, self.keys, repeat=self.repeat, cap=self.cap)

    def inputs(self) -> list[Tensor]:
        """What it is computed from."""
        return [self.x]


Work = Union[Normalised, SampledRelu]  # noqa: UP007 (isinstance reads it at run time)


class _Deferred(NamedTuple):
    """A deferred call, how often its inputs had been changed by then, and the stream it would have run on."""

    work: Work
    versions: list[int]
    stream: torch.cuda.Stream | None


def is_look(func: Callable) -> bool:
    """Whether a call asks a tensor about anything but its numbers."""
    return func in _LOOKS


class DeferredCalls:
    """The calls of one pass that have been deferred.

    A call that is run with the next one stays known, for the rare network that needs its result again.

    Attributes:
        active: whether calls are deferred.
        waiting: the tensor whose numbers the next call may compute.
        beside: what an earlier BatchNorm makes, to be added to what waits.
        when_filled: called with each tensor that has been given its numbers after all.
    """

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.waiting: Tensor | None = None
        self.beside: Tensor | None = None
        self.when_filled: Callable[[Tensor], None] = lambda x: None
        self._deferred: list[weakref.ref[Tensor]] = []

    def settle(self, tensors: Iterable[Tensor] = ()) -> None:
        """Compute what waits, and what was run with another call among ``tensors``."""
        waiting = [x for x in (self.beside, self.waiting) if x is not None]
        self.beside = self.waiting = None
        for x in (*tensors, *waiting):
            deferred = getattr(x, _MARK, None)
            if deferred is not None:
                _fill(x, deferred)
                self.when_filled(x)

    def prepare(self, func: Callable, tensors: list[Tensor]) -> None:
        """Compute what has to be there before a call of these tensors is run as it is."""
        if func not in _CONVOLUTIONS or any(hasattr(x, _MARK) for x in tensors):
            self.settle(tensors)

    def finish(self) -> None:
        """Compute whatever of this pass outlives it: what the network returns, or keeps, or a hook does."""
        self.settle([x for x in (reference() for reference in self._deferred) if x is not None])
        self._deferred.clear()

    def work_for(self, x: Tensor | None) -> Work | None:
        """What ``x`` waits for; None if its numbers are there, or another stream of the GPU is to have them."""
        if x is None or (x is not self.waiting and x is not self.beside):
            return None
        deferred: _Deferred | None = getattr(x, _MARK, None)
        return None if deferred is None or deferred.stream != _stream(x) else deferred.work

    def waits_for_relu(self, x: Tensor) -> bool:
        """Whether ``x`` is computed with a ReLU of it."""
        return isinstance(self.work_for(x), Normalised)

    def relu(
        self, x: Tensor, activation: RandomSlope, keys: Tensor, *, repeat: int, cap: float | None, inplace: bool
    ) -> Tensor:
        """A random ReLU, with what waits for it, or itself waiting for a mean."""
        work = self.work_for(x)
        if repeat > 1 and self.active and can_be_pooled(x):
            self.settle()
            # In place, x itself becomes the (repeat * images, ...) result; an alias keeps the (images, ...) input.
            source, deferred = (_alias(x), x) if inplace else (x, x.new_empty(0))
            # The right shape with the memory of one number, until somebody asks for the others.
            deferred.set_(source.new_empty(1).expand(repeat * len(source), *source.shape[1:]))  # type: ignore[call-overload]
            return self._defer(deferred, SampledRelu(source, activation, keys, repeat, cap))
        if isinstance(work, Normalised):
            return self._result(x, normalised_relu(work, activation, keys, repeat=repeat, cap=cap), inplace)
        if repeat == 1:
            return random_relu(x, activation, keys, cap=cap, inplace=inplace)
        return self._result(x, random_relu(x, activation, keys, repeat=repeat, cap=cap), inplace)

    def plain_relu(self, call: SiteCall) -> Tensor:
        """A plain ReLU of what waits."""
        work = self.work_for(call.x)
        assert isinstance(work, Normalised)
        return self._result(call.x, normalised_relu(work, cap=call.cap), call.inplace)

    def _result(self, x: Tensor, out: Tensor, inplace: bool) -> Tensor:
        """The result of a call on ``x`` that has been run; in place, the old name sees it too."""
        if x is self.beside:
            self.beside = None
        else:
            self.waiting = None
        if not inplace:
            return out
        if hasattr(x, _MARK):
            delattr(x, _MARK)
        return x.set_(out)  # type: ignore[call-overload]

    def take(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        """The result of a call that is deferred, or that was run with what waited; None if it is neither."""
        if not self.active or torch.is_grad_enabled():  # a network may want gradients inside
            return None
        if func is F.batch_norm:
            return self._norm(*args, **kwargs)
        if self.waiting is None:
            return None
        work = self.work_for(self.waiting)
        if isinstance(work, Normalised) and func in _SUMS:
            return self._sum(work, _SUMS[func], args, kwargs)
        if isinstance(work, SampledRelu):
            return self._mean(work, func, args, kwargs)
        return None

    def _norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor | None:
        if training or running_mean is None or running_var is None:
            return None
        self._step_aside(input)
        if not can_be_fused(input):
            return None
        return self._defer(_alias(input), Normalised(input, running_mean, running_var, weight, bias, eps))

    def _step_aside(self, input: Tensor) -> None:
        """Let a BatchNorm that waits wait beside one of ``input``; compute whatever else there is."""
        if self.waiting is None and not hasattr(input, _MARK):
            return
        work = self.work_for(self.waiting)
        steps_aside = isinstance(work, Normalised) and work.residual is None
        first, self.waiting = (self.waiting, None) if steps_aside else (None, self.waiting)
        self.settle([input])
        self.beside = first

    def _sum(self, work: Normalised, in_place: bool, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        if kwargs or len(args) != 2 or work.residual is not None:
            return None
        deferred: Tensor
        deferred, other = args if args[0] is self.waiting else args[::-1]
        if deferred is not self.waiting or not isinstance(other, Tensor):
            return None
        alike = (other.shape, other.stride(), other.dtype) == (work.x.shape, work.x.stride(), work.x.dtype)
        if not alike or other.device != work.x.device or not can_be_fused(other):
            return None
        added = self.work_for(other) if other is self.beside else None
        if added is None and in_place and deferred is args[1]:
            return None
        self.waiting = None
        if isinstance(added, Normalised):
            self.beside = None
        else:
            self.settle([other])
        residual = added if isinstance(added, Normalised) else other
        return self._defer(args[0] if in_place else _alias(work.x), work._replace(residual=residual))

    def _mean(self, work: SampledRelu, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        assert self.waiting is not None
        rows, channels, *sizes = self.waiting.shape
        keep = _pools_everything(func, self.waiting, args, kwargs)
        if keep is None:
            return None
        self.waiting = None
        found = pooled_relu(work.x, work.activation, work.keys, repeat=work.repeat, cap=work.cap)
        return found.view(rows, channels, *[1] * len(sizes)) if keep else found

    def _defer(self, out: Tensor, work: Work) -> Tensor:
        setattr(out, _MARK, _Deferred(work, _versions(work), _stream(out)))
        self._deferred.append(weakref.ref(out))
        self.waiting = out
        return out


def _alias(x: Tensor) -> Tensor:
    """Another tensor with the memory, the shape and the strides of ``x``."""
    return x.data


def _versions(work: Work) -> list[int]:
    """How often each input was changed in place, where torch counts that."""
    return [x._version for x in work.inputs() if not x.is_inference()]


def _stream(x: Tensor) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def _fill(x: Tensor, deferred: _Deferred) -> None:
    """Give a tensor the numbers it stands for, in the stream and the mode in which the call would have been run."""
    if _versions(deferred.work) != deferred.versions:
        raise RbueError("the network changed a tensor in place that a deferred call reads.")
    delattr(x, _MARK)
    with torch.inference_mode() if x.is_inference() else nullcontext(), torch.cuda.stream(deferred.stream):
        x.set_(deferred.work.compute())  # type: ignore[call-overload]


def _pools_everything(func: Callable, x: Tensor, args: tuple, kwargs: dict[str, Any]) -> bool | None:
    """Whether the mean over all pixels of ``x``, which this call is, keeps their dimensions; None if it is another."""
    if not args or args[0] is not x:
        return None
    pixels = set(range(2, x.dim()))
    if func in _POOLS:
        size = args[1] if len(args) == 2 and not kwargs else kwargs.get("output_size")
        whole = size in (1, (1,) * len(pixels), [1] * len(pixels))
        return True if whole and _POOLS[func] == len(pixels) and len(args) + len(kwargs) == 2 else None
    if func in _MEANS and not kwargs.keys() - {"dim", "keepdim"} and len(args) <= 3:
        named = dict(zip(("dim", "keepdim"), args[1:], strict=False)) | kwargs
        dims = named.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        if isinstance(dims, (tuple, list)) and {dim % x.dim() for dim in dims} == pixels:
            return bool(named.get("keepdim", False))
    return None

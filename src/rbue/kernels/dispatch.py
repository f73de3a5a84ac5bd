"""Apply what is random at a call site; the backend follows from where the tensor is and who is looking.

* Traced, compiled, exported, vmapped or fake tensors: the activation's own formula, to be fused.
* Eager ``float32`` on a CPU: compiled code (:mod:`.native`), or torch's operations (:mod:`.torch_operations`) without a
  compiler.
* Eager on a CUDA device with Triton: the fused kernels of :mod:`.triton_kernels`.
* Everything else, and every activation that no kernel is registered for: the formula.

All give the same masks bit for bit. For backward a random ReLU keeps only its output, which the next layer keeps
anyway, and any other activation its input, as its plain form does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rbue.activations import Activation, Dropout, Randomness, RandomSlope, SiteCall
from rbue.kernels import exported_words, kept_tables, native, torch_operations
from rbue.kernels.layout import ElementLayout, repeat_rows
from rbue.kernels.slope_forms import form_of
from rbue.kernels.triton_support import triton_kernels
from rbue.random_stream import bits, turned
from rbue.torch_internals import computed_once, forward_mode, plain_eager


def random_relu(
    x: Tensor,
    activation: RandomSlope,
    keys: Tensor,
    *,
    repeat: int = 1,
    cap: float | None = None,
    inplace: bool = False,
) -> Tensor:
    """Apply a random activation under given keys.

    Args:
        x: floating-point input; its first dimension is a multiple of ``rows / repeat``.
        activation: what to draw.
        keys: ``int32`` of shape ``(2, rows)``, one 64-bit key for each row, or ``(3, rows)`` with its turn
            (:class:`rbue.random_stream.Cycle`).
        repeat: copies of ``x`` to make, each with keys of its own (samples first). Not differentiable.
        cap: upper bound of the output (6 for ReLU6).
        inplace: write the result into ``x``.
    """
    cap = rounded_cap(cap, x.dtype)
    if activation.fixed_slope == 0 and repeat == 1:
        return F.relu(x, inplace=inplace) if cap is None else F.hardtanh(x, 0.0, cap, inplace=inplace)
    if torch.is_grad_enabled() and x.requires_grad:
        assert repeat == 1, "the sampler runs without gradients"
        if inplace and plain_eager(x):
            _refuse_leaf(x)
            return _RandomReLUInPlace.apply(x, keys, activation, cap)
        out: Tensor = (_RandomReLUBothWays if forward_mode() else _RandomReLU).apply(x, keys, activation, cap)
        return x.copy_(out) if inplace else out
    return _forward(x, keys, activation, cap, repeat, inplace, saved=False)


def rounded_cap(cap: float | None, dtype: torch.dtype) -> float | None:
    """The cap as the output holds it, so that a capped output compares equal to it."""
    if cap is None or not math.isfinite(cap):
        return cap
    ulp = torch.finfo(dtype).eps * 2.0 ** (math.frexp(cap)[1] - 1)
    return round(cap / ulp) * ulp


def _refuse_leaf(x: Tensor) -> None:
    """Say before anything is overwritten what autograd would only say after."""
    base = x._base if x._base is not None else x
    if base.is_leaf and base.requires_grad:
        raise RuntimeError("a leaf tensor that requires grad cannot be changed in place.")


def random_words(keys: Tensor, layout: ElementLayout, activation: Randomness) -> Tensor:
    """Random words by the formula, in a shape that broadcasts against the output."""
    exported = exported_words.current()
    if exported is not None:
        return layout.as_output(exported.draw(layout, keys, activation.cycle.mirrored))
    k1, k2, *turn = layout.broadcast_keys(keys)
    table = kept_tables.find(layout)
    words = bits(layout.traced_table() if table is None else table, k1, k2)
    words = layout.as_output(turned(words, turn[0], activation.cycle.mirrored) if turn else words)
    return words if activation.mask == "element" else computed_once(words)


def _forward(
    x: Tensor, keys: Tensor, activation: RandomSlope, cap: float | None, repeat: int, inplace: bool, saved: bool
) -> Tensor:
    layout = ElementLayout.of(x, keys.shape[-1], repeat, activation.mask)
    if activation.fixed_slope == 1:  # the one probability without a 32-bit threshold
        out = expanded(x, layout) if repeat > 1 else x if inplace else x.clone()
        return out if cap is None else out.clamp_(max=cap)
    form = form_of(activation) if plain_eager(x) else None
    if form is not None:
        if inplace and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError("a tensor made in inference mode cannot be changed in place outside of it.")
        if native.supports(x, keys, layout):
            return native.forward(x, form, keys, layout, cap, inplace)
        if torch_operations.supports(x, layout):
            return torch_operations.forward(x, form, keys, layout, cap, inplace, saved)
        kernels = triton_kernels()
        if kernels is not None and kernels.supports(x, layout):
            kept_tables.note(layout)
            return kernels.forward(x, form, keys, layout, cap, inplace)
    if repeat > 1:
        x = expanded(x, layout)
    out = activation.capped_forward(x, random_words(keys, layout, activation), cap)
    return x.copy_(out) if inplace else out


def expanded(x: Tensor, layout: ElementLayout) -> Tensor:
    """``x`` once for each sample, in its memory format."""
    return repeat_rows(x, layout.repeat)


def _backward(grad: Tensor, out: Tensor, keys: Tensor | None, activation: RandomSlope, cap: float | None) -> Tensor:
    layout = ElementLayout.of(out, 1 if keys is None else keys.shape[-1], mask=activation.mask)
    differentiable = torch.is_grad_enabled() and grad.requires_grad
    form = form_of(activation) if plain_eager(grad) and not differentiable else None
    if form is not None:
        grad = grad.resolve_neg()
        if layout.dense and not grad.is_contiguous(memory_format=layout.memory_format):
            grad = grad.contiguous(memory_format=layout.memory_format)
        if native.supports(out, keys, layout):
            return native.backward(grad, out, form, keys, layout, cap)
        if torch_operations.supports(out, layout):
            return torch_operations.backward(grad, out, form, keys, layout, cap)
        kernels = triton_kernels()
        if kernels is not None and kernels.supports(out, layout, hashed=keys is not None):
            return kernels.backward(grad, out, form, keys, layout, cap)
    words = None if keys is None else random_words(keys, layout, activation)
    found = activation.capped_backward(grad, out, words, cap)
    drawn_from_table = words is not None and kept_tables.find(layout) is not None
    return kept_tables.written(found) if drawn_from_table else found


class _RandomReLU(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keys: Tensor, activation: RandomSlope, cap: float | None) -> Tensor:
        return _forward(x, keys, activation, cap, 1, False, saved=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, keys, activation, cap = inputs
        _save(ctx, output, keys, activation, cap)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return _backward(grad, *_saved(ctx)), None, None, None


class _RandomReLUBothWays(_RandomReLU):
    """Differentiable in forward mode too, as ``torch.func.hessian`` asks; torch does not compile such a function."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _RandomReLU.setup_context(ctx, inputs, output)
        ctx.save_for_forward(output, inputs[1])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        """Element by element, so the slopes are those of backward."""
        out, keys = ctx.saved_for_forward
        return _backward(tangent, out, keys, ctx.activation, ctx.cap)


class _RandomReLUInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, activation: RandomSlope, cap: float | None) -> Tensor:
        out = _forward(x, keys, activation, cap, 1, True, saved=True)
        ctx.mark_dirty(x)
        _save(ctx, out, keys, activation, cap)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return _backward(grad, *_saved(ctx)), None, None, None


def _save(ctx: Any, out: Tensor, keys: Tensor, activation: RandomSlope, cap: float | None) -> None:
    ctx.activation, ctx.cap, ctx.keys = activation, cap, None
    if not activation.draws_in_backward:
        ctx.save_for_backward(out)
    elif plain_eager(out):
        # Eight bytes an image; an attribute spares them the trip through saved-tensor hooks.
        ctx.keys = keys
        ctx.save_for_backward(out)
    else:
        ctx.save_for_backward(out, keys)


def _saved(ctx: Any) -> tuple[Tensor, Tensor | None, RandomSlope, float | None]:
    out, *keys = ctx.saved_tensors
    return out, keys[0] if keys else ctx.keys, ctx.activation, ctx.cap


# Activations without kernels


def random_activation(x: Tensor, activation: Activation, keys: Tensor, call: SiteCall, *, repeat: int = 1) -> Tensor:
    """Any activation by its formula, under given keys; out of place.

    The arguments are those of :func:`random_relu`; ``call`` is what the network wrote.
    """
    layout = ElementLayout.of(x, keys.shape[-1], repeat, activation.mask)
    if repeat > 1:
        x = expanded(x, layout)
    elif plain_eager(x) and torch.is_grad_enabled() and any(one.requires_grad for one in (x, *call.operands)):
        return _Redrawn.apply(activation, call, keys, x, *call.operands)
    return activation.formula(x, random_words(keys, layout, activation), call)


class _Redrawn(torch.autograd.Function):
    """The formula, whose backward draws the words again: only the inputs are kept, as by the plain activation."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, call: SiteCall, keys: Tensor, x: Tensor, *operands: Tensor) -> Tensor:
        ctx.activation, ctx.call, ctx.keys = activation, replace(call, x=x.new_empty(0), operands=()), keys
        ctx.save_for_backward(x, *operands)
        words = random_words(keys, ElementLayout.of(x, keys.shape[-1], mask=activation.mask), activation)
        return activation.formula(x, words, call)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        again = torch.is_grad_enabled()  # the gradient is to be differentiated itself
        inputs = [one if again else one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        wanted = [one for one, needed in zip(inputs, ctx.needs_input_grad[3:], strict=True) if needed]
        x, *operands = inputs
        with torch.enable_grad():
            layout = ElementLayout.of(x, ctx.keys.shape[-1], mask=ctx.activation.mask)
            words = random_words(ctx.keys, layout, ctx.activation)
            out = ctx.activation.formula(x, words, replace(ctx.call, operands=tuple(operands)))
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again))
        return None, None, None, *(next(found) if needed else None for needed in ctx.needs_input_grad[3:])


def random_dropout(x: Tensor, dropout: Dropout, keys: Tensor, *, repeat: int = 1) -> Tensor:
    """``0`` with probability ``p``, else ``x / (1 - p)``, under given keys.

    The formula is the only form: it sits before the classifier, where tensors are small, and compilers fuse it. The
    arguments are those of :func:`random_relu`.
    """
    layout = ElementLayout.of(x, keys.shape[-1], repeat, dropout.mask)
    if repeat > 1:
        x = expanded(x, layout)
    return x if dropout.p == 0 else dropout.formula(x, random_words(keys, layout, dropout))


# What happens at a call site


SiteFunction = Callable[[SiteCall, Any, Tensor, int, Callable[..., Tensor], Callable[..., Any]], Any]
"""Gives the value of a call. It takes the call, what is random there, the keys of its rows, how many samples share its
input, what applies random ReLUs (:func:`random_relu`, or a sampler's own) and what runs the call with another input."""


def _relu_site(
    call: SiteCall, activation: RandomSlope, keys: Tensor, repeat: int, relu: Callable[..., Tensor], _: Callable
) -> Tensor:
    x = call.x
    settings = {"activation": activation, "keys": keys, "repeat": repeat, "cap": call.cap}
    if not (call.keeps_input and x.requires_grad and torch.is_grad_enabled()):
        return relu(x, inplace=call.inplace, **settings)
    # Backward reads the output. Where torch's would read the input, the network may go on to change the output in place
    # (F.relu6(x + 3).div_(6)), so backward has one of its own.
    if call.inplace:
        return x.copy_(relu(x.clone(), inplace=True, **settings))
    return relu(x, inplace=False, **settings).clone()


def _formula_site(
    call: SiteCall, activation: Activation, keys: Tensor, repeat: int, _: Callable, __: Callable
) -> Tensor:
    if not call.inplace or repeat > 1:
        return random_activation(call.x, activation, keys, call, repeat=repeat)
    recorded = torch.is_grad_enabled() and call.x.requires_grad
    out = random_activation(call.x.clone() if recorded else call.x, activation, keys, call)  # x itself is overwritten
    return call.x.copy_(out)


def _dropout_site(
    call: SiteCall, dropout: Dropout, keys: Tensor, repeat: int, _: Callable, proceed: Callable[..., Any]
) -> Any:
    return proceed(random_dropout(call.x, dropout, keys, repeat=repeat))


_SITES: dict[Any, SiteFunction] = {RandomSlope: _relu_site, Activation: _formula_site, Dropout: _dropout_site}


def site_function(activation: Randomness) -> SiteFunction:
    """What to do at the call sites of a kind of randomness, by its class or the nearest above it."""
    return next(_SITES[kind] for kind in type(activation).__mro__ if kind in _SITES)

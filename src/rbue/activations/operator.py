"""One operator for both random activations; the backend follows from where the tensor is and who is looking.

* Traced, compiled, exported, vmapped or fake tensors: the plain formula of :mod:`.reference`, to be fused.
* Eager ``float32`` on a CPU: compiled code (:mod:`.native`), or torch's operations (:mod:`.cpu`) without a compiler.
* Eager on a CUDA device with Triton: the fused kernels of :mod:`.triton_kernels`.
* Everything else: the formula.

All give the same masks bit for bit. For backward only the output is kept, which the next layer keeps anyway.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from rbue.activations import cpu, kept_tables, native, reference
from rbue.activations.definitions import Activation, DropReLU
from rbue.activations.layout import ElementLayout
from rbue.activations.triton_support import triton_kernels
from rbue.random_stream import bits

# The mode of torch.autograd.grad(is_grads_batched=True), a vmap that functorch does not report.
_BATCHED_GRADIENTS = torch._C._dispatch_key_parse("VmapMode")


def random_relu(
    x: Tensor,
    activation: Activation,
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
        keys: ``int32`` of shape ``(2, rows)``, one 64-bit key for each row.
        repeat: copies of ``x`` to make, each with keys of its own (samples first). Not differentiable.
        cap: upper bound of the output (6 for ReLU6).
        inplace: write the result into ``x``.
    """
    cap = rounded_cap(cap, x.dtype)
    if isinstance(activation, DropReLU) and activation.q == 1 and repeat == 1:
        return _plain(x, cap, inplace)
    if torch.is_grad_enabled() and x.requires_grad:
        assert repeat == 1, "the sampler runs without gradients"
        if inplace and plain_eager(x):
            _refuse_leaf(x)
            return _RandomReLUInPlace.apply(x, keys, activation, cap)
        forward_mode = not torch.compiler.is_compiling() and forward_ad._current_level >= 0
        out: Tensor = (_RandomReLUBothWays if forward_mode else _RandomReLU).apply(x, keys, activation, cap)
        return x.copy_(out) if inplace else out
    return _forward(x, keys, activation, cap, repeat, inplace, saved=False)


def mean_relu(x: Tensor, activation: Activation, *, cap: float | None = None, inplace: bool = False) -> Tensor:
    """The activation with its expected slope: ``x`` where ``x >= 0``, ``E[a] * x`` elsewhere.

    The gradient at ``±0`` is the slope, as in ``leaky_relu``.
    """
    slope, cap = activation.mean_slope, rounded_cap(cap, x.dtype)
    if slope == 0:
        return _plain(x, cap, inplace)
    if cap is None:
        return F.leaky_relu(x, slope, inplace=inplace)
    # Both steps keep their output for backward, so only a copy of the last one may land in x.
    out = F.hardtanh(F.leaky_relu(x.clone() if inplace else x, slope), -float("inf"), cap)
    return x.copy_(out) if inplace else out


def _plain(x: Tensor, cap: float | None, inplace: bool) -> Tensor:
    return F.relu(x, inplace=inplace) if cap is None else F.hardtanh(x, 0.0, cap, inplace=inplace)


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


def plain_eager(x: Tensor) -> bool:
    """Whether ``x`` is an ordinary tensor that nobody traces or transforms."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and forward_ad._current_level < 0
        and not torch._C._dispatch_tls_is_dispatch_key_included(_BATCHED_GRADIENTS)
    )


def random_words(keys: Tensor, layout: ElementLayout) -> Tensor:
    """Random words by the formula, in the shape of the output."""
    k1, k2 = layout.broadcast_keys(keys)
    table = kept_tables.find(layout)
    return layout.as_output(bits(layout.traced_table() if table is None else table, k1, k2))


def _forward(
    x: Tensor,
    keys: Tensor,
    activation: Activation,
    cap: float | None,
    repeat: int,
    inplace: bool,
    saved: bool,
) -> Tensor:
    layout = ElementLayout.of(x, keys.shape[-1], repeat)
    if isinstance(activation, DropReLU) and activation.q == 0:  # the one probability without a 32-bit threshold
        out = expanded(x, layout) if repeat > 1 else x if inplace else x.clone()
        return out if cap is None else out.clamp_(max=cap)
    if plain_eager(x):
        if inplace and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError("a tensor made in inference mode cannot be changed in place outside of it.")
        if native.supports(x, keys, layout):
            return native.forward(x, activation, keys, layout, cap, inplace)
        if cpu.supports(x, layout):
            return cpu.forward(x, activation, keys, layout, cap, inplace, saved)
        kernels = triton_kernels()
        if kernels is not None and kernels.supports(x, layout):
            kept_tables.note(layout)
            return kernels.forward(x, activation, keys, layout, cap, inplace)
    if repeat > 1:
        x = expanded(x, layout)
    out = reference.forward(x, activation, random_words(keys, layout), cap)
    return x.copy_(out) if inplace else out


def expanded(x: Tensor, layout: ElementLayout) -> Tensor:
    """``x`` once for each sample, in its memory format."""
    out = layout.empty_output(x.dtype)
    layout.rows_of_output(out).copy_(layout.rows_of(x))
    return out


def _backward(grad: Tensor, out: Tensor, keys: Tensor | None, activation: Activation, cap: float | None) -> Tensor:
    layout = ElementLayout.of(out, 1 if keys is None else keys.shape[-1])
    differentiable = torch.is_grad_enabled() and grad.requires_grad
    if plain_eager(grad) and not differentiable:
        grad = grad.resolve_neg()
        if layout.dense and not grad.is_contiguous(memory_format=layout.memory_format):
            grad = grad.contiguous(memory_format=layout.memory_format)
        if native.supports(out, keys, layout):
            return native.backward(grad, out, activation, keys, layout, cap)
        if cpu.supports(out, layout):
            return cpu.backward(grad, out, activation, keys, layout, cap)
        kernels = triton_kernels()
        if kernels is not None and kernels.supports(out, layout, hashed=keys is not None):
            return kernels.backward(grad, out, activation, keys, layout, cap)
    words = None if keys is None else random_words(keys, layout)
    found = reference.backward(grad, out, activation, words, cap)
    drawn_from_table = words is not None and kept_tables.find(layout) is not None
    return kept_tables.written(found) if drawn_from_table else found


class _RandomReLU(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keys: Tensor, activation: Activation, cap: float | None) -> Tensor:
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
    def forward(ctx: Any, x: Tensor, keys: Tensor, activation: Activation, cap: float | None) -> Tensor:
        out = _forward(x, keys, activation, cap, 1, True, saved=True)
        ctx.mark_dirty(x)
        _save(ctx, out, keys, activation, cap)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return _backward(grad, *_saved(ctx)), None, None, None


def _save(ctx: Any, out: Tensor, keys: Tensor, activation: Activation, cap: float | None) -> None:
    ctx.activation, ctx.cap, ctx.keys = activation, cap, None
    if isinstance(activation, DropReLU):
        ctx.save_for_backward(out)
    elif plain_eager(out):
        # Eight bytes an image; an attribute spares them the trip through saved-tensor hooks.
        ctx.keys = keys
        ctx.save_for_backward(out)
    else:
        ctx.save_for_backward(out, keys)


def _saved(ctx: Any) -> tuple[Tensor, Tensor | None, Activation, float | None]:
    out, *keys = ctx.saved_tensors
    return out, keys[0] if keys else ctx.keys, ctx.activation, ctx.cap

"""Every private name of torch that the library uses, with the reason.

Public names change with a warning, these do not. When a new version of torch breaks something, look here first. All of
it is read by compilers too, so the functions are plain and small.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator  # calls that run Python of their own: no public base class
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode, get_overridable_functions
from torch.utils import _python_dispatch
from torch.utils._pytree import (  # torch.utils.pytree came later than 2.10
    tree_flatten,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)
from torch.utils.weak import (
    WeakTensorKeyDictionary,  # that of weakref asks whether keys are equal: a tensor, of tensors
)

__all__ = [
    "HigherOrderOperator", "TorchDispatchMode", "WeakTensorKeyDictionary", "compiled_network", "computed_once",
    "forward_mode",
    "function_modes", "graph_break", "in_backward", "is_exporting", "is_exporting_to_onnx", "is_known_equal",
    "is_vmapped", "let_modes_see", "outside_graphs", "plain_eager", "stance_lock", "tree_flatten", "tree_leaves",
    "tree_map_only", "tree_unflatten", "uncompiled", "uncompiled_call", "writing",
]  # fmt: skip

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The mode of torch.autograd.grad(is_grads_batched=True), a vmap that functorch does not report.
_BATCHED_GRADIENTS = torch._C._dispatch_key_parse("VmapMode")


def is_exporting() -> bool:
    """Whether the code is being exported.

    Before torch 2.13 ``torch.compiler.is_exporting()`` also says so in code that is only compiled; the flag behind it
    does not.
    """
    return torch.compiler._is_exporting_flag


def is_exporting_to_onnx() -> bool:
    """Whether ``torch.onnx.export`` runs the code, in either of its forms.

    ``torch.onnx.is_in_onnx_export()`` loads the exporter to say so, and is False to a compiler whatever is the case.
    """
    if torch.jit.is_tracing():
        older = sys.modules.get("torch.onnx._internal.torchscript_exporter._globals")
        return older is not None and older.GLOBALS.in_onnx_export
    flags = sys.modules.get("torch.onnx._internal.exporter._flags") if is_exporting() else None
    return getattr(flags, "_is_onnx_exporting", False)


def is_known_equal(one: int, other: int) -> bool:
    """Whether two sizes are equal whatever the batch size is that a graph is traced for; asking binds it to nothing."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import, and here already

    return statically_known_true(one == other)


def plain_eager(x: Tensor) -> bool:
    """Whether ``x`` is an ordinary tensor that nobody traces or transforms: kernels may read its memory.

    There is no public way to ask whether a function transform, a tracer or a dispatch mode is at work.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, nn.Parameter)
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and forward_ad._current_level < 0
        and not torch._C._dispatch_tls_is_dispatch_key_included(_BATCHED_GRADIENTS)
    )


def computed_once(words: Tensor) -> Tensor:
    """``words``; compiled code has them written to memory, where each element of a map would make its own anew.

    A view by strides does that.
    """
    if torch.compiler.is_dynamo_compiling() and not is_exporting():
        return words.as_strided(words.shape, words.stride())
    return words


def forward_mode() -> bool:
    """Whether eager code is differentiated in forward mode."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_vmapped(x: Tensor) -> bool:
    """Whether ``x`` stands for many tensors; torch does not know the memory format of one of them."""
    return torch._C._functorch.is_batchedtensor(x)


def writing(buffer: Tensor) -> AbstractContextManager:
    """Where a buffer may be written to: ``torch.func.grad`` refuses to write to what it did not make."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(buffer):
        return nullcontext()
    return torch._C._DisableFuncTorch()


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def function_modes() -> list[TorchFunctionMode]:
    """The torch-function modes of this thread, the innermost first.

    torch's own stack and not a thread-local of ours: a compiler knows it on both sides of a graph break.
    """
    return [
        torch._C._get_function_stack_at(position) for position in reversed(range(torch._C._len_torch_function_stack()))
    ]


def let_modes_see(functions: Iterable[Callable]) -> None:
    """Have compiled code hand calls of these functions to modes, as eager code does.

    The compiler asks a list that lacks some (``torch.relu_``, ``F.hardswish``) and would run those plainly without a
    word. The list is made once and shared; the compiler has a copy once it has been used.
    """
    listed = _functions_modes_see()
    listed += [function for function in functions if function not in listed]
    compiler = sys.modules.get("torch._dynamo.variables.torch")
    if compiler is not None:
        compiler.get_overridable_functions().update(functions)


@cache
def _functions_modes_see() -> list[Callable]:
    return get_overridable_functions()[nn.functional]  # asked once, as it has Python show old warnings again


def compiled_network(model: nn.Module) -> nn.Module | None:
    """The network inside what ``torch.compile`` returned; None if it is something else.

    Looked up among what is loaded: importing the compiler takes longer than importing torch.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or not isinstance(model, compiler.OptimizedModule):
        return None
    return model._orig_mod


stance_lock = threading.RLock()
"""Held while torch has another stance, and while sites are found: either may happen inside the other."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled networks as they are written; one thread at a time, since torch has one stance for all."""
    with stance_lock, torch.compiler.set_stance("force_eager"):
        yield


def uncompiled_call(network: nn.Module) -> Callable[..., Any]:
    """What to call for a pass without the code that ``network.compile()`` made; a ``__call__`` of its own runs."""
    if network._compiled_call_impl is None:
        return network
    if type(network).__call__ is nn.Module.__call__:
        return network._call_impl  # any number of threads may be in it at once

    def call(*args: Any, **kwargs: Any) -> Any:
        with uncompiled():
            return network(*args, **kwargs)

    return call


def graph_break(message: str) -> None:
    """End a compiled graph here; only called while one is being made."""
    torch._dynamo.graph_break(msg=message)


def outside_graphs(function: _Function) -> _Function:
    """Leave a function out of compiled graphs: ``torch.compiler.disable`` without loading the compiler for it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


class TorchDispatchMode(_python_dispatch.TorchDispatchMode):
    """torch's own, which is documented but private, kept from loading the compiler when its first operator comes."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        outside_graphs(cls.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would wrap every subclass in torch.compiler.disable, from torch 2.11 on

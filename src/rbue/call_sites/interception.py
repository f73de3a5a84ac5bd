"""See every call site of a forward pass, in whatever spelling, once.

A :class:`Scope` says where in a network the running call is; a :class:`SiteMode` sees the calls there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from rbue.activations import Randomness, SiteCall
from rbue.activations.calls import with_input
from rbue.torch_internals import HigherOrderOperator, function_modes, graph_break


class Scope:
    """The place of one forward pass: the current module path and how many call sites each path has had.

    ``owner`` tells the pass of a network from that of its copies, which share the token.
    """

    def __init__(self, owner: nn.Module, token: str, counts: dict[str, int] | None = None, path: str = "") -> None:
        self.owner = owner
        self.token = token
        self.path = path
        self.counts: dict[str, int] = {} if counts is None else counts
        self.suspended = False  # while another converted network runs inside
        self.holds_converted = False  # whether one ever did

    def next_call(self) -> int:
        """Count one more call site at the current path; return how many came before."""
        number = self.counts.get(self.path, 0)
        self.counts[self.path] = number + 1
        return number

    def copy(self) -> Scope:
        """The same place, to be continued apart."""
        return Scope(self.owner, self.token, dict(self.counts), self.path)


class SiteHandler(Protocol):
    """What to do at a site: ``path`` and ``number`` name it, ``proceed`` runs the call as written.

    ``proceed(x)`` runs it with another input.
    """

    def __call__(self, call: SiteCall, path: str, number: int, proceed: Callable[..., Any]) -> Any:
        """Return the value of the call."""


def proceed_with(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The ``proceed`` of a call."""

    def proceed(x: Tensor | None = None) -> Any:
        if x is None:
            return func(*args, **kwargs)
        new_args, new_kwargs = with_input(args, kwargs, x)
        return func(*new_args, **new_kwargs)

    return proceed


def keep_in_sight(func: Callable) -> None:
    """Take a call that runs Python of its own out of a compiled graph, where its ReLUs would pass a mode unseen."""
    if torch.compiler.is_compiling() and (func is checkpoint or isinstance(func, HigherOrderOperator)):
        graph_break(f"rbue cannot see the ReLUs inside {func} in one graph; use fullgraph=False")


class SiteMode(TorchFunctionMode):
    """Hand the call sites of one scope to a handler; leave every other call alone.

    torch takes this mode off while a call is being handled, so the ``torch.relu`` inside ``F.relu`` is not
    seen again. Of two nested networks the outer one is suspended, so each site has one owner. The mode is also
    the record of which scope runs in this thread.
    """

    def __init__(self, scope: Scope, activation: Randomness, handler: SiteHandler) -> None:
        super().__init__()
        self.scope = scope
        self.activation = activation
        self.handler = handler

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        keep_in_sight(func)
        call = None if self.scope.suspended else self.activation.read(func, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        path = self.scope.path
        return self.handler(call, path, self.scope.next_call(), proceed_with(func, args, kwargs))


def current_scope() -> Scope | None:
    """The scope of the innermost network running in this thread, unless it is suspended."""
    for mode in function_modes():
        if isinstance(mode, SiteMode):
            return None if mode.scope.suspended else mode.scope
    return None


@contextmanager
def suspended(scope: Scope | None) -> Iterator[None]:
    """Nothing that runs inside belongs to ``scope``."""
    if scope is None:
        yield
        return
    scope.suspended = True
    try:
        yield
    finally:
        scope.suspended = False

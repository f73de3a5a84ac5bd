"""See every call site of a forward pass, in whatever spelling, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rbue.activations import Randomness, SiteCall
from rbue.activations.calls import with_input
from rbue.call_sites.scope import Scope, ScopeMode
from rbue.torch_internals import HigherOrderOperator, graph_break


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


class SiteMode(ScopeMode):
    """Hand the call sites of one scope to a handler; leave every other call alone.

    torch takes this mode off while a call is being handled, so the ``torch.relu`` inside ``F.relu`` is not
    seen again. Of two nested networks the outer one is suspended, so each site has one owner.
    """

    def __init__(self, scope: Scope, activation: Randomness, handler: SiteHandler) -> None:
        super().__init__(scope)
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

"""See every ReLU of a forward pass, in whatever spelling, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._ops import HigherOrderOperator
from torch.utils.checkpoint import checkpoint

from rbue.call_sites.forms import ReluCall, read_call
from rbue.call_sites.scope import Scope, ScopeMode


class ReluHandler(Protocol):
    """What to do with a ReLU: ``path`` and ``number`` name its site, ``proceed`` runs it as written."""

    def __call__(self, call: ReluCall, path: str, number: int, proceed: Callable[[], Any]) -> Any:
        """Return the value of the ReLU."""


def keep_in_sight(func: Callable) -> None:
    """Take a call that runs Python of its own out of a compiled graph, where its ReLUs would pass a mode unseen."""
    if torch.compiler.is_compiling() and (func is checkpoint or isinstance(func, HigherOrderOperator)):
        torch._dynamo.graph_break(msg=f"rbue cannot see the ReLUs inside {func} in one graph; use fullgraph=False")


class SiteMode(ScopeMode):
    """Hand the ReLUs of one scope to a handler; leave every other call alone.

    torch takes this mode off while a call is being handled, so the ``torch.relu`` inside ``F.relu`` is not
    seen again. Of two nested networks the outer one is suspended, so each ReLU has one owner.
    """

    def __init__(self, scope: Scope, handler: ReluHandler) -> None:
        super().__init__(scope)
        self.handler = handler

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        keep_in_sight(func)
        call = None if self.scope.suspended else read_call(func, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        path = self.scope.path
        return self.handler(call, path, self.scope.next_call(), lambda: func(*args, **kwargs))

"""Where in a network the running call is: a :class:`Scope` follows one forward pass of one network, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from rbue.torch_internals import function_modes


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


class ScopeMode(TorchFunctionMode):
    """A torch-function mode for one scope. It is also the record of which scope runs in this thread."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope


def current_scope() -> Scope | None:
    """The scope of the innermost network running in this thread, unless it is suspended."""
    for mode in function_modes():
        if isinstance(mode, ScopeMode):
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


class _Running:
    """What a thread's sampler and checkpointed blocks hand to the networks that they run."""

    def __init__(self) -> None:
        # Not a subclass of threading.local: torch.compile reads and writes the wrong attributes of one.
        self._local = threading.local()

    @property
    def draws(self) -> Any:
        """``(token, Draw)`` of a sampler."""
        return getattr(self._local, "draws", None)

    @draws.setter
    def draws(self, value: Any) -> None:
        self._local.draws = value

    @property
    def memories(self) -> tuple:
        """What checkpointed blocks remember: see :mod:`rbue.call_sites.checkpointing`."""
        return getattr(self._local, "memories", ())

    @memories.setter
    def memories(self, value: tuple) -> None:
        self._local.memories = value


running = _Running()

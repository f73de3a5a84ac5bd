"""Give activation checkpointing the same masks when it computes a block a second time.

``torch.utils.checkpoint`` runs a block again during backward, long after the network's forward has ended. Both of its
implementations are wrapped, once, so that a block remembers where in which pass it ran first. Blocks that meet no
converted network pass through unchanged.

Under ``torch.compile`` a checkpointed block leaves the graph and runs as above, with what it calls compiled: masks and
gradients are those of the uncompiled network. ``fullgraph=True`` therefore refuses a network that checkpoints inside,
whatever ``torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint`` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import checkpoint

from rbue.activations import Randomness
from rbue.call_sites.draws import Draw, running
from rbue.call_sites.interception import Scope, SiteMode, current_scope, suspended
from rbue.torch_internals import function_modes

GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
"""Of what calls the block first and again, as torch 2.15 and earlier ones name it."""

_installed = False


def install() -> None:
    """Teach ``torch.utils.checkpoint`` about random sites; a second call does nothing.

    Should torch rename these entry points, a checkpointed block raises a clear error when it runs again (see
    :mod:`rbue.call_sites.following`) instead of silently computing with plain ReLUs.
    """
    global _installed
    if _installed:
        return
    _installed = True
    for name in GENERATORS:
        if hasattr(checkpoint, name):
            _wrap_without_reentrant(name)
            break
    if hasattr(checkpoint, "CheckpointFunction"):
        _wrap_reentrant()


def _wrap_without_reentrant(name: str) -> None:
    original = getattr(checkpoint, name)
    signature = inspect.signature(original)

    def generator(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        memory = _Memory()
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        context_fn = call.arguments["context_fn"]

        def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
            first, again = context_fn()  # the first goes on as it is: torch asks it what it is
            return first, _Both(memory.replaying, again)

        call.arguments["context_fn"] = contexts
        return _around_first_run(original(*call.args, **call.kwargs), memory)

    setattr(checkpoint, name, generator)


def _around_first_run(generator: Iterator[None], memory: _Memory) -> Iterator[None]:
    """The same generator, which hands over to the block once, with our context inside of what it sets up."""
    for _ in generator:
        with memory.recording():
            yield


def _wrap_reentrant() -> None:
    original = checkpoint.CheckpointFunction.forward

    def forward(ctx: Any, run_function: Callable, *args: Any) -> Any:
        memory = _Memory()
        ran = False

        def run(*inputs: Any) -> Any:
            nonlocal ran
            context = memory.replaying() if ran else memory.recording()
            ran = True
            with context:
                return run_function(*inputs)

        return original(ctx, run, *args)

    checkpoint.CheckpointFunction.forward = staticmethod(forward)  # type: ignore[method-assign]


class _Both(AbstractContextManager):
    """A new context of ours around a given one, at every entry."""

    def __init__(self, ours: Callable[[], AbstractContextManager], given: AbstractContextManager) -> None:
        self.ours, self.given = ours, given
        self.stacks: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(self.ours())
        stack.enter_context(self.given)
        self.stacks.append(stack)

    def __exit__(self, *exception: Any) -> bool | None:
        return self.stacks.pop().__exit__(*exception)


class _Memory:
    """The place a block is called from, and the draws of converted networks that it calls itself, in order."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.position: int | None = None  # None while recording
        self.place: tuple[Scope, Randomness, Any] | None = None
        if current_scope() is not None:
            mode = next(mode for mode in function_modes() if isinstance(mode, SiteMode))
            self.place = mode.scope.copy(), mode.activation, mode.handler

    @contextmanager
    def recording(self) -> Iterator[None]:
        outer, running.memories = running.memories, (*running.memories, self)
        try:
            yield
        finally:
            running.memories = outer

    @contextmanager
    def replaying(self) -> Iterator[None]:
        outer, outer_position = running.memories, self.position
        running.memories, self.position = (*outer, self), 0
        try:
            if self.place is None:
                yield
            else:
                scope, activation, handler = self.place
                with suspended(current_scope()), SiteMode(scope.copy(), activation, handler):
                    yield
        finally:
            running.memories, self.position = outer, outer_position

    def replay(self) -> Draw:
        assert self.position is not None
        self.position += 1
        return self.draws[self.position - 1]


def recorded(draw: Callable[[], Draw]) -> Draw:
    """A draw for a network called now: the remembered one if a checkpointed block is being run again."""
    memories = running.memories
    if not memories:
        return draw()
    replayed = [memory.replay() for memory in memories if memory.position is not None]
    found = replayed[0] if replayed else draw()
    for memory in memories:
        if memory.position is None:
            memory.draws.append(found)
    return found

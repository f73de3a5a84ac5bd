"""torch's compiler, and a thread that compiles a function beside other work without running it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from importlib import import_module
from typing import Any

import torch

_compiling = threading.Lock()
_SWITCH_SECONDS = 0.0005
"""How long a thread that compiles may keep Python from one that starts steps: less than a step takes."""


class Compilation:
    """A function that is compiled when it is first called, or before that by a thread.

    torch compiles a function in its first call and then runs it. The thread makes that call, but stops it before
    anything is run: its code is there for the next call, and neither tensors were changed nor kernels timed, for which
    a device that is busy with other work would be no good place.
    """

    def __init__(self, function: Callable) -> None:
        self._written = function
        self._compiled: Callable | None = None
        self._thread: threading.Thread | None = None
        self._cancelled = False
        self._error: Exception | None = None

    def function(self) -> Callable:
        """The function, to be called in any other thread; raises what the thread failed with."""
        if self._error is not None:
            raise self._error
        if self._compiled is None:
            self._compiled = torch.compile(self._written, dynamic=False, backend=self._backend)
        return self._compiled

    def start(self, first_call: Callable[[Callable], object]) -> None:
        """Start the thread; ``first_call`` calls the function it is given as it will be called later."""
        if torch._dynamo.config.disable:  # the call would run everything
            self.cancel()
        self._thread = threading.Thread(target=self._compile, args=[first_call], name="rbue compiler")
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    @property
    def has_ended(self) -> bool:
        """Whether the thread has done its work."""
        return self._thread is not None and not self._thread.is_alive()

    def cancel(self) -> None:
        """Let the thread end soon. It is not waited for, but Python does so before it exits."""
        self._cancelled = True

    def _compile(self, first_call: Callable[[Callable], object]) -> None:
        with _compiling, _switching_often():
            if self._cancelled:
                return
            try:
                with room_for_networks(), torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                    first_call(self.function())
            except _NotRun:
                pass
            except Exception as error:
                self._error = error

    def _backend(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable:
        if self._cancelled:
            raise _NotRun
        run = _inductor(graph, inputs)

        @wraps(run)
        def run_elsewhere(*arguments: Any) -> Any:
            if threading.current_thread() is self._thread:
                raise _NotRun
            return run(*arguments)

        return run_elsewhere


class _NotRun(Exception):
    """Ends a call whose function has been compiled."""


def room_for_networks() -> AbstractContextManager:
    """Let one process compile the step of many networks, and fail rather than run one uncompiled."""
    return torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True)


@contextmanager
def loading() -> Iterator[None]:
    """Load the compiler, and start the processes that it compiles in, beside what is done inside."""

    def load() -> None:
        with suppress(Exception):  # compiling fails with it too, and says why
            import_module("torch._inductor.async_compile")

    loader = threading.Thread(target=load)
    loader.start()
    try:
        yield
    finally:
        loader.join()


def _inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable:
    """Torch's own backend, with small independent kernels (the casts of all weights) combined into one."""
    compile_fx = import_module("torch._inductor.compile_fx").compile_fx  # slow to import
    return compile_fx(graph, inputs, config_patches={"combo_kernels": True})


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

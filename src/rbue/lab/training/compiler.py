"""torch's compiler, and a thread that compiles a function beside other work without running it."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from importlib import import_module
from typing import Any

import torch

_SWITCH_SECONDS = 0.0005
"""How long a thread that compiles may keep Python from one that starts steps: less than a step takes."""

_ends: list[threading.Event] = []
"""The ends of threads that were started; a later one waits for all of them."""


class Compilation:
    """A function that is compiled when it is first called, or before that by a thread.

    torch compiles a function in its first call and then runs it. The thread makes that call, but stops it before
    anything is run: neither were tensors changed then nor kernels timed, for which a device that is busy with other
    work would be no good place. The next call finds the code, up to where the compiler breaks a function in two.
    """

    def __init__(self, function: Callable) -> None:
        backend = self._backend = _Backend()

        def compiled_or_not_at_all(*arguments: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling() and threading.current_thread() is backend.thread:
                raise _NotRun  # compiling is switched off
            return function(*arguments)

        self._compiled = torch.compile(compiled_or_not_at_all, dynamic=False, backend=backend)
        self._error: Exception | None = None

    def function(self) -> Callable:
        """The function, to be called in any other thread; raises what the thread failed with."""
        if self._error is not None:
            raise self._error
        return self._compiled

    def start(self, first_call: Callable[[Callable], object]) -> None:
        """Start the thread; ``first_call`` calls the function it is given as it will be called later."""
        earlier, end = [end for end in _ends if not end.is_set()], threading.Event()
        _ends[:] = [*earlier, end]
        thread = threading.Thread(target=self._compile, args=[first_call, earlier, end], name="rbue compiler")
        self._backend.thread = thread
        thread.start()

    @property
    def is_started(self) -> bool:
        """Whether there is a thread."""
        return self._backend.thread is not None

    @property
    def has_ended(self) -> bool:
        """Whether the thread has done its work."""
        return self._backend.thread is not None and not self._backend.thread.is_alive()

    def cancel(self) -> None:
        """Stop the thread, if it is running, and wait for its end: it must not meet what comes next."""
        thread = self._backend.thread
        if thread is None or thread.ident is None or not thread.is_alive():
            return
        # Nothing in the compiler asks whether it should go on.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_NotRun))
        thread.join()

    def _compile(
        self, first_call: Callable[[Callable], object], earlier: Sequence[threading.Event], end: threading.Event
    ) -> None:
        try:
            while not all(other.wait(0.1) for other in earlier):  # it could not be stopped in a longer wait
                pass
            with (
                _switching_often(),
                room_for_networks(),
                torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
            ):
                first_call(self._compiled)
        except _NotRun:
            pass
        except Exception as error:
            self._error = error
        finally:
            end.set()


class _Backend:
    """torch's own backend, but what it made is not run in the thread that only compiles.

    torch keeps it for as long as the process lives, so it must not know the function or its network.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable:
        run = _inductor(graph, inputs)

        @wraps(run)
        def run_elsewhere(*arguments: Any) -> Any:
            if threading.current_thread() is self.thread:
                raise _NotRun
            return run(*arguments)

        return run_elsewhere


class _NotRun(SystemExit):
    """Ends a call whose function has been compiled, or a thread that is not wanted any more, without a word."""


def room_for_networks() -> AbstractContextManager:
    """Let one process compile the step of many networks, and fail rather than run one uncompiled.

    For one thread at a time: in torch 2.11 all threads share the settings.
    """
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
    """Torch's own backend, with small independent kernels (the casts of all weights) combined into one.

    It does not look whether wider matrix products would be faster: finding that out, with questions to the driver and
    timings, takes seconds beside a busy device, and convolutional networks have one small product. Nor does it time the
    two forms it knows of most elementwise kernels. It would do so with an empty cache, where they are alike and chance
    decides; in a step, whose data are in the cache, the one it takes untimed is up to a third faster.
    """
    compile_fx = import_module("torch._inductor.compile_fx").compile_fx  # slow to import
    patches = {"combo_kernels": True, "shape_padding": False, "triton.autotune_pointwise": False}
    return compile_fx(graph, inputs, config_patches=patches)


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

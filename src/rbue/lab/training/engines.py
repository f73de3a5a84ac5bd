"""How the steps of an epoch are run: one by one, or as captured graphs that are replayed.

On a GPU the operations of a step for a batch of 128 are so short that starting them takes longer than running them. A
captured graph starts them all at once. Everything a step reads and changes lives in tensors (:mod:`.step`), so a replay
is a step: the same batches, masks and rates as in the plain loop.

Compiled steps are shorter still, but compiling takes as long as thousands of them. A long training starts with steps as
they are written, and changes to compiled ones between two epochs, when a thread has made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import torch

from rbue.errors import InvalidInput, warn
from rbue.kernels import kept_tables
from rbue.lab.training import compiler
from rbue.lab.training.step import TrainingStep

ENGINES = ("auto", "plain", "captured", "compiled")
Compiling = Literal["never", "first", "beside"]
_COMPILING_PAYS = 20_000
"""Steps from which the time saved by compiled steps exceeds the time spent on compiling them."""


class Engine(Protocol):
    """Runs the steps of epochs."""

    name: str

    def before_epoch(self) -> None:
        """Called before each epoch, when no step is running: the time to change how steps are run."""

    def start_step(self, rows: int) -> None:
        """Start the step for the next batch; it need not have ended on return."""

    def wait(self) -> None:
        """Return when every started step has ended."""

    def close(self) -> None:
        """Called after the last epoch, or when there will be no other: end what is done beside the steps."""


def engine_for(step: TrainingStep, name: str = "auto", epochs_done: int = 0) -> Engine:
    """The engine of this name; ``auto`` is captured on a GPU, compiled where that pays, and plain elsewhere."""
    if name not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, not {name!r}.")
    on_gpu = step.device.type == "cuda"
    if name in ("captured", "compiled"):
        if not on_gpu:
            raise InvalidInput(f"the {name} engine needs a CUDA device; use engine='plain' on {step.device}.")
        if step.share.processes > 1:
            raise InvalidInput(f"the {name} engine trains in one process, not in {step.share.processes}; use 'plain'.")
    if name == "plain" or not on_gpu or step.share.processes > 1:
        return PlainEngine(step)
    ways: tuple[Compiling, ...] = ("first",) if name == "compiled" else ("never",)
    if name == "auto" and (step.recipe.epochs - epochs_done) * len(step.batches) >= _COMPILING_PAYS:
        # When the compiler ends it puts torch's generator back where it was: what a method draws from it would recur.
        ways = ("first", "never") if step.method.trains_alone else ("beside",)
    for compiling in ways:
        try:
            return CapturedEngine(step, compiling)
        except RuntimeError as error:
            if name != "auto":
                raise
            _warn_that_it_cannot_be("compiled" if compiling == "first" else "captured as a graph", error)
    return PlainEngine(step)


def _warn_that_it_cannot_be(how: str, error: Exception) -> None:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    warn(f"the training step cannot be {how} ({reason}).")


@contextmanager
def _cudnn_search(wanted: bool) -> Iterator[None]:
    """Whether cuDNN tries all of its kernels while warming up, and not only what it takes for the best."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = wanted, 0
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before


class PlainEngine:
    """Operation by operation."""

    name = "plain"

    def __init__(self, step: TrainingStep) -> None:
        self.step = step

    def before_epoch(self) -> None:
        """Nothing changes."""

    def start_step(self, rows: int) -> None:
        """Run one step."""
        self.step(rows)

    def wait(self) -> None:
        """Wait for the device."""
        if self.step.device.type == "cuda":
            torch.cuda.synchronize(self.step.device)

    def close(self) -> None:
        """Nothing is done beside the steps."""


class CapturedEngine:
    """One graph for full batches, another one for the last batch of an epoch if it is smaller.

    The graph of full batches is compiled never, first of all, or beside the first epochs.
    """

    def __init__(self, step: TrainingStep, compiling: Compiling = "never") -> None:
        self.name = "captured"
        self.step = step
        self.stream = torch.cuda.Stream(step.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.sizes = sorted(set(step.batch_sizes()), reverse=True)
        self.compilation = None if compiling == "never" else compiler.Compilation(step.loss_at)
        with self._practising():
            if self.compilation is not None:
                # As written, for the tables that the compiled step reads. cuDNN is asked here already: what it chose
                # once, it does not search for again.
                with kept_tables.keeping(), _cudnn_search(True), compiler.loading():
                    self._practise(self.sizes[0])
            if compiling == "first":
                with compiler.room_for_networks():
                    self._capture_compiled()
            for rows in self.sizes:
                if rows not in self.graphs:
                    self._capture(rows, step.loss_at)

    @contextmanager
    def _practising(self) -> Iterator[None]:
        """Steps taken inside run on the engine's stream and leave no trace."""
        step = self.step
        step.network.train()
        with step.undone():
            torch.cuda.synchronize(step.device)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                step.forward = step.loss_at
                torch.cuda.synchronize(step.device)
        torch.cuda.synchronize(step.device)

    def _practise(self, rows: int) -> None:
        self.step.done.zero_()  # later in a short epoch there may be fewer rows than that
        self.step(rows)

    def _capture(self, rows: int, forward: Callable) -> None:
        self.step.forward = forward
        # One small batch an epoch is worth neither a second compilation nor a search for kernels.
        with _cudnn_search(rows == self.sizes[0]):
            for _ in range(3):  # lets libraries choose their kernels and the allocator settle
                self._practise(rows)
            torch.cuda.synchronize(self.step.device)
            graph = torch.cuda.CUDAGraph()
            # The step of another network may be compiled meanwhile, and its thread must be free to use the device.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.step(rows)
        self.graphs[rows] = graph

    def _capture_compiled(self) -> None:
        compilation, self.compilation = self.compilation, None
        assert compilation is not None
        compiled = compilation.function()
        self.graphs.pop(self.sizes[0], None)  # its memory serves the next one
        self._capture(self.sizes[0], compiled)
        self.name = "compiled"

    def before_epoch(self) -> None:
        """Have the step compiled before the first epoch; change to it before the first one that finds it compiled."""
        if self.compilation is None:
            return
        if not self.compilation.is_started:
            self.compilation.start(self._first_call)
        elif self.compilation.has_ended:
            with self._practising():
                try:
                    self._capture_compiled()
                except Exception as error:  # of any kind: the step as written has been running all the time
                    _warn_that_it_cannot_be("compiled", error)
                if self.sizes[0] not in self.graphs:  # after the error is gone, and the memory of its step with it
                    self._capture(self.sizes[0], self.step.loss_at)

    def _first_call(self, compiled: Callable) -> None:
        with torch.cuda.device(self.step.device):
            self.step.next_loss(self.sizes[0], compiled)

    def start_step(self, rows: int) -> None:
        """Start one step."""
        with torch.cuda.stream(self.stream):
            self.graphs[rows].replay()

    def wait(self) -> None:
        """Wait for this network's steps, not for those of others."""
        self.stream.synchronize()

    def close(self) -> None:
        """Stop the thread that compiles."""
        if self.compilation is not None:
            self.compilation.cancel()

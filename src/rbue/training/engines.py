"""How the steps of an epoch are run: one by one, or as captured graphs that are replayed.

On a GPU the operations of a step for a batch of 128 are so short that starting them takes longer than running them. A
captured graph starts them all at once. Everything a step reads and changes lives in tensors (:mod:`.step`), so a replay
is a step: the same batches, masks and rates as in the plain loop.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from typing import Protocol

import torch

from rbue.activations import kept_tables
from rbue.errors import InvalidInput, RbueWarning
from rbue.training.step import TrainingStep

ENGINES = ("auto", "plain", "captured", "compiled")
_COMPILING_PAYS = 20_000
"""Steps from which the time saved by compiled steps exceeds the time spent on compiling them."""


class Engine(Protocol):
    """Runs the steps of epochs."""

    name: str

    def start_step(self, rows: int) -> None:
        """Start the step for the next batch; it need not have ended on return."""

    def wait(self) -> None:
        """Return when every started step has ended."""


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
    steps = (step.recipe.epochs - epochs_done) * len(step.batches)
    try_compiling = name == "compiled" or (name == "auto" and steps >= _COMPILING_PAYS)
    for compiled in (True, False) if try_compiling else (False,):
        try:
            return CapturedEngine(step, compiled)
        except RuntimeError as error:
            if name != "auto":
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            how = "compiled" if compiled else "captured as a graph"
            warnings.warn(f"the training step cannot be {how} ({reason}).", RbueWarning, stacklevel=2)
    return PlainEngine(step)


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


def _room_for_networks() -> AbstractContextManager:
    """Let one process compile the step of many networks, and fail rather than run one uncompiled."""
    return torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True)


@contextmanager
def _compiler_loading() -> Iterator[None]:
    """Load torch's compiler, and start the processes that it compiles in, beside what is done inside."""

    def load() -> None:
        with suppress(Exception):  # compiling fails with it too, and says why
            import_module("torch._inductor.async_compile")

    loading = threading.Thread(target=load)
    loading.start()
    try:
        yield
    finally:
        loading.join()


def _compiled(function: Callable) -> Callable:
    """The function compiled, with small independent kernels (the casts of all weights) combined into one."""
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})


class PlainEngine:
    """Operation by operation."""

    name = "plain"

    def __init__(self, step: TrainingStep) -> None:
        self.step = step

    def start_step(self, rows: int) -> None:
        """Run one step."""
        self.step(rows)

    def wait(self) -> None:
        """Wait for the device."""
        if self.step.device.type == "cuda":
            torch.cuda.synchronize(self.step.device)


class CapturedEngine:
    """One graph for full batches, another one for the last batch of an epoch if it is smaller."""

    def __init__(self, step: TrainingStep, compiled: bool) -> None:
        self.name = "compiled" if compiled else "captured"
        self.step = step
        self.stream = torch.cuda.Stream(step.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        step.network.train()
        sizes = sorted(set(step.batch_sizes()), reverse=True)
        with _room_for_networks(), step.undone():
            torch.cuda.synchronize(step.device)
            try:
                with torch.cuda.stream(self.stream):
                    if compiled:
                        # As written, for the tables that the compiled step reads. cuDNN is asked here already: what it
                        # chose once, it does not search for again.
                        with kept_tables.keeping(), _cudnn_search(True), _compiler_loading():
                            self._practise(sizes[0])
                    for rows in sizes:
                        # One small batch an epoch is worth neither a second compilation nor a search for kernels.
                        full = rows == sizes[0]
                        step.forward = _compiled(step.loss_at) if compiled and full else step.loss_at
                        with _cudnn_search(full):
                            self.graphs[rows] = self._capture(rows)
            finally:
                step.forward = step.loss_at
                torch.cuda.synchronize(step.device)
        torch.cuda.synchronize(step.device)

    def _practise(self, rows: int) -> None:
        self.step.done.zero_()  # later in a short epoch there may be fewer rows than that
        self.step(rows)

    def _capture(self, rows: int) -> torch.cuda.CUDAGraph:
        for _ in range(3):  # lets libraries choose their kernels and the allocator settle
            self._practise(rows)
        torch.cuda.synchronize(self.step.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.step(rows)
        return graph

    def start_step(self, rows: int) -> None:
        """Start one step."""
        with torch.cuda.stream(self.stream):
            self.graphs[rows].replay()

    def wait(self) -> None:
        """Wait for this network's steps, not for those of others."""
        self.stream.synchronize()

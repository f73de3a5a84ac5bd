"""How the steps of an epoch are run: one by one, or as captured graphs that are replayed.

On a GPU the operations of a step for a batch of 128 are so short that starting them takes longer than running them. A
captured graph starts them all at once. Everything a step reads and changes lives in tensors (:mod:`.step`), so a replay
is a step: the same batches, masks and learning rates as in the plain loop.

Compiled steps are shorter still, but compiling takes as long as tens of thousands of steps save. A long training
compiles its step before the first epoch; torch keeps what it made on disk, so the next training of the same kind finds
it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from rbue.errors import InvalidInput, RbueError, warn
from rbue.kernels import kept_tables
from rbue.lab.training.step import TrainingStep

ENGINES = ("auto", "plain", "captured", "compiled")
_COMPILING_PAYS = 60_000 * 128 * 32 * 32
"""Pixels to train on from which compiling pays even if nothing is kept on disk: for ResNet-18 about 40 s, at 0.65 ms a
step of 128 images of 32x32."""
_OPTIONS: dict[str, str | int | bool | Callable] = {
    "combo_kernels": True,  # small independent kernels, the casts of all weights, become one
    # Whether wider matrix products would be faster takes seconds to find out; these networks have one small product.
    "shape_padding": False,
    # Elementwise kernels would be timed with an empty cache, where their forms are alike and chance decides; in a step,
    # whose data are in the cache, the one taken untimed is up to a third faster.
    "triton.autotune_pointwise": False,
}


def engine_for(step: TrainingStep, name: str = "auto", epochs_done: int = 0) -> Engine:
    """The engine of this name; ``auto`` is captured on a GPU, compiled where that pays, and plain elsewhere."""
    if name not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, not {name!r}.")
    on_gpu, processes = step.device.type == "cuda", step.rank.world_size
    if name in ("captured", "compiled"):
        if not on_gpu:
            raise InvalidInput(f"the {name} engine needs a CUDA device; use --engine plain on {step.device}.")
        if processes > 1:
            raise InvalidInput(f"the {name} engine trains in one process, not in {processes}; use --engine plain.")
        return CapturedEngine(step, compiled=name == "compiled")
    if name == "plain" or not on_gpu or processes > 1:
        return PlainEngine(step)
    pays = (step.recipe.epochs - epochs_done) * step.batches.images[..., 0].numel() >= _COMPILING_PAYS
    for compiled in (True, False) if pays else (False,):
        try:
            return CapturedEngine(step, compiled)
        except RbueError:
            raise
        except Exception as error:  # of any kind: the step as written needs neither
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warn(f"the training step cannot be {'compiled' if compiled else 'captured as a graph'} ({reason}).")
    return PlainEngine(step)


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
    """One graph for full batches, compiled or not, another one for the last batch of an epoch if it is smaller."""

    def __init__(self, step: TrainingStep, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "captured"
        self.step = step
        self.stream = torch.cuda.Stream(step.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        full, *smaller = sorted(set(step.batch_sizes()), reverse=True)
        with self._warming_up():
            if compiled:
                import_module("torch._inductor.compile_fx")  # its processes start up beside what follows
                # As written, for the tables that the compiled step reads. cuDNN is asked here already: what it chose
                # once, it does not search for again.
                with kept_tables.keeping(), _cudnn_search(True):
                    self._warm_up(full)
                # One process may compile the step of many networks, and fails rather than run one uncompiled.
                with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
                    self._capture(full, _compiled(step.loss_at), search=True)
            else:
                self._capture(full, None, search=True)
            for rows in smaller:  # one batch an epoch is worth neither a second compilation nor a search for kernels
                self._capture(rows, None, search=False)

    @contextmanager
    def _warming_up(self) -> Iterator[None]:
        """Steps taken inside run on the engine's stream and leave no trace."""
        step = self.step
        step.network.train()
        with step.undone():
            torch.cuda.synchronize(step.device)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                step.forward = None
                torch.cuda.synchronize(step.device)
        torch.cuda.synchronize(step.device)

    def _warm_up(self, rows: int) -> None:
        self.step.done.zero_()  # later in a short epoch there may be fewer rows than that
        self.step(rows)

    def _capture(self, rows: int, forward: Callable | None, search: bool) -> None:
        self.step.forward = forward
        with _cudnn_search(search):
            for _ in range(3):  # compiles, lets libraries choose their kernels and the allocator settle
                self._warm_up(rows)
            torch.cuda.synchronize(self.step.device)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process stay free to use the device.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.step(rows)
        self.graphs[rows] = graph

    def start_step(self, rows: int) -> None:
        """Start one step; it need not have ended on return."""
        with torch.cuda.stream(self.stream):
            self.graphs[rows].replay()

    def wait(self) -> None:
        """Wait for this network's steps, not for those of others."""
        self.stream.synchronize()


Engine = PlainEngine | CapturedEngine


def _compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=False, options=_OPTIONS)


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

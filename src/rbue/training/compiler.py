"""How torch's compiler is used for training steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Any

import torch

from rbue.training import overlapping, widening


def compile_step(function: Callable) -> Callable:
    """The function compiled, with small independent kernels (the casts of all weights) combined into one."""
    options = {"combo_kernels": True, "post_grad_custom_post_pass": _graph_pass()}
    return torch.compile(function, dynamic=False, options=options)


@cache
def _graph_pass() -> Any:
    """What is changed in the graphs of both passes before code is made of them."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files  # slow to import

    class GraphPass(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            widening.widen_convolutions(graph)
            overlapping.overlap_weight_gradients(graph)

        def uuid(self) -> bytes:
            """By this the compiler knows in its cache what these passes were applied to."""
            return get_hash_for_files((overlapping.__file__, widening.__file__))

    return GraphPass()


def room_for_networks() -> AbstractContextManager:
    """Let one process compile the step of many networks, and fail rather than run one uncompiled."""
    return torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True)


@contextmanager
def compiler_loading(device: torch.device) -> Iterator[None]:
    """Load the compiler, and start the processes that it compiles in, beside what is done inside.

    It loads its parts as it needs them, so it is given something small.
    """

    def load() -> None:
        with suppress(Exception):  # compiling fails with it too, and says why
            x = torch.ones(8, device=device, requires_grad=True)
            compile_step(lambda x: (x * 2).sum())(x).backward()

    loading = threading.Thread(target=load)
    loading.start()
    try:
        yield
    finally:
        loading.join()

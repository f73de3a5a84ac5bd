"""What the benchmarks share: interleaved timing, and the speed of products against what the device can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Variants = dict[Any, Callable[[], Any]]
Clock = Callable[[], float]

CEILING = "one large matrix product"


def medians(variants: Variants, trials: int, warmup: int = 2, clock: Clock = time.perf_counter) -> dict[Any, float]:
    """Median seconds of each variant, by this clock."""
    for run in variants.values():
        for _ in range(warmup):
            run()
    *_, found = medians_by_trial(variants, trials, clock=clock)
    return found


def medians_by_trial(
    variants: Variants, trials: int, once: Collection[str] = (), clock: Clock = time.perf_counter
) -> Iterator[dict[Any, float]]:
    """The medians after each trial. The variants take turns, so that a busy machine hurts them alike.

    Those named in ``once`` are slow, and run in the first trial only.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in variants}
    for trial in range(trials):
        for name, run in variants.items():
            if trial and name in once:
                continue
            start = clock()
            run()
            seconds[name].append(clock() - start)
        yield {name: statistics.median(values) for name, values in seconds.items()}


def products(network: nn.Module, x: Tensor) -> int:
    """Floating-point operations of one pass: two for each product that is summed."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops()


def matrix_product_teraflops(device: torch.device, dtype: torch.dtype) -> float:
    """What the device reaches in a large product of matrices: the ceiling for convolutions in the same run."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def ten() -> None:
        for _ in range(10):
            a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()

    return 10 * 2 * size**3 / 1e12 / medians({"": ten}, trials=5)[""]

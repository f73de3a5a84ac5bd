"""What every benchmark shares: interleaved timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def medians(variants: dict[str, Callable[[], Any]], trials: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each variant. The variants take turns, so that a busy machine hurts them alike."""
    for run in variants.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(trials):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}

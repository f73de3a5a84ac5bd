"""What the kernels reach on a GPU: time and bandwidth against a copy, ReLU and torch's own random activations.

    PYTHONPATH=src:. python benchmarks/kernels.py [--out results/gpu_kernels.json]

64 Mi elements by default; the calls take turns on buffers that are larger together than the cache. A forward pass reads
and writes each element once, a backward pass reads two tensors and writes one; the share of the copy's bandwidth
counts those bytes. Goal: 0.95 for both activations, forward and backward, in bfloat16.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from rbue import random_stream
from rbue.activations import DropReLU, RReLU
from rbue.files import write_json
from rbue.kernels import random_relu, site_keys
from rbue.lab.environment import facts

SHAPE = (64, 256, 64, 64)
CASES = {
    "bfloat16": (torch.bfloat16, torch.contiguous_format),
    "bfloat16, channels last": (torch.bfloat16, torch.channels_last),
    "float32": (torch.float32, torch.contiguous_format),
}
TENSORS_MOVED = {"forward": 2, "backward": 3}
Times = dict[str, dict[str, float]]


def bernoulli_formula(x: Tensor) -> Tensor:
    """DropReLU as most people would write it."""
    return torch.where(torch.rand_like(x) < 0.9, F.relu(x), x)


def functions(keys: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "copy": torch.clone,
        "ReLU": F.relu,
        "DropReLU": lambda x: random_relu(x, DropReLU(0.9), keys),
        "RReLU": lambda x: random_relu(x, RReLU(), keys),
        "F.dropout": lambda x: F.dropout(x, 0.1),
        "F.rrelu": lambda x: F.rrelu(x, training=True),
        "bernoulli formula": bernoulli_formula,
    }


def turns(calls: dict[str, Callable[[int], Any]], buffers: int, trials: int) -> dict[str, float]:
    """Median microseconds of each call; in every trial each goes once over all buffers."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for trial in range(trials + 2):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(5_000_000)  # the calls queue up meanwhile, so that the host's pace does not count
            start.record()
            for index in range(buffers):
                call(index)
            end.record()
            torch.cuda.synchronize()
            if trial >= 2:
                times[name].append(1e3 * start.elapsed_time(end) / buffers)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format, trials: int) -> Times:
    """Microseconds of every function, forward and backward."""
    buffers = 8
    inputs = [
        torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
        for _ in range(buffers)
    ]
    numbers = [torch.arange(count, dtype=torch.int32, device="cuda") for count in (1, shape[0], 1)]
    found = functions(site_keys(random_stream.seed_state(0, "cuda"), *numbers)[:, 0])
    with torch.no_grad():
        forward = turns({name: lambda i, f=f: f(inputs[i]) for name, f in found.items()}, buffers, trials)
    gradient = torch.randn_like(inputs[0])
    calls: dict[str, Callable[[int], Any]] = {}
    for name, function in found.items():
        if name == "copy":
            continue  # its gradient is the one that comes in
        outs = [function(x) for x in inputs]

        def call(index: int, outs: list[Tensor] = outs) -> None:
            torch.autograd.grad(outs[index], inputs[index], gradient, retain_graph=True)

        calls[name] = call
    backward = turns(calls, buffers, trials)
    return {"forward": forward, "backward": backward}


def shares(times: Times) -> Times:
    """The bandwidth of each function over that of a copy."""
    copy = TENSORS_MOVED["forward"] / times["forward"]["copy"]
    return {way: {name: moved / us / copy for name, us in times[way].items()} for way, moved in TENSORS_MOVED.items()}


def rounded(times: Times, digits: int) -> Times:
    return {way: {name: round(value, digits) for name, value in found.items()} for way, found in times.items()}


def result_of(times: Times, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    ratios = {way: {name: us / found["ReLU"] for name, us in found.items()} for way, found in times.items()}
    terabytes = TENSORS_MOVED["forward"] * math.prod(shape) * dtype.itemsize / times["forward"]["copy"] / 1e6
    return {
        "microseconds": rounded(times, 2),
        "ratio_to_relu": rounded(ratios, 3),
        "share_of_copy_bandwidth": rounded(shares(times), 3),
        "copy_terabytes_per_second": round(terabytes, 3),
    }


def show(name: str, result: dict[str, Any], shape: tuple[int, ...]) -> None:
    speed = f"a copy moves {result['copy_terabytes_per_second']:.2f} TB/s"
    table = Table(title=f"{name}, {math.prod(shape) / 2**20:.0f} Mi elements; {speed}", title_justify="left")
    for heading in ("", "forward, us", "over ReLU", "of copy", "backward, us", "over ReLU", "of copy"):
        table.add_column(heading, justify="right" if heading else "left")
    columns = (("microseconds", ".1f"), ("ratio_to_relu", ".2f"), ("share_of_copy_bandwidth", ".2f"))
    for function in result["microseconds"]["forward"]:
        cells = [function]
        for way in TENSORS_MOVED:
            for measure, text in columns:
                value = result[measure][way].get(function)
                cells.append("" if value is None else format(value, text))
        table.add_row(*cells)
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--shape", type=int, nargs=4, default=SHAPE)
    parser.add_argument("--out", type=Path, default=Path("results/gpu_kernels.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device and found none.")
        return 2
    shape = tuple(options.shape)
    results = {}
    for name, (dtype, memory_format) in CASES.items():
        results[name] = result_of(measure(shape, dtype, memory_format, options.trials), dtype, shape)
        show(name, results[name], shape)
        torch.cuda.empty_cache()
    header = {"facts": {**facts(), "date": date.today().isoformat()}, "trials": options.trials, "shape_timed": shape}
    write_json(options.out, {**header, "cases": results})
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

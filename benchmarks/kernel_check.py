"""The GPU against the CPU: equal bits, compiled and captured graphs, networks, training memory.

    PYTHONPATH=src:. python benchmarks/kernel_check.py [--out results/gpu_checks.json]

Exit code 0: every check passed. 1: one failed, the table says which. 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from rbue import functional
from rbue.activations import DropReLU, RReLU
from rbue.files import write_json
from rbue.lab import models
from rbue.lab.environment import facts

SHAPES = [(5,), (3, 17), (2, 3, 5), (4, 3, 5, 6), (64, 64, 8, 8), (7, 33, 13, 13), (2, 3, 2, 3, 4)]
SHAPES += [(1, 1_000_003), (600_000, 3)]  # long rows; more rows than a grid has places in its second dimension
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = {"seed": 2**63 + 5, "sample": 3, "site": 2**31 + 7}
PROBABILITY_TOLERANCE = 1e-4  # of CPU against GPU, float32, TF32 off
MEMORY_LIMIT = 1.01  # peak of training over plain ReLU's; the allowance is the keys
VARIANTS = {"plain": None, "DropReLU": DropReLU(0.9), "RReLU": RReLU()}

Check = tuple[str, bool, Any]


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def forms(x: Tensor) -> Iterator[Tensor]:
    """``x`` in different places of memory."""
    yield x
    if x.dim() in (4, 5):
        yield x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if x.dim() > 1:
        yield x.transpose(0, -1).contiguous().transpose(0, -1)


def with_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    out = function(x)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    return out.detach().cpu(), gradient.cpu()


def largest_error(a: Tensor, b: Tensor) -> float:
    """In units of the last place."""
    scale = torch.maximum(a.abs(), b.abs()).double().clamp_min(torch.finfo(a.dtype).tiny)
    ulp = torch.exp2(scale.log2().floor()) * (torch.finfo(a.dtype).eps if a.dtype != torch.float64 else 2**-23)
    return ((a.double() - b.double()).abs() / ulp).max().item()


def bits_check(device: str) -> Iterator[Check]:
    """Masks equal and slopes to one ulp: device against CPU, forward and backward, in every type and layout."""
    for dtype in DTYPES:
        masks, slopes = True, 0.0
        for shape in SHAPES:
            x = draw(shape, dtype)
            expected = with_gradient(lambda x: functional.drop_relu(x, 0.5, **NUMBERS), x)
            units = functional.rrelu(torch.full_like(x, -1), **NUMBERS)
            for form in forms(x.to(device)):
                found = with_gradient(lambda x: functional.drop_relu(x, 0.5, **NUMBERS), form)
                masks &= all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
                out, gradient = with_gradient(lambda x: functional.rrelu(x, **NUMBERS), -torch.ones_like(form))
                slopes = max(slopes, largest_error(out, units), largest_error(-gradient, units))
        yield f"DropReLU masks equal the CPU's, {dtype}", masks, f"{len(SHAPES)} shapes"
        yield f"RReLU slopes equal the CPU's to one ulp, {dtype}", slopes <= 1, round(slopes, 3)


def large_check(device: str) -> Iterator[Check]:
    """More than 2**31 elements: the first, a middle and the last image, forward and backward."""
    rows, elements = 2200, 1 << 20
    if torch.cuda.mem_get_info()[0] < 10 * rows * elements:
        yield "more than 2**31 elements", True, "skipped: too little memory"
        return
    x = torch.full((rows, elements), -1.0, device=device, dtype=torch.bfloat16, requires_grad=True)
    out = functional.drop_relu(x, 0.5, **NUMBERS)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    passed = True
    for row in (0, rows // 2, rows - 1):
        expected = functional.drop_relu(torch.full((elements,), -1.0), 0.5, image=row, **NUMBERS)
        passed &= torch.equal(out[row].cpu().float(), expected)
        passed &= torch.equal(gradient[row].cpu().float(), -expected)
    yield "more than 2**31 elements", passed, rows * elements


def compiled_check(device: str) -> Iterator[Check]:
    """The compiler's code draws what the eager kernels draw."""
    x = draw((7, 33, 13, 13)).to(device)
    functions = {
        "DropReLU": lambda x, step: functional.drop_relu(x, 0.5, seed=1, sample=step),
        "RReLU": lambda x, step: functional.rrelu(x, seed=1, sample=step),
    }
    for name, function in functions.items():
        compiled, error = torch.compile(function, fullgraph=True), 0.0
        for step in range(3):
            number = torch.tensor(step, device=device)
            found = with_gradient(partial(compiled, step=number), x)
            expected = with_gradient(partial(function, step=number), x)
            error = max(error, *(largest_error(a, b) for a, b in zip(found, expected, strict=True)))
        limit = 0 if name == "DropReLU" else 2
        yield f"compiled {name} equals eager to {limit} ulp", error <= limit, round(error, 3)


class SmallCNN(nn.Module):
    """Convolution, BatchNorm, ReLU, over and over."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(depth):
            layers += [nn.Conv2d(width if index else 3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


def graph_check(device: str) -> Iterator[Check]:
    """A captured graph draws new bits at every replay, those of the eager calls."""
    x = draw((8, 3, 32, 32)).to(device)
    step = torch.zeros((), dtype=torch.int64, device=device)
    outs = replays(lambda: functional.drop_relu(x, 0.5, seed=9, sample=step.add_(1)), step.zero_)
    eager = [functional.drop_relu(x, 0.5, seed=9, sample=number) for number in (1, 2, 3)]
    yield "a captured functional counts on", same_and_new(outs, eager, 0), "3 replays"
    torch.manual_seed(0)
    network = SmallCNN().to(device).eval()
    rbue.convert(network, DropReLU(0.5), example=x)
    with torch.no_grad():
        outs = replays(lambda: network(x), lambda: rbue.seed(network, 4))
        rbue.seed(network, 4)
        eager = [network(x) for _ in range(3)]
    yield "a captured network draws anew", same_and_new(outs, eager, 1e-4), "3 replays"


def replays(function: Callable[[], Tensor], reset: Callable[[], Any]) -> list[Tensor]:
    """What three replays of the captured function give, after ``reset``."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    reset()
    outs = []
    for _ in range(3):
        graph.replay()
        outs.append(out.clone())
    return outs


def same_and_new(outs: list[Tensor], expected: list[Tensor], tolerance: float) -> bool:
    same = all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(outs, expected, strict=True))
    return same and not torch.equal(outs[0], outs[1]) and not torch.equal(outs[1], outs[2])


def network_check(device: str) -> Iterator[Check]:
    torch.manual_seed(0)
    plain, x = SmallCNN().eval(), draw((32, 3, 32, 32))
    for name, activation in VARIANTS.items():
        if activation is not None:
            network = rbue.convert(copy.deepcopy(plain), activation, example=x)
            error = prediction_error(network, x, device)
            yield f"{name} network, CPU and GPU within {PROBABILITY_TOLERANCE}", error < PROBABILITY_TOLERANCE, error


def fused_check(device: str) -> Iterator[Check]:
    """Sampling runs BatchNorm, sums and means with the random ReLUs beside them; here they change something."""
    x = draw((8, 3, 32, 32))
    for name in ("vgg13", "resnet18", "densenet121"):
        torch.manual_seed(0)
        plain = models.create(name, classes=10, width=0.25).train()
        for module in plain.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # statistics of the batch below: after a share of them deep networks are certain
        plain(3 * draw((32, 3, 32, 32)) + 1)
        for where, activation in (("all", DropReLU(0.8)), ("all", RReLU()), ("last", DropReLU(0.8)), ("last", RReLU())):
            for memory_format in (torch.contiguous_format, torch.channels_last):
                network = rbue.convert(copy.deepcopy(plain).eval(), activation, where=where, example=x)
                error = prediction_error(network, x.contiguous(memory_format=memory_format), device)
                what = f"{name}, {activation!r}, {where}, {str(memory_format).removeprefix('torch.')}"
                yield what, error < PROBABILITY_TOLERANCE, error


def prediction_error(network: nn.Module, x: Tensor, device: str) -> float:
    """The largest difference between a probability on the CPU and on the GPU."""
    here = rbue.predict(network, x, samples=20, seed=1).probs
    there = rbue.predict(network.to(device), x.to(device), samples=20, seed=1).probs.cpu()
    return (here - there).abs().max().item()


def memory_check() -> Iterator[Check]:
    """Peak bytes of training steps in a fresh process, over plain ReLU's."""
    peaks = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, "--memory", variant]
        peaks[variant] = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    for variant, peak in peaks.items():
        ratio = peak / peaks["plain"]
        yield f"training memory of {variant} over plain", ratio <= MEMORY_LIMIT, round(ratio, 4)


def training_peak(variant: str) -> int:
    torch.manual_seed(0)
    network, x = SmallCNN(64, 8).cuda().train(), torch.randn(64, 3, 64, 64, device="cuda")
    activation = VARIANTS[variant]
    if activation is not None:
        rbue.convert(network, activation, example=x)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    torch.backends.cudnn.deterministic = True
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(network(x), torch.zeros(64, dtype=torch.int64, device="cuda")).backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


def run_checks(device: str) -> list[Check]:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    checks: list[Check] = []
    for check in (bits_check, large_check, compiled_check, graph_check, network_check, fused_check):
        checks += check(device)
        torch.cuda.empty_cache()
    return checks + list(memory_check())


def report(checks: list[Check]) -> dict[str, Any]:
    """Print a line for each check and return what goes into the file."""
    for name, passed, value in checks:
        print(f"{'ok    ' if passed else 'FAILED'}  {name}: {value}")
    return {
        "facts": {**facts(), "date": date.today().isoformat()},
        "passed": all(passed for _, passed, _ in checks),
        "checks": {name: {"passed": passed, "value": value} for name, passed, value in checks},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/gpu_checks.json"))
    parser.add_argument("--memory", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("kernel_check needs a CUDA device and found none; the CPU's own checks run with `make test`.")
        return 2
    if options.memory:
        print(training_peak(options.memory))
        return 0
    content = report(run_checks("cuda"))
    write_json(options.out, content)
    print(f"written to {options.out}")
    return 0 if content["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

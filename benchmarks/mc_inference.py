"""What many random passes cost: against as many plain ones, against one, and against two other libraries.

    python benchmarks/mc_inference.py [--device cuda] [--images 10000] [--samples 100] [--peers FOLDER] [--out FILE]

ResNet-18 on random CIFAR-sized images, at inference precision (float16 on a GPU, float32 on a CPU). The variants take
turns, medians of trials; memory is the peak of a fresh process. The peers run MC-Dropout as their documentation says,
in float32: FOLDER holds the unpacked wheels of torch-uncertainty, baal and structlog (``pip download --no-deps``, then
``unzip``).
Goals: all sites within 1.03x of as many plain passes; the last site within 1.20x of one pass (CPU 1.10x); memory of
1,000 samples within 1.05x of 10.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rbue
from harness import medians
from rbue.environment import facts
from rbue.files import write_json
from rbue.models.resnet18 import ResNet18

ROWS = {"cuda": 4000, "cpu": 32}
"""Images in a plain pass; a GPU is fully busy with that many."""


class Dropped(nn.Module):
    """ResNet-18 with an ``nn.Dropout`` before its classifier, as the peers need it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        network.head = nn.Sequential(nn.Dropout(0.5), network.head)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def half(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.float16, enabled=device.type == "cuda")


def plain_passes(network: nn.Module, x: Tensor, passes: int) -> Tensor:
    """The mean probabilities of some plain passes, all of them run."""
    with torch.no_grad(), half(x.device):
        parts = []
        for batch in x.split(ROWS[x.device.type]):
            total = torch.zeros((), device=x.device)
            for _ in range(passes):
                total = total + network(batch).float().softmax(1)
            parts.append(total / passes)
    return torch.cat(parts)


def sampled(network: nn.Module, x: Tensor, samples: int) -> Tensor:
    with half(x.device):
        return rbue.predict(network, x.split(ROWS[x.device.type]), samples=samples).probs


def peer_module(folder: Path, file: str) -> Any:
    """One module of an unpacked wheel, without what its package imports around it."""
    spec = importlib.util.spec_from_file_location(file.replace("/", "_").removesuffix(".py"), folder / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_uncertainty_loop(folder: Path, network: nn.Module, x: Tensor, samples: int) -> Callable[[], Any]:
    """torch-uncertainty's MC-Dropout in a loop: every pass whole, all samples held."""
    wrap = peer_module(folder, "torch_uncertainty/methods/mc_dropout.py").mc_dropout
    model = wrap(Dropped(copy.deepcopy(network)), num_estimators=samples, on_batch=False).eval()

    def run() -> None:
        with torch.no_grad():
            for batch in x.split(ROWS[x.device.type]):
                model(batch).softmax(1).unflatten(0, (samples, -1)).mean(0)

    return run


def baal_caching(folder: Path, network: nn.Module, x: Tensor, samples: int) -> Callable[[], Any]:
    """MC-Dropout in baal, with its cache of what comes before the dropout."""
    sys.path.insert(0, str(folder))
    from baal.bayesian.caching_utils import MCCachingModule
    from baal.bayesian.dropout import patch_module

    model = MCCachingModule(patch_module(Dropped(copy.deepcopy(network)), inplace=True)).eval()

    trials = count()

    def run() -> None:
        fresh = x + 1e-3 * next(trials)  # or it would remember the trial before
        with torch.no_grad():
            for batch in fresh.split(ROWS[x.device.type]):
                torch.stack([model(batch).softmax(1) for _ in range(samples)]).mean(0)

    return run


def variants(network: nn.Module, x: Tensor, samples: int, peers: Path | None) -> dict[str, Callable[[], Any]]:
    def converted(activation: Any, where: str) -> nn.Module:
        return rbue.convert(copy.deepcopy(network), activation, where=where, example=x[:2])

    drop, slope = converted(rbue.DropReLU(0.9), "all"), converted(rbue.RReLU(), "all")
    last, dropout = converted(rbue.DropReLU(0.9), "last"), converted(rbue.Dropout(0.5), "last")
    found: dict[str, Callable[[], Any]] = {
        "one plain pass": lambda: plain_passes(network, x, 1),
        "plain passes": lambda: plain_passes(network, x, samples),
        "rbue DropReLU, all sites": lambda: sampled(drop, x, samples),
        "rbue RReLU, all sites": lambda: sampled(slope, x, samples),
        "rbue DropReLU, last site": lambda: sampled(last, x, samples),
        "rbue Dropout, before the classifier": lambda: sampled(dropout, x, samples),
    }
    for name, make in (("torch-uncertainty mc_dropout", torch_uncertainty_loop), ("baal MC caching", baal_caching)):
        if peers is None:
            continue
        try:
            found[name] = make(peers, network, x, samples)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def peak_memory(device: str, samples: int) -> int:
    """Peak bytes of a fresh process that draws this many samples."""
    words = ["--device", device, "--samples", str(samples), "--memory"]
    run = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1])


def measure_memory(device: torch.device, samples: int) -> None:
    network, x = example(device, ROWS[device.type])
    rbue.convert(network, rbue.DropReLU(0.9), example=x[:2])
    sampled(network, x, samples)
    on_gpu = device.type == "cuda"
    print(torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def example(device: torch.device, images: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    network = ResNet18().eval().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(images, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    return network, x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=sorted(ROWS))
    parser.add_argument("--images", type=int)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.memory:
        measure_memory(device, options.samples)
        return
    images = options.images or (10_000 if device.type == "cuda" else 32)
    network, x = example(device, images)
    runs = variants(network, x, options.samples, options.peers)

    def waited(run: Callable[[], Any]) -> Callable[[], None]:
        def whole() -> None:
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return whole

    times = medians({name: waited(run) for name, run in runs.items()}, options.trials, warmup=1)
    memory = {count: peak_memory(options.device, count) for count in (10, 1000)} if device.type == "cuda" else {}
    result = {
        "images": images,
        "samples": options.samples,
        "trials": options.trials,
        "seconds": {name: round(value, 5) for name, value in times.items()},
        "over_as_many_plain_passes": {n: round(v / times["plain passes"], 4) for n, v in times.items()},
        "over_one_plain_pass": {n: round(v / times["one plain pass"], 3) for n, v in times.items()},
        "peak_bytes": memory,
        "memory_1000_over_10": round(memory[1000] / memory[10], 4) if memory else None,
        "date": str(date.today()),
        "environment": facts(),
    }
    show(result)
    write_json(options.out or Path(f"results/mc_inference_{device.type}.json"), result)


def show(result: dict[str, Any]) -> None:
    title = f"ResNet-18, {result['images']:,} images, {result['samples']} samples"
    table = Table(title=title, title_justify="left")
    for heading in ("variant", "seconds", "of as many plain passes", "of one plain pass"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for name, seconds in result["seconds"].items():
        many, one = result["over_as_many_plain_passes"][name], result["over_one_plain_pass"][name]
        table.add_row(name, f"{seconds:.3f}", f"{many:.3f}x", f"{one:.2f}x")
    Console().print(table)
    if result["memory_1000_over_10"]:
        print(f"memory of 1,000 samples over 10: {result['memory_1000_over_10']:.3f}x")


if __name__ == "__main__":
    main()

"""What many random passes cost: against as many plain ones, against one, and against two other libraries.

    python benchmarks/mc_inference.py [--device cuda] [--images 10000] [--samples 100] [--peers FOLDER] [--out FILE]

ResNet-18 on random CIFAR-sized images, at inference precision (float16 on a GPU, float32 on a CPU): as it is, and
folded (BatchNorm inside the convolution before it, by torch's own function) and compiled, each beside as many plain
passes in the same form; and augmented, each sample with another flip and shift. The variants take turns, medians of
trials (the peers, which are slow, run once). cuDNN may choose its fastest kernels for all of them. The result is
written after each trial.
The peers run MC-Dropout as their documentation says, in float32 with the channels first (and once with the channels
last, which it does not say): FOLDER holds the unpacked wheels of torch-uncertainty, baal and structlog (``pip download
--no-deps``, then ``unzip``). The products of a pass are set against a large matrix product in the same run.
Goals: all sites within 1.03x of as many plain passes; the last site within 1.20x of one pass (CPU 1.10x).
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
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
from torch.fx.experimental.optimization import fuse

import rbue
from harness import CEILING, Variants, matrix_product_teraflops, medians_by_trial, products
from rbue.augment import Flip, Shift
from rbue.files import write_json
from rbue.lab.environment import facts
from rbue.lab.models.resnet18 import ResNet18

ROWS = {"cuda": 4000, "cpu": 32}
"""Images in a plain pass; a GPU is fully busy with that many."""


PLAIN, FAST = "plain passes", ", folded and compiled"
FAST_PLAIN = PLAIN + FAST


class Dropped(nn.Module):
    """ResNet-18 with an ``nn.Dropout`` before its classifier, as the peers need it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        network.head = nn.Sequential(nn.Dropout(0.5), network.head)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def half(x: Tensor) -> torch.autocast:
    """Convolutions in float16 on a GPU, for networks that are not in half precision themselves."""
    return torch.autocast(x.device.type, torch.float16, enabled=x.is_cuda and x.dtype == torch.float32)


def plain_passes(network: nn.Module, x: Tensor, passes: int) -> Tensor:
    """The mean probabilities of some plain passes, all of them run."""
    with torch.no_grad(), half(x):
        parts = []
        for batch in x.split(ROWS[x.device.type]):
            total = torch.zeros((), device=x.device)
            for _ in range(passes):
                total = total + network(batch).float().softmax(1)
            parts.append(total / passes)
    return torch.cat(parts)


def sampled(network: nn.Module, x: Tensor, samples: int, **how: Any) -> Tensor:
    with half(x):
        return rbue.predict(network, x.split(ROWS[x.device.type]), samples=samples, **how).probs


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


def with_random_sites(network: nn.Module, x: Tensor, activation: Any, where: str = "all") -> nn.Module:
    return rbue.convert(copy.deepcopy(network), activation, where=where, example=x[:2])


def random_networks(network: nn.Module, x: Tensor) -> dict[str, nn.Module]:
    drop = rbue.DropReLU(0.9)
    return {
        "rbue DropReLU, all sites": with_random_sites(network, x, drop),
        "rbue RReLU, all sites": with_random_sites(network, x, rbue.RReLU()),
        "rbue DropReLU, last site": with_random_sites(network, x, drop, "last"),
        "rbue Dropout, before the classifier": with_random_sites(network, x, rbue.Dropout(0.5), "last"),
    }


def eager_variants(network: nn.Module, random: dict[str, nn.Module], x: Tensor, samples: int) -> Variants:
    drop, both = random["rbue DropReLU, all sites"], [Flip(), Shift(2)]
    return {
        "one plain pass": lambda: plain_passes(network, x, 1),
        PLAIN: lambda: plain_passes(network, x, samples),
        **{name: lambda made=made: sampled(made, x, samples) for name, made in random.items()},
        "rbue DropReLU, all sites, augmented": lambda: sampled(drop, x, samples, augment=both),
    }


def fast_variants(network: nn.Module, x: Tensor, samples: int) -> Variants:
    """Folded and compiled; on a GPU in half precision."""

    def fast(network: nn.Module) -> nn.Module:
        return torch.compile(network.half() if x.is_cuda else network, dynamic=False)  # type: ignore[return-value]

    folded = fuse(network.eval())  # a copy
    drop, slope = (fast(with_random_sites(folded, x, one)) for one in (rbue.DropReLU(0.9), rbue.RReLU()))
    plain = fast(folded)
    narrow = x.half() if x.is_cuda else x
    return {
        FAST_PLAIN: lambda: plain_passes(plain, narrow, samples),
        f"rbue DropReLU, all sites{FAST}": lambda: sampled(drop, narrow, samples),
        f"rbue RReLU, all sites{FAST}": lambda: sampled(slope, narrow, samples),
    }


def peer_variants(network: nn.Module, x: Tensor, samples: int, folder: Path | None) -> Variants:
    if folder is None:
        return {}
    first = copy.deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    x_first = x.contiguous()
    found: Variants = {}
    for name, make, arguments in (
        ("torch-uncertainty mc_dropout", torch_uncertainty_loop, (first, x_first)),
        ("torch-uncertainty mc_dropout, channels last", torch_uncertainty_loop, (network, x)),
        ("baal MC caching", baal_caching, (first, x_first)),
    ):
        try:
            found[name] = make(folder, *arguments, samples)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


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
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    images = options.images or (10_000 if device.type == "cuda" else 32)
    torch.backends.cudnn.benchmark = True
    network, x = example(device, images)
    fast, random = fast_variants(network, x, options.samples), random_networks(network, x)
    peers = peer_variants(network, x, options.samples, options.peers)
    eager = eager_variants(network, random, x, options.samples)
    # Ours in full, since the size of their passes depends on the samples, and cuDNN searches again for every size.
    for name, run in (eager | peer_variants(network, x, 2, options.peers) | fast).items():
        print(f"warming up: {name}", file=sys.stderr, flush=True)
        run()
    ceiling = matrix_product_teraflops(device, torch.float16 if device.type == "cuda" else torch.float32)
    work = images * options.samples * products(network, x[:1]) / 1e12
    runs = eager | peers | fast
    variants = {name: waited(run, device) for name, run in runs.items()}
    for trials, times in enumerate(medians_by_trial(variants, options.trials, once=peers), 1):
        speeds = {name: work / times[name] for name in times if "plain passes" in name or "all sites" in name}
        result = {
            "images": images,
            "samples": options.samples,
            "trials": trials,
            "trials_of_peers": 1,
            "seconds": {name: round(value, 5) for name, value in times.items()},
            "over_as_many_plain_passes": {name: round(v / plain_time(name, times), 4) for name, v in times.items()},
            "over_one_plain_pass": {n: round(v / times["one plain pass"], 3) for n, v in times.items()},
            "teraflops": {name: float(f"{value:.4g}") for name, value in (speeds | {CEILING: ceiling}).items()},
            "date": str(date.today()),
            "environment": facts(),
        }
        write_json(options.out or Path(f"results/mc_inference_{device.type}.json"), result)
        print(f"trial {trials} of {options.trials} done", file=sys.stderr, flush=True)
    show(result)


def waited(run: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    def whole() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return whole


def plain_time(name: str, times: dict[str, float]) -> float:
    """Of as many plain passes in the same form."""
    return times[FAST_PLAIN if name.endswith(FAST) else PLAIN]


def show(result: dict[str, Any]) -> None:
    title = f"ResNet-18, {result['images']:,} images, {result['samples']} samples"
    table = Table(title=title, title_justify="left")
    for heading in ("variant", "seconds", "of as many plain passes", "of one plain pass"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for name, seconds in result["seconds"].items():
        many, one = result["over_as_many_plain_passes"][name], result["over_one_plain_pass"][name]
        table.add_row(name, f"{seconds:.3f}", f"{many:.3f}x", f"{one:.2f}x")
    Console().print(table)
    print("TFLOP/s: " + ", ".join(f"{name} {value:g}" for name, value in result["teraflops"].items()))


if __name__ == "__main__":
    main()

"""Write the speed section of README.md from ``results/``; ``--check`` only says whether it is up to date."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECTION = re.compile(r"<!-- speed -->.*<!-- /speed -->", flags=re.DOTALL)


def section() -> str:
    """The table of measured costs with the machine and the versions beside it."""
    cpu = json.loads((ROOT / "results" / "cpu_forward.json").read_text())
    gpu = json.loads((ROOT / "results" / "gpu_kernels.json").read_text())
    training = json.loads((ROOT / "results" / "training_step.json").read_text())
    sampling = json.loads((ROOT / "results" / "mc_inference_cuda.json").read_text())
    ratio, facts = cpu["ratio_to_plain"], cpu["facts"]
    small, resnet = ratio["16-32-64 CNN, batch 128"], ratio["ResNet-18, batch 32"]
    last = ratio["ResNet-18, batch 32, last"]["100 samples, last"]
    names = ["rbue DropReLU", "rbue RReLU", "torch.rand formula", "torch F.rrelu"]
    lines = [
        "<!-- speed -->",
        "One stochastic forward pass over a plain one, beside the same network with torch's own random numbers:",
        "",
        "| forward pass, CPU | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
        "| ResNet-18, batch 32 | " + " | ".join(f"{resnet[name]:.2f}x" for name in names) + " |",
        "| 16-32-64 CNN, batch 128 | " + " | ".join(f"{small[name]:.2f}x" for name in names) + " |",
        "",
        f'100 samples with `where="last"` cost {last:.2f}x one pass of ResNet-18. Medians of {cpu["trials"]} trials '
        f"(the CNN {3 * cpu['trials']}) in one run of `make bench` on {facts['cores']} cores of {facts['cpu']}, torch "
        f"{facts['torch']}, {facts['date']}. {memory_sentence('cpu')}",
        "",
        *gpu_lines(gpu),
        "",
        *training_lines(training),
        "",
        *sampling_lines(sampling),
        "<!-- /speed -->",
    ]
    return "\n".join(lines)


def gpu_lines(gpu: dict) -> list[str]:
    """The same for the kernels on a GPU."""
    facts, ratio = gpu["facts"], gpu["cases"]["bfloat16"]["ratio_to_relu"]
    names = ["DropReLU", "RReLU", "F.dropout", "F.rrelu"]
    millions = math.prod(gpu["shape_timed"]) >> 20
    return [
        "| kernel over ReLU's, GPU | rbue DropReLU | rbue RReLU | torch F.dropout | torch F.rrelu |",
        "|---|---|---|---|---|",
        f"| forward, {millions} Mi elements, bf16 | " + " | ".join(f"{ratio['forward'][n]:.2f}x" for n in names) + " |",
        "| backward | " + " | ".join(f"{ratio['backward'][n]:.2f}x" for n in names) + " |",
        "",
        f"`make bench-gpu` on one {facts['gpu']}, torch {facts['torch']}, triton {facts['triton']}, {facts['date']}.",
    ]


def training_lines(found: dict) -> list[str]:
    """Training steps on a GPU against plain ReLU in the same engine, with the memory they take."""
    facts, lines = found["environment"], []
    for engine, networks in found["engines"].items():
        for network, rows in networks.items():
            values = (rows[name] for name in ("rbue DropReLU", "rbue RReLU", "torch.rand formula", "torch F.rrelu"))
            cells = (f"{row['step_ratio']:.2f}x, {row['memory_ratio']:.2f}x" for row in values)
            lines.append(f"| {network}, {engine} | " + " | ".join(cells) + " |")
    return [
        f"| training step over plain ReLU's, and its peak memory, batch {found['batch']}, GPU | rbue DropReLU "
        "| rbue RReLU | torch.rand formula | torch F.rrelu |",
        "|---|---|---|---|---|",
        *sorted(lines),
        "",
        f"Medians of {found['trials']} trials of `python benchmarks/training_step.py` on one {facts['gpu']}, torch "
        f"{facts['torch']}, {found['date']}.",
    ]


def sampling_lines(found: dict) -> list[str]:
    """Many samples on a GPU against as many plain passes in the same form, against one, and in other libraries."""
    facts, many, one = found["environment"], found["over_as_many_plain_passes"], found["over_one_plain_pass"]
    lines = [
        f"| {name} | {seconds:.2f} | {many[name]:.2f}x | {one[name]:.1f}x |"
        for name, seconds in found["seconds"].items()
        if name != "one plain pass"
    ]
    return [
        f"| {found['samples']} samples of {found['images']:,} images, ResNet-18, GPU | seconds | over as many plain "
        "passes | over one |",
        "|---|---|---|---|",
        *lines,
        "",
        f"Medians of {found['trials']} trials (the peers {found['trials_of_peers']}) of `python "
        f"benchmarks/mc_inference.py` on one {facts['gpu']}, torch {facts['torch']}, {found['date']}. "
        f"{memory_sentence('cuda')} Every goal, how far it is reached, and what is wrong with these numbers: "
        "[benchmarks](benchmarks/README.md).",
    ]


def memory_sentence(device: str) -> str:
    """What 1,000 samples need over 10, for each number of images that was measured."""
    found = json.loads((ROOT / "results" / f"sampling_memory_{device}.json").read_text())
    ratios = [f"{ratio:.2f}x for {int(images):,}" for images, ratio in found["memory_1000_over_10"].items()]
    return f"The memory of 1,000 samples over that of 10 is {' and '.join(ratios)} images ({found['date']})."


def main() -> int:
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = SECTION.sub(lambda _: section(), old)
    if "--check" in sys.argv[1:]:
        return 0 if new == old else 1
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

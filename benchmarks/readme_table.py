"""Write what rbue costs into README.md (a small table) and benchmarks/README.md (all of it) from ``results/``.

``--check`` only says whether both are up to date.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECTION = re.compile(r"<!-- speed -->.*<!-- /speed -->", flags=re.DOTALL)


def found(name: str) -> dict:
    """What a benchmark wrote."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def short_section() -> str:
    """What one reader in a hurry wants to know."""
    cpu, step, drawn = found("cpu_forward"), found("training_step"), found("mc_inference_cuda")
    forward = cpu["ratio_to_plain"]["ResNet-18, batch 32"]
    trained = step["engines"]["captured"]["resnet18"]
    many, one = drawn["over_as_many_plain_passes"], drawn["over_one_plain_pass"]
    gpu, facts = drawn["environment"], cpu["facts"]
    ours = ("rbue DropReLU", "rbue RReLU")
    rows = [
        ("forward pass, CPU", *(forward[name] for name in (*ours, "torch F.rrelu")), "F.rrelu"),
        ("training step, GPU", *(trained[name]["step_ratio"] for name in (*ours, "torch F.rrelu")), "F.rrelu"),
        ("its peak memory", *(trained[name]["memory_ratio"] for name in (*ours, "torch F.rrelu")), "F.rrelu"),
        (
            f"{drawn['samples']} samples over as many plain passes, GPU",
            *(many[f"{name}, all sites"] for name in ours),
            many["torch-uncertainty mc_dropout, channels last"],
            "MC-Dropout in torch-uncertainty",
        ),
        (
            "the same, both folded and compiled",
            *(many[f"{name}, all sites, folded and compiled"] for name in ours),
            None,
            "",
        ),
        (
            f'{drawn["samples"]} samples with `where="last"` over one pass, GPU',
            one["rbue DropReLU, last site"],
            *[None] * 2,
            "",
        ),
    ]
    lines = []
    for what, *ratios, which in rows:
        cells = ["–" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]
        lines.append(f"| {what} | {' | '.join(cells)}{which and f' ({which})'} |")
    return "\n".join(
        [
            "<!-- speed -->",
            "| ResNet-18, over plain ReLU | DropReLU | RReLU | elsewhere |",
            "|---|---|---|---|",
            *lines,
            "",
            f"GPU: one {gpu['gpu']}, torch {gpu['torch']}. CPU: {facts['cores']} cores of {facts['cpu']}, torch "
            f"{facts['torch']}. Measured with rbue {facts['rbue']}. "
            "[All measurements and goals](benchmarks/README.md), also those that are missed.",
            "<!-- /speed -->",
        ]
    )


def section() -> str:
    """All measured costs with the machine and the versions beside them."""
    cpu = found("cpu_forward")
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
        *gpu_lines(found("gpu_kernels")),
        "",
        *training_lines(found("training_step")),
        "",
        *sampling_lines(found("mc_inference_cuda")),
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


def training_lines(steps: dict) -> list[str]:
    """Training steps on a GPU against plain ReLU in the same engine, with the memory they take."""
    facts, lines = steps["environment"], []
    for engine, networks in steps["engines"].items():
        for network, rows in networks.items():
            values = (rows[name] for name in ("rbue DropReLU", "rbue RReLU", "torch.rand formula", "torch F.rrelu"))
            cells = (f"{row['step_ratio']:.2f}x, {row['memory_ratio']:.2f}x" for row in values)
            lines.append(f"| {network}, {engine} | " + " | ".join(cells) + " |")
    return [
        f"| training step over plain ReLU's, and its peak memory, batch {steps['batch']}, GPU | rbue DropReLU "
        "| rbue RReLU | torch.rand formula | torch F.rrelu |",
        "|---|---|---|---|---|",
        *sorted(lines),
        "",
        f"Medians of {steps['trials']} trials of `python benchmarks/training_step.py` on one {facts['gpu']}, torch "
        f"{facts['torch']}, {steps['date']}.",
    ]


def sampling_lines(drawn: dict) -> list[str]:
    """Many samples on a GPU against as many plain passes in the same form, against one, and in other libraries."""
    facts, many, one = drawn["environment"], drawn["over_as_many_plain_passes"], drawn["over_one_plain_pass"]
    lines = [
        f"| {name} | {seconds:.2f} | {many[name]:.2f}x | {one[name]:.1f}x |"
        for name, seconds in drawn["seconds"].items()
        if name != "one plain pass"
    ]
    return [
        f"| {drawn['samples']} samples of {drawn['images']:,} images, ResNet-18, GPU | seconds | over as many plain "
        "passes | over one |",
        "|---|---|---|---|",
        *lines,
        "",
        f"Medians of {drawn['trials']} trials (the peers {drawn['trials_of_peers']}) of `python "
        f"benchmarks/mc_inference.py` on one {facts['gpu']}, torch {facts['torch']}, {drawn['date']}. "
        f"{memory_sentence('cuda')}",
    ]


def memory_sentence(device: str) -> str:
    """What 1,000 samples need over 10, for each number of images that was measured."""
    memory = found(f"sampling_memory_{device}")
    ratios = [f"{ratio:.2f}x for {int(images):,}" for images, ratio in memory["memory_1000_over_10"].items()]
    return f"The memory of 1,000 samples over that of 10 is {' and '.join(ratios)} images ({memory['date']})."


def main() -> int:
    pages = {ROOT / "README.md": short_section(), ROOT / "benchmarks" / "README.md": section()}
    wanted = {path: SECTION.sub(lambda _, text=text: text, path.read_text()) for path, text in pages.items()}
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text() != text for path, text in wanted.items()))
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the goals in benchmarks/README.md from ``results/``; ``--check`` only says whether they are up to date."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SECTION = re.compile(r"<!-- goals -->.*<!-- /goals -->", flags=re.DOTALL)

CNN, RESNET = "16-32-64 CNN, batch 128", "ResNet-18, batch 32"
OURS = ("rbue DropReLU", "rbue RReLU")
FORMS = ("", ", folded and compiled")
ADAPTIVE = (16, 0.05)  # the first round and the tolerance of the rule that is judged


class Goal(NamedTuple):
    """What is to be reached: every value at most the limit, or at least it."""

    what: str
    where: str
    limit: float
    file: str
    values: Callable[[dict[str, Any]], dict[str, float | None]]
    at_least: bool = False
    digits: int = 2

    def row(self) -> str:
        """One line of the table."""
        sign = "≥" if self.at_least else "≤"
        path = RESULTS / self.file
        found = self.values(json.loads(path.read_text())) if path.is_file() else {}
        values = {name: value for name, value in found.items() if value is not None}
        text = ", ".join(f"{name} {value:.{self.digits}f}".strip() for name, value in values.items())
        reached = all(value >= self.limit if self.at_least else value <= self.limit for value in values.values())
        verdict = "open" if not values else "yes" if reached else "no"
        return f"| {self.what} | {self.where} | {sign} {self.limit:g} | {text or 'not measured yet'} | {verdict} |"


def forward_ratios(network: str) -> Callable[[dict[str, Any]], dict[str, float | None]]:
    return lambda found: {name.removeprefix("rbue "): found["ratio_to_plain"][network][name] for name in OURS}


def kernel_shares(case: str) -> Callable[[dict[str, Any]], dict[str, float | None]]:
    def values(found: dict[str, Any]) -> dict[str, float | None]:
        share = found["cases"][case]["share_of_copy_bandwidth"]
        return {f"{name} {way}": share[way][name] for name in ("DropReLU", "RReLU") for way in share}

    return values


def training_ratios(key: str) -> Callable[[dict[str, Any]], dict[str, float | None]]:
    def values(found: dict[str, Any]) -> dict[str, float | None]:
        return {
            f"{network} {engine} {name.removeprefix('rbue ')}": rows[name][key]
            for engine, networks in found["engines"].items()
            for network, rows in networks.items()
            for name in OURS
        }

    return values


def sampling(key: str, *names: str) -> Callable[[dict[str, Any]], dict[str, float | None]]:
    return lambda found: {name.removeprefix("rbue ").replace(", all sites", ""): found[key].get(name) for name in names}


def fastest_forms(found: dict[str, Any]) -> dict[str, float | None]:
    """The fastest form of ours over the fastest of plain passes, whatever either is."""
    seconds = found["seconds"]
    plain = min(seconds[f"plain passes{form}"] for form in FORMS)
    return {
        name.removeprefix("rbue "): min(seconds[f"{name}, all sites{form}"] for form in FORMS) / plain for name in OURS
    }


def against_torch_uncertainty(found: dict[str, Any]) -> dict[str, float | None]:
    seconds = found["seconds"]
    peer = seconds.get("torch-uncertainty mc_dropout")
    return {"": None if peer is None else peer / seconds[f"rbue DropReLU, all sites{FORMS[1]}"]}


def balanced_gains(found: dict[str, Any]) -> dict[str, float | None]:
    """The least gain after whole cycles, for each method."""
    return {
        run["config"]["method"]: min(row["gain"] for row in run["errors"] if row["cycles"] in range(1, 11))
        for run in found["runs"]
    }


def balanced_samples(found: dict[str, Any]) -> dict[str, float | None]:
    """Samples for the scores of 100 independent ones."""
    return {run["config"]["method"]: run["quality"]["needed"]["balanced"] or math.inf for run in found["runs"]}


def adaptive_samples(found: dict[str, Any]) -> dict[str, float | None]:
    """The mean number of samples with one rule, if the scores are those of 100 independent ones."""
    values: dict[str, float | None] = {}
    for run in found["runs"]:
        row = _adaptive(run)
        close = abs(row["ece_difference"]) <= 0.001 and abs(row["nll_difference"]) <= 0.001
        values[run["config"]["method"]] = row["samples"] if close else math.inf
    return values


def balanced_seconds(found: dict[str, Any]) -> dict[str, float | None]:
    """Seconds of 20 samples, where nothing else ran beside them."""
    return {run["config"]["method"]: run.get("seconds", {}).get("20 balanced") for run in found["runs"]}


def adaptive_seconds(found: dict[str, Any]) -> dict[str, float | None]:
    """Seconds with the same rule."""
    return {run["config"]["method"]: _adaptive(run).get("seconds") for run in found["runs"]}


def _adaptive(run: dict[str, Any]) -> dict[str, Any]:
    rows = run["adaptive"]
    return next(row for row in rows if row["draws"] == "balanced" and (row["first"], row["tolerance"]) == ADAPTIVE)


def memory_of_a_full_pass(found: dict[str, Any]) -> dict[str, float | None]:
    """For the most images that were measured, of which ten samples fill a pass too."""
    images, ratio = max(found["memory_1000_over_10"].items(), key=lambda item: int(item[0]))
    return {f"{int(images):,} images:": ratio}


GOALS = [
    Goal(
        "kernels, share of a copy's bandwidth, 64 Mi elements, bf16",
        "H200",
        0.95,
        "gpu_kernels.json",
        kernel_shares("bfloat16"),
        True,
    ),
    Goal(
        "the same with the channels last",
        "H200",
        0.95,
        "gpu_kernels.json",
        kernel_shares("bfloat16, channels last"),
        True,
    ),
    Goal(
        "training step over plain ReLU's, batch 128",
        "H200",
        1.02,
        "training_step.json",
        training_ratios("step_ratio"),
        digits=4,
    ),
    Goal(
        "peak training memory over plain ReLU's",
        "H200",
        1.02,
        "training_step.json",
        training_ratios("memory_ratio"),
        digits=3,
    ),
    Goal(
        "seconds of 200 epochs of ResNet-18 with DropReLU(0.9), compiling and evaluation counted",
        "H200",
        210,
        "full_training.json",
        lambda found: {"": found.get("whole_run", {}).get("total_s")},
        digits=0,
    ),
    Goal(
        "the same (bfloat16 autocast) against an eager loop (float32 with TF32) and its DataLoader",
        "H200",
        2.5,
        "full_training.json",
        lambda found: {"": found["rows"]["eager TF32, plain ReLU"]["over_ours"]},
        at_least=True,
    ),
    Goal(
        "100 samples x 10,000 images over 100 plain passes, the network as it is",
        "H200",
        1.03,
        "mc_inference_cuda.json",
        sampling("over_as_many_plain_passes", *(f"{name}, all sites" for name in OURS)),
        digits=3,
    ),
    Goal(
        "the same, both folded and compiled",
        "H200",
        1.03,
        "mc_inference_cuda.json",
        sampling("over_as_many_plain_passes", *(f"{name}, all sites{FORMS[1]}" for name in OURS)),
        digits=3,
    ),
    Goal("the same, the fastest form of each", "H200", 1.03, "mc_inference_cuda.json", fastest_forms, digits=3),
    Goal(
        "the same, folded and compiled, against torch-uncertainty's loop",
        "H200",
        4,
        "mc_inference_cuda.json",
        against_torch_uncertainty,
        True,
    ),
    Goal(
        "100 samples, `last`, over one pass",
        "H200",
        1.2,
        "mc_inference_cuda.json",
        sampling("over_one_plain_pass", "rbue DropReLU, last site"),
    ),
    Goal(
        "100 samples, `last`, over one pass",
        "CPU",
        1.1,
        "cpu_forward.json",
        lambda found: {"": found["ratio_to_plain"]["ResNet-18, batch 32, last"]["100 samples, last"]},
        digits=3,
    ),
    Goal("memory of 1,000 samples over that of 10", "H200", 1.05, "sampling_memory_cuda.json", memory_of_a_full_pass),
    Goal("memory of 1,000 samples over that of 10", "CPU", 1.05, "sampling_memory_cpu.json", memory_of_a_full_pass),
    Goal(
        "squared error of independent draws over balanced, 1 to 10 cycles, ResNet-18 on CIFAR-10",
        "H200",
        3,
        "balanced_draws.json",
        balanced_gains,
        at_least=True,
    ),
    Goal(
        "balanced samples for the accuracy, ECE and NLL of 100 independent",
        "H200",
        20,
        "balanced_draws.json",
        balanced_samples,
        digits=0,
    ),
    Goal(
        "the same with adaptive stopping (first 16, tolerance 0.05), mean; inf: NLL is further than 0.001",
        "H200",
        10,
        "balanced_draws.json",
        adaptive_samples,
        digits=1,
    ),
    Goal("seconds of 20 balanced samples x 10,000 images", "H200", 0.55, "balanced_draws.json", balanced_seconds),
    Goal("the same with adaptive stopping", "H200", 0.35, "balanced_draws.json", adaptive_seconds),
    Goal(
        "20 balanced samples of one image over 100 plain passes, ResNet-18",
        "CPU",
        0.15,
        "balanced_one_image.json",
        lambda found: {"": found["of_100_plain_passes"]["20 balanced samples"]},
        digits=3,
    ),
    Goal(
        "30 samples of one image over 30 plain passes, ResNet-18, after the first call",
        "CPU",
        0.5,
        "one_image_cpu.json",
        lambda found: {"": found["later_over_plain_passes"]},
    ),
    Goal(
        "the first call of a process over 1.2 later ones and a pass",
        "CPU",
        1,
        "one_image_cpu.json",
        lambda found: {"": found["first_over_limit"]},
    ),
    Goal("stochastic forward over plain, ResNet-18, batch 32", "CPU", 1.1, "cpu_forward.json", forward_ratios(RESNET)),
    Goal("stochastic forward over plain, 16-32-64 CNN, batch 128", "CPU", 1.3, "cpu_forward.json", forward_ratios(CNN)),
]


def section() -> str:
    rows = ["| goal | where | limit | measured | reached |", "|---|---|---|---|---|", *(goal.row() for goal in GOALS)]
    return "\n".join(["<!-- goals -->", *rows, "<!-- /goals -->"])


def main() -> int:
    path = HERE / "README.md"
    old = path.read_text()
    new = SECTION.sub(lambda _: section(), old)
    if "--check" in sys.argv[1:]:
        return int(new != old)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What balanced draws are worth: errors, quality and seconds of few passes against many independent ones.

    python benchmarks/balanced.py RUN... [--runs DIR] [--images 2500] [--reference 2000] [--out FILE]
    python benchmarks/balanced.py --one-image [--out FILE]
    python benchmarks/balanced.py --picture FILE... --out docs/images/balanced.svg

For every trained run, with both kinds of draws:

* the mean squared error of the mean probabilities of the first test images against very many independent samples, whose
  own error is subtracted; a mean over seeds;
* accuracy, ECE and NLL of all test images by the number of samples, and the fewest that agree with 100 independent ones
  (ECE and NLL within 0.001, accuracy within 0.05 points);
* the same with adaptive stopping, and how often a settled mean was further from the limit than stated;
* seconds for each.

``--one-image`` times one image on this machine: 20 balanced samples against 100 plain passes of ResNet-18, in turns.
``--picture`` draws the errors of such files against the number of samples.
Goals: errors at least 3 times smaller at 1, 2, 5 and 10 cycles; 20 samples for the quality of 100, with adaptive
stopping 10; 0.55 s and 0.35 s on a GPU for 10,000 images; 0.15 of 100 plain passes for one image on a CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rbue
from harness import medians
from rbue import metrics
from rbue.files import read_json, write_json
from rbue.lab import data
from rbue.lab.cli.options import find_run
from rbue.lab.environment import default_device, facts
from rbue.lab.models.resnet18 import ResNet18
from rbue.lab.runs.folders import RunConfig, settings_and_root
from rbue.lab.runs.measuring import predict_images, predict_images_at
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes

DRAWS = ("independent", "balanced")
CYCLES = (1, 2, 5, 10)
COUNTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100)
SETTINGS = [
    rbue.Adaptive(tolerance=tolerance, first=first) for first in (16, 10, 8, 5, 4) for tolerance in (0.02, 0.05)
]
CLOSE = {"accuracy": 5e-4, "ece": 1e-3, "nll": 1e-3}
SEEDS = range(3)


class Measured:
    """One trained run on one device."""

    def __init__(self, config: RunConfig, root: Path, device: torch.device) -> None:
        self.config, self.device = config, device
        self.networks: Sequence[nn.Module] = load_networks(config, root, device)
        self.images = data.load(config.data, "test")
        self.labels = torch.from_numpy(self.images.labels).to(device)

    def first(self, count: int) -> data.ImageSet:
        """The first test images."""
        return replace(self.images, images=self.images.images[:count], labels=self.images.labels[:count])

    def at(self, images: data.ImageSet, counts: Sequence[int], seed: int, draws: str) -> list[rbue.Prediction]:
        """The predictions after some numbers of samples."""
        return predict_images_at(
            self.config, self.networks, images, counts, Passes(max(counts), seed, draws=draws), self.device, 0
        )

    def scores(self, prediction: rbue.Prediction) -> dict[str, float]:
        """The quality of a prediction of all images."""
        scores = {name: float(getattr(metrics, name)(prediction.probs, self.labels)) for name in CLOSE}
        return {"samples": float(prediction.samples_used.float().mean()), **scores}

    def timed(self, samples: int, draws: str, adaptive: rbue.Adaptive | None = None) -> tuple[rbue.Prediction, float]:
        """A prediction of all images, and the median seconds of three; one more finds the kernels."""
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            passes = Passes(samples, 0, adaptive, draws)
            found = predict_images(self.config, self.networks, self.images, passes, self.device)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return found, sorted(seconds[1:])[1]


def errors(run: Measured, reference: rbue.Prediction, images: data.ImageSet) -> list[dict[str, Any]]:
    """Mean squared errors of the mean by the number of samples, and their ratio."""
    length = run.config.parsed.cycle.length
    counts = sorted({*COUNTS, *(cycles * length for cycles in CYCLES)})
    drawn = int(reference.samples_used[0])
    own = float(reference.variance.double().mean()) / (drawn - 1)
    found: dict[str, list[float]] = {}
    for draws in DRAWS:
        by_seed = [
            [float((one.probs.double() - reference.probs.double()).square().mean()) - own for one in predictions]
            for predictions in (run.at(images, counts, seed, draws) for seed in SEEDS)
        ]
        found[draws] = [sum(column) / len(SEEDS) for column in zip(*by_seed, strict=True)]
    rows = zip(counts, found["independent"], found["balanced"], strict=True)
    return [
        {"samples": n, "cycles": n / length, "independent": one, "balanced": two, "gain": one / two}
        for n, one, two in rows
    ]


def quality(run: Measured) -> dict[str, Any]:
    """Scores by the number of samples, means over seeds, and the fewest samples that agree with 100 independent."""
    rows: dict[str, list[dict[str, float]]] = {}
    for draws in DRAWS:
        by_seed = [[run.scores(one) for one in run.at(run.images, COUNTS, seed, draws)] for seed in SEEDS]
        rows[draws] = [
            {name: sum(one[name] for one in column) / len(SEEDS) for name in column[0]}
            for column in zip(*by_seed, strict=True)
        ]
    target = rows["independent"][-1]
    needed = {}
    for draws in DRAWS:
        far = [row["samples"] for row in rows[draws] if not agrees(row, target)]
        needed[draws] = next((n for n in COUNTS if n > max(far, default=0)), None)
    return {"rows": rows, "needed": needed}


def agrees(row: dict[str, float], target: dict[str, float]) -> bool:
    return all(abs(row[name] - target[name]) <= slack for name, slack in CLOSE.items())


def stopping(
    run: Measured, reference: rbue.Prediction, images: data.ImageSet, target: dict[str, float]
) -> list[dict[str, Any]]:
    """Adaptive settings: samples, quality, seconds, and how often the mean is further off than the tolerance."""
    rows = []
    for draws in DRAWS:
        for rule in SETTINGS:
            found, seconds = run.timed(100, draws, rule)
            some = predict_images(run.config, run.networks, images, Passes(100, 1, rule, draws), run.device)
            off = (some.probs - reference.probs).abs().amax(1) > rule.tolerance
            early = some.samples_used < 100
            scores = run.scores(found)
            rows.append(
                {
                    "draws": draws,
                    "first": rule.first,
                    "tolerance": rule.tolerance,
                    **scores,
                    **{f"{name}_difference": scores[name] - target[name] for name in CLOSE},
                    "seconds": seconds,
                    "settled": float(early.float().mean()),
                    "settled_too_far": float(off[early].float().mean()) if bool(early.any()) else 0.0,
                    "labels_changed": float((some.label != reference.label)[early].float().mean()),
                }
            )
    return rows


def measure(run: Measured, first: int, samples: int) -> dict[str, Any]:
    """Everything about one run."""
    images = run.first(first)
    (reference,) = run.at(images, [samples], 1000, "independent")
    by_samples = quality(run)
    target = by_samples["rows"]["independent"][-1]
    seconds = {
        f"{n} {draws}": run.timed(n, draws)[1] for n, draws in ((100, DRAWS[0]), (100, DRAWS[1]), (20, DRAWS[1]))
    }
    return {
        "config": run.config.as_json(),
        "cycle": run.config.parsed.cycle.length,
        "images_of_errors": len(images),
        "reference_samples": samples,
        "seeds": len(SEEDS),
        "errors": errors(run, reference, images),
        "quality": by_samples,
        "adaptive": stopping(run, reference, images, target),
        "seconds": seconds,
    }


def one_image(trials: int) -> dict[str, Any]:
    """Seconds of one image: 20 balanced samples and 100, against 100 plain passes, in turns."""
    torch.manual_seed(0)
    plain = ResNet18().eval()
    network, x = ResNet18().eval(), torch.randn(1, 3, 32, 32)
    network.load_state_dict(plain.state_dict())
    rbue.convert(network, rbue.DropReLU(0.95), example=x)

    def passes(count: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([plain(x) for _ in range(count)]).softmax(2).mean(0)

    variants = {
        "100 plain passes": lambda: passes(100),
        "20 balanced samples": lambda: rbue.predict(network, x, samples=20),
        "100 independent samples": lambda: rbue.predict(network, x, samples=100, draws="independent"),
    }
    found = medians(variants, trials)
    ratios = {name: seconds / found["100 plain passes"] for name, seconds in found.items()}
    return {"threads": torch.get_num_threads(), "trials": trials, "seconds": found, "of_100_plain_passes": ratios}


def show(found: dict[str, Any]) -> None:
    console, config = Console(), found["config"]
    name = f"{config['method']}, {config['model']} on {config['data']}"
    table = Table(title=f"{name}: squared errors of the mean, cycles of {found['cycle']}", title_justify="left")
    for heading in ("samples", "cycles", "independent", "balanced", "gain"):
        table.add_column(heading, justify="right")
    for row in found["errors"]:
        numbers = f"{row['independent']:.2e}", f"{row['balanced']:.2e}", f"{row['gain']:.2f}"
        table.add_row(str(row["samples"]), f"{row['cycles']:.2g}", *numbers)
    console.print(table)
    rows = found["quality"]["rows"]
    for draws, n in ((draws, n) for n in (20, 40) for draws in DRAWS):
        row = next((row for row in rows[draws] if row["samples"] == n), None)
        if row is not None:
            off = (f"{name} {row[name] - rows['independent'][-1][name]:+.4f}" for name in CLOSE)
            console.print(f"{n} {draws} samples against 100 independent: {', '.join(off)}")
    console.print(f"samples for the quality of 100 independent ones: {found['quality']['needed']}; {found['seconds']}")
    table = Table(title=f"{name}: adaptive", title_justify="left")
    headings = ("draws", "first", "tolerance", "samples", "accuracy", "ECE", "NLL", "seconds", "too far", "settled")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in found["adaptive"]:
        table.add_row(
            row["draws"],
            str(row["first"]),
            f"{row['tolerance']:g}",
            f"{row['samples']:.1f}",
            *(f"{row[f'{score}_difference']:+.4f}" for score in CLOSE),
            f"{row['seconds']:.2f}",
            f"{row['settled_too_far']:.3f}",
            f"{row['settled']:.2f}",
        )
    console.print(table)


def picture(files: Sequence[Path], out: Path) -> None:
    """Errors against the number of samples, both draws, one panel a network."""
    from matplotlib import pyplot

    runs = [run for file in files for run in read_json(file, "make it again")["runs"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        config = run["config"]
        width = "" if config["width"] == 1 else f", {config['width']:g} wide"
        groups.setdefault(f"{config['model']}{width}, {config['data']}", []).append(run)
    pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10})
    figure, axes = pyplot.subplots(1, len(groups), figsize=(3.6 * len(groups) + 1.4, 3.6), squeeze=False)
    styles = {"mc-droprelu:0.8": "q = 0.8", "mc-droprelu:0.9": "q = 0.9", "mc-droprelu:0.95": "q = 0.95"}
    order = [*styles.values(), "RReLU"]
    lines = {}
    for axis, (name, members) in zip(axes[0], groups.items(), strict=True):
        for run in members:
            label = styles.get(run["config"]["method"], "RReLU")
            rows, colour = run["errors"], f"C{order.index(label)}"
            counts = [row["samples"] for row in rows]
            axis.plot(counts, [row["independent"] for row in rows], "--", color=colour, lw=1)
            (lines[label],) = axis.plot(counts, [row["balanced"] for row in rows], color=colour)
            whole = [row for row in rows if row["cycles"] == 1]
            axis.plot([row["samples"] for row in whole], [row["balanced"] for row in whole], "o", color=colour, ms=5)
        axis.set(xscale="log", yscale="log", title=name, xlabel="samples", xticks=[1, 10, 100])
        axis.set_xticklabels(["1", "10", "100"])
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("mean squared error of the mean")
    known = [label for label in order if label in lines]
    title = "solid: balanced\ndashed: independent\ndot: one cycle"
    figure.tight_layout(rect=(0, 0, 1 - 1.4 / figure.get_figwidth(), 1))
    place = {"loc": "center right", "frameon": False, "alignment": "left"}
    figure.legend([lines[label] for label in known], known, title=title, **place)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="*", help="run folders, or the ends of their names")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--images", type=int, default=2500)
    parser.add_argument("--reference", type=int, default=2000)
    parser.add_argument("--one-image", action="store_true")
    parser.add_argument("--picture", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/balanced_draws.json"))
    options = parser.parse_args()
    if options.picture:
        picture(options.picture, options.out)
        return
    header = {"date": str(date.today()), "environment": facts()}
    if options.one_image:
        found = one_image(options.trials)
        Console().print(found)
        write_json(options.out, {**header, **found})
        return
    runs = []
    for name in options.run:
        config, root = settings_and_root(find_run(name, options.runs))
        runs.append(measure(Measured(config, root, default_device()), options.images, options.reference))
        show(runs[-1])
        write_json(options.out, {**header, "runs": runs})  # after each: a machine may be taken back
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()

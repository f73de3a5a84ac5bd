"""What the page "Scaling" shows: measured costs and their picture, and what a large job would need by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import NullLocator
from result_tables import ROOT, table

from rbue.files import read_json
from rbue.lab.report.figure_style import METHOD_COLOURS, MUTED, dress, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GPUS, IMAGES, SIDE, CLASSES = 1000, 10**9, 32, 10
"""The job: assumptions."""
HOURS_BETWEEN_FAILURES = 50_000
"""Of one GPU: an assumption, near a published training's 419 unexpected interruptions in 54 days of 16,384 GPUs, which
are 50,700 hours (The Llama 3 Herd of Models, 2024, §3.3.4)."""
RESTART_MINUTES = 2
"""Until all processes are back: an assumption."""
LINKS = {"NVLink, 450 GB/s": 450e9, "InfiniBand, 50 GB/s (400 Gb/s)": 50e9, "Ethernet, 12.5 GB/s (100 Gb/s)": 12.5e9}
"""Bytes a second in one direction: assumptions, of data sheets."""


def _results(name: str) -> Any:
    return read_json(ROOT / "results" / f"{name}.json")


@dataclass(frozen=True)
class Way:
    """A way to predict an image on an H200: seconds for one image, and where they are from."""

    name: str
    seconds: float
    source: str


def ways() -> list[Way]:
    """Measured, each over 10,000 images."""
    inference = _results("mc_inference_cuda")
    times, count = inference["seconds"], inference["images"]
    (balanced,) = (
        run["seconds"]["20 balanced"]
        for run in _results("balanced_draws")["runs"]
        if run["config"]["method"] == "mc-droprelu:0.9"
    )
    source = "`mc_inference_cuda.json`"
    return [
        Way("a plain pass", times["plain passes, folded and compiled"] / inference["samples"] / count, source),
        Way('100 samples, `where="last"`: the rest once', times["rbue DropReLU, last site"] / count, source),
        Way("20 balanced samples, all sites", balanced / count, "`balanced_draws.json`"),
        Way("40 balanced samples, all sites", 2 * balanced / count, "twice that"),
        Way("100 samples, all sites", times["rbue DropReLU, all sites"] / count, source),
    ]


def predicting() -> list[str]:
    """GPU-hours, minutes and reading bandwidth of the job."""
    pixels = 3 * SIDE * SIDE
    heads = ["an image is", "µs an image", "GPU-hours", f"on {GPUS:,} GPUs", "to read, a GPU", "to read, in all"]
    rows = []
    for way in ways():
        total = IMAGES * way.seconds
        alone = total / GPUS
        cells = [
            way.name,
            f"{1e6 * way.seconds:.1f}",
            f"{total / 3600:,.1f}",
            f"{alone:,.0f} s" if alone < 120 else f"{alone / 60:.1f} min",
            f"{pixels / way.seconds / 1e6:,.0f} MB/s",
            f"{GPUS * pixels / way.seconds / 1e9:,.0f} GB/s",
            f"{total / 3600 / HOURS_BETWEEN_FAILURES:.5f}",
            way.source,
        ]
        rows.append(cells)
    return table([*heads, "failures expected", "measured in"], rows)


def storing() -> list[str]:
    """Bytes of what is kept of each image."""
    rows = {
        "label, entropy, mutual information (4 bytes each)": 12,
        f"mean probabilities in float16, {CLASSES} classes": 2 * CLASSES,
        "mean probabilities in float16, 1,000 classes": 2000,
        f"all 100 samples in float16, {CLASSES} classes": 200 * CLASSES,
        f"the image itself, {SIDE}x{SIDE} bytes in three colours": 3 * SIDE * SIDE,
    }
    totals = {name: size * IMAGES for name, size in rows.items()}
    texts = (f"{one / 1e12:.2f} TB" if one >= 1e12 else f"{one / 1e9:.0f} GB" for one in totals.values())
    cells = ([name, f"{size:,}", text] for (name, size), text in zip(rows.items(), texts, strict=True))
    return table(["kept of an image", "bytes", "of a billion"], cells)


def training() -> list[str]:
    """The all-reduce of ResNet-18's gradients beside its step."""
    step = _results("training_step")["engines"]["captured"]["resnet18"]["rbue DropReLU"]["step_ms"]
    batch, weights = _results("training_step")["batch"], _results("scaling")["by_parameters"][-1]["parameters"]
    eager = _results("full_training")["rows"]["eager TF32, plain ReLU"]["step_ms"]
    moved = 2 * 4 * weights
    lines = [
        f"ResNet-18 has {weights:,} parameters (`scaling.json`): {4 * weights / 1e6:.1f} MB of gradients in float32. "
        f"A ring all-reduce of many processes moves twice that through every link, {moved / 1e6:.1f} MB.",
        f"A captured step of batch {batch} takes {step:.2f} ms on one H200 (`training_step.json`). An eager one takes "
        f"{eager:.1f} ms: a plain loop in float32 with TF32 (`full_training.json`).",
        "",
    ]
    heads = ["link (assumed)", "all-reduce", f"most that {GPUS:,} GPUs gain at batch {batch} in all"]
    rows = []
    for name, bandwidth in LINKS.items():
        reduce = 1000 * moved / bandwidth
        gain, efficient = step / (step / GPUS + reduce), step / (step + reduce)
        rows.append([name, f"{reduce:.2f} ms", f"{gain:.1f}x", f"{100 * efficient:.0f} %"])
    lines += table([*heads, f"efficiency at batch {batch} a GPU"], rows)
    images = 1000 * batch / step
    hours = IMAGES / images / 3600
    lines += [
        "",
        "The all-reduce has no latency here. The gain has a step that shrinks with its batch, the efficiency no "
        f"overlap with the backward pass. One H200 trains {images:,.0f} images a second, so an epoch of a billion is "
        f"{hours:.1f} GPU-hours.",
    ]
    return lines


def failing() -> list[str]:
    """How often something fails, and what is lost then."""
    hours = HOURS_BETWEEN_FAILURES / GPUS
    lost = RESTART_MINUTES / 60 / hours
    return [
        f"Assume one failure in {HOURS_BETWEEN_FAILURES:,} hours of a GPU. Then {GPUS:,} GPUs fail once in {hours:.0f} "
        f"hours. Starting all again takes {RESTART_MINUTES} minutes (assumed), {100 * lost:.2f} % of the time."
    ]


def costs() -> list[str]:
    """The measured table."""
    found = _results("scaling")
    here = found["environment"]
    one, *more = found["by_processes"]
    most, (small, *_, large), last = found["by_samples"][-1], found["by_parameters"], more[-1]
    part = {what: last[f"{what}_longest_s"] / one[f"{what}_longest_s"] for what in ("predicting", "training")}
    lines = [
        f"{found['network']}, one thread of {here['cpu']}, torch {here['torch']}, medians of {found['trials']} trials, "
        f"processor seconds ({found['date']}).",
        "",
        f"- {most['samples']} samples cost {most['all']:.0f} plain passes if all sites are random, and "
        f"{most['last']:.1f} if the last one is: everything before it runs once.",
        f"- {large['parameters'] / small['parameters']:.0f} times the parameters take "
        f"{large['ms_per_image'] / small['ms_per_image']:.0f} times as long; small networks keep a core less busy.",
        f"- Of {last['processes']} processes the longest takes {part['predicting']:.2f} of what one takes to predict, "
        f"and {part['training']:.2f} of what it takes to train. Training also adds up gradients, in smaller parts.",
        "",
        "| samples | all sites, in plain passes | last site |",
        "|---|---|---|",
        *(f"| {row['samples']} | {row['all']:.2f} | {row['last']:.2f} |" for row in found["by_samples"]),
        "",
        f"| images in a call, {found['samples_of_images']} samples | ms an image |",
        "|---|---|",
        *(f"| {row['images']} | {row['ms_per_image']:.1f} |" for row in found["by_images"]),
        "",
        "| parameters | GFLOP a pass | ms an image |",
        "|---|---|---|",
    ]
    for row in found["by_parameters"]:
        lines.append(f"| {row['parameters']:,} | {row['gigaflops_per_image']:.3f} | {row['ms_per_image']:.1f} |")
    lines += ["", "| processes | predicting: longest | sum | training: longest | sum |", "|---|---|---|---|---|"]
    for row in (one, *more):
        cells = (
            f"{row[f'{what}_{how}_s'] / one[f'{what}_{how}_s']:.2f}"
            for what in ("predicting", "training")
            for how in ("longest", "sum")
        )
        lines.append(f"| {row['processes']} | {' | '.join(cells)} |")
    return lines


def picture() -> Figure:
    """Cost against samples, images, parameters and processes."""
    found, colour, other = _results("scaling"), METHOD_COLOURS["mc-droprelu"], METHOD_COLOURS["deep-ensemble"]
    figure = new_figure(9.0, 6.4)
    (samples, images), (weights, processes) = figure.subplots(2, 2)
    style = {"marker": "o", "markersize": 4, "linewidth": 1.4}

    def curve(axes: Axes, rows: list[dict[str, Any]], x: str, y: str, **more: Any) -> None:
        axes.plot([row[x] for row in rows], [row[y] for row in rows], **{"color": colour, **style, **more})

    def log_ticks(axis: Any, ticks: list[float], texts: list[str] | None = None) -> None:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_ticks(ticks, texts or [f"{tick:g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())

    curve(samples, found["by_samples"], "samples", "all", label="all sites random")
    curve(samples, found["by_samples"], "samples", "last", label="the last site random", color=other)
    for axis in (samples.xaxis, samples.yaxis):
        log_ticks(axis, [1, 2, 5, 10, 20, 50, 100])
    legend(samples)
    dress(samples, title="Samples", x="samples", y="cost, in plain passes", grid="both")
    curve(images, found["by_images"], "images", "ms_per_image")
    log_ticks(images.xaxis, [row["images"] for row in found["by_images"]])
    images.set(ylim=(0, None))
    dress(images, title="Images", x="images in a call", y="ms an image", grid="both")
    curve(weights, found["by_parameters"], "parameters", "ms_per_image")
    counts = [row["parameters"] for row in found["by_parameters"]]
    log_ticks(weights.xaxis, counts, [f"{count / 1e6:.1f} M" for count in counts])
    log_ticks(weights.yaxis, [4, 8, 16, 32, 64])
    dress(weights, title="Parameters", x="parameters", y="ms an image", grid="both")
    first = found["by_processes"][0]
    rows = [
        {name: row[name] / first[name] if name.endswith("_s") else row[name] for name in row}
        | {"even": 1 / row["processes"]}
        for row in found["by_processes"]
    ]
    even = {"color": MUTED, "linewidth": 1.0, "linestyle": ":", "marker": "", "label": "1 / processes"}
    curve(processes, rows, "processes", "even", **even)
    curve(processes, rows, "processes", "predicting_longest_s", label="predicting")
    curve(processes, rows, "processes", "training_longest_s", label="training", color=other)
    processes.set(ylim=(0, None), xticks=[row["processes"] for row in rows])
    legend(processes)
    dress(processes, title="Processes", x="processes", y="processor time of the longest", grid="both")
    return figure

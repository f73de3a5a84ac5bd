"""The figures that compare no runs: curves, a drawn network, one prediction, noisy images, the variance.

:func:`write_illustration` makes the data of one and keeps it as plain JSON, in the shapes that the functions of
``rbue.lab.report.figures`` take; :data:`FROM_ILLUSTRATIONS` draws it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rbue import variance
from rbue.files import read_json, write_json
from rbue.lab import data
from rbue.lab.corruptions import corrupt
from rbue.lab.environment import facts
from rbue.lab.paper.experiments import Experiment
from rbue.lab.paper.settings import SEVERITIES, Settings, name_of
from rbue.lab.report import illustrations as figures
from rbue.lab.report.page import Block, Bullets, FigureBlock, Fold, TableBlock
from rbue.lab.report.tables import Cell, Column, Row, Table, Value
from rbue.lab.runs.folders import RunConfig, outdated, training_seconds
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes

CANDIDATES = 200
NOISY_IMAGES = 3
LAYER = 256
SIMULATIONS = 20_000
_SLOPES = {"lower": 1 / 8, "upper": 1 / 3}


def illustration_file(experiment: Experiment, settings: Settings, root: Path) -> Path:
    """Where an experiment's data is kept, apart for quick and full."""
    return root / "paper" / settings.scale.name / f"{experiment.id}.json"


def read_illustration(experiment: Experiment, settings: Settings, root: Path) -> dict[str, Any] | None:
    """The data, or None if it has not been made, or is of another run, number of samples, random stream or training."""
    path = illustration_file(experiment, settings, root)
    found: dict[str, Any] | None = read_json(path) if path.exists() else None
    run = next(settings.configs(experiment), None)
    if found is None or run is None or "run" not in found:
        return found
    same = RunConfig.from_json(found["run"]) == run and len(found["samples"]) == _passes(settings)
    return found if same and not outdated(run, root, found) else None


def write_illustration(experiment: Experiment, settings: Settings, root: Path, device: torch.device) -> None:
    """Make the data and keep it."""
    assert experiment.illustration is not None
    content = _MAKERS[experiment.illustration.kind](experiment, settings, root, device)
    known = {"scale": settings.scale.name, "environment": facts()}
    write_json(illustration_file(experiment, settings, root), {**known, **content})


def _framework(experiment: Experiment, settings: Settings, root: Path, device: torch.device) -> dict[str, Any]:
    """The most uncertain of the first test images, with the class probabilities of every pass."""
    config = next(settings.configs(experiment))
    images = data.load(config.data, "test")
    few = replace(images, images=np.ascontiguousarray(images.images[:CANDIDATES]), labels=images.labels[:CANDIDATES])
    seconds = training_seconds(config, root)
    networks = load_networks(config, root, device)
    prediction = predict_images(config, networks, few, Passes(_passes(settings)), device, return_samples=True)
    assert prediction.samples is not None
    number = int(prediction.entropy.argmax())
    return {
        "run": config.as_json(),
        "image_number": number,
        "image": _packed(few.images[number]),
        "truth": images.classes[int(few.labels[number])],
        "classes": list(images.classes),
        "samples": prediction.samples[:, number].double().tolist(),
        "mean": prediction.probs[number].double().tolist(),
        "entropy": float(prediction.entropy[number]),
        "stream_version": prediction.stream_version,
        "training_seconds": seconds,
    }


def _packed(images: np.ndarray) -> dict[str, Any]:
    """Bytes of images as text; a list of numbers would take eighteen times the room."""
    return {"shape": list(images.shape), "base64": base64.b64encode(images.tobytes()).decode()}


def _unpacked(images: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(images["base64"]), dtype=np.uint8).reshape(images["shape"])


def _passes(settings: Settings) -> int:
    return max(settings.sample_count, 10)


def _shot_noise(experiment: Experiment, settings: Settings, *_: Any) -> dict[str, Any]:
    assert experiment.illustration is not None
    name = settings.data_of(experiment.illustration.data or "")
    clean = np.ascontiguousarray(data.load(name, "test").images[:NOISY_IMAGES])
    versions = [clean, *(corrupt(clean, "shot_noise", severity=severity) for severity in SEVERITIES)]
    return {"data": name, "severities": [0, *SEVERITIES], "images": _packed(np.stack(versions, axis=1))}


def _variance(*_: Any) -> dict[str, Any]:
    """Variances over q of the sum of a layer of standard normal inputs."""
    x = torch.randn(LAYER, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rates = [round(0.05 * step, 2) for step in range(1, 20)]
    simulated = [variance.simulate(x, "drop_relu", q=q, samples=SIMULATIONS) for q in rates]
    return {
        "layer": {"inputs": LAYER, "distribution": "standard normal, seed 0", "simulations": SIMULATIONS},
        "q": rates,
        "paper": [float(variance.drop_relu_paper(x, q=q)) for q in rates],
        "exact": [float(variance.drop_relu(x, q=q)) for q in rates],
        "simulated": [float(one.variance) for one in simulated],
        "error": [float(one.standard_error) for one in simulated],
        "dropout": [float(variance.dropout(x, p=1 - q)) for q in rates],
    }


_MAKERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "activations": lambda *_: {"q": 0.9, **_SLOPES},
    "network": lambda *_: {"kinds": ["ReLU", "DropReLU", "RReLU"], "layers": [3, 4, 4, 2], "q": 0.7, **_SLOPES},
    "framework": _framework,
    "shot-noise": _shot_noise,
    "variance": _variance,
}


def _draw_activation_curves(content: dict[str, Any], caption: str) -> list[Block]:
    """ReLU, DropReLU and RReLU."""
    numbers = {name: content[name] for name in ("q", "lower", "upper")}
    slopes = f"{numbers['lower']:.3g} to {numbers['upper']:.3g}"
    alt = (
        f"Output against input: ReLU; DropReLU, which is a ReLU with probability {numbers['q']:g} and the identity "
        f"otherwise; RReLU, whose slope for negative inputs is drawn from {slopes}."
    )
    caption = f"{caption} Drawn with q = {numbers['q']:g} and slopes from {slopes}."
    return [FigureBlock(figures.activation_curves(**numbers), alt, caption, wide=True)]


def _draw_network(content: dict[str, Any], caption: str) -> list[Block]:
    """A small network with each activation."""
    content = {name: content[name] for name in ("kinds", "layers", "q", "lower", "upper")}
    alt = (
        f"Networks with layers of {', '.join(map(str, content['layers']))} neurons with {', '.join(content['kinds'])}; "
        "each hidden neuron shows the curve that one random pass drew for it."
    )
    caption = f"{caption} Drawn with q = {content['q']:g}; a scheme, not a trained network."
    return [FigureBlock(figures.network_drawing(**content), alt, caption, wide=True)]


def _draw_framework(content: dict[str, Any], caption: str) -> list[Block]:
    """One real prediction."""
    samples, classes = np.asarray(content["samples"]), content["classes"]
    mean = samples.mean(0)
    said = classes[int(mean.argmax())]
    alt = (
        f"A test image of {content['truth']}, the class probabilities of some of its {len(samples)} random passes, and "
        f"their mean: {said} with {mean.max():.3f}, entropy {content['entropy']:.3f} nats."
    )
    caption = (
        f"{caption} Test image {content['image_number']}, labelled {content['truth']}, in {len(samples)} "
        f"passes of `{name_of(RunConfig.from_json(content['run']))}`."
    )
    figure = figures.framework(_unpacked(content["image"]), samples, classes)
    return [FigureBlock(figure, alt, caption, wide=True)]


def _draw_images(content: dict[str, Any], caption: str) -> list[Block]:
    """Images at growing severities."""
    rows = [list(versions) for versions in _unpacked(content["images"])]
    severities = content["severities"]
    captions = ["clean" if number == 0 else f"severity {number}" for number in severities]
    alt = f"{len(rows)} test images of {content['data']} at severities {', '.join(map(str, severities))} of shot noise."
    caption = f"{caption} The first test images of {content['data']}."
    return [FigureBlock(figures.image_rows(rows, captions), alt, caption, wide=True)]


_VARIANCES = ("q", "paper", "exact", "simulated", "error", "dropout")


def _draw_variance(content: dict[str, Any], caption: str) -> list[Block]:
    """The paper's formula, the exact value and a simulation."""
    layer = content["layer"]
    numbers: dict[str, Any] = {name: np.asarray(content[name], dtype=float) for name in _VARIANCES}
    gap = float(np.max(np.abs(numbers["simulated"] - numbers["exact"]) / numbers["error"]))
    ratio = float(np.median(numbers["paper"] / numbers["exact"]))
    found = [
        f"The simulation never lies further than {gap:.1f} of its standard errors from the exact value.",
        f"The paper's formula gives {ratio:.2f} times the exact value for this layer.",
    ]
    caption = (
        f"{caption} {layer['inputs']} inputs ({layer['distribution']}), {layer['simulations']:,} simulated "
        "draws for each q."
    )
    figure = figures.variance_against_q(**numbers)
    return [
        FigureBlock(figure, f"Variance of a layer's sum against q. {' '.join(found)}", caption),
        Bullets(found),
        Fold("The variances as numbers", [TableBlock(_variance_table(numbers, caption))]),
    ]


def _variance_table(numbers: dict[str, Any], caption: str) -> Table:
    headings = {"q": "q", "paper": "formula of the paper", "exact": "exact"}
    headings |= {"simulated": "simulated ± standard error", "dropout": "dropout, p = 1 − q"}
    columns = [Column(name, heading, text="{:.2f}".format) for name, heading in headings.items()]
    rows: list[Row] = []
    for place, error in enumerate(numbers["error"]):
        row: dict[str, Value] = {name: float(numbers[name][place]) for name in ("q", "paper", "exact", "dropout")}
        rows.append({**row, "simulated": Cell(float(numbers["simulated"][place]), std=float(error))})
    return Table(columns, rows, caption)


FROM_ILLUSTRATIONS: Mapping[str, Callable[[dict[str, Any], str], list[Block]]] = {
    "curves": _draw_activation_curves,
    "network": _draw_network,
    "framework": _draw_framework,
    "images": _draw_images,
    "variance": _draw_variance,
}
"""By the kind of a drawing, what makes its blocks from the data and a caption."""

"""Data of the figures that compare no runs: curves, a drawn network, one prediction, noisy images, the variance.

Everything is plain JSON, in the shapes that the functions of ``rbue.lab.report.figures`` take.
"""

from __future__ import annotations

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
from rbue.lab.paper.experiments import Experiment, Illustration
from rbue.lab.paper.settings import SEVERITIES, Settings
from rbue.lab.runs.folders import RunConfig, other_stream
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks

CANDIDATES = 200
NOISY_IMAGES = 3
LAYER = 256
SIMULATIONS = 20_000


def illustration_file(experiment: Experiment, settings: Settings, root: Path) -> Path:
    """Where an experiment's data is kept, apart for quick and full."""
    return root / "paper" / settings.scale.name / f"{experiment.id}.json"


def is_illustrated(experiment: Experiment, settings: Settings, root: Path) -> bool:
    """Whether the data is there."""
    return read_illustration(experiment, settings, root) is not None


def read_illustration(experiment: Experiment, settings: Settings, root: Path) -> dict[str, Any] | None:
    """The data, or None if it has not been made, or is of another run, number of samples or random stream."""
    path = illustration_file(experiment, settings, root)
    found: dict[str, Any] | None = read_json(path) if path.exists() else None
    run = next(settings.configs(experiment), None)
    if found is None or run is None or "run" not in found:
        return found
    same = RunConfig.from_json(found["run"]) == run and len(found["samples"]) == _passes(settings)
    return found if same and not other_stream(run, found) else None


def write_illustration(experiment: Experiment, settings: Settings, root: Path, device: torch.device) -> None:
    """Make the data and keep it."""
    assert experiment.illustration is not None
    make = _MAKERS[experiment.illustration.kind]
    content = make(experiment, settings, root, device)
    known = {"scale": settings.scale.name, "environment": facts()}
    write_json(illustration_file(experiment, settings, root), {**known, **content})


def _activations(*_: Any) -> dict[str, Any]:
    return {"q": 0.9, "lower": 1 / 8, "upper": 1 / 3}


def _network(*_: Any) -> dict[str, Any]:
    return {"kinds": ["ReLU", "DropReLU", "RReLU"], "layers": [3, 4, 4, 2], "q": 0.7, "lower": 1 / 8, "upper": 1 / 3}


def _framework(experiment: Experiment, settings: Settings, root: Path, device: torch.device) -> dict[str, Any]:
    """The most uncertain of the first test images, with the class probabilities of every pass."""
    config = next(settings.configs(experiment))
    images = data.load(config.data, "test")
    few = _first(images, CANDIDATES)
    networks = load_networks(config, root, device)
    prediction = predict_images(config, networks, few, _passes(settings), 0, device, return_samples=True)
    assert prediction.samples is not None
    number = int(prediction.entropy.argmax())
    return {
        "run": config.as_json(),
        "image_number": number,
        "image": few.images[number].tolist(),
        "truth": images.classes[int(few.labels[number])],
        "classes": list(images.classes),
        "samples": prediction.samples[:, number].double().tolist(),
        "mean": prediction.probs[number].double().tolist(),
        "entropy": float(prediction.entropy[number]),
        "stream_version": prediction.stream_version,
    }


def _passes(settings: Settings) -> int:
    return max(settings.sample_count, 10)


def _shot_noise(experiment: Experiment, settings: Settings, *_: Any) -> dict[str, Any]:
    name = settings.data_of(_illustration(experiment).data or "")
    clean = np.ascontiguousarray(data.load(name, "test").images[:NOISY_IMAGES])
    versions = [clean, *(corrupt(clean, "shot_noise", severity=severity) for severity in SEVERITIES)]
    return {
        "data": name,
        "severities": [0, *SEVERITIES],
        "images": [[version[number].tolist() for version in versions] for number in range(len(clean))],
    }


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


def _illustration(experiment: Experiment) -> Illustration:
    assert experiment.illustration is not None
    return experiment.illustration


def _first(images: data.ImageSet, count: int) -> data.ImageSet:
    return replace(images, images=np.ascontiguousarray(images.images[:count]), labels=images.labels[:count])


_MAKERS = {
    "activations": _activations,
    "network": _network,
    "framework": _framework,
    "shot-noise": _shot_noise,
    "variance": _variance,
}

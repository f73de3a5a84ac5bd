"""What one temperature would do to a measured run, without a network.

There is no held-out set in the paper's recipe, so the temperatures come from the test images themselves, by a two-fold
cross-fit: each half is scaled by the temperature that the other half asks for, and no image by one that saw its label.
The paper does not do this; what comes out stands apart from its rows, in calibration.json.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rbue import metrics
from rbue.calibration import Temperature, cross_fitted
from rbue.errors import RbueError, RbueWarning
from rbue.files import checksum_of
from rbue.lab import data
from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder, trained_again, training_seconds
from rbue.lab.runs.measuring import BINS, other_images, scores
from rbue.lab.runs.probabilities import belong_to, read_probs

FILE = "calibration"
FOLDS, FOLD_SEED = 2, 0
ROUNDING = 2e-3
"""``float16`` moves a probability by at most 2^-11 of it, and with it a Brier score by less than this."""


def calibrate_run(config: RunConfig, root: Path) -> tuple[str, dict[str, Any]]:
    """Scale the stored probabilities of a run and keep the scores before and after in its folder.

    What was made from the same probabilities before is kept as it is.

    Returns:
        The name of the measurement in ``results.json`` that the probabilities belong to, and its new entry.

    Raises:
        RbueError: in one sentence, what is missing or does not fit.
    """
    folder = RunFolder.of(config, root)
    key, result = _last_result(folder)
    if not folder.probs.is_file():
        raise RbueError(
            f"{folder.probs} is not there; `rbue evaluate {folder.path}` makes it again where the weights are."
        )
    if words := trained_again(result, training_seconds(config, root)):
        raise RbueError(f"{folder.path} was measured {words}; run `rbue evaluate {folder.path}` first.")
    known = folder.entries(FILE)
    if _made_from(known.get(key)) == checksum_of(folder.probs):
        return key, known[key]
    images = data.load(config.data, "test")
    with folder.locked():  # a measurement writes two files
        key, result = _last_result(folder)
        checksum = checksum_of(folder.probs)
        probs, labels = _matching(folder, result, images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)  # a temperature at a bound says the same, and is kept
        scaled = cross_fitted(probs, labels, FOLDS, FOLD_SEED)
    entry = {
        "before": scores(probs, labels),
        "after": scores(scaled.probs, labels),
        "temperatures": list(scaled.temperatures),
        "bounds": [Temperature.LOWEST, Temperature.HIGHEST],
        "folds": FOLDS,
        "fold_seed": FOLD_SEED,
        "fitted_on": "the other half of the test images",
        "bins": BINS,
        "samples": result.get("samples"),
        "seed": result.get("seed"),
        "probs": {"file": folder.probs.name, "sha256": checksum},
        "data": images.record(),
        "environment": facts(),
    }
    with folder.locked():
        folder.write(FILE, {**folder.entries(FILE), key: entry})
    return key, entry


def lacks_calibration(folder: RunFolder, key: str) -> bool:
    """Whether a measurement could be calibrated from the stored probabilities and is not yet."""
    results = folder.entries("results")
    if not results or list(results)[-1] != key or not folder.probs.is_file():
        return False
    known = folder.entries(FILE)
    return key not in known or _made_from(known[key]) not in (None, checksum_of(folder.probs))


def is_calibration_of(entry: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether an entry was made from the probabilities of a measurement, as far as both say."""
    return _made_from(entry) is None or result.get("probs_sha256") in (None, _made_from(entry))


def _made_from(entry: dict[str, Any] | None) -> str | None:
    """The checksum of the probabilities that an entry was made from."""
    return dict(dict(entry or {}).get("probs") or {}).get("sha256")


def at_a_bound(entry: dict[str, Any]) -> bool:
    """Whether no temperature within the bounds was best: every image right, or the answers no better than chance."""
    return any(temperature in entry.get("bounds", ()) for temperature in entry["temperatures"])


def _last_result(folder: RunFolder) -> tuple[str, dict[str, Any]]:
    """The measurement the stored probabilities belong to: each one writes them anew and comes last."""
    results = folder.entries("results")
    if not results:
        raise RbueError(f"{folder.path} is not measured yet; run `rbue evaluate {folder.path}` first.")
    return list(results.items())[-1]


def _matching(folder: RunFolder, result: dict[str, Any], images: data.ImageSet) -> tuple[Tensor, Tensor]:
    """Stored probabilities in ``float64`` and labels, after checking that both belong to a measurement."""
    if other_images(result, images):
        raise RbueError(
            f"{folder.path} was measured on other test images of {images.name} than those on this machine; "
            "calibrate it where it was measured."
        )
    stored = read_probs(folder.probs)
    if stored.shape != (len(images), len(images.classes)):
        raise RbueError(
            f"{folder.probs} has shape {stored.shape}, which does not fit {images!r}; "
            f"remove {folder.path / 'results.json'} and run `rbue evaluate {folder.path}`."
        )
    probs, labels = torch.from_numpy(stored).double(), torch.from_numpy(images.labels)
    if not belong_to(folder.probs, result):
        raise RbueError(
            f"{folder.probs} does not have the checksum that results.json notes: it is of another measurement; remove "
            f"{folder.path / 'results.json'} and run `rbue evaluate {folder.path}`."
        )
    noted, found = result.get("brier"), float(metrics.brier(probs, labels))
    if noted is not None and not abs(noted - found) < ROUNDING:
        raise RbueError(
            f"{folder.probs} has a Brier score of {found:.4f}, but results.json says {noted:.4f}: it is of another "
            f"measurement; remove {folder.path / 'results.json'} and run `rbue evaluate {folder.path}`."
        )
    return probs, labels

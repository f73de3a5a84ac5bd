"""``rbue predict``: image files in; label, confidence and uncertainty out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.cli.finding import HELP, find_run, settings_and_root
from rbue.lab.cli.options import DeviceName, RunsFolder, Samples, device_named
from rbue.lab.cli.output import AsJson, number, percent, print_json, table
from rbue.lab.cli.progress import working
from rbue.lab.data.folder import middle_square, scaled_side
from rbue.lab.data.images import Bytes
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks, trained_on

EXAMPLE = "Example: rbue predict runs/digits/small_cnn/mc-droprelu-0.9-seed0-4f9d2c1a seven.png unknown.png"
MODES = ("1", "L", "P", "RGB")


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(predict)


def predict(
    run: Annotated[str, typer.Argument(help=HELP)],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files of the data set's size.")],
    samples: Samples = 100,
    seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    device: DeviceName = None,
    runs: RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Say what is on images, and how sure that is.

    Entropy (in nats) is the whole uncertainty; mutual information is the part that comes from the model not knowing.
    """
    config, root = settings_and_root(find_run(run, runs))
    place = device_named(device)
    known = trained_on(config, root)
    pixels = np.stack([read_image(path, known) for path in images])
    unlabelled = replace(known, images=pixels, labels=np.zeros(len(pixels), dtype=np.int64))
    with working(f"predicting with {config.method}"):
        networks = load_networks(config, root, place)
        prediction = predict_images(config, networks, unlabelled, samples, seed, place)
    rows: list[dict[str, Any]] = [
        {
            "image": str(path),
            "label": known.classes[int(prediction.label[index])],
            "confidence": float(prediction.confidence[index]),
            "entropy": float(prediction.entropy[index]),
            "mutual_information": float(prediction.mutual_information[index]),
            "samples": int(prediction.samples_used[index]),
            "probabilities": dict(zip(known.classes, prediction.probs[index].tolist(), strict=True)),
        }
        for index, path in enumerate(images)
    ]
    if json:
        print_json({"run": run, "method": config.method, "seed": seed, "predictions": rows})
        return
    numbers = ("confidence", "entropy", "mutual information")
    cells = [
        (row["image"], row["label"], percent(row["confidence"]), number(row["entropy"]), _information(row))
        for row in rows
    ]
    title = f"{config.method} · {config.model} on {config.data}, {rows[0]['samples']} samples"
    table(title, ("image", "label", *numbers), cells, right=numbers)


def _information(row: dict[str, Any]) -> str:
    return number(row["mutual_information"]) if row["samples"] > 1 else number(None)


def read_image(path: Path, like: data.ImageSet) -> Bytes:
    """The pixels of an image file, in the size and channels of a data set."""
    height, width, channels = like.images.shape[1:]
    try:
        with Image.open(path) as image:
            side = scaled_side(like.name)
            if side is None and image.size != (width, height):
                raise InvalidInput(
                    f"{path} has {image.size[0]}x{image.size[1]} pixels, but the images of {like.name} have "
                    f"{width}x{height}; crop or resize it first."
                )
            if image.mode not in MODES or "transparency" in image.info:
                raise InvalidInput(
                    f"{path} is an image of mode {image.mode} or has transparency; save it as 8-bit grey or RGB."
                )
            mode = "L" if channels == 1 else "RGB"
            pixels = np.asarray(image.convert(mode) if side is None else middle_square(image, mode, side))
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is not an image that can be read ({_reason(error)}).") from error
    return pixels.reshape(height, width, channels)


def _reason(error: Exception) -> str:
    if "cannot identify" in str(error):
        return "unknown format"
    return getattr(error, "strerror", None) or str(error)

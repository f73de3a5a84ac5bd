"""Predict any number of images with a run, block by block, into a folder of Parquet files.

    OUTPUT/
        part-00000.parquet ...  one row an image, in the order of the images; a block each, written whole or not at all,
                                with its checksum in it
        _manifest.json          the settings, the images and the checksum of their listing; what it came to, at the end
        _listing.jsonl          the images (:mod:`rbue.lab.data.image_streams`)
        .lock                   there while a command writes

An image has the number of its place among all images in the random stream, and is predicted beside the same images
whatever block it is in, so that nothing depends on who predicts a block, or when. What is there need not be done again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rbue import random_stream
from rbue.errors import InvalidInput, RbueError, reason
from rbue.files import BLANK, DiskFull, read_json, refuse_damage, seal, write_bytes, write_json
from rbue.lab import data
from rbue.lab.data.image_streams import (
    ListedImage,
    Listing,
    ListingPlace,
    block_places,
    parquet,
    read_listed,
    write_listing,
)
from rbue.lab.data.registry import silent
from rbue.lab.executors import Executor
from rbue.lab.runs.folders import RunConfig, RunFolder, locked_folder
from rbue.lab.runs.forms import MANIFEST, misfit
from rbue.lab.runs.measuring import images_at_once, predict_images
from rbue.lab.runs.networks import load_networks, trained_on
from rbue.lab.runs.passes import Passes
from rbue.lab.training.checkpoint import WAIT_FOR_ROOM

BLOCK = 2000
"""Images in a block, or as many more as it takes to predict the same number at once always."""

_REASONS = 5


@dataclass(frozen=True)
class Scoring:
    """How images are predicted, and where the answers go.

    Attributes:
        config: the run.
        root: folder of the run folders.
        output: folder of the answers.
        passes: for each image.
        device: ``cpu`` or ``cuda``.
        block: images in a file.
    """

    config: RunConfig
    root: Path
    output: Path
    passes: Passes
    device: torch.device
    block: int

    @property
    def listing(self) -> Path:
        """The images."""
        return self.output / "_listing.jsonl"

    @property
    def manifest(self) -> Path:
        """What was begun here."""
        return self.output / "_manifest.json"

    def part(self, number: int) -> Path:
        """The file of a block."""
        return self.output / f"part-{number:05d}.parquet"

    def settings(self) -> dict[str, Any]:
        """What decides the answers, for the manifest."""
        chosen = {name: getattr(self.passes, name) for name in ("samples", "seed", "draws", "augment")}
        weights = hashlib.sha256()
        for member in self.config.trainings():
            for file in sorted(RunFolder.of(member, self.root).path.glob("weights*")):
                if file.suffix != ".partial":  # of a process that was killed
                    weights.update(file.read_bytes())
        run = {"run": self.config.id, "method": self.config.method, "weights": weights.hexdigest()}
        return {
            **run,
            **chosen,
            "block": self.block,
            "device": self.device.type,
            "stream_version": random_stream.VERSION,
        }


class ImageBlock(NamedTuple):
    """Images ``start`` to ``stop``, and where in the listing to look for them."""

    number: int
    start: int
    stop: int
    place: ListingPlace


@dataclass
class Scored:
    """What a command came to.

    Attributes:
        images: how many there are.
        unreadable: how many of them could not be read; ``reasons`` has the first few sentences about them.
        predicted_now: images of the blocks that were not there before, without those that could not be read.
        listing: what was listed.
    """

    images: int
    unreadable: int
    reasons: list[str]
    predicted_now: int
    listing: Listing


def score(
    scoring: Scoring,
    inputs: Sequence[Path],
    executor: Executor,
    column: str | None = None,
    progress: data.Progress | None = None,
) -> Scored:
    """Predict what is missing of some images.

    Args:
        scoring: how, and where to; :func:`scoring_of` makes it.
        inputs: image files, folders and Parquet files.
        executor: does the blocks.
        column: of the Parquet files; left out, the one that can hold images.
        progress: told how many images are done.

    Raises:
        InvalidInput: the folder was begun with other settings or images, or there is nothing to predict.
        DiskFull: there is no room for the answers; no more are made then.
        RbueError: blocks could not be predicted; all others were.
        InUse: another command writes there.
    """
    parquet()  # or say that it is not here, before anything is written
    begun = scoring.manifest.exists()
    if scoring.output.exists() and not begun and not (scoring.output.is_dir() and _is_bare(scoring.output)):
        raise InvalidInput(f"{scoring.output} is there and not a folder that `rbue predict` began; give another -o.")
    for given in inputs:
        if given.is_dir() and scoring.output.resolve().is_relative_to(given.resolve()):
            raise InvalidInput(f"{scoring.output} lies in {given}, a folder of images; give another -o.")
    load_networks(scoring.config, scoring.root, torch.device("cpu"))  # or say what is wrong with them, once
    is_new = not scoring.output.exists()
    with locked_folder(scoring.output):
        try:
            listing = _begin(scoring, inputs, column)
            return _finish(scoring, listing, *_predict_missing(scoring, listing, executor, progress))
        finally:
            if is_new and not scoring.manifest.exists():
                scoring.listing.unlink(missing_ok=True)


def _is_bare(folder: Path) -> bool:
    """Whether nothing is in a folder but what a command leaves that is killed before it wrote its manifest."""
    return all(path.name.startswith((".lock", "_listing", "_found", "_manifest")) for path in folder.iterdir())


def _begin(scoring: Scoring, inputs: Sequence[Path], column: str | None) -> Listing:
    """List the images and note what is to be done, or refuse what does not continue what is there."""
    settings, found = scoring.settings(), scoring.listing.with_name("_found.jsonl")
    noted = read_json(scoring.manifest, "give another -o") if scoring.manifest.exists() else None
    if noted is not None and misfit(noted, MANIFEST):
        raise RbueError(f"{scoring.manifest} has another form; give another -o.")
    for name, value in settings.items():
        before = value if noted is None else noted["settings"].get(name)
        if before != value:
            what = "other weights" if name == "weights" else f"{name} {before!r} and not {value!r}"
            raise InvalidInput(f"{scoring.output} was begun with {what}; give the same, or another -o.")
    try:
        listing = write_listing(inputs, found, column)
        if noted is not None and noted["listing"]["sha256"] != listing.sha256:
            raise InvalidInput(
                f"{scoring.output} was begun with another list of images ({noted['listing']['images']:,} then, "
                f"{listing.images:,} now); give the same, or another -o."
            )
        found.replace(scoring.listing)
    finally:
        found.unlink(missing_ok=True)
    if noted is None:
        facts = {"images": listing.images, "sha256": listing.sha256}
        classes = trained_on(scoring.config, scoring.root).classes
        write_json(scoring.manifest, {"settings": settings, "listing": facts, "classes": classes})
    return listing


def _blocks(scoring: Scoring, images: int) -> Iterator[ImageBlock]:
    for number, place in enumerate(block_places(scoring.listing, scoring.block)):
        start = number * scoring.block
        yield ImageBlock(number, start, min(images, start + scoring.block), place)


def _predict_missing(
    scoring: Scoring, listing: Listing, executor: Executor, progress: data.Progress | None
) -> tuple[int, list[RbueError]]:
    """Predict the blocks whose files are not there; gives the images predicted, and the errors of other blocks."""
    tell, errors, predicted = progress or silent, list[RbueError](), 0
    done = sum(one.stop - one.start for one in _blocks(scoring, listing.images) if scoring.part(one.number).exists())
    missing = (one for one in _blocks(scoring, listing.images) if not scoring.part(one.number).exists())
    if done < listing.images:
        tell("predicting images", done, listing.images)
    for block, readable, error in executor.each(partial(predict_block, scoring=scoring), lambda: next(missing, None)):
        if isinstance(error, DiskFull):  # the others would be predicted in vain
            raise error
        if error is not None:
            errors.append(error)
            continue
        predicted += readable
        done += block.stop - block.start
        tell("predicting images", done, listing.images)
    return predicted, errors


def _finish(scoring: Scoring, listing: Listing, predicted: int, errors: list[RbueError]) -> Scored:
    """Look through the files, and note what they came to."""
    if errors:
        blocks = f"{len(errors)} block{'s' if len(errors) > 1 else ''} of {scoring.output}"
        raise RbueError(
            f"{blocks} could not be predicted ({str(errors[0]).rstrip('.')}); the same command tries again."
        )
    images, unreadable, reasons = 0, 0, list[str]()
    for block in _blocks(scoring, listing.images):
        rows, wrong, sentences = _counted(scoring.part(block.number), _REASONS - len(reasons))
        if rows != block.stop - block.start:
            raise RbueError(f"{scoring.part(block.number)} has {rows} rows; remove it to have it made again.")
        images, unreadable, reasons = images + rows, unreadable + wrong, reasons + sentences
    for orphan in scoring.output.glob("*.partial"):  # of processes that were killed; nobody writes here now
        orphan.unlink(missing_ok=True)
    noted = read_json(scoring.manifest)
    if "finished" not in noted:
        write_json(scoring.manifest, {**noted, "finished": {"images": images, "unreadable": unreadable}})
    return Scored(images, unreadable, reasons, predicted, listing)


def _counted(part: Path, most: int) -> tuple[int, int, list[str]]:
    """Rows of a file, how many of them have an error, and the first of these."""
    try:
        content = part.read_bytes()
        place = content.rfind(_SEAL)  # by itself, as what reads damaged files may read anything
        if place >= 0:  # else it was written before there were checksums
            refuse_damage(content, place + len(_SEAL))
        with parquet().ParquetFile(io.BytesIO(content)) as file:
            metadata = file.metadata
            place = metadata.schema.names.index("error")
            groups = [metadata.row_group(number).column(place) for number in range(metadata.num_row_groups)]
            wrong = sum(group.num_values - group.statistics.null_count for group in groups)
            sentences = file.read(["error"]).column(0).drop_null()[:most].to_pylist() if wrong and most else []
            return metadata.num_rows, wrong, sentences
    except (OSError, ValueError, AttributeError) as error:
        raise RbueError(f"{part} cannot be read ({reason(error)}); remove it to have it made again.") from error


def scoring_of(
    config: RunConfig, root: Path, output: Path, passes: Passes, device: torch.device, block: int = BLOCK
) -> Scoring:
    """How to predict images with a run. ``block`` grows to a multiple of the images that are predicted at once."""
    at_once = images_at_once(trained_on(config, root), device)
    block = -(-block // at_once) * at_once
    return Scoring(config, root.absolute(), output.absolute(), passes, device, block)


@lru_cache(maxsize=1)
def _loaded(scoring: Scoring) -> tuple[list[nn.Module], data.ImageSet]:
    """The networks of a run, and a set without images that says what it takes; once a process."""
    return load_networks(scoring.config, scoring.root, scoring.device), trained_on(scoring.config, scoring.root)


def predict_block(block: ImageBlock, scoring: Scoring) -> int:
    """Predict a block and write its file; gives how many of its images could be read."""
    networks, like = _loaded(scoring)
    images = read_listed(scoring.listing, block.place, block.start, block.stop, like)
    at_once = images_at_once(like, scoring.device)
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA}
    for first in range(block.start, block.stop, at_once):
        some = list(islice(images, at_once))
        for name, values in _predicted(some, first, networks, like, scoring).items():
            columns[name] += values
    write_bytes(scoring.part(block.number), _part_bytes(columns), WAIT_FOR_ROOM)
    return columns["error"].count(None)


def _predicted(
    some: list[ListedImage], first: int, networks: list[nn.Module], like: data.ImageSet, scoring: Scoring
) -> dict[str, list[Any]]:
    """The columns of some images. One that cannot be read is black to the network, and its answer is not kept.

    So the others have the answers they would have if it could be read, to the last bit.
    """
    pixels = np.zeros((len(some), *like.images.shape[1:]), np.uint8)
    for place, image in enumerate(some):
        if image.pixels is not None:
            pixels[place] = image.pixels
    numbers = np.arange(first, first + len(some))
    unlabelled = like.unlabelled(pixels)
    prediction = predict_images(scoring.config, networks, unlabelled, scoring.passes, scoring.device, numbers=numbers)
    labels = prediction.label.tolist()
    found = {
        "label": labels,
        "class_name": [like.classes[label] for label in labels],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
        "samples": prediction.samples_used.tolist(),
    }
    wrong = [image.error is not None for image in some]
    kept = {
        name: [None if no else value for value, no in zip(values, wrong, strict=True)] for name, values in found.items()
    }
    names = [_text(image.name) for image in some]
    return {"index": numbers.tolist(), "image": names, **kept, "error": [_text(image.error) for image in some]}


def _text(text: str | None) -> str | None:
    """A text that is valid UTF-8, which the name of a file need not be."""
    return None if text is None else text.encode(errors="surrogateescape").decode(errors="replace")


_SCHEMA = {
    "index": "int64",
    "image": "string",
    "label": "int32",
    "class_name": "string",
    "confidence": "float32",
    "entropy": "float32",
    "mutual_information": "float32",
    "samples": "int32",
    "error": "string",
}
"""The columns of the answers, by Arrow's names of types."""


_KEY = "rbue.sha256"
_SEAL = _KEY.encode() + bytes([0x18, len(BLANK)])
"""What comes before a part's checksum: its key and, in the format of Parquet's footer, the mark of a text this long."""


def _part_bytes(columns: dict[str, list[Any]]) -> bytes:
    """A Parquet file that carries its own checksum, as a note that other readers leave alone."""
    import pyarrow

    arrays = [pyarrow.array(columns[name], getattr(pyarrow, kind)()) for name, kind in _SCHEMA.items()]
    table = pyarrow.table(arrays, names=list(_SCHEMA))
    buffer = io.BytesIO()
    with parquet().ParquetWriter(buffer, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY: BLANK})
    content = buffer.getvalue()
    return seal(content, content.rindex(_SEAL) + len(_SEAL))

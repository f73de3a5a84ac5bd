"""Mean probabilities of a set of images, kept in ``float16``: enough for ensembles and reports without a network."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError, reason
from rbue.files import checksum, checksum_of, load_array, write_bytes
from rbue.lab.training.checkpoint import WAIT_FOR_ROOM

SMALLEST_HALF = np.float16(2.0**-24)


def probs_bytes(probs: NDArray[np.float32]) -> bytes:
    """The file that keeps mean probabilities ``(N, C)``.

    None becomes 0, which would make the NLL of an ensemble infinite: what is too small for ``float16`` is raised to its
    smallest number, 6e-8.
    """
    buffer = io.BytesIO()
    np.save(buffer, np.maximum(probs.astype(np.float16), SMALLEST_HALF), allow_pickle=False)
    return buffer.getvalue()


def write_probs(path: Path, probs: NDArray[np.float32]) -> str:
    """Keep mean probabilities; gives the checksum of the file, for the measurement they belong to."""
    content = probs_bytes(probs)
    write_bytes(path, content, WAIT_FOR_ROOM)
    return checksum(content)


def belong_to(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether kept probabilities are those of a measurement: two files, between which a command may be stopped.

    One from before it noted them is believed.
    """
    return result.get("probs_sha256") in (None, checksum_of(path))


def probs_of(path: Path, result: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Kept probabilities that :func:`belong_to` a measurement, or None; read once, as others may write meanwhile."""
    content = path.read_bytes()
    return read_probs(path, content) if result.get("probs_sha256") in (None, checksum(content)) else None


def read_probs(path: Path, content: bytes | None = None) -> NDArray[np.float32]:
    """Mean probabilities kept earlier, summing to one again after their rounding; of a file that was read before."""
    try:
        stored = load_array(path if content is None else io.BytesIO(content))
    except (OSError, ValueError) as error:
        raise RbueError(f"{path} cannot be read ({reason(error)}); remove it to have it made again.") from error
    if stored.dtype.kind != "f":
        raise RbueError(f"{path} holds {stored.dtype} instead of floats; remove it to have it made again.")
    if stored.ndim != 2:
        raise RbueError(
            f"{path} has shape {stored.shape} instead of (images, classes); remove it to have it made again."
        )
    probs = stored.astype(np.float32)
    sums = probs.sum(1, keepdims=True)
    wrong = np.flatnonzero(~((probs >= 0).all(1) & (sums[:, 0] > 0) & np.isfinite(sums[:, 0])))
    if len(wrong):
        raise RbueError(
            f"{path} holds no probabilities in {len(wrong)} of {len(probs)} rows, the first of them row {wrong[0]}; "
            "remove it to have it made again."
        )
    return probs / sums

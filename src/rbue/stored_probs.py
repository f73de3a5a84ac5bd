"""Mean probabilities of a set of images on disk, in ``float16``: enough for ensembles and reports without a network."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.files import write_bytes

SMALLEST_HALF = np.float16(2.0**-24)


def write_probs(path: Path, probs: NDArray[np.float32]) -> str:
    """Keep mean probabilities ``(N, C)``; gives the checksum of the file, for the measurement they belong to.

    None becomes 0, which would make the NLL of an ensemble infinite: what is too small for ``float16`` is raised to its
    smallest number, 6e-8.
    """
    buffer = io.BytesIO()
    np.save(buffer, np.maximum(probs.astype(np.float16), SMALLEST_HALF), allow_pickle=False)
    write_bytes(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def checksum_of(path: Path) -> str:
    """The checksum of kept probabilities."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def belong_to(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether kept probabilities are those of a measurement: two files, between which a command may be stopped.

    One from before it noted them is believed.
    """
    return result.get("probs_sha256") in (None, checksum_of(path))


def read_probs(path: Path) -> NDArray[np.float32]:
    """Mean probabilities kept earlier, summing to one again after their rounding."""
    try:
        probs = np.load(path, allow_pickle=False).astype(np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise RbueError(f"{path} cannot be read ({error}); remove it to have it made again.") from error
    if probs.ndim != 2:
        raise RbueError(
            f"{path} has shape {probs.shape} instead of (images, classes); remove it to have it made again."
        )
    return probs / probs.sum(1, keepdims=True)

"""Mean probabilities of a set of images on disk, in ``float16``: enough for ensembles and reports without a network."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.files import write_bytes

SMALLEST_HALF = np.float16(2.0**-24)


def write_probs(path: Path, probs: NDArray[np.float32]) -> str:
    """Keep mean probabilities ``(N, C)``; gives the checksum of the file, for the measurement they belong to."""
    content = file_content(probs)
    write_bytes(path, content)
    return checksum(content)


def file_content(probs: NDArray[np.float32]) -> bytes:
    """The file that keeps mean probabilities.

    None becomes 0, which would make the NLL of an ensemble infinite: what is too small for ``float16`` is raised to its
    smallest number, 6e-8.
    """
    buffer = io.BytesIO()
    np.save(buffer, np.maximum(probs.astype(np.float16), SMALLEST_HALF), allow_pickle=False)
    return buffer.getvalue()


def checksum(content: bytes) -> str:
    """The checksum of such a file."""
    return hashlib.sha256(content).hexdigest()


def checksum_of(path: Path) -> str:
    """The checksum of kept probabilities."""
    return checksum(path.read_bytes())


def belong_to(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether kept probabilities are those of a measurement: two files, between which a command may be stopped.

    One from before it noted them is believed.
    """
    return result.get("probs_sha256") in (None, checksum_of(path))


def read_probs(path: Path) -> NDArray[np.float32]:
    """Mean probabilities kept earlier, summing to one again after their rounding."""
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise RbueError(f"{path} cannot be read ({error}); remove it to have it made again.") from error
    if not isinstance(stored, np.ndarray) or stored.dtype.kind != "f":
        what = stored.dtype if isinstance(stored, np.ndarray) else "several arrays"
        raise RbueError(f"{path} holds {what} instead of floats; remove it to have it made again.")
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

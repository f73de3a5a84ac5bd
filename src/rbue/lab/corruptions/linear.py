"""Linear maps on the pixels of an image, as sparse matrices that act on a whole batch at once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rbue.lab.corruptions.batch import Floats

if TYPE_CHECKING:
    from scipy import sparse  # type: ignore[import-untyped]


def apply(matrix: sparse.csr_array, images: NDArray[Any]) -> Floats:
    """The map on every image and channel of ``(B, H, W, C)``; the matrix is ``(H·W, H·W)``."""
    count, height, width, channels = images.shape
    pixels_first = images.reshape(count, height * width, channels).transpose(1, 0, 2).reshape(height * width, -1)
    mapped: Floats = matrix @ pixels_first.astype(np.float64)
    return mapped.reshape(height * width, count, channels).transpose(1, 0, 2).reshape(images.shape)


@lru_cache(maxsize=64)
def enlargement(height: int, width: int, factor: float) -> sparse.csr_array:
    """The middle of an image, enlarged by ``factor`` with linear interpolation and cut to the old size."""
    from scipy import sparse  # slow to load

    return sparse.csr_array(sparse.kron(_enlarge_line(height, factor), _enlarge_line(width, factor), format="csr"))


@lru_cache(maxsize=16)
def mean_enlargement(height: int, width: int, largest: float, step: float = 0.01) -> sparse.csr_array:
    """The mean of an image and its enlargements by ``1, 1 + step, ...`` below ``largest``."""
    from scipy import sparse

    factors = np.arange(1.0, largest, step)
    total = sparse.eye_array(height * width, format="csr")
    for factor in factors:
        total = total + enlargement(height, width, float(factor))
    return sparse.csr_array(total / (len(factors) + 1))


def _enlarge_line(length: int, factor: float) -> sparse.csr_array:
    """The matrix of one axis: what scipy's ``zoom`` makes of each unit vector."""
    from scipy import sparse
    from scipy.ndimage import zoom  # type: ignore[import-untyped]

    kept = int(np.ceil(length / factor))
    first = (length - kept) // 2
    enlarged = zoom(np.eye(length)[first : first + kept], (factor, 1.0), order=1)
    surplus = (len(enlarged) - length) // 2
    return sparse.csr_array(enlarged[surplus : surplus + length])

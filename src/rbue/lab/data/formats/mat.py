"""SVHN's cropped digits: MATLAB files (version 5) with ``X`` (H, W, C, N) and ``y`` (N, 1), where 10 means zero."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import Chunk, DataSet
from rbue.lab.data.sources import Source


def svhn_mat(files: Mapping[str, str]) -> Callable[[Source, DataSet, str, int], Iterator[Chunk]]:
    """One file a split."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        from scipy.io import loadmat  # type: ignore[import-untyped]

        place = source.place(files[split])
        try:
            # Version 5 holds arrays, never code, and only the two named ones are decoded.
            content = loadmat(io.BytesIO(source.read(files[split])), variable_names=("X", "y"))
            images, labels = content["X"], content["y"].ravel()
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{place} is not a whole MATLAB 5 file with X and y ({error or type(error).__name__}); get it again."
            ) from error
        if images.dtype != np.uint8 or images.shape != (*dataset.shape, count) or labels.shape != (count,):
            raise DataError(
                f"{place} holds X {images.dtype} {images.shape} and y {labels.shape} instead of uint8 "
                f"{(*dataset.shape, count)} and ({count},); it is another file under this name."
            )
        digits = labels.astype(np.int64)
        digits[digits == 10] = 0
        yield images.transpose(3, 0, 1, 2), digits

    return read

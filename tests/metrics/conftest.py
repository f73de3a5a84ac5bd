"""Random probabilities, samples and labels, always the same for the same sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture
def make_batch() -> Callable[..., tuple[Tensor, Tensor]]:
    def make(images: int = 200, classes: int = 5, extra: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(images, classes, *extra, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, classes, (images, *extra), generator=generator)
        return (2 * logits).softmax(1), labels

    return make


@pytest.fixture
def make_samples() -> Callable[..., Tensor]:
    def make(samples: int = 4, images: int = 50) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(samples, images, 5, generator=generator, dtype=torch.float64)
        return (2 * logits).softmax(2)

    return make

"""A small clean test split, and no frost photographs of this machine."""

from __future__ import annotations

import corruption_references as references
import numpy as np
import pytest

from rbue.lab.corruptions import frost
from rbue.lab.data import ImageSet


@pytest.fixture(autouse=True)
def _no_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(frost.VARIABLE, raising=False)
    monkeypatch.setattr(frost, "_PACKAGE", "a_package_that_is_not_there")


@pytest.fixture
def small_set() -> ImageSet:
    images = references.scenes()[:10]
    return ImageSet(images, np.arange(10), tuple("abcdefghij"), "small", "test", (0.5,) * 3, (0.2,) * 3)

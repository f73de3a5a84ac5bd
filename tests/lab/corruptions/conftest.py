"""A small clean test split, and nothing of this machine: no data, no cache, no frost photographs."""

from __future__ import annotations

from pathlib import Path

import corruption_references as references
import numpy as np
import pytest

from rbue.lab.corruptions import frost
from rbue.lab.data import ImageSet


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("RBUE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(frost.VARIABLE, raising=False)
    monkeypatch.setattr(frost, "_PACKAGE", "a_package_that_is_not_there")


@pytest.fixture
def small_set() -> ImageSet:
    images = references.scenes()[:10]
    return ImageSet(images, np.arange(10), tuple("abcdefghij"), "small", "test", (0.5,) * 3, (0.2,) * 3)

"""Registry entries shrunk to a few images, so that small files stand for whole sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import Arrays

from rbue.lab.data import registry
from rbue.lab.data.images import checksums


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees this machine's data, cache or proxies."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("RBUE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def shrink(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Arrays]:
    """Replaces an entry by a small one and gives the random arrays that its checksums belong to."""

    def make(name: str, train: int = 20, test: int = 10, known: bool = True, **changes: object) -> Arrays:
        dataset = registry.get(name)
        random = np.random.RandomState(7)
        arrays, splits = {}, {}
        for split, count in (("train", train), ("test", test)):
            images = random.randint(0, 256, (count, *dataset.shape)).astype(np.uint8)
            labels = random.randint(0, len(dataset.classes), count)
            sums = checksums(images, labels, len(dataset.classes))
            arrays[split] = (images, labels)
            splits[split] = {
                "official": registry.Published(count, sums.images, sums.labels) if known else registry.Published(count)
            }
        monkeypatch.setitem(registry._SETS, name, replace(dataset, **{"splits": splits, **changes}))
        return arrays

    return make


@pytest.fixture
def nothing_left() -> Callable[[Path], None]:
    """Asserts that a root holds no file and no folder, or is not there at all."""

    def look(root: Path) -> None:
        assert not root.exists() or not list(root.rglob("*")), sorted(root.rglob("*"))

    return look

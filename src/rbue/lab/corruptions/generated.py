"""Corrupted sets made here and kept: ``ROOT/NAME-c-generated/CORRUPTION-SEVERITY-KEY.npy`` with a ``.json`` beside it.

The key is a hash of everything the pixels depend on; the record says it in words, with the pixels' SHA-256. Both files
appear whole or not at all, the record last, so work that was interrupted goes on with the first set that is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rbue._version import __version__
from rbue.files import write_json
from rbue.lab.corruptions.batch import SCHEME
from rbue.lab.corruptions.corrupting import constants_of, corrupt
from rbue.lab.corruptions.frost import FrostSource
from rbue.lab.data.images import Bytes, ImageSet, sha256_of
from rbue.lab.data.problems import DataError, writing_to
from rbue.lab.data.progress import Progress
from rbue.lab.data.staging import append, clear_leftovers

_AT_ONCE = 2000


@dataclass(frozen=True)
class Recipe:
    """What a generated set is made of."""

    test_set: ImageSet
    name: str
    severity: int
    seed: int
    frost: FrostSource

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the result: grey images become RGB."""
        return (*self.test_set.images.shape[:3], 3)

    @property
    def variant(self) -> str:
        """One line for people and results."""
        frost = f", frost: {self.frost}" if self.name == "frost" else ""
        return f"generated: {self.name}, severity {self.severity}, seed {self.seed}, scheme {SCHEME}{frost}"

    def facts(self) -> dict[str, Any]:
        """Everything the pixels depend on."""
        return {
            "scheme": SCHEME,
            "set": self.test_set.name,
            "split": self.test_set.split,
            "clean_sha256": sha256_of(self.test_set.images),
            "corruption": self.name,
            "severity": self.severity,
            "constants": list(constants_of(self.name, self.severity, max(self.shape[1:3]))),
            "seed": self.seed,
            "frost": str(self.frost) if self.name == "frost" else None,
            "shape": list(self.shape),
        }

    def blocks(self, progress: Progress) -> Iterator[Bytes]:
        """The damaged images, some at a time."""
        total = len(self.test_set)
        for start in range(0, total, _AT_ONCE):
            clean = self.test_set.images[start : start + _AT_ONCE]
            numbers = np.arange(start, start + len(clean))
            yield corrupt(clean, self.name, self.severity, self.seed, numbers, frost=self.frost.folder)
            progress(f"{self.name} severity {self.severity}", start + len(clean), total)


def in_memory(recipe: Recipe, progress: Progress) -> Bytes:
    """The damaged images, kept nowhere."""
    return np.concatenate([np.empty((0, *recipe.shape[1:]), dtype=np.uint8), *recipe.blocks(progress)])


def cached(recipe: Recipe, root: Path, progress: Progress) -> Bytes:
    """The damaged images, memory-mapped: from the cache if they are there and whole, otherwise made now.

    Raises:
        CannotWrite: No room or no permission.
    """
    facts = recipe.facts()
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / f"{_file_name(recipe.test_set.name)}-c-generated"
    path = folder / f"{recipe.name}-{recipe.severity}-{key}.npy"
    record = path.with_suffix(".json")
    found = _open(path, record, facts)
    if found is not None:
        return found
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        record.unlink(missing_ok=True)
        digest = _write(path, recipe, progress)
    write_json(record, {"facts": facts, "sha256": digest, "written_by": f"rbue {__version__}"})
    found = _open(path, record, facts)
    if found is None:
        raise DataError(f"{path} cannot be read back; is the disk sound?")
    return found


def _open(path: Path, record: Path, facts: dict[str, Any]) -> Bytes | None:
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
        images = np.load(path, mmap_mode="c", allow_pickle=False)
        whole = written["facts"] == facts and list(images.shape) == facts["shape"] and images.dtype == np.uint8
        return images if whole and sha256_of(images) == written["sha256"] else None
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, recipe: Recipe, progress: Progress) -> str:
    digest = hashlib.sha256()
    handle, partial = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": recipe.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in recipe.blocks(progress):
                data = np.ascontiguousarray(block).data.cast("B")
                digest.update(data)
                append(file, data)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return digest.hexdigest()


def _file_name(name: str) -> str:
    """A set's name as a folder's: ``folder:/home/me/cats`` becomes ``folder-cats``; the key tells two apart."""
    kind, _, place = name.partition(":")
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"{kind}-{Path(place).name}" if place else kind)

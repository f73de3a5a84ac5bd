"""A test set under a corruption: the published one where it is at hand, otherwise one made here and kept.

Published: ``CIFAR-10-C/`` and ``CIFAR-100-C/`` hold ``CORRUPTION.npy``, five times the test images in test order,
severity by severity, and ``labels.npy``, the test labels five times. Those of TinyImageNet are
``Tiny-ImageNet-C/CORRUPTION/SEVERITY/CODE/*.JPEG``, 64x64; they were made from other photographs than its validation
images, so they bring labels of their own. The folders are looked for in every root of the search path
(:mod:`rbue.lab.data.store`) and in its ``NAME/`` folder, and read where they are.

Generated: ``ROOT/NAME-c-generated/CORRUPTION-SEVERITY-KEY.npy`` with a ``.json`` beside it. The key is a hash of
everything the pixels depend on; the record says it in words, with the pixels' SHA-256. Both files appear whole or not
at all, the record last, so work that was interrupted goes on with the first set that is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue._version import __version__
from rbue.errors import reason
from rbue.files import load_array, write_json
from rbue.lab.corruptions.corrupting import SCHEME, SEVERITIES, check_severity, constants_of, corrupt, find
from rbue.lab.corruptions.frost import FrostSource, frost_source
from rbue.lab.data.images import Bytes, ImageSet, sha256_of
from rbue.lab.data.readers import read_jpeg
from rbue.lab.data.registry import DataError, Progress, get, silent
from rbue.lab.data.staging import clear_leftovers, writing_to
from rbue.lab.data.store import search_path, target_root, write_bytes_array

ARRAYS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
TREES = {"tiny-imagenet": "Tiny-ImageNet-C"}
_READ_AT_ONCE = 1000
_MADE_AT_ONCE = 2000


def corrupted(
    test_set: ImageSet,
    name: str,
    severity: int,
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    published: bool = True,
    cache: bool = True,
    frost: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """A test set under one corruption at one severity.

    The published files are used when they lie on the search path. Otherwise the set is generated with :func:`corrupt`
    and kept below the root that data sets are written to (:mod:`rbue.lab.data.store`); asking again opens what is
    there. A generated set has the published one's constants but not its random numbers, and the published
    TinyImageNet-C was besides made from other photographs and stored as JPEG: say which one a result is about.

    Args:
        test_set: The clean test split.
        name: One of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        root: Look and write only here.
        seed: Of a generated set.
        published: Whether published files may be used.
        cache: Whether to keep what is generated; otherwise it is made in memory.
        frost: A folder with the published frost photographs (see :func:`frost_source`).
        progress: Told how many images are done.

    Returns:
        The damaged images with their labels; ``variant`` begins with ``published`` or ``generated`` and says what they
        are. Labels and order are those of ``test_set``, except for the published TinyImageNet-C, which has its own.

    Raises:
        InvalidInput: No such corruption or severity, or images that cannot be damaged.
        DataError: Published files that are damaged or do not belong to this set, or no room for the cache.
    """
    find(name)
    check_severity(severity)
    if published:
        found = find_published(test_set, name, root)
        if found is not None:
            return _open_published(found, test_set, name, severity, progress)
    recipe = _Recipe(test_set, name, severity, seed, frost_source(frost))
    if cache:
        images = _cached(recipe, target_root(root), progress)
    else:
        images = np.concatenate([np.empty((0, *recipe.shape[1:]), dtype=np.uint8), *recipe.blocks(progress)])
    widened = images.shape[3] // test_set.images.shape[3]
    return replace(
        test_set, images=images, mean=test_set.mean * widened, std=test_set.std * widened, variant=recipe.variant
    )


def find_published(test_set: ImageSet, name: str, root: str | os.PathLike[str] | None) -> Path | None:
    """The published ``CORRUPTION.npy``, or folder of a corruption; None where there is none for this set."""
    if test_set.split != "test" or test_set.held_out is not None:
        return None
    folder = ARRAYS.get(test_set.name) or TREES.get(test_set.name)
    if folder is None:
        return None
    for place in search_path(root):
        for base in (place / folder, place / test_set.name / folder):
            found = base / (f"{name}.npy" if test_set.name in ARRAYS else name)
            if found.exists():
                return found
    return None


def _open_published(path: Path, test_set: ImageSet, name: str, severity: int, progress: Progress) -> ImageSet:
    variant = f"published {ARRAYS.get(test_set.name) or TREES[test_set.name]}: {name}, severity {severity}"
    if test_set.name in TREES:
        images, labels = _read_tree(path / str(severity), test_set, progress)
        return replace(test_set, images=images, labels=labels, variant=variant)
    count = len(test_set)
    images = _array(path, (len(SEVERITIES) * count, *test_set.images.shape[1:]), test_set, "u")
    found = _array(path.with_name("labels.npy"), (len(SEVERITIES) * count,), test_set, "iu")
    wrong = np.flatnonzero(found != np.tile(test_set.labels, len(SEVERITIES)))
    if len(wrong):
        at = int(wrong[0])
        raise DataError(
            f"{path.with_name('labels.npy')} has label {found[at]} at place {at}, the test labels five times over "
            f"have {test_set.labels[at % count]} ({len(wrong)} labels differ); the images are not in test order."
        )
    return replace(test_set, images=images[(severity - 1) * count : severity * count], variant=variant)


def _array(path: Path, shape: tuple[int, ...], test_set: ImageSet, kinds: str) -> NDArray[Any]:
    try:
        array = load_array(path, "c")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({reason(error)}); get {path.parent.name} again.") from error
    if array.shape != shape or array.dtype.kind not in kinds or (kinds == "u" and array.dtype != np.uint8):
        what = f"{array.dtype} {array.shape}"
        wanted = f"{'uint8' if kinds == 'u' else 'whole numbers'} {shape}"
        raise DataError(
            f"{path} holds {what} instead of {wanted}, five times the {len(test_set)} test images; "
            f"get {path.parent.name} again, give the whole test split, or generate the set (published=False)."
        )
    return array


def _read_tree(folder: Path, test_set: ImageSet, progress: Progress) -> tuple[Bytes, NDArray[np.int64]]:
    codes = get(test_set.name).codes
    if not folder.is_dir():
        raise DataError(f"{folder} is missing; get {folder.parent.parent.name} again.")
    for unknown in sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in codes):
        raise DataError(f"{folder / unknown} is not one of the {len(codes)} classes.")
    files: list[Path] = []
    labels: list[int] = []
    for label, code in enumerate(codes):
        inside = sorted((folder / code).glob("*.JPEG"))
        if not inside:
            raise DataError(f"{folder / code} holds no *.JPEG files; get {folder.parent.parent.name} again.")
        files += inside
        labels += [label] * len(inside)
    images = np.empty((len(files), *test_set.images.shape[1:]), dtype=np.uint8)

    def decode(number: int) -> None:
        images[number] = read_jpeg(files[number], (images.shape[2], images.shape[1]), files[number])

    with ThreadPoolExecutor() as pool:
        for number, _ in enumerate(pool.map(decode, range(len(files))), start=1):
            if number % _READ_AT_ONCE == 0 or number == len(files):
                progress(f"{folder.parent.name} severity {folder.name}", number, len(files))
    return images, np.array(labels, dtype=np.int64)


@dataclass(frozen=True)
class _Recipe:
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
        for start in range(0, total, _MADE_AT_ONCE):
            clean = self.test_set.images[start : start + _MADE_AT_ONCE]
            numbers = np.arange(start, start + len(clean))
            yield corrupt(clean, self.name, self.severity, self.seed, numbers, frost=self.frost.folder)
            progress(f"{self.name} severity {self.severity}", start + len(clean), total)


def _cached(recipe: _Recipe, root: Path, progress: Progress) -> Bytes:
    """The damaged images, memory-mapped: from the cache if they are there and whole, otherwise made now."""
    facts = recipe.facts()
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / f"{_file_name(recipe.test_set.name)}-c-generated"
    path = folder / f"{recipe.name}-{recipe.severity}-{key}.npy"
    record = path.with_suffix(".json")
    found = _open_generated(path, record, facts)
    if found is not None:
        return found
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        digest = _write_generated(path, recipe, progress)
    write_json(record, {"facts": facts, "sha256": digest, "written_by": f"rbue {__version__}"})
    found = _open_generated(path, record, facts)
    if found is None:
        raise DataError(f"{path} cannot be read back; is the disk sound?")
    return found


def _open_generated(path: Path, record: Path, facts: dict[str, Any]) -> Bytes | None:
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
        images = load_array(path, "c")
        whole = written["facts"] == facts and list(images.shape) == facts["shape"] and images.dtype == np.uint8
        return images if whole and sha256_of(images) == written["sha256"] else None
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write_generated(path: Path, recipe: _Recipe, progress: Progress) -> str:
    handle, partial = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = write_bytes_array(file, recipe.shape, recipe.blocks(progress))
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return digest


def _file_name(name: str) -> str:
    """A set's name as a folder's: ``folder:/home/me/cats`` becomes ``folder-cats``; the key tells two apart."""
    kind, _, place = name.partition(":")
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"{kind}-{Path(place).name}" if place else kind)

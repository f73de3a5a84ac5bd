"""Carry a decoded set to a machine without a network: parts below a size, and a manifest.

A pack is a folder with ``pack.json`` and ``part-000.bin``, ``part-001.bin``, ... Every part has its SHA-256 in the
manifest. A part is a row of blocks, each coded on its own (:mod:`rbue.lab.data.lossless`) and listed in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from rbue.errors import InvalidInput
from rbue.lab.data import store
from rbue.lab.data.images import Bytes, Checksums, ImageSet, Labels, blocks, compact_labels
from rbue.lab.data.incoming import Incoming
from rbue.lab.data.loading import load, splits_here
from rbue.lab.data.locations import target_root
from rbue.lab.data.lossless import decode_bytes, decode_images, encode_bytes, encode_images
from rbue.lab.data.problems import DataError
from rbue.lab.data.progress import Progress, silent
from rbue.lab.data.registry import FOLDER_PREFIX, DataSet, get
from rbue.lab.data.staging import append, lasting, staged, write_file

FORMAT = 1
MANIFEST = "pack.json"
_MIB = 1 << 20


def pack(
    name: str,
    folder: str | os.PathLike[str],
    part_mib: float = 48,
    root: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """Write a set losslessly in parts.

    Args:
        name: A registered name; all its splits on this machine are packed.
        folder: A folder that does not exist yet or is empty; it appears whole or not at all.
        part_mib: No part is larger than this many MiB.
        root: Where the set is; see :mod:`rbue.lab.data.locations`.
        progress: Told of images.

    Returns:
        The manifest and the parts.

    Raises:
        InvalidInput: A part size that is too small, or a set that has no need to be packed.
        DataError: The set is not here, or the folder cannot be written to.
    """
    limit = int(part_mib * _MIB)
    if limit < 64 * 1024:
        raise InvalidInput(f"parts of {part_mib} MiB are too small; choose 0.0625 or more.")
    if name.startswith(FOLDER_PREFIX) or get(name).embedded is not None:
        raise InvalidInput(f"{name} needs no packing: copy the folder, or install the same packages there.")
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is there already and not empty; choose a new folder for the pack.")
    sets = [load(name, split, root) for split in splits_here(name, root)]
    with staged(target) as place:
        parts = _Parts(place, limit)
        splits = {one.split: _pack_split(one, parts, limit, progress) for one in sets}
        manifest = {"format": FORMAT, "name": name, "splits": splits, "parts": parts.close()}
        write_file(place / MANIFEST, json.dumps(manifest, indent=1).encode())
    return [target / MANIFEST, *(target / part["file"] for part in parts.listed)]


def unpack(
    folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, progress: Progress = silent
) -> Path:
    """Restore a packed set bit for bit and verify it.

    Args:
        folder: What :func:`pack` wrote.
        root: Where to put the set; see :mod:`rbue.lab.data.locations`.
        progress: Told of images.

    Returns:
        The folder of the set; it appears there whole or not at all.

    Raises:
        DataError: A part is missing or damaged, a checksum is wrong, or the root cannot be written to.
    """
    place = Path(folder).expanduser()
    manifest = _read_manifest(place)
    dataset = get(manifest["name"])
    for part in manifest["parts"]:
        _check_part(place, part)
    incoming = []
    for split, entry in manifest["splits"].items():
        if split not in dataset.splits or entry["variant"] not in dataset.splits[split]:
            raise DataError(f"{place} holds {split} {entry['variant']}, which {dataset.name} does not have here.")
        chunks = _chunks(place, manifest["parts"], entry, dataset)
        sums = Checksums(**entry["sha256"])
        incoming.append(
            Incoming(dataset, split, chunks, str(place), entry["variant"], "SHA-256 recorded when packed", sums)
        )
    return store.write(target_root(root), incoming, progress).folder


class _Parts:
    """Appends blocks to part files, beginning a new one before the limit is passed."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._blocks: list[bytes] = []
        self._size = 0
        self.listed: list[dict[str, Any]] = []

    def add(self, data: bytes) -> dict[str, int]:
        """Keep a block; returns where it will be."""
        if self._size + len(data) > self._limit:
            self._flush()
        where = {"part": len(self.listed), "at": self._size, "bytes": len(data)}
        self._blocks.append(data)
        self._size += len(data)
        return where

    def close(self) -> list[dict[str, Any]]:
        """Write what is left; returns the list of parts."""
        if self._blocks:
            self._flush()
        return self.listed

    def _flush(self) -> None:
        file = f"part-{len(self.listed):03d}.bin"
        digest = hashlib.sha256()
        with lasting(self._folder / file) as stream:
            for block in self._blocks:
                digest.update(block)
                append(stream, block)
        self.listed.append({"file": file, "bytes": self._size, "sha256": digest.hexdigest()})
        self._blocks, self._size = [], 0


def _pack_split(one: ImageSet, parts: _Parts, limit: int, progress: Progress) -> dict[str, Any]:
    compact = compact_labels(one.labels, len(one.classes))
    listed, done = [], 0
    for images in blocks(one.images, min(_MIB, limit // 2)):
        labels = compact[done : done + len(images)]
        coded = parts.add(encode_images(np.asarray(images)))
        listed.append({"count": len(images), "images": coded, "labels": parts.add(encode_bytes(labels.tobytes()))})
        done += len(images)
        progress(f"{one.name} {one.split}", done, len(one))
    return {"count": len(one), "variant": one.variant, "sha256": asdict(one.checksums()), "blocks": listed}


def _read_manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{place} is not a pack: {path} cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); copy it again.") from error
    if not _is_manifest(manifest):
        raise DataError(f"{path} is not the manifest of a pack of format {FORMAT}; pack the set again.")
    return dict(manifest)


def _is_manifest(content: Any) -> bool:
    """Whether this is what :func:`pack` writes, but for the blocks, which are looked at when they are read."""
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("name"), str):
        return False
    splits, parts = content.get("splits"), content.get("parts")
    if not isinstance(splits, dict) or not splits or not isinstance(parts, list):
        return False
    return all(map(_is_split, splits.values())) and all(_has_texts(part, "file", "sha256") for part in parts)


def _is_split(entry: Any) -> bool:
    sums = {field.name for field in fields(Checksums)}
    return _has_texts(entry, "variant") and _has_texts(entry.get("sha256"), *sums) and entry["sha256"].keys() == sums


def _has_texts(content: Any, *names: str) -> bool:
    return isinstance(content, dict) and all(isinstance(content.get(name), str) for name in names)


def _check_part(place: Path, part: dict[str, Any]) -> None:
    path = place / Path(part["file"]).name
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_MIB):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); copy the whole pack.") from error
    if digest.hexdigest() != part["sha256"]:
        raise DataError(f"{path} has the SHA-256 {digest.hexdigest()} instead of {part['sha256']}; copy it again.")


def _chunks(
    place: Path, parts: list[dict[str, Any]], entry: dict[str, Any], dataset: DataSet
) -> Iterator[tuple[Bytes, Labels]]:
    kind = compact_labels(np.zeros(0, dtype=np.int64), len(dataset.classes)).dtype
    current, data = -1, b""

    def block(where: dict[str, int]) -> bytes:
        nonlocal current, data
        if where["part"] != current:
            current, data = where["part"], (place / Path(parts[where["part"]]["file"]).name).read_bytes()
        return data[where["at"] : where["at"] + where["bytes"]]

    try:
        for one in entry["blocks"]:
            images = decode_images(block(one["images"]), one["count"], dataset.shape)
            labels = np.frombuffer(decode_bytes(block(one["labels"]), one["count"] * kind.itemsize), dtype=kind)
            yield images, labels.astype(np.int64)
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise DataError(f"{place} does not fit its manifest ({error}); pack the set again.") from error

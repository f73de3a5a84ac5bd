"""Carry a decoded data set to a machine without a network: ``pack_data.py pack NAME DIR``, ``pack_data.py unpack DIR``.

A pack is a folder with ``pack.json`` and ``part-000.bin``, ``part-001.bin``, ..., none larger than a limit. The
manifest has the SHA-256 of every part and of the arrays, and says where in the parts every block lies.

Blocks are coded on their own and without loss. Red and blue become differences to green; every pixel becomes its
difference to ``left + above - above left``; all modulo 256, so that running sums bring every bit back. What neighbours
and green do not foretell is deflated. On photographs this halves what deflate alone leaves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rbue.errors import InvalidInput, RbueError
from rbue.lab.data import DataError, DataSet, ImageSet, get, load, splits_here, target_root
from rbue.lab.data.images import Bytes, Checksums, Labels, blocks, compact_labels
from rbue.lab.data.registry import FOLDER_PREFIX
from rbue.lab.data.source_files import Incoming
from rbue.lab.data.staging import lasting, staged
from rbue.lab.data.store import write_set

FORMAT = 1
MANIFEST = "pack.json"
_MIB = 1 << 20
_SAMPLE = 1 << 16


def pack(name: str, folder: Path, part_mib: float = 48, root: Path | None = None) -> list[Path]:
    """Write all splits of a set that are on this machine, in parts of at most ``part_mib`` MiB.

    Returns:
        The manifest and the parts. The folder must be new or empty; it appears whole or not at all.
    """
    limit = int(part_mib * _MIB)
    if limit < 64 * 1024:
        raise InvalidInput(f"parts of {part_mib} MiB are too small; choose 0.0625 or more.")
    if name.startswith(FOLDER_PREFIX) or get(name).embedded is not None:
        raise InvalidInput(f"{name} needs no packing: copy the folder, or install the same packages there.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there already and not empty; choose a new folder for the pack.")
    sets = [load(name, split, root) for split in splits_here(name, root)]
    with staged(folder) as place:
        parts = _Parts(place, limit)
        splits = {one.split: _pack_split(one, parts, limit) for one in sets}
        parts.flush()
        manifest = {"format": FORMAT, "name": name, "splits": splits, "parts": parts.listed}
        with lasting(place / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())
    return [folder / MANIFEST, *(folder / part["file"] for part in parts.listed)]


def unpack(folder: Path, root: Path | None = None) -> Path:
    """Restore a packed set bit for bit and verify it.

    Returns:
        The folder of the set; it appears there whole or not at all.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not manifest["splits"]:
            raise ValueError(f"format {manifest['format']} instead of {FORMAT}, or no splits")
        dataset = get(manifest["name"])
        parts = [(folder / Path(part["file"]).name, part["sha256"]) for part in manifest["parts"]]
        incoming = [
            _Unpacked(
                dataset,
                split,
                _chunks([file for file, _ in parts], entry["blocks"], dataset),
                str(folder),
                entry["variant"],
                "SHA-256 recorded when packed",
                Checksums(**entry["sha256"]),
            )
            for split, entry in manifest["splits"].items()
        ]
        for one in incoming:
            if one.variant not in dataset.splits.get(one.split, {}):
                raise DataError(f"{folder} holds {one.split} {one.variant}, which {dataset.name} does not have here.")
    except OSError as error:
        raise DataError(f"{folder} is not a pack: {path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not the manifest of a pack ({error!r}); pack the set again.") from error
    for file, sha256 in parts:
        _check_part(file, sha256)
    return write_set(target_root(root), incoming)


@dataclass(frozen=True)
class _Unpacked(Incoming):
    recorded: Checksums | None = None

    def verify(self, found: Checksums) -> str:
        if found != self.recorded:
            raise DataError(f"{self.split} from {self.origin} has {found} instead of the recorded {self.recorded}.")
        return super().verify(found)


class _Parts:
    """Appends blocks to part files, beginning a new one before the limit is passed."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._data = bytearray()
        self.listed: list[dict[str, Any]] = []

    def add(self, block: bytes) -> dict[str, int]:
        """Keep a block; returns where it will be."""
        if len(self._data) + len(block) > self._limit:
            self.flush()
        where = {"part": len(self.listed), "at": len(self._data), "bytes": len(block)}
        self._data += block
        return where

    def flush(self) -> None:
        """Write what is there as a part."""
        if self._data:
            file = f"part-{len(self.listed):03d}.bin"
            with lasting(self._folder / file) as stream:
                stream.write(self._data)
            sha256 = hashlib.sha256(self._data).hexdigest()
            self.listed.append({"file": file, "bytes": len(self._data), "sha256": sha256})
            self._data = bytearray()


def _pack_split(one: ImageSet, parts: _Parts, limit: int) -> dict[str, Any]:
    compact = compact_labels(one.labels, len(one.classes))
    listed, done = [], 0
    for images in blocks(one.images, min(_MIB, limit // 2)):
        labels = compact[done : done + len(images)]
        coded = parts.add(encode_images(np.asarray(images)))
        listed.append({"count": len(images), "images": coded, "labels": parts.add(_deflate(labels.tobytes()))})
        done += len(images)
    return {"count": len(one), "variant": one.variant, "sha256": asdict(one.checksums()), "blocks": listed}


def _check_part(path: Path, sha256: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); copy the whole pack.") from error
    if found != sha256:
        raise DataError(f"{path} has the SHA-256 {found} instead of {sha256}; copy it again.")


def _chunks(files: list[Path], listed: list[dict[str, Any]], dataset: DataSet) -> Iterator[tuple[Bytes, Labels]]:
    kind = compact_labels(np.zeros(0, dtype=np.int64), len(dataset.classes)).dtype
    current, data = -1, b""

    def block(where: dict[str, int]) -> bytes:
        nonlocal current, data
        if where["part"] != current:
            current, data = where["part"], files[where["part"]].read_bytes()
        return data[where["at"] : where["at"] + where["bytes"]]

    try:
        for one in listed:
            images = decode_images(block(one["images"]), one["count"], dataset.shape)
            labels = np.frombuffer(_inflate(block(one["labels"]), one["count"] * kind.itemsize), dtype=kind)
            yield images, labels.astype(np.int64)
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise DataError(f"{files[0].parent} does not fit its manifest ({error!r}); pack the set again.") from error


def encode_images(images: Bytes) -> bytes:
    """A block of images (N, H, W, C) as bytes."""
    rest = images.copy()
    if images.shape[3] == 3:
        rest[..., 0] -= images[..., 1]
        rest[..., 2] -= images[..., 1]
    rest[:, 1:] -= rest[:, :-1].copy()
    rest[:, :, 1:] -= rest[:, :, :-1].copy()
    return _deflate(np.ascontiguousarray(rest.transpose(3, 0, 1, 2)).tobytes())


def decode_images(data: bytes, count: int, shape: tuple[int, int, int]) -> Bytes:
    """The block of images again, bit for bit; ValueError if the bytes are not such a block."""
    height, width, channels = shape
    raw = _inflate(data, count * height * width * channels)
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(channels, count, height, width)
    images = np.cumsum(planes.transpose(1, 2, 3, 0), axis=2, dtype=np.uint8)
    images = np.cumsum(images, axis=1, dtype=np.uint8)
    if channels == 3:
        images[..., 0] += images[..., 1]
        images[..., 2] += images[..., 1]
    return images


def _deflate(raw: bytes) -> bytes:
    """Deflated with or without the search for repetitions, whichever suits the first bytes better."""

    def coded(raw: bytes, strategy: int) -> bytes:
        coder = zlib.compressobj(6, zlib.DEFLATED, 15, 9, strategy)
        return coder.compress(raw) + coder.flush()

    strategies = (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY)
    return coded(raw, min(strategies, key=lambda strategy: len(coded(raw[:_SAMPLE], strategy))))


def _inflate(data: bytes, size: int) -> bytes:
    """Inflated to exactly ``size`` bytes."""
    coder = zlib.decompressobj()
    try:
        raw = coder.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != size or not coder.eof:
        raise ValueError(f"{len(raw)} bytes instead of {size}")
    return raw


def main(arguments: list[str] | None = None) -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write a data set losslessly in small parts")
    packing.add_argument("name", help="name of a data set; `rbue data list` shows them")
    packing.add_argument("--part-mib", type=float, default=48, help="no part is larger than this (default: 48)")
    unpacking = commands.add_parser("unpack", help="restore a packed data set bit for bit, and check it")
    for command, what in ((packing, "new folder for the parts"), (unpacking, "what `pack` wrote")):
        command.add_argument("folder", type=Path, metavar="DIR", help=what)
        command.add_argument("--root", type=Path, help="folder of data sets (default: RBUE_DATA, the user's cache)")
    given = parser.parse_args(arguments)
    try:
        if given.command == "pack":
            files = pack(given.name, given.folder, given.part_mib, given.root)
            print(f"{given.folder}: {len(files)} files, {sum(file.stat().st_size for file in files) / _MIB:.1f} MiB")
        else:
            print(unpack(given.folder, given.root))
    except RbueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

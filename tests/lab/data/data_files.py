"""Small files in the formats that publishers ship, and the sheets, made from random arrays."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def cifar10_binary(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", ["test_batch.bin"])):
        images, labels = arrays[split]
        rows = np.concatenate([labels[:, None].astype(np.uint8), planes(images)], axis=1)
        for name, part in zip(names, np.array_split(rows, len(names)), strict=True):
            (folder / name).write_bytes(part.tobytes())
    return folder


def cifar100_binary(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, (images, labels) in arrays.items():
        both = np.stack([labels % 20, labels], axis=1).astype(np.uint8)
        (folder / f"{split}.bin").write_bytes(np.concatenate([both, planes(images)], axis=1).tobytes())
    return folder


def python2_pickle(data: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """As Python 2 wrote the CIFAR batches: protocol 2, byte strings, numpy's old module names."""
    rows, columns = data.shape

    def text(value: bytes) -> bytes:
        return b"U" + bytes((len(value),)) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + b"".join(b"J" + struct.pack("<i", size) for size in (rows, columns)) + b"\x86" + dtype
    array += b"\x89T" + struct.pack("<I", data.nbytes) + np.ascontiguousarray(data).tobytes() + b"tb"
    numbers = b"](" + b"".join(b"J" + struct.pack("<i", label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + numbers + text(b"batch_label") + text(b"x") + b"u."


def cifar10_python(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        images, labels = arrays[split]
        each = len(images) // len(names)
        for number, name in enumerate(names):
            part = slice(number * each, (number + 1) * each)
            (folder / name).write_bytes(python2_pickle(planes(images[part]), labels[part].tolist()))
    return folder


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    return out.getvalue()


def cifar10_sheets(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in (("train", [f"data_batch_{i}.png" for i in range(1, 6)]), ("test", ["test_batch.png"])):
        images, labels = arrays[split]
        for name, part in zip(names, np.array_split(images, len(names)), strict=True):
            (folder / name).write_bytes(png(part.reshape(len(part), -1, 3)))
        (folder / f"{split}_lables.json").write_text(json.dumps(labels.tolist()))
    return folder


def grid(images: np.ndarray) -> np.ndarray:
    count, height, width, channels = images.shape
    rows = images.reshape(count // 100, 100, height, width, channels).transpose(0, 2, 1, 3, 4)
    return rows.reshape(count // 100 * height, 100 * width, channels)


def cifar100_sheets(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in (("train", [f"train-{i}.webp" for i in range(5)]), ("test", ["test-0.webp"])):
        for name, part in zip(names, np.array_split(arrays[split][0], len(names)), strict=True):
            (folder / name).write_bytes(png(grid(part), "WEBP"))
    np.savez(folder / "labels.npz", **{f"{split}_fine": labels for split, (_, labels) in arrays.items()})
    return folder


def idx_files(folder: Path, arrays: Arrays, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for array, kind in zip(
            (arrays[split][0][..., 0], arrays[split][1]), ("images-idx3", "labels-idx1"), strict=True
        ):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            data = header + array.astype(np.uint8).tobytes()
            name = f"{prefix}-{kind}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def svhn_mats(folder: Path, arrays: Arrays) -> Path:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for split, (images, labels) in arrays.items():
        ten = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{split}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": ten}, do_compression=True)
    return folder


def jpeg(pixels: np.ndarray, quality: int = 90) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return out.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def tiny_tree(folder: Path, codes: tuple[str, ...], jpegs: dict[str, list[tuple[bytes, int]]]) -> Path:
    counts = [0] * len(codes)
    for data, label in jpegs["train"]:
        target = folder / "train" / codes[label] / "images" / f"{codes[label]}_{counts[label]}.JPEG"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        counts[label] += 1
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, (data, label) in enumerate(jpegs["test"]):
        (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(data)
        lines.append(f"val_{number}.JPEG\t{codes[label]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(codes))
    return folder


def tiny_parts(folder: Path, codes: tuple[str, ...], jpegs: dict[str, list[tuple[bytes, int]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    order = tuple(reversed(codes))  # another order of classes than the registry's
    (folder / "index.json").write_text(json.dumps({"classes": [{"wnid": code, "name": "x"} for code in order]}))
    headers: list[bytes] = []
    for split, part in (("train", "train"), ("test", "val")):
        body, table = b"", {"length": [], "header": [], "label": []}
        for data, label in jpegs[split]:
            start = data.index(b"\xff\xda")
            if data[:start] not in headers:
                headers.append(data[:start])
            assert data.endswith(b"\xff\xd9")
            body += data[start:-2]
            table["length"].append(len(data) - 2 - start)
            table["header"].append(headers.index(data[:start]))
            table["label"].append(order.index(codes[label]))
        (folder / f"{part}-0.bin").write_bytes(body)
        np.savez(folder / f"{part}-0.npz", **{key: np.array(value) for key, value in table.items()})
    for number, header in enumerate(headers):
        (folder / f"header-{number}.bin").write_bytes(header)
    return folder


def tar(folder: Path, archive: Path, inside: str) -> Path:
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder, arcname=inside)
    return archive


def image_tree(base: Path, files: dict[str, np.ndarray]) -> Path:
    for name, pixels in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return base

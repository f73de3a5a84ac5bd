"""What is fuzzed: for each kind of file, whole ones to begin with, ways to damage them, and the call that reads them.

A target reads a folder in which one file is damaged. Its answer is ``same`` if it is that of the whole file, ``valid``
if it is another one that may be, and :class:`Wrong` if it may not. Errors pass through, to be judged by :mod:`fuzz`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import fuzz_mutations as mutations
import rbue
from rbue.errors import RbueError
from rbue.lab.cli.app import app
from rbue.lab.data import readers
from rbue.lab.data.folder import load_folder, read_image
from rbue.lab.data.registry import DataSet, Layout, Published, official
from rbue.lab.data.source_files import find_in_folder
from rbue.lab.data.store import _open_split, find_stored, write_set
from rbue.lab.runs.folders import RunFolder, find_runs, settings_and_root
from rbue.lab.runs.loading import load_run
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.probabilities import read_probs, write_probs
from rbue.lab.training import Job, train
from rbue.lab.training.checkpoint import save_weights
from rbue.lab.training.trainer import Diverged

Mutation = Callable[[Random, bytes], tuple[str, bytes]]


class Wrong(Exception):
    """An answer that is neither right nor refused."""


class Said(RbueError):
    """What a command said on standard error."""


@dataclass
class Target:
    """One kind of file.

    Attributes:
        name: of the target.
        build: writes whole files into a folder, once.
        files: which of them are damaged, as patterns.
        read: reads a folder; gives something to compare, for a whole file and a damaged one.
        by_fields: ways to damage beside the blind ones.
        check: whether another answer may be.
        share: how many inputs, compared to other targets.
        errors: what may be raised.
        names_file: whether an error has to name the file.
    """

    name: str
    build: Callable[[Path], None]
    files: Sequence[str]
    read: Callable[[Path, Path, Random], Any]
    by_fields: Sequence[Mutation] = ()
    check: Callable[[Any], bool] = bool
    share: int = 1
    errors: tuple[type[BaseException], ...] = (RbueError,)
    names_file: bool = True
    expected: dict[Path, Any] = field(default_factory=dict)

    def damaged(self, random: Random, base: Path) -> tuple[Path, str, bytes]:
        """A file of the folder, what is done to it, and what it becomes."""
        files = sorted(path.relative_to(base) for pattern in self.files for path in base.glob(pattern))
        file = random.choice(files)
        whole = (base / file).read_bytes()
        if self.by_fields and random.random() < 0.6:
            word, data = random.choice(self.by_fields)(random, whole)
        else:
            word, data = mutations.blindly(random, whole, [(base / other).read_bytes() for other in files])
        return file, word, data

    def judged(self, folder: Path, file: Path, random: Random) -> str:
        """``same`` or ``valid``."""
        found = self.read(folder, file, random)
        if file in self.expected and _equal(found, self.expected[file]):
            return "same"
        if not self.check(found):
            raise Wrong(f"{file} gives {str(found)[:200]}")
        return "valid"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    return bool(one == other)


# ---- runs


def command(*words: object) -> str:
    """What a command printed; :class:`Said` if it refused."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code not in (0, 1, 2):
        raise Wrong(f"exit code {result.exit_code}")
    if result.exit_code:
        lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        raise Said(lines[0].removeprefix("error: ") if len(lines) == 1 else f"{len(lines)} errors: {result.stderr!r}")
    return str(result.stdout)


def _build_run(folder: Path) -> None:
    small = ("--data", "digits", "--width", 0.25, "--epochs", 1, "--holdout", 100, "--runs", folder, "--device", "cpu")
    command("train", *small, "--method", "single")
    command("evaluate", *small, "--method", "single", "--samples", 1)
    command("evaluate", *small, "--method", "single", "--samples", 1, "--split", "validation")
    run = next(find_runs(folder))
    command("calibrate", run.path)


def _run_of(folder: Path) -> RunFolder:
    return next(find_runs(folder), RunFolder(folder))


def _read_json_of_run(folder: Path, file: Path, random: Random) -> Any:
    """What lists, shows and reports say; a third of the time without the checksums, as in older runs."""
    run = RunFolder((folder / file).parent)
    if random.random() < 0.7 and file.name != "checksums.json":
        (run.path / "checksums.json").unlink(missing_ok=True)
    found: dict[str, Any] = {"list": json.loads(command("runs", "list", "--runs", folder, "--json"))}
    if random.random() < 0.1:
        form = random.choice(("md", "csv", "latex", "html"))
        command("report", folder, "-o", folder / "report", "--format", form, "--device", "cpu")
        (folder / "report").unlink()
    command("runs", "list", "--runs", folder)
    if file.name in ("config.json", "training.json") and random.random() < 0.5:
        loaded = load_run(run.path, "cpu")
        if not all(isinstance(name, str) for name in loaded.classes) or min(loaded.shape) < 1:
            raise Wrong(f"classes {loaded.classes}, shape {loaded.shape}")
        return {"run": run.path.name, "classes": loaded.classes, "shape": loaded.shape}
    if file.name in ("results.json", "calibration.json") and random.random() < 0.5:
        command("calibrate", run.path, "--json")
    found["show"] = json.loads(command("runs", "show", run.path, "--json"))
    command("runs", "show", run.path)
    return {"text": json.dumps(found).replace(str(folder), "")}


def _read_weights(folder: Path, file: Path, random: Random) -> Any:
    run = _run_of(folder)
    config, root = settings_and_root(run)
    (network,) = load_networks(config, root, torch.device("cpu"))
    return dict(network.state_dict())


def _are_weights(found: Any) -> bool:
    return all(isinstance(value, torch.Tensor) for value in found.values())


def _build_shards(folder: Path) -> None:
    _build_run(folder)
    run = _run_of(folder)
    config, root = settings_and_root(run)
    (network,) = load_networks(config, root, torch.device("cpu"))
    (run.path / "weights.safetensors").unlink()
    import rbue.lab.training.checkpoint as checkpoint

    divide, checkpoint._divide = checkpoint._divide, lambda tensors, _: divide(tensors, 2000)  # type: ignore[assignment]
    save_weights(run.path, network, 1)
    checkpoint._divide = divide


def _job(folder: Path) -> Job:
    from rbue.lab.methods import parse
    from rbue.lab.training import Recipe
    from rbue.lab.training.batches import Batches

    torch.manual_seed(0)
    images = np.arange(8 * 16, dtype=np.uint8).reshape(8, 4, 4, 1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    recipe = Recipe(epochs=3, batch=4, padding=0, flip=False, average="ema", average_start=1)
    more = {"batch": 4, "padding": 0, "flip": False, "seed": 0, "device": torch.device("cpu")}
    batches = Batches(images, np.array([0, 1] * 4), (0.5,), (0.5,), **more)  # type: ignore[arg-type]
    return Job(network, parse("single"), batches, recipe, 0, folder / "state.safetensors")


def _build_state(folder: Path) -> None:
    from rbue.lab.training import trainer

    keep = trainer._Runner._is_time_to_save
    trainer._Runner._is_time_to_save = lambda self, writer, now: True  # type: ignore[method-assign]

    class _Stopped(Exception):
        pass

    def stop(report: Any) -> None:
        if report.epoch == 1:
            raise _Stopped

    with contextlib.suppress(_Stopped):
        train(replace(_job(folder), report=stop), "plain")
    trainer._Runner._is_time_to_save = keep  # type: ignore[method-assign]


def _read_state(folder: Path, file: Path, random: Random) -> Any:
    job = _job(folder)
    try:
        summary = train(job, "plain")
    except Diverged:  # from numbers that are no good, in a file that is
        return {}
    if summary.epochs < 3 or not isinstance(summary.loss, float):
        raise Wrong(f"{summary}")
    return dict(job.network.state_dict())


# ---- files of rbue.save


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 3))


def _build_saved(folder: Path) -> None:
    x = torch.zeros(2, 4)
    net = rbue.convert(_network(), rbue.DropReLU(0.8), where="last", example=x)
    rbue.save(net, folder / "net.safetensors", ["a", "b", "c"])


def _read_saved(folder: Path, file: Path, random: Random) -> Any:
    net = rbue.load(folder / file, _network()).eval()
    found = rbue.conversion(net)
    try:
        probs = rbue.predict(net, torch.ones(2, 4), samples=2).probs
    except RbueError:  # numbers that are not finite; the file was a legal one
        probs = torch.full((2, 3), 1 / 3)
    repr(net)
    return {"probs": probs, "classes": found.classes, "temperature": found.temperature}


def _is_saved(found: Any) -> bool:
    probs, classes = found["probs"], found["classes"]
    names = classes is None or (isinstance(classes, tuple) and all(isinstance(one, str) for one in classes))
    sums = torch.allclose(probs.sum(-1), torch.ones(2, dtype=probs.dtype), atol=1e-2)
    return names and sums and 0 < found["temperature"] < float("inf")


# ---- images


def _pictures() -> dict[str, bytes]:
    colours = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    colour, grey = Image.fromarray(colours), Image.fromarray(colours[..., 0])
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "colour.png": (colour, {}),
        "grey.png": (grey, {}),
        "palette.png": (colour.convert("P"), {}),
        "colour.jpg": (colour, {"quality": 95}),
        "progressive.jpg": (colour, {"progressive": True}),
        "colour.webp": (colour, {"lossless": True}),
        "lossy.webp": (colour, {}),
        "colour.bmp": (colour, {}),
        "palette.gif": (colour.convert("P"), {}),
        "colour.tiff": (colour, {}),
        "packed.tiff": (colour, {"compression": "tiff_lzw"}),
        "colour.ppm": (colour, {}),
        "colour.jp2": (colour, {}),
    }
    found = {}
    for name, (image, options) in kinds.items():
        buffer = io.BytesIO()
        try:
            image.save(buffer, format={"jp2": "JPEG2000"}.get(name.rpartition(".")[2]) or _format(name), **options)
        except (OSError, KeyError):
            continue  # Pillow was built without it
        found[name] = buffer.getvalue()
    return found


def _format(name: str) -> str:
    return Image.registered_extensions()[f".{name.rpartition('.')[2]}"]


def _build_pictures(folder: Path) -> None:
    for name, content in _pictures().items():
        (folder / name).write_bytes(content)


def _build_tree(folder: Path) -> None:
    content = _pictures()
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(10):
            (folder / label / f"{number}.png").write_bytes(content["colour.png"])
    for name, data in content.items():
        (folder / "cat" / name).write_bytes(data)


def _read_tree(folder: Path, file: Path, random: Random) -> Any:
    size = random.choice((":8", ""))
    found = load_folder(f"folder:{folder}{size}", random.choice(("train", "test")))
    ok = found.images.dtype == np.uint8 and len(found.images) == len(found.labels) and found.images.ndim == 4
    return {"ok": bool(ok and found.images.shape[1:3] == ((8, 8) if size else (12, 12)))}


def _is_ok(found: Any) -> bool:
    return bool(found["ok"])


def _like(channels: int, side: str) -> Any:
    from rbue.lab.data import ImageSet

    shape = (8, 8) if side else (12, 12)
    pixels = np.zeros((0, *shape, channels), np.uint8)
    return ImageSet(
        pixels, np.zeros(0, np.int64), ("a", "b"), f"folder:x{side}", "test", (0.5,) * channels, (0.5,) * channels
    )


def _read_one(folder: Path, file: Path, random: Random) -> Any:
    like = _like(random.choice((1, 3)), random.choice((":8", "")))
    pixels = read_image(folder / file, like)
    return {"ok": pixels.shape == like.images.shape[1:] and pixels.dtype == np.uint8}


# ---- uploads


def _build_uploads(folder: Path) -> None:
    _build_pictures(folder)
    np.save(folder / "bytes.npy", np.zeros((2, 12, 12, 3), np.uint8))
    np.save(folder / "columns.npy", np.asfortranarray(np.zeros((12, 12, 3), np.float32)))
    (folder / "images.json").write_text(json.dumps({"images": np.zeros((1, 12, 12, 3), int).tolist()}))
    body = b"--b\r\nContent-Disposition: form-data; name=file; filename=a.png\r\n\r\n"
    (folder / "form.multipart").write_bytes(body + _pictures()["colour.png"] + b"\r\n--b--\r\n")


_client: Any = None


def _server() -> Any:
    global _client
    if _client is None:
        from starlette.testclient import TestClient

        from rbue.serving import Answers, Engine, Inputs, Settings, create_app

        class Made(Engine):
            title, classes, samples = "made", ("a", "b"), 2
            facts = {"draws": "balanced", "stream_version": 1, "temperature": 1.0}  # noqa: RUF012

            def __init__(self) -> None:
                self.inputs = Inputs((12, 12, 3), bytes=True)

            def predict(self, x: Any, index: Any, sampling: Any) -> Answers:
                half, zero = np.full((len(x), 2), 0.5, np.float32), np.zeros(len(x), np.float32)
                return Answers(half, zero, zero, np.full(len(x), sampling.samples), half, np.ones((len(x), 2), int))

        _client = TestClient(create_app(Made(), Settings(batching="off")))
        _client.__enter__()
    return _client


_KINDS = {
    ".json": "application/json",
    ".npy": "application/octet-stream",
    ".multipart": "multipart/form-data; boundary=b",
}


def _read_upload(folder: Path, file: Path, random: Random) -> Any:
    """What the server answers; every status is one it documents, with one sentence."""
    content = (folder / file).read_bytes()
    kind = _KINDS.get(file.suffix, "image/*")
    reply = _server().post("/predict", content=content, headers={"content-type": kind})
    answer = reply.json()
    if reply.status_code != 200:
        if reply.status_code not in (400, 413, 415, 422) or list(answer) != ["error"]:
            raise Wrong(f"{reply.status_code} {reply.text[:200]}")
        raise Said(answer["error"])
    return {"ok": all(one["label"] in "ab" and 0 <= one["confidence"] <= 1 for one in answer["predictions"])}


# ---- data sets as publishers ship them


_CODES = ("n00000001", "n00000002")
_COUNT = 4


def _dataset(layout: Layout, shape: tuple[int, int, int] = (4, 4, 3)) -> DataSet:
    published, half = Published(_COUNT), (0.5,) * shape[2]
    return DataSet(
        "fuzzed", "made up", ("a", "b"), shape, half, half, official(published, published), _CODES, (layout,)
    )


def _arrays(shape: tuple[int, int, int] = (4, 4, 3)) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images = np.random.default_rng(0).integers(0, 256, (_COUNT, *shape), dtype=np.uint8)
    return images, np.array([0, 1, 1, 0])


def _planes() -> np.ndarray[Any, Any]:
    return _arrays()[0].transpose(0, 3, 1, 2).reshape(_COUNT, -1)


def _of_layout(layout: Layout, shape: tuple[int, int, int] = (4, 4, 3)) -> Callable[[Path, Path, Random], Any]:
    def read(folder: Path, file: Path, random: Random) -> Any:
        place = folder / file if layout.archives else folder
        found = find_in_folder(_dataset(layout, shape), place)[0].collect()
        return {"images": found.images, "labels": found.labels}

    return read


def _is_split(found: Any) -> bool:
    return len(found["images"]) == len(found["labels"]) == _COUNT and {*found["labels"].tolist()} <= {0, 1}


_BINARY = Layout("binary", {"train": ("data.bin",)}, readers.cifar_binary(1, 0))
_PICKLED = Layout("pickled", {"train": ("data_batch",)}, readers.cifar_pickled("labels"))
_IDX = Layout("idx", {"train": ("images-idx3-ubyte.gz", "labels-idx1-ubyte")}, readers.idx)
_MAT = Layout("mat", {"train": ("train.mat",)}, readers.svhn_mat)
_ROWS = Layout("rows", {"train": ("sheet.png", "labels.json")}, readers.row_sheets)
_TREE = Layout("tree", {"train": ("train/",)}, readers.tiny_imagenet_tree)
_PARTS = Layout("parts", {"train": ("train-0.bin",)}, readers.tiny_imagenet_parts)


def _binary() -> bytes:
    return np.concatenate([_arrays()[1][:, None].astype(np.uint8), _planes()], axis=1).tobytes()


def _old_pickle() -> bytes:
    """As Python 2 wrote them."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes((len(value),)) + value

    data = _planes()
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"\x86" + dtype
    array += b"\x89T" + struct.pack("<I", data.nbytes) + data.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"J" + struct.pack("<i", label) for label in _arrays()[1].tolist()) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def _evil_pickle(random: Random, whole: bytes) -> tuple[str, bytes]:
    """Programs, bombs and lies about lengths."""
    call = b"cos\nsystem\n(S'touch pwned'\ntR."
    laughs = b"](" + b"K\x00" * 100 + b"eq\x00"
    for level in range(1, 8):
        laughs += b"0](" + (b"h" + bytes([level - 1])) * 100 + b"eq" + bytes([level])
    content = pickle.dumps({b"data": _planes(), b"labels": _arrays()[1].tolist()}, protocol=random.choice((0, 1, 2, 4)))
    kinds = {
        "call": call,
        "call inside": whole[:-1] + b"0" + call,
        "global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
        "laughs": b"\x80\x02" + laughs + b".",
        "laughs in a dictionary": b"\x80\x02}U\x04data" + laughs + b"s.",
        "memo": b"\x80\x02Nr" + struct.pack("<I", random.choice(mutations.EXTREMES) & 0xFFFFFFFF) + b".",
        "length": b"\x80\x04\x8e" + struct.pack("<Q", random.choice(mutations.EXTREMES)) + b"abc.",
        "frame": b"\x80\x04\x95" + struct.pack("<Q", random.choice(mutations.EXTREMES)) + whole[2:],
        "deep": b"\x80\x02" + b"(" * 5000 + b"t" * 5000 + b".",
        "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "number": b"\x80\x02\x8b" + struct.pack("<I", 1 << 20) + b"\x01" * (1 << 20) + b".",
        "another protocol": content,
        "itself": b"\x80\x02]q\x00h\x00a.",
    }
    word = random.choice([*kinds])
    return word, kinds[word]


def _build_archives(folder: Path) -> None:
    members = {"set/data.bin": _binary(), "set/readme.txt": b"words"}
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    for name, mode in (("set.tar", "w"), ("set.tar.gz", "w:gz"), ("set.tar.xz", "w:xz")):
        with tarfile.open(folder / name, mode) as tar:  # type: ignore[call-overload]
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def _archive_members(random: Random, whole: bytes) -> tuple[str, bytes]:
    return (mutations.zip_members if whole[:2] == b"PK" else mutations.tar_members)(random, whole)


def _build_idx(folder: Path) -> None:
    images, labels = _arrays((4, 4, 1))
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", _COUNT, 4, 4)
    (folder / "images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes(), mtime=0))
    head = bytes((0, 0, 8, 1)) + struct.pack(">I", _COUNT)
    (folder / "labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())


def _build_mat(folder: Path) -> None:
    from scipy.io import savemat  # type: ignore[import-untyped]

    images, labels = _arrays()
    for packed in (True, False):
        savemat(
            folder / "train.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None]}, do_compression=not packed
        )
    # Plain last: what is compressed hides most damage behind the checksum of zlib.


def _mat_inside(random: Random, whole: bytes) -> tuple[str, bytes]:
    """Damage in the tags of elements, or the same content compressed."""
    import zlib

    word, data = mutations.blindly(random, whole[128:])
    if random.random() < 0.5:
        return f"elements {word}", whole[:128] + data
    packed = zlib.compress(data)
    return f"compressed {word}", whole[:128] + struct.pack("<II", 15, len(packed)) + packed


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _build_rows(folder: Path) -> None:
    images, labels = _arrays()
    (folder / "sheet.png").write_bytes(_png(images.reshape(_COUNT, 16, 3)))
    (folder / "labels.json").write_text(json.dumps(labels.tolist()))


def _jpeg(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def _build_jpegs(folder: Path) -> None:
    images, labels = _arrays((8, 8, 3))
    for number, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        place = folder / "train" / _CODES[label] / "images"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.JPEG").write_bytes(_jpeg(pixels))


def _build_parts(folder: Path) -> None:
    images, labels = _arrays((8, 8, 3))
    files = [_jpeg(pixels) for pixels in images]
    common = min(file.index(b"\xff\xda") for file in files)
    (folder / "header-0.bin").write_bytes(files[0][:common])
    bodies = [file[common:-2] for file in files]
    (folder / "train-0.bin").write_bytes(b"".join(bodies))
    lengths = np.array([len(body) for body in bodies])
    np.savez(folder / "train-0.npz", length=lengths, header=np.zeros(_COUNT, np.int64), label=labels)
    (folder / "index.json").write_text(json.dumps([*_CODES]))


# ---- arrays


def _build_store(folder: Path) -> None:
    (folder / "raw").mkdir()
    (folder / "raw" / "data.bin").write_bytes(_binary())
    write_set(folder, find_in_folder(_dataset(_BINARY), folder / "raw"))


def _read_store(folder: Path, file: Path, random: Random) -> Any:
    stored = find_stored(folder, "fuzzed")
    if stored is None or "train" not in stored.splits:
        return {"images": np.zeros(_COUNT), "labels": np.zeros(_COUNT)}  # nothing is stored here
    found = _open_split(stored, _dataset(_BINARY), "train")
    return {"images": found.images, "labels": found.labels % 2}


def _build_probs(folder: Path) -> None:
    write_probs(folder / "probs.npy", np.full((4, 3), 1 / 3, np.float32))
    np.savez(folder / "held.npz", probs=np.full((40, 2), 0.5), labels=np.array([0, 1] * 20))
    np.savez_compressed(folder / "packed.npz", probs=np.full((40, 2), 0.5), labels=np.array([0, 1] * 20))


def _read_probs(folder: Path, file: Path, random: Random) -> Any:
    if file.suffix == ".npz":
        from rbue.lab.cli.serve import _conformal

        class Two:
            classes = ("a", "b")

        found = _conformal(Two(), 0.8, folder / file, 0)  # type: ignore[arg-type]
        return {"ok": 0 <= found.threshold <= 1.0001 or found.threshold == float("inf")}
    probs = read_probs(folder / file)
    return {"ok": bool(np.allclose(probs.sum(1), 1, atol=1e-3) and (probs >= 0).all())}


# ---- active learning, the paper's settings


def _build_active(folder: Path) -> None:
    words = ("--data", "digits", "--width", 0.25, "--method", "single", "--acquire", "random", "--start", 40, "--take")
    command("active", *words, 10, "--rounds", 1, "--steps", 2, "--runs", folder, "--device", "cpu")
    (folder / "paper").mkdir()
    from rbue.lab.paper.settings import Settings

    (folder / "paper" / "settings.json").write_text(json.dumps(Settings(methods=("single",), seeds=(0,)).as_json()))
    rules = [{"data": ["cifar10"], "epochs": 20, "why": "of time"}, {"methods": ["svi"], "seeds": 0, "why": "of room"}]
    (folder / "paper" / "budget.json").write_text(json.dumps(rules))


def _read_active(folder: Path, file: Path, random: Random) -> Any:
    from rbue.lab.paper.budget import read_budget
    from rbue.lab.paper.settings import Settings, last_settings

    if file.name == "budget.json":
        return {"ok": all(rule.why for rule in read_budget(folder))}
    if file.name == "settings.json":
        return {"ok": isinstance(last_settings(folder, Settings()), Settings)}
    if random.random() < 0.8:
        for noted in folder.glob("**/checksums.json"):
            noted.unlink()
    command("active-report", folder, "-o", folder / "active.html")
    text = (folder / "active.html").read_text(encoding="utf-8")
    (folder / "active.html").unlink()
    return {"ok": "<script>alert" not in text}


# ---- all of them

JSON_OF_RUN = ("config", "environment", "training", "results", "validation", "calibration", "checksums")


def targets() -> dict[str, Target]:
    """Every target by its name."""
    fields = (_by_kind,)
    found = [
        Target("weights", _build_run, ("**/weights.safetensors",), _read_weights, fields, _are_weights, 1),
        Target("shards", _build_shards, ("**/weights-*.safetensors", "**/weights.index.json"), _read_weights,
               fields, _are_weights, 1, names_file=False),
        Target("checkpoint", _build_state, ("state.safetensors",), _read_state, fields, _are_weights, 3),
        Target("rbue.save", _build_saved, ("net.safetensors",), _read_saved, fields, _is_saved, 5),
        Target("image file", _build_pictures, ("*",), _read_one, fields, _is_ok, 6),
        Target("image folder", _build_tree, ("cat/*",), _read_tree, fields, _is_ok, 2, names_file=False),
        Target("upload", _build_uploads, ("*",), _read_upload, fields, _is_ok, 5, names_file=False),
        Target("CIFAR binary", lambda folder: _put(folder / "data.bin", _binary()), ("data.bin",), _of_layout(_BINARY),
               (), _is_split),
        Target("CIFAR pickle", lambda folder: _put(folder / "data_batch", _old_pickle()), ("data_batch",),
               _of_layout(_PICKLED), (_evil_pickle,), _is_split, 3),
        Target("idx", _build_idx, ("*",), _of_layout(_IDX, (4, 4, 1)), fields, _is_split, 3),
        Target("MATLAB", _build_mat, ("*",), _of_layout(_MAT), (_mat_inside,), _is_split, 4),
        Target("sheets", _build_rows, ("*",), _of_layout(_ROWS), fields, _is_split, 2),
        Target("JPEG tree", _build_jpegs, ("train/*/images/*",), _of_layout(_TREE, (8, 8, 3)), (), _is_split),
        Target("JPEG parts", _build_parts, ("*",), _of_layout(_PARTS, (8, 8, 3)), fields, _is_split, 2,
               names_file=False),
        Target("archive", _build_archives, ("*",), _of_layout(replace(_BINARY, archives=("set.zip",))),
               (_archive_members,), _is_split, 2),
        Target("stored set", _build_store, ("fuzzed/*",), _read_store, fields, _is_split, 2),
        Target("probabilities", _build_probs, ("*",), _read_probs, fields, _is_ok, 2),
        Target(
            "run JSON", _build_run, [*(f"**/{name}.json" for name in JSON_OF_RUN), "**/log.jsonl"], _read_json_of_run,
            fields, share=1, check=lambda found: True, names_file=False,
        ),
        Target("active JSON", _build_active, ("**/active.json", "**/rounds.json", "paper/*.json"), _read_active,
               fields, _is_ok, names_file=False),
    ]  # fmt: skip
    return {one.name: one for one in found}


def _put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _by_kind(random: Random, whole: bytes) -> tuple[str, bytes]:
    """Damage by the fields that a file of its kind has; blindly if none is known."""
    if whole[:1] in (b"{", b"["):
        return _lines(random, whole)
    if whole[8:9] == b"{":
        return mutations.safetensors_fields(random, whole)
    known = {b"\x93NUMPY": mutations.npy_header, b"\x89PNG": mutations.png_chunks}
    known |= {b"PK": mutations.zip_members, b"\x1f\x8b": mutations.gzipped}
    return next((how for magic, how in known.items() if whole.startswith(magic)), mutations.blindly)(random, whole)


def _lines(random: Random, whole: bytes) -> tuple[str, bytes]:
    try:
        return mutations.json_fields(random, whole)
    except ValueError:  # one document a line
        first, *others = whole.splitlines(keepends=True)
        word, data = mutations.json_fields(random, first)
        return word, data + b"\n" + b"".join(others)


warnings.simplefilter("ignore")

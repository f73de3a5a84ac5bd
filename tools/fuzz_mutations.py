"""Ways to damage a file: blindly, by fields of JSON, and with checksums made right again.

Each takes a ``random.Random`` and gives other bytes, the same ones for the same seed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

EXTREMES = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62)
DEEP: Any = 0
for _ in range(150):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**9, 10**30, -(10**30), 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    float("-inf"), "", "0", "x", "x" * 5000, "none", "single", "a:b", "os:abort", "fuzz_evil:run", "../../outside",
    "/etc/passwd", "\x1b[2J\n", "\ud800", "<script>alert(1)</script>", "=cmd()", [], {}, [[]], [1, 2, 3], [None],
    {"a": 1}, DEEP,
)  # fmt: skip


# ---- blind


def flip(random: Random, data: bytes) -> bytes:
    """Flip some bits."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        out[_place(random, data)] ^= 1 << random.randrange(8)
    return bytes(out)


def truncate(random: Random, data: bytes) -> bytes:
    """Keep the beginning, or the end."""
    at = random.randrange(len(data))
    return data[at:] if random.random() < 0.1 else data[:at]


def zero(random: Random, data: bytes) -> bytes:
    """Zeros, or ones, in a piece."""
    a, b = _piece(random, data)
    return data[:a] + random.choice((b"\0", b"\xff")) * (b - a) + data[b:]


def repeat(random: Random, data: bytes) -> bytes:
    """A piece again, at the same place or another one."""
    a, b = _piece(random, data)
    at = random.choice((b, random.randrange(len(data) + 1)))
    return data[:at] + data[a:b] * random.choice((1, 1, 2, 50)) + data[at:]


def shuffle(random: Random, data: bytes) -> bytes:
    """Pieces in another order."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randint(2, 6)))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    random.shuffle(parts)
    return b"".join(parts)


def extreme(random: Random, data: bytes) -> bytes:
    """A number at the edge of what its bytes hold, mostly in the header."""
    width = random.choice((1, 2, 4, 8))
    value = random.choice(EXTREMES) & ((1 << 8 * width) - 1)
    at = _place(random, data)
    return data[:at] + value.to_bytes(width, random.choice(("little", "big"))) + data[at + width :]


def insert(random: Random, data: bytes) -> bytes:
    """Some bytes between the others."""
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 16, 300))) + data[at:]


def _place(random: Random, data: bytes) -> int:
    return random.randrange(min(len(data), 256) if random.random() < 0.5 else len(data))


def _piece(random: Random, data: bytes) -> tuple[int, int]:
    a = _place(random, data)
    return a, min(len(data), a + random.choice((1, 4, 16, 64, 1024)))


BLIND: tuple[Callable[[Random, bytes], bytes], ...] = (flip, truncate, zero, repeat, shuffle, extreme, extreme, insert)


def blindly(random: Random, data: bytes, others: Sequence[bytes] = ()) -> tuple[str, bytes]:
    """One or two of these, or the beginning of this file and the end of another; and what it was."""
    if others and random.random() < 0.1:
        other = random.choice(others)
        return "splice", data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
    words = []
    for _ in range(random.choice((1, 1, 1, 2))):
        how = random.choice(BLIND)
        words.append(how.__name__)
        data = how(random, data) if data else data
    return "+".join(words), data


# ---- JSON by its fields


def json_fields(random: Random, text: bytes) -> tuple[str, bytes]:
    """One to three fields of a JSON text replaced, removed, added, repeated or renamed."""
    content = json.loads(text)
    words = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content, word = changed(random, content)
        words.append(word)
    return "+".join(words), json.dumps(content).encode()


def changed(random: Random, content: Any) -> tuple[Any, str]:
    """The content with another field somewhere, and what was done."""
    places = list(_places(content, ()))
    path = random.choice(places)
    if not path:
        return deepcopy(random.choice(VALUES)), "root replaced"
    *way, last = path
    holder = content
    for step in way:
        holder = holder[step]
    word = random.choice(("replace",) * 5 + ("remove", "add", "repeat", "scale"))
    if word == "remove":
        del holder[last]
    elif word == "add" and isinstance(holder, dict):
        holder["".join(random.choices("abc_", k=4))] = deepcopy(random.choice(VALUES))
    elif word == "repeat" and isinstance(holder, list):
        holder.extend(holder[:1] * random.choice((1, 2, 1000)))
    elif word == "scale" and isinstance(holder[last], int | float):
        holder[last] = holder[last] * random.choice((-1, 0, 2, 10, 10**6, 0.5))
    else:
        word = "replace"
        holder[last] = deepcopy(random.choice(VALUES))
    return content, f"{word} {'.'.join(map(str, path))[:60]}"


def _places(content: Any, path: tuple[Any, ...]) -> Any:
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from _places(value, (*path, key))


# ---- with checksums made right


def safetensors_fields(random: Random, data: bytes) -> tuple[str, bytes]:
    """Fields of the header, of the note in it, or numbers of a safetensors file, with its own checksum right again."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = random.choice(("header", "note", "note", "note", "numbers"))
    word = ""
    note = json.loads(header["__metadata__"]["rbue"])
    if kind == "note":
        kept = note.pop("sha256")
        note, word = changed(random, note)
        if isinstance(note, dict):
            note = {"sha256": kept, **note}
        header["__metadata__"]["rbue"] = json.dumps(note)
    elif kind == "header":
        header, word = changed(random, header)
    else:
        word, body = blindly(random, body)
    return f"{kind} {word}", _sealed(header, body)


def _sealed(header: Any, body: bytes) -> bytes:
    """A safetensors file whose note has the file's own checksum, as rbue writes it."""
    blank = "0" * 64
    try:
        note = json.loads(header["__metadata__"]["rbue"])
        note["sha256"] = blank
        header["__metadata__"]["rbue"] = json.dumps(note)
    except (KeyError, TypeError, ValueError):
        pass  # what is no header any more needs no checksum
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    content = struct.pack("<Q", len(text)) + text + body
    return content.replace(blank.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


def png_chunks(random: Random, data: bytes) -> tuple[str, bytes]:
    """A PNG file damaged inside its chunks, whose checksums are right."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
        at += 12 + length
    chunk = random.choice(chunks)
    word = "chunk order"
    if random.random() < 0.2:
        random.shuffle(chunks)
    elif chunk[1]:
        word, chunk[1] = blindly(random, chunk[1])
        word = f"chunk {chunk[0].decode('ascii', 'replace')} {word}"
    if random.random() < 0.2 and chunk[0] == b"IDAT":
        chunk[1] = zlib.compress(random.randbytes(random.choice((0, 10, 1000))))
    out = data[:8]
    for kind, content in chunks:
        out += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return word, out


def gzipped(random: Random, data: bytes) -> tuple[str, bytes]:
    """The content of a gzip file damaged, and packed again."""
    word, content = blindly(random, gzip.decompress(data))
    return f"inside {word}", gzip.compress(content, mtime=0)


EVIL_NAMES = (
    "../outside",
    "/tmp/outside",
    "..\\outside",
    "a/../../outside",
    "./.",
    "",
    "x" * 300,
    "con\0trol",
    "a\x1b[2J",
)


def zip_members(random: Random, data: bytes) -> tuple[str, bytes]:
    """A zip archive with a damaged member, an odd name, twice the same name, or one that unfolds to very much."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    members, word = _members_changed(random, members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), content, zipfile.ZIP_DEFLATED)
    return word, out.getvalue()


def tar_members(random: Random, data: bytes) -> tuple[str, bytes]:
    """The same for a tar archive, plain or gzipped; with links and devices too."""
    packed = data[:2] == b"\x1f\x8b"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(info.name, stream.read()) for info in archive.getmembers() if (stream := archive.extractfile(info))]
    members, word = _members_changed(random, members)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if packed else "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name or "x")
            info.size = len(content)
            if random.random() < 0.2:
                info.type = random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE))
                info.linkname, word = random.choice(("/etc/passwd", "../../outside", members[0][0])), f"{word}+link"
            archive.addfile(info, io.BytesIO(content))
    return word, out.getvalue()


def _members_changed(random: Random, members: list[tuple[str, bytes]]) -> tuple[list[tuple[str, bytes]], str]:
    at = random.randrange(len(members))
    name, content = members[at]
    word = random.choice(("content", "content", "name", "twice", "bomb", "many", "removed"))
    if word == "content":
        how, content = blindly(random, content)
        members[at], word = (name, content), f"member {how}"
    elif word == "name":
        members[at] = random.choice(EVIL_NAMES), content
    elif word == "twice":
        members.append((name, content[:10]))
    elif word == "bomb":
        members[at] = name, bytes(8 << 20)
    elif word == "many":
        members += [(f"{name}.{k}", b"") for k in range(2000)]
    else:
        del members[at]
    return members or [("x", b"")], word


def npy_header(random: Random, data: bytes) -> tuple[str, bytes]:
    """Another description in the header of a .npy file, of the right length."""
    (length,) = struct.unpack("<H", data[8:10])
    text = data[10 : 10 + length].decode("latin-1").strip()
    old, new = random.choice(
        (
            ("descr': '", "descr': '|O"), ("|u1", "|O"), ("<f2", "<f8"), ("<f2", "|S9"), ("<f2", "<c8"), ("|u1", "|V0"),
            ("shape': (", "shape': (-1, "), ("shape': (", "shape': (99999999999, "), ("shape': (", "shape': ()#"),
            ("shape': (", "shape': (1e3,"), ("False", "True"), ("False", "__import__('os')"), ("{", "{'x': 1, "),
            ("{", "["), ("shape': (", "shape': " + "(" * 90), ("shape': (", "shape': (" + "9" * 5000 + ", "),
        )
    )  # fmt: skip
    text = text.replace(old, new, 1)
    padded = text.encode("latin-1") + b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return f"header {old} {new[:20]}", data[:8] + struct.pack("<H", len(padded)) + padded + data[10 + length :]

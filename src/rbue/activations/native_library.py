"""The kernels of ``native_kernels.c``, compiled by the machine's own C compiler the first time they are wanted.

That takes a fraction of a second. The library is kept in ``$XDG_CACHE_HOME/rbue/kernels`` (``~/.cache/rbue/kernels``),
under a name that changes with the source, the compiler and the processor. Without a compiler there is no library, and
:mod:`.cpu` does the same work with torch's operations. ``RBUE_NATIVE=0`` asks for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("native_kernels.c")

EXACT = ("-O3", "-std=c99", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")
"""Optimised, with every operation rounded as IEEE 754 says: the numbers must be those of the formula."""

THREADS = ("-fopenmp",)
"""torch's own pool: its OpenMP library is in the process already, and the linker takes that one."""

_PATIENCE = 60  # seconds


class Rows(ctypes.Structure):
    """How many rows the output and the input have, and how many elements a row."""

    _fields_ = (("count", ctypes.c_int64), ("x_count", ctypes.c_int64), ("elements", ctypes.c_int64))


class Function(ctypes.Structure):
    """What to apply; ``struct activation``."""

    _fields_ = (
        ("drop", ctypes.c_int32),
        ("threshold", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("middle", ctypes.c_float),
        ("cap", ctypes.c_float),
    )


@cache
def native_library() -> ctypes.CDLL | None:
    """The library, or None where it is not wanted, cannot be compiled or gives other numbers than the formula."""
    if os.environ.get("RBUE_NATIVE") == "0" or os.name != "posix":
        return None
    compiler = find_compiler()
    for flags in _flags() if compiler else ():
        library = _load(compiler, flags)  # type: ignore[arg-type]
        if library is not None:
            return library
    return None


def find_compiler() -> str | None:
    """The C compiler to use: ``$CC``, or the first of the usual names."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


def _flags() -> Iterator[tuple[str, ...]]:
    """What to try, the best first; some compilers know no OpenMP, some no processor by that name."""
    # Elsewhere the basic instructions have four-wide multiplication already.
    processor = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    for more in dict.fromkeys([(*processor, *THREADS), THREADS, ()]):
        yield (*EXACT, *more)


def _load(compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    recipe = (SOURCE.read_text(), compiler, str(os.stat(compiler).st_mtime_ns), *flags, _processor())
    kept = _cache_folder() / f"{hashlib.sha256(repr(recipe).encode()).hexdigest()[:24]}.so"
    library = _opened(kept) if kept.is_file() else None
    if library is not None:
        return library
    with tempfile.TemporaryDirectory(prefix="rbue-") as folder:
        made = Path(folder) / kept.name
        command = [compiler, *flags, "-o", str(made), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE)
        except (OSError, subprocess.SubprocessError):
            return None
        _keep(made, kept)
        return _opened(made)  # it stays in memory when its file is gone


def _keep(made: Path, kept: Path) -> None:
    """Copy a library into the cache, whole or not at all; where that cannot be written, the next process compiles."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copyfile(made, beside)
        beside.replace(kept)


def _opened(path: Path) -> ctypes.CDLL | None:
    try:
        return _declared(ctypes.CDLL(str(path)))
    except (OSError, AttributeError):
        return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, tail = ctypes.c_void_p, ctypes.c_int64, [Rows, Function, ctypes.c_int]
    library.rbue_keys.argtypes = [pointer, pointer, number, pointer, pointer, number, number, pointer]
    library.rbue_forward.argtypes = [pointer] * 5 + tail
    library.rbue_backward.argtypes = [pointer] * 6 + tail
    library.rbue_keys.restype = library.rbue_forward.restype = library.rbue_backward.restype = None
    return library


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path("~/.cache").expanduser()) / "rbue" / "kernels"


def _processor() -> str:
    """What the processor can do: a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    abilities = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(abilities)])

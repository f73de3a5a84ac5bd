"""The kernels of ``native_kernels.c``, compiled by the machine's own C compiler the first time they are wanted.

That takes a fraction of a second. The library is kept in ``$XDG_CACHE_HOME/rbue/kernels`` (``~/.cache/rbue/kernels``),
under a name that changes with the source, the compiler and the processor. Without a compiler there is no library, and
:mod:`.torch_operations` does the same work with torch's operations. ``RBUE_NATIVE=0`` asks for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rbue.errors import RbueError
from rbue.files import write_bytes

SOURCE = Path(__file__).with_name("native_kernels.c")

EXACT = ("-O3", "-std=c99", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")
"""Optimised, with every operation rounded as IEEE 754 says: the numbers must be those of the formula."""

THREADS = ("-fopenmp",)
"""torch's own pool: its OpenMP library is in the process already, and the linker takes that one."""

_PATIENCE = 30  # seconds
_lock = threading.Lock()


class Rows(ctypes.Structure):
    """How many rows the output and the input have, and how many elements a row."""

    _fields_ = (("count", ctypes.c_int64), ("x_count", ctypes.c_int64), ("elements", ctypes.c_int64))


class Keys(ctypes.Structure):
    """Where the lanes of the rows' keys are; the third is missing where draws are independent."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("k1", "k2", "turn"))


class Function(ctypes.Structure):
    """What to apply; ``struct activation``."""

    _fields_ = (
        ("drop", ctypes.c_int32),
        ("threshold", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("middle", ctypes.c_float),
        ("cap", ctypes.c_float),
    )


def native_library() -> ctypes.CDLL | None:
    """The library, or None where it is not wanted or cannot be had."""
    if os.environ.get("RBUE_NATIVE") == "0" or os.name != "posix":
        return None
    with _lock:
        try:
            return _first_that_loads()
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):
            # No source, no home, no place for temporary files, a $CC with an open quotation, a compiler that hangs.
            return None


def find_compiler() -> list[str] | None:
    """The C compiler to use and its first arguments: ``$CC``, or the first of the usual names."""
    for text in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        name, *more = shlex.split(text) or [""]
        path = shutil.which(name) if name else None
        if path:
            return [path, *more]
    return None


def _first_that_loads() -> ctypes.CDLL | None:
    compiler = find_compiler()
    if compiler is None:
        return None
    found = (_load([*compiler, *flags]) for flags in _flags())
    return next((library for library in found if library is not None), None)


def _flags() -> Iterator[tuple[str, ...]]:
    """What to try, the best first; some compilers know no OpenMP, some no processor by that name."""
    # Elsewhere the basic instructions have four-wide multiplication already.
    processor = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    for more in dict.fromkeys([(*processor, *THREADS), THREADS, ()]):
        yield (*EXACT, *more)


def _load(command: list[str]) -> ctypes.CDLL | None:
    """A library from the cache, or a new one."""
    recipe = (SOURCE.read_text(), *command, os.stat(command[0]).st_mtime_ns, _processor())
    name = _digest(repr(recipe).encode())
    library = _from_cache(name)
    if library is not None:
        return library
    with tempfile.TemporaryDirectory(prefix="rbue-") as folder:
        made = Path(folder) / f"{name}.so"
        if not _compiles([*command, "-o", str(made), str(SOURCE)]) or not made.is_file():
            return None
        _keep(made, name)
        return _opened(made) or _from_cache(name)  # it stays in memory when its file is gone


def _compiles(command: list[str]) -> bool:
    # A session of its own, so that a compiler that hangs is ended with all its parts.
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return run.wait(_PATIENCE) == 0
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        raise


def _from_cache(name: str) -> ctypes.CDLL | None:
    """A kept library whose content is still the one that was kept; loading half a file would end the process."""
    try:
        found = sorted(_cache_folder().glob(f"{name}-*.so"))
        whole = [path for path in found if path.stem == f"{name}-{_digest(path.read_bytes())}"]
    except (OSError, RuntimeError):
        return None
    return _opened(whole[0]) if whole else None


def _keep(made: Path, name: str) -> None:
    """Copy a library into the cache, whole or not at all; where that cannot be written, the next process compiles."""
    with contextlib.suppress(OSError, RuntimeError, RbueError):
        content = made.read_bytes()
        write_bytes(_cache_folder() / f"{name}-{_digest(content)}.so", content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _opened(path: Path) -> ctypes.CDLL | None:
    try:
        return _declared(ctypes.CDLL(str(path)))
    except (OSError, AttributeError):
        return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, tail = ctypes.c_void_p, ctypes.c_int64, [Keys, Rows, Function, ctypes.c_int]
    library.rbue_keys.argtypes = [pointer, pointer, number, pointer, pointer, number, number, pointer]
    library.rbue_forward.argtypes = [pointer] * 3 + tail
    library.rbue_pooled.argtypes = [pointer] * 3 + tail[:-1] + [number, ctypes.c_int] + tail[-1:]
    library.rbue_backward.argtypes = [pointer] * 4 + tail
    for function in (library.rbue_keys, library.rbue_forward, library.rbue_pooled, library.rbue_backward):
        function.restype = None
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

"""How the compiled kernels come to be there, and what happens where they cannot."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys

import pytest
import torch

from rbue.activations import DropReLU, RReLU, native, native_library, random_relu

NEEDS_COMPILER = pytest.mark.skipif(native_library.find_compiler() is None, reason="needs a C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Load the library as a new process would, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RBUE_NATIVE", raising=False)
    return native_library.native_library.__wrapped__


def a_compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@NEEDS_COMPILER
def test_it_is_compiled_once_and_kept(fresh, tmp_path, monkeypatch):
    assert native._agrees(fresh())
    (kept,) = (tmp_path / "cache" / "rbue" / "kernels").iterdir()
    made = kept.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert native._agrees(fresh())
    assert kept.stat().st_mtime_ns == made


@NEEDS_COMPILER
def test_a_broken_file_in_the_cache_is_made_again(fresh, tmp_path):
    fresh()
    (kept,) = (tmp_path / "cache" / "rbue" / "kernels").iterdir()
    kept.unlink()  # the loaded one stays as it is
    kept.write_bytes(b"not a library")
    assert native._agrees(fresh())


@NEEDS_COMPILER
def test_a_cache_that_cannot_be_written_does_no_harm(fresh, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert native._agrees(fresh())


@NEEDS_COMPILER
def test_without_openmp_it_runs_on_one_thread(fresh, tmp_path, monkeypatch):
    compiler = native_library.find_compiler()
    refusing = f'for word; do [ "$word" = -fopenmp ] && exit 1; done\nexec {compiler} "$@"'
    monkeypatch.setenv("CC", a_compiler(tmp_path / "cc", refusing))
    assert native._agrees(fresh())


def test_it_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv("RBUE_NATIVE", "0")
    assert fresh() is None


def test_no_compiler_no_library(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert fresh() is None


@pytest.mark.parametrize("script", ["exit 1", "exit 0", 'while [ "$1" != -o ]; do shift; done; echo text > "$2"'])
def test_a_compiler_that_fails_gives_no_library(fresh, tmp_path, monkeypatch, script):
    monkeypatch.setenv("CC", a_compiler(tmp_path / "cc", script))
    assert fresh() is None


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("0x9E3779B1u", "0x9E3779B3u"),
        ("? sloped : value", "? sloped : 2.0f * value"),
        ("kept.value >= cap", "kept.value > cap"),
        ("x[i] + 0.0f", "x[i]"),
        ("* scale + middle", "* (scale * 1.0001f) + middle"),
        (">= threshold", "> threshold + (1 << 24)"),
        ("kept.bits == 0", "kept.value == 0.0f"),
        ("> cap ? cap", "> cap + 0.1f ? cap"),
    ],
)
def test_a_library_with_other_numbers_is_not_used(fresh, tmp_path, monkeypatch, right, wrong):
    source = native_library.SOURCE.read_text()
    assert right in source
    changed = tmp_path / "changed.c"
    changed.write_text(source.replace(right, wrong))
    monkeypatch.setattr(native_library, "SOURCE", changed)
    library = fresh()
    assert isinstance(library, ctypes.CDLL)
    assert not native._agrees(library)


@NEEDS_COMPILER
def test_here_it_is_used():
    assert native.library() is not None


THREADED = """
import torch
from rbue.activations import DropReLU, RReLU, native, random_relu

assert native.library() is not None
for shape in [(3, 100_003), (70_000, 3), (1, 40_000), (5, 3, 129, 131)]:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    keys = torch.randint(-(2**31), 2**31, (2, shape[0]), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    for activation in (DropReLU(0.7), RReLU()):
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = random_relu(x, activation, keys)
            results.append((out, *torch.autograd.grad(out, x, torch.ones_like(out))))
        assert all(a.equal(b) for a, b in zip(*results, strict=True)), (shape, activation)
print("equal")
"""


@NEEDS_COMPILER
def test_threads_share_the_work():
    # Apart, because a process that has had OpenMP threads cannot fork safely, and other tests fork.
    run = subprocess.run([sys.executable, "-c", THREADED], capture_output=True, text=True, check=False)
    assert run.stdout == "equal\n", run.stderr[-2000:]


@NEEDS_COMPILER
@pytest.mark.parametrize("activation", [DropReLU(0.7), RReLU()], ids=str)
def test_a_negative_view_is_read_right(activation, make_x, make_keys):
    x = make_x(4, 50)
    assert random_relu(torch._neg_view(x), activation, make_keys(4)).equal(random_relu(-x, activation, make_keys(4)))


@NEEDS_COMPILER
def test_another_default_device_does_no_harm(tmp_path):
    code = (
        "import torch; torch.set_default_device('meta'); from rbue.activations import native; print(native.library())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert "CDLL" in run.stdout


def test_the_source_is_part_of_the_package():
    assert native_library.SOURCE.is_file()
    assert shutil.which("sh")  # what the compilers above are written in

"""How the compiled kernels come to be there, and what happens where they cannot."""

import ctypes
import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from rbue.activations import DropReLU, RReLU
from rbue.kernels import native, native_library, random_relu, site_keys

NEEDS_COMPILER = pytest.mark.skipif(native_library.find_compiler() is None, reason="needs a C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Load the library as a new process would, with a cache of its own."""
    # Unoptimised it has the same numbers, and takes a fifth of the time to compile.
    monkeypatch.setattr(native_library, "EXACT", ("-O0", *native_library.EXACT[1:]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RBUE_NATIVE", raising=False)
    return native_library.native_library


def is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def a_compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@NEEDS_COMPILER
def test_it_is_compiled_once_and_kept(fresh, tmp_path, monkeypatch):
    assert native._agrees(fresh())
    (kept,) = (tmp_path / "cache" / "rbue" / "kernels").iterdir()
    made = kept.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("compiled again"))
    assert native._agrees(fresh())
    assert kept.stat().st_mtime_ns == made


@NEEDS_COMPILER
@pytest.mark.parametrize("content", [lambda whole: b"not a library", lambda whole: whole[:9000]], ids=["other", "half"])
def test_a_broken_file_in_the_cache_is_made_again(fresh, tmp_path, content):
    fresh()
    (kept,) = (tmp_path / "cache" / "rbue" / "kernels").iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # the loaded one stays as it is
    kept.write_bytes(content(whole))
    assert native._agrees(fresh())
    assert kept.read_bytes() == whole


@NEEDS_COMPILER
@pytest.mark.parametrize("error", [PermissionError("no"), RuntimeError("no home"), FileNotFoundError("gone")], ids=str)
def test_a_cache_that_cannot_be_used_does_no_harm(fresh, monkeypatch, error):
    def refuse():
        raise error

    monkeypatch.setattr(native_library, "_cache_folder", refuse)
    assert native._agrees(fresh())


@NEEDS_COMPILER
def test_a_full_disk_leaves_nothing_in_the_cache(fresh, tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert native._agrees(fresh())
    assert not list((tmp_path / "cache" / "rbue" / "kernels").iterdir())


@NEEDS_COMPILER
def test_a_file_in_the_place_of_the_cache_does_no_harm(fresh, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert native._agrees(fresh())


def test_nothing_but_the_library_is_missing_without_a_source_or_a_temporary_folder(fresh, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise FileNotFoundError("no usable temporary folder")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    assert fresh() is None
    monkeypatch.setattr(native_library, "SOURCE", tmp_path / "missing.c")
    assert fresh() is None


@NEEDS_COMPILER
def test_where_temporary_files_cannot_be_executed_the_cache_serves(fresh, monkeypatch):
    usual = native_library._opened
    monkeypatch.setattr(native_library, "_opened", lambda path: usual(path) if "cache" in path.parts else None)
    assert native._agrees(fresh())


@NEEDS_COMPILER
def test_a_compiler_may_have_arguments(fresh, monkeypatch):
    monkeypatch.setenv("CC", f"{native_library.find_compiler()[0]} -g")
    assert native_library.find_compiler()[1:] == ["-g"]
    assert native._agrees(fresh())


def test_a_compiler_that_hangs_is_tried_once_and_ended(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(native_library, "_PATIENCE", 0.5)
    monkeypatch.setenv("CC", a_compiler(tmp_path / "cc", f"echo $$ >> {tmp_path / 'began'}; sleep 600 & wait"))
    assert fresh() is None
    (group,) = (tmp_path / "began").read_text().split()
    deadline = time.monotonic() + 10
    while is_there(int(group)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_there(int(group))


@NEEDS_COMPILER
def test_without_openmp_it_runs_on_one_thread(fresh, tmp_path, monkeypatch):
    (compiler,) = native_library.find_compiler()
    refusing = f'for word; do [ "$word" = -fopenmp ] && exit 1; done\nexec {compiler} "$@"'
    monkeypatch.setenv("CC", a_compiler(tmp_path / "cc", refusing))
    assert native._agrees(fresh())


def test_a_compiler_that_no_shell_could_read_gives_no_library(fresh, monkeypatch):
    monkeypatch.setenv("CC", "gcc '-O3")
    assert fresh() is None


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
        ("0x735A2D97u", "0x735A2D99u"),
        ("row * sample_stride", "0 * row"),
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
@pytest.mark.skipif(os.environ.get("RBUE_NATIVE") == "0", reason="switched off")
def test_here_it_is_used():
    assert native.library() is not None


APART = """
import os

import torch
x, keys = torch.ones(2, 3, 4, 4), torch.zeros(2, 4, dtype=torch.int32)
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
from rbue.activations import DropReLU, RReLU
from rbue.kernels import native, random_relu
from rbue.kernels.fused import pooled_relu
print(native.library())
print(pooled_relu(x, DropReLU(0.5), keys, repeat=2).device)

torch.set_default_device("cpu")
torch.set_default_dtype(torch.float32)
if native.library() is None:
    raise SystemExit
torch.set_num_threads(3)
before = len(os.listdir("/proc/self/task"))
random_relu(torch.ones(64, 2000), DropReLU(0.7), torch.zeros(2, 64, dtype=torch.int32))
assert len(os.listdir("/proc/self/task")) == before + 2, "no threads"
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


@pytest.fixture(scope="module")
def apart():
    """What a process of its own says: one that has had OpenMP threads cannot fork safely, and other tests fork."""
    return subprocess.run([sys.executable, "-c", APART], capture_output=True, text=True, check=False)


@NEEDS_COMPILER
def test_threads_share_the_work(apart):
    assert apart.stdout.splitlines()[2:] == ["equal"], apart.stderr[-2000:]


def test_other_defaults_of_torch_do_no_harm(apart):
    """The library loads, and a mean over pixels is where its input is: a kernel that writes elsewhere ends it all."""
    library, device = apart.stdout.splitlines()[:2]
    assert ("CDLL" in library) == (native_library.find_compiler() is not None)
    assert device == "cpu"
    assert apart.returncode == 0, apart.stderr[-2000:]


@NEEDS_COMPILER
@pytest.mark.parametrize("activation", [DropReLU(0.7), RReLU()], ids=str)
def test_a_negative_view_is_read_right(activation, make_x, make_keys):
    x = make_x(4, 50)
    assert random_relu(torch._neg_view(x), activation, make_keys(4)).equal(random_relu(-x, activation, make_keys(4)))


def test_the_source_is_part_of_the_package():
    tomllib = pytest.importorskip("tomllib")
    package = native_library.SOURCE.parents[1]
    project = package.parents[1] / "pyproject.toml"
    patterns = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["rbue"]
    assert native_library.SOURCE in {path for pattern in patterns for path in package.glob(pattern)}


@NEEDS_COMPILER
@pytest.mark.parametrize("inplace", [False, True])
def test_keys_that_do_not_fit_are_left_to_torch(inplace, make_x, make_keys):
    x = make_x(5, 50)
    with pytest.raises(RuntimeError):
        random_relu(x, DropReLU(0.7), make_keys(2), inplace=inplace)
    wide = random_relu(x, DropReLU(0.7), make_keys(5).to(torch.int64))
    assert wide.equal(random_relu(x, DropReLU(0.7), make_keys(5)))


@NEEDS_COMPILER
def test_sample_numbers_that_do_not_fit_are_left_to_torch():
    state, images, sites = torch.zeros(2, dtype=torch.int32), *(torch.arange(n, dtype=torch.int32) for n in (6, 2))
    with pytest.raises(RuntimeError):
        site_keys(state, images[:4], images, sites)


@NEEDS_COMPILER
@pytest.mark.parametrize("activation", [DropReLU(0.7), RReLU()], ids=str)
def test_a_negative_view_of_a_gradient_is_read_right(activation, make_x, make_keys):
    x, grad = make_x(4, 50).requires_grad_(), make_x(4, 50, seed=1)
    found = [
        torch.autograd.grad(random_relu(x, activation, make_keys(4)), x, g)[0] for g in (-grad, torch._neg_view(grad))
    ]
    assert found[0].equal(found[1])


def test_a_tensor_of_inference_mode_stays_as_it_is(make_x, make_keys):
    with torch.inference_mode():
        x = make_x(4, 50)
    with pytest.raises(RuntimeError, match="nference"):
        random_relu(x, DropReLU(0.7), make_keys(4), inplace=True)


def test_inside_inference_mode_it_may_be_changed(make_x, make_keys):
    with torch.inference_mode():
        x = make_x(4, 50)
        expected = random_relu(x, DropReLU(0.7), make_keys(4))
        assert random_relu(x, DropReLU(0.7), make_keys(4), inplace=True) is x
        assert x.equal(expected)


class Named(torch.Tensor):
    """A tensor class of a user's."""


class TestObservers:
    """Who watches operations must see them, not a call into a library."""

    @pytest.mark.parametrize("activation", [DropReLU(0.7), RReLU()], ids=str)
    def test_forward_mode_gradients(self, activation, make_x, make_keys):
        x, tangent, keys = make_x(4, 50), make_x(4, 50, seed=1), make_keys(4)
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(random_relu(forward_ad.make_dual(x, tangent), activation, keys))
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(random_relu(leaf, activation, keys), leaf, torch.ones_like(x))
        assert torch.allclose(out.tangent, slope * tangent)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_tracing(self, make_x, make_keys):
        keys = make_keys(4)
        traced = torch.jit.trace(lambda x: random_relu(x, DropReLU(0.7), keys), make_x(4, 50))
        assert traced(make_x(4, 50, seed=1)).equal(random_relu(make_x(4, 50, seed=1), DropReLU(0.7), keys))

    def test_make_fx(self, make_x, make_keys):
        keys = make_keys(4)
        graph = make_fx(lambda x: random_relu(x, RReLU(), keys))(make_x(4, 50))
        assert graph(make_x(4, 50, seed=1)).equal(random_relu(make_x(4, 50, seed=1), RReLU(), keys))

    @pytest.mark.parametrize("activation", [DropReLU(0.7), RReLU()], ids=str)
    def test_batched_gradients(self, activation, make_x, make_keys):
        x, grads = make_x(4, 50).requires_grad_(), torch.stack([make_x(4, 50, seed=seed) for seed in (1, 2, 3)])
        out = random_relu(x, activation, make_keys(4))
        (found,) = torch.autograd.grad(out, x, grads, is_grads_batched=True, retain_graph=True)
        expected = [torch.autograd.grad(out, x, grad, retain_graph=True)[0] for grad in grads]
        assert found.equal(torch.stack(expected))

    def test_tensor_classes(self, make_x, make_keys):
        x = make_x(4, 50)
        out = random_relu(x.as_subclass(Named), DropReLU(0.7), make_keys(4))
        assert type(out) is Named
        assert out.as_subclass(torch.Tensor).equal(random_relu(x, DropReLU(0.7), make_keys(4)))

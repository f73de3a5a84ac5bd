import importlib.util
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import rbue
from rbue.activations import DropReLU, RReLU

NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
CASES = Path(__file__).with_name("kernel_cases.py")
BOTH = (DropReLU(0.6), RReLU())


def pytest_of(settings, *words):
    """Run pytest in a process of its own, with another environment."""
    source = str(Path(rbue.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])} | settings
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(CASES.parent)]
    command = [sys.executable, "-m", "pytest", *options, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def cases(settings):
    """The tests of the kernels, by name."""
    listing = pytest_of(settings, "--collect-only", str(CASES)).stdout.splitlines()
    found = [str(CASES) + line[line.index("::") :] for line in listing if "::" in line]
    assert len(found) > 50
    return found


def passes(settings, ids):
    """Assert that all of these tests do."""
    run = pytest_of(settings, *ids)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert f"{len(ids)} passed" in run.stdout


@NEEDS_TRITON
def test_kernels_are_not_compiled_again_for_other_batches_and_sites():
    """Nor for one image, which the sampler tries first: Triton would make a form for each of 1, 16 and the rest."""
    from rbue.kernels import triton_fused, triton_kernels

    changing = {"lane_stride", "sample_stride", "rows", "x_rows", "first_row", "sites", "images", "samples"}
    changing |= {"threshold"}  # of another q
    launched = [
        kernel
        for module in (triton_kernels, triton_fused)
        for name, kernel in vars(module).items()
        if name.endswith("_kernel") and name != "_affine_kernel"
    ]
    assert len(launched) == 5
    for kernel in launched:
        for parameter in kernel.params:
            assert parameter.do_not_specialize == (parameter.name in changing), (kernel, parameter.name)
            assert parameter.do_not_specialize_on_alignment == (parameter.name == "keys_ptr")


QUICK = (
    *(f"forward_and_backward_equal_the_formula[few-0.5-{one}-torch.float32]" for one in BOTH),
    f"batch_norm_a_sum_and_a_relu_in_one[few-plain-0.5-{BOTH[1]}-torch.float32]",
    f"batch_norm_a_sum_and_a_relu_in_one[few-normalised-None-{DropReLU(0.6, 'channel')}-torch.float32]",
    f"a_relu_and_the_mean_over_its_pixels_in_one[few-None-{BOTH[1]}-torch.float32]",
    "very_many_rows_take_several_launches[rrelu-torch.channels_last]",
    "the_threshold_is_the_formula_s[0.5]",
    "underflow_keeps_its_slope_and_zero_has_none[torch.float32]",
    "in_place_writes_into_the_input_and_says_so",
    "keys_equal_the_formula[samples1]",
    "keys_of_one_site_are_read_in_place",
    "images_cut_into_patches[2]",
    "a_large_mean_leaves_the_digits_that_count",
)


@NEEDS_TRITON
def test_some_interpreted_kernels_equal_the_formula():
    """Both activations with and without a cap, copies of the images, channels last, the fused kernels, the keys."""
    passes(INTERPRETER, [f"{CASES}::test_{name}" for name in QUICK])


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.parametrize("part", range(6))
def test_interpreted_kernels_equal_the_formula(part):
    """In parts of all kinds of cases, whatever their order."""
    passes(
        INTERPRETER, sorted(cases(INTERPRETER), key=lambda name: zlib.crc32(name.rpartition("::")[2].encode()))[part::6]
    )


@NEEDS_TRITON
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_a_gpu_equal_the_formula():
    """In several processes: most of the time goes into compiling."""
    ids, processes = cases({}), min(os.cpu_count() or 1, 12)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda first: passes({}, ids[first::processes]), range(processes)))


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from rbue.kernels import triton_fused
from rbue.kernels import triton_kernels
from rbue.random_stream import MIX_MULTIPLIERS, signed32

def ptx(kernel, block, drop, **more):
    constants = dict(zip(("ROWS", "PIXELS", "CHANNELS"), block), DROP=drop, CAPPED=False, LANES=2, BY_CHANNEL=False)
    constants |= more
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kinds = {"keys_ptr": "*i32"} | dict.fromkeys(constants, "constexpr")
    kinds |= dict.fromkeys(("steepness", "intercept", "cap", "share", "eps"), "fp32")
    kinds |= {"affine_ptr": "*fp32", "residual_affine_ptr": "*fp32"}
    names = kernel.arg_names
    signature = {name: kinds.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
    even = [name for name in names if name.endswith("_ptr") or name in ("elements", "channels", "plane", "to_pixel")]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in even}
    source = ASTSource(kernel, signature, constants, attributes)
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]

def mixed(code):
    return code.count(f", {signed32(MIX_MULTIPLIERS[0])};")

for drop in (True, False):
    for whole in (True, False):
        for block in ((4, 1, 1024), (4, 4, 256), (4, 1024, 1), (3, 16, 64), (1, 64, 16)):
            rows, logical = block[0], dict.fromkeys(("channels", "slabs", "across"), 1) if block[2] == 1 else {}
            forward, backward = (
                ptx(kernel, block, drop, WHOLE=whole, **logical)
                for kernel in (triton_kernels._forward_kernel, triton_kernels._backward_kernel)
            )
            moves = [code.count(move) for code in (forward, backward) for move in ("ld.global.v4", "st.global.v4")]
            assert moves == [rows, rows, 2 * rows, rows], (block, moves)
            assert "bar.sync" not in forward + backward
            assert (mixed(forward), mixed(backward)) == (8, 0 if drop else 8)
        for residual, normed in ((False, False), (True, False), (True, True)):
            flags = {"REPEATED": False, "RESIDUAL": residual, "RESIDUAL_NORM": normed, "RANDOM": True, "WHOLE": whole}
            flags["to_channel"] = 1
            fused = ptx(triton_fused._normalised_kernel, (4, 16, 64), drop, **flags)
            assert "bar.sync" not in fused and fused.count("st.global.v4") == 4 and mixed(fused) == 8
    ptx(triton_fused._pooled_kernel, (), drop, SAMPLES=32, CHANNELS=64, to_channel=1)
ptx(triton_fused._affine_kernel, (), False, WEIGHTED=True, BIASED=True, BLOCK=128)
"""


@pytest.mark.slow
@NEEDS_TRITON
def test_kernels_compile_for_a_gpu_that_is_not_here_and_move_16_bytes_at_once():
    """Each thread has eight elements of two bytes of each row: one read and one write a row, two reads backward.

    No barrier, and the numbers of the elements are mixed once for all rows.
    """
    source = str(Path(rbue.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    environment.pop("TRITON_INTERPRET", None)
    run = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]

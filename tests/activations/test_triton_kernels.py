import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rbue

NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@NEEDS_TRITON
@pytest.mark.parametrize("settings", [INTERPRETER, pytest.param({}, marks=NEEDS_CUDA)], ids=["interpreter", "cuda"])
def test_kernels_equal_the_formula(settings):
    cases = Path(__file__).with_name("kernel_cases.py")
    source = str(Path(rbue.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])} | settings
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(cases.parent)]
    command = [sys.executable, "-m", "pytest", *options, str(cases)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert " passed" in run.stdout


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from rbue.activations import triton_fused, triton_kernels
from rbue.random_stream import MIX_MULTIPLIERS, signed32

def ptx(kernel, block, drop, **more):
    constants = dict(zip(("ROWS", "PIXELS", "CHANNELS"), block), DROP=drop, CAPPED=False) | more
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kinds = {"keys_ptr": "*i32"} | dict.fromkeys(constants, "constexpr")
    kinds |= dict.fromkeys(("steepness", "intercept", "cap", "share", "eps"), "fp32") | {"affine_ptr": "*fp32"}
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
        for block in ((2, 1, 1024), (2, 4, 256), (1, 128, 16)):
            forward = ptx(triton_kernels._forward_kernel, block, drop, WHOLE=whole)
            backward = ptx(triton_kernels._backward_kernel, block, drop, WHOLE=whole)
            print(*(code.count(move) for code in (forward, backward) for move in ("ld.global.v4", "st.global.v4")))
            assert "bar.sync" not in forward + backward
            assert (mixed(forward), mixed(backward)) == (16 // block[0], 0 if drop else 16 // block[0])
        for residual in (True, False):
            flags = {"REPEATED": False, "RESIDUAL": residual, "RANDOM": True, "WHOLE": whole, "to_channel": 1}
            fused = ptx(triton_fused._normalised_kernel, (2, 16, 64), drop, **flags)
            assert "bar.sync" not in fused and fused.count("st.global.v4") == 2 and mixed(fused) == 8
    ptx(triton_fused._pooled_kernel, (), drop, SAMPLES=32, CHANNELS=64, to_channel=1)
ptx(triton_fused._affine_kernel, (), False, WEIGHTED=True, BIASED=True, BLOCK=128)
"""


@NEEDS_TRITON
def test_kernels_compile_for_a_gpu_that_is_not_here_and_move_16_bytes_at_once():
    """Each thread has 16 elements of two bytes: two moves forward, four reads and two writes backward, no barrier.

    A thread has the same places of both rows, and mixes their number once.
    """
    source = str(Path(rbue.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    environment.pop("TRITON_INTERPRET", None)
    run = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    assert set(run.stdout.split("\n")[:-1]) == {"2 2 4 2"}

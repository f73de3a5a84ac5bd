"""How many machine instructions the GPU kernels take for an element; needs Triton and no GPU.

    python benchmarks/instructions.py [--capability 90] [--out FILE]

The kernels are compiled for a GPU that need not be here (90 is an H200) and disassembled with the tool that comes with
Triton. Counted is a whole thread with 32 elements in four rows, channels last, and divided by 32. A kernel is bound by
memory as long as the GPU issues instructions faster than it moves elements: at 4.3 TB/s an H200 has time for about 27
where an element is read and written in two bytes (132 multiprocessors, 4 x 32 a cycle, 1.7 GHz).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from rbue.files import write_json
from rbue.kernels import triton_fused, triton_kernels
from rbue.lab.environment import facts

BLOCK = {"ROWS": 4, "PIXELS": 16, "CHANNELS": 64, "WHOLE": True, "CAPPED": False, "REPEATED": False, "LANES": 2}
WARPS, ELEMENTS = 4, 32
FUSED = {"RANDOM": True, "RESIDUAL_NORM": False, "to_channel": 1, "BY_CHANNEL": False}
PLAIN = {"slabs": 1, "across": 1, "shared": 1}
KERNELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "forward": (triton_kernels._forward_kernel, "bf16", PLAIN),
    "backward": (triton_kernels._backward_kernel, "bf16", PLAIN),
    "BatchNorm and activation": (triton_fused._normalised_kernel, "fp16", {"RESIDUAL": False, **FUSED}),
    "BatchNorm, sum and activation": (triton_fused._normalised_kernel, "fp16", {"RESIDUAL": True, **FUSED}),
    "two BatchNorms, sum and activation": (
        triton_fused._normalised_kernel,
        "fp16",
        {**FUSED, "RESIDUAL": True, "RESIDUAL_NORM": True},
    ),
}
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z]\w*)", flags=re.MULTILINE)


def compiled(kernel: Any, dtype: str, constants: dict[str, Any], capability: int) -> bytes:
    """Machine code of a kernel, for tensors that lie as torch's do and sizes that are multiples of 16."""
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    kinds = {"keys_ptr": "*i32"} | dict.fromkeys(("affine_ptr", "residual_affine_ptr"), "*fp32")
    kinds |= dict.fromkeys(("steepness", "intercept", "cap"), "fp32")
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32") for name in names}
    even = ("elements", "channels", "plane", "to_pixel", "rows", "x_rows", "lane_stride")
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name.endswith("_ptr") or (name in even and name not in constants)
    }
    source = ASTSource(kernel, signature, constants, attributes)
    made = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
    return made.asm["cubin"]


def instructions(code: bytes) -> int:
    """How many there are, without those that fill the end."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listing = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return sum(name != "NOP" for name in INSTRUCTION.findall(listing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--out", type=Path, default=Path("results/instructions.json"))
    options = parser.parse_args()
    table = Table("kernel", "DropReLU", "RReLU", title=f"Instructions an element, Triton {triton.__version__}")
    counts: dict[str, dict[str, float]] = {}
    for name, (kernel, dtype, constants) in KERNELS.items():
        for activation, drop in (("DropReLU", True), ("RReLU", False)):
            code = compiled(kernel, dtype, BLOCK | constants | {"DROP": drop}, options.capability)
            counts.setdefault(name, {})[activation] = round(instructions(code) / ELEMENTS, 2)
        table.add_row(name, *(f"{value:.1f}" for value in counts[name].values()))
    Console().print(table)
    content = {"capability": options.capability, "triton": triton.__version__, "instructions_an_element": counts}
    write_json(options.out, {**content, "environment": facts()})
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()

"""The facts that stand beside every result: versions, hardware, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rbue import random_stream
from rbue._version import __version__
from rbue.kernels import native
from rbue.kernels.triton_support import triton_kernels


@cache
def facts() -> dict[str, Any]:
    """What this machine and this installation are."""
    return {
        "rbue": __version__,
        "stream_version": random_stream.VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "torchmetrics": _version("torchmetrics"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "kernels": _kernels(),
    }


def default_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _kernels() -> str:
    """What computes the random activations in eager mode."""
    if triton_kernels() is not None:
        return "triton"
    return "compiled for this cpu" if native.library() is not None else "torch operations"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in listing.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """The commit of the checkout this package runs from, with a ``+`` if files differ from it; None if installed.

    ``$RBUE_COMMIT`` comes first, for a copy that does not know where it is from.
    """
    if os.environ.get("RBUE_COMMIT"):
        return os.environ["RBUE_COMMIT"]
    here = Path(__file__).resolve().parents[1]  # the package

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if (Path(git("rev-parse", "--show-toplevel")) / "src" / "rbue").resolve() != here:
            return None  # installed inside some other repository
        return git("describe", "--always", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None

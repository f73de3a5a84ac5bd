"""What every benchmark shares: interleaved timing, the facts of the machine, and JSON written in one piece."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import rbue
from rbue import random_stream


def medians(variants: dict[str, Callable[[], Any]], trials: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each variant. The variants take turns, so that a busy machine hurts them alike."""
    for run in variants.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(trials):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def facts() -> dict[str, Any]:
    """Hardware, versions and the date, to stand beside every number."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rbue": rbue.__version__,
        "stream_version": random_stream.VERSION,
        "commit": _commit(),
        "date": date.today().isoformat(),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write beside the target and move into place, so that no half-written file is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def _cpu_name() -> str:
    try:
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in listing.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    try:
        run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()

"""What a compiler is doing with the running code."""

from __future__ import annotations

import torch


def is_exporting() -> bool:
    """Whether the code is being exported.

    Before torch 2.13 ``torch.compiler.is_exporting()`` also says so in code that is only compiled; the flag behind it
    does not.
    """
    return torch.compiler._is_exporting_flag

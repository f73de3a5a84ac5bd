"""Runs under distribution shift: how right, and how sure, a trained network is on damaged test images (paper §4.2).

:func:`shift_run` measures one run on the 19 corruptions at five severities, :func:`shift_runs` several on the same
damaged images. What was measured lies in the run folders; asking again continues with what is missing.
"""

from rbue.lab.shift.measuring import shift_run, shift_runs
from rbue.lab.shift.rows import Cell, Row, Setting, ShiftStore, Summary, by_severity, clean_result, summarise

__all__ = [
    "Cell", "Row", "Setting", "ShiftStore", "Summary", "by_severity", "clean_result", "shift_run", "shift_runs",
    "summarise",
]  # fmt: skip

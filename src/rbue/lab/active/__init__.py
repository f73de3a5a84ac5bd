"""Active learning: which images to label next, measured from the first labels on.

:func:`run_active` trains, measures and acquires in turn (``rbue active``); :mod:`~rbue.lab.active.curves` compares what
came of it, and :mod:`~rbue.lab.active.page` shows it (``rbue active-report``).
"""

from rbue.lab.active.loop import ActiveConfig, first_labelled, run_active
from rbue.lab.active.picking import ACQUISITIONS

__all__ = ["ACQUISITIONS", "ActiveConfig", "first_labelled", "run_active"]

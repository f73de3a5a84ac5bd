"""Every figure in one style: a function takes plain data and returns a matplotlib ``Figure``.

The functions never touch pyplot, so they work in a notebook, in a thread and on a machine without a display.
:func:`svg` gives a figure as a file of its own, :func:`inline_svg` as a part of an HTML page that follows its colours.
"""

from rbue.lab.report.figures.activations import activation_curves
from rbue.lab.report.figures.against_samples import lines_against_samples
from rbue.lab.report.figures.bars import measure_bars
from rbue.lab.report.figures.certain_images import certain_images
from rbue.lab.report.figures.entropy import entropy_histograms
from rbue.lab.report.figures.framework import framework
from rbue.lab.report.figures.heat_maps import heat_maps
from rbue.lab.report.figures.image_row import image_row, image_rows
from rbue.lab.report.figures.network import network_drawing
from rbue.lab.report.figures.plane import accuracy_ece_plane
from rbue.lab.report.figures.reliability import reliability_diagram
from rbue.lab.report.figures.risk_coverage import risk_coverage_curves
from rbue.lab.report.figures.severity import severity_boxes, severity_medians
from rbue.lab.report.figures.style import Look, looks
from rbue.lab.report.figures.svg import inline_svg, svg
from rbue.lab.report.figures.variance import variance_against_q

__all__ = [
    "Look",
    "accuracy_ece_plane",
    "activation_curves",
    "certain_images",
    "entropy_histograms",
    "framework",
    "heat_maps",
    "image_row",
    "image_rows",
    "inline_svg",
    "lines_against_samples",
    "looks",
    "measure_bars",
    "network_drawing",
    "reliability_diagram",
    "risk_coverage_curves",
    "severity_boxes",
    "severity_medians",
    "svg",
    "variance_against_q",
]

"""ReLU call sites: find them in any network, make them random, put them back."""

from rbue.call_sites.controls import count_call, drawing, mode, seed, set_temperature, uncounted
from rbue.call_sites.conversion import Conversion, NotFoldable, conversion_of, convert, install, revert
from rbue.call_sites.draws import Draw, running
from rbue.call_sites.summary import ConversionSummary
from rbue.call_sites.table import Placement, Site, SiteTable
from rbue.call_sites.tracing import innermost, sites
from rbue.call_sites.untouched import evaluating, unchanged

__all__ = [
    "Conversion", "ConversionSummary", "Draw", "NotFoldable", "Placement", "Site", "SiteTable", "conversion_of",
    "convert", "count_call", "drawing", "evaluating", "innermost", "install", "mode", "revert", "running", "seed",
    "set_temperature", "sites", "unchanged", "uncounted",
]  # fmt: skip

"""One self-contained HTML page, put together from sections of blocks.

>>> from rbue.lab.report.page import Page, Section, Text
>>> page = Page("Title", [Section("First", [Text("Some words, some `code`.")])])
>>> "<code>code</code>" in page.html()
True

A page needs no network: style, script, figures and images are in the file. The same page as Markdown or LaTeX holds its
words and tables.
"""

from rbue.lab.report.page.blocks import Block, Bullets, Fold, Heading, Notice, TableBlock, Text
from rbue.lab.report.page.cards import Bar, Card, Cards
from rbue.lab.report.page.pictures import FigureBlock, FigureGrid
from rbue.lab.report.page.provenance import Source, provenance_table, source_from_run
from rbue.lab.report.page.whole import Page, Section

__all__ = [
    "Bar",
    "Block",
    "Bullets",
    "Card",
    "Cards",
    "FigureBlock",
    "FigureGrid",
    "Fold",
    "Heading",
    "Notice",
    "Page",
    "Section",
    "Source",
    "TableBlock",
    "Text",
    "provenance_table",
    "source_from_run",
]

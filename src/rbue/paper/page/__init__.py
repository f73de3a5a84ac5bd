"""The paper's tables and figures, measured, as one page that needs no network, and their tables for LaTeX.

:func:`paper_page` puts the page together; :func:`page_files` is a renderer for
:func:`rbue.paper.reporting.write_report`. Which drawings a section has is decided by the experiments, see
:class:`rbue.paper.definitions.Drawing`.
"""

from rbue.paper.page.whole import HTML, LATEX, page_files, paper_page

__all__ = ["HTML", "LATEX", "page_files", "paper_page"]

"""The paper's tables and figures, measured, as one page that needs no network, and their tables for LaTeX.

:func:`paper_page` puts the page together; :func:`page_files` is a renderer for
:func:`rbue.lab.paper.reporting.write_report`. Which drawings a section has is decided by the experiments, see
:class:`rbue.lab.paper.definitions.Drawing`.
"""

from rbue.lab.paper.page.whole import HTML, LATEX, page_files, paper_page

__all__ = ["HTML", "LATEX", "page_files", "paper_page"]

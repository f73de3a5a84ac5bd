"""The site: Sphinx reads the Markdown of this folder and the docstrings. ``make docs`` builds it, with no network.

A new page is a file here and one line in the ``toctree`` of the page above it; a page in none fails the build.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))  # executed_pages

from rbue import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "rbue"
author = "The rbue developers"
copyright = "the rbue developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "executed_pages"]
myst_heading_anchors = 4
highlight_language = "text"  # blocks without a language are commands
nitpicky = True
# Roles in docstrings must lead somewhere; types and modules may be private or of other projects.
nitpick_ignore_regex = [("py:(class|data|mod|obj)", ".*"), ("py:.*", r"(?!rbue\.).*")]
exclude_patterns = ["_static"]

autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "groupwise"
autoclass_content = "class"
python_maximum_signature_line_length = 90
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "rbue"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {page: [] for page in ("index", "quickstart", "contributing", "search")}
html_domain_indices = html_use_index = False
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "rbue"},
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "back_to_top_button": False,
}


def setup(app: Sphinx) -> None:
    """Docstrings of attributes are sentences; napoleon would take what stands before a colon for a type."""

    def begin_with_blank_line(
        app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
    ) -> None:
        if what == "attribute":
            lines.insert(0, "")

    app.connect("autodoc-process-docstring", begin_with_blank_line, priority=400)

"""Settings of the documentation site, which `make docs` builds with Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import attngeo  # noqa: E402

project = "attngeo"
author = "the attngeo developers"
copyright = "the attngeo developers, Apache-2.0"
version = release = attngeo.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.site.extension"]
exclude_patterns = ["_build", "releasing.md"]  # a checklist of the maintainers, which links to files outside docs/
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
root_doc = "index"

# Markdown: headings get anchors as on GitHub.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "attrs_block"]

# Python: signatures as written, members in the order of the source.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
nitpicky = False

# Console blocks are not Python sessions; a lexer that stumbles over an output is no error of the page.
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]

smartquotes = False  # two hyphens before an option stay two hyphens

html_theme = "furo"
html_title = f"attngeo {release}"
html_static_path = ["_static"]
html_css_files = ["attngeo.css"]
html_copy_source = False
html_show_sourcelink = False
# The encoder and the decoder have the same two colours in every figure; the site takes the encoder's.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1b5e8c", "color-brand-content": "#1b5e8c"},
    "dark_css_variables": {"color-brand-primary": "#7fb8de", "color-brand-content": "#7fb8de"},
}

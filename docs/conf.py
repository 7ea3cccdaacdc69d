"""Settings of Sphinx for the site; tools/docs writes its pages to build/pages and builds from there.

Pages are the Markdown (MyST) of docs/; the reference is RST that autodoc fills. A warning is an error.
"""

import ggmlq

project = "ggmlq"
version = release = ggmlq.__version__
copyright = "the authors of ggmlq, MIT licence"
root_doc = "index"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
copybutton_prompt_text = r">>> |\.\.\. |\$ "  # what a button leaves out, with all lines that have no prompt
copybutton_prompt_is_regexp = True
myst_heading_anchors = 4  # links to headings work in the tree too
highlight_language = "text"
smartquotes = False  # options begin with two hyphens
myst_enable_extensions = ["deflist"]
autosummary_generate = False
suppress_warnings = ["ref.python"]  # docstrings use short names of classes, and two packages have a Code

autodoc_mock_imports = ["torch"]  # in ggmlq.torch; it is not installed for this
autodoc_typehints = "none"  # docstrings explain arguments in words
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}  # tools/site_pages.py names the members
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"ggmlq {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def setup(app):
    """Connect the change of docstrings that runs before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", set_examples_apart, priority=400)


def set_examples_apart(app, what, name, thing, options, lines):
    """Give the examples after the last section a heading; without one they would become a part of it."""
    first = next((at for at, line in enumerate(lines) if line.startswith(">>>")), None)
    if first is not None and any(line.startswith("---") for line in lines[:first]):
        lines[first:first] = ["Examples", "--------"]

"""Configuration of the documentation site, which `make docs` builds with Sphinx."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))  # from_source.py

import nbloader

project = "nbloader"
author = "the nbloader developers"
copyright = "the nbloader developers"  # noqa: A001 - Sphinx's name
release = version = nbloader.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "from_source",
]
exclude_patterns = ["_build", "notebooks/.ipynb_checkpoints", "notebooks/course/slides.ipynb"]
smartquotes = False  # quotation marks are pasted with code
default_role = "code"  # docstrings mark code with single backticks

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make test` runs the notebooks; the site shows the outputs that are stored in them

autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"  # signatures with all types are too long to read; the text gives types where they matter
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "nbloader"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "nbloader"},
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["license"],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["navigation"]}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


NOTEBOOK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(notebooks/[\w/]+)\.ipynb\)")
DRAWING = re.compile(r"^!\[[^\]]*\]\((_static/\w+\.svg)\)$", re.MULTILINE)
PAGE = re.compile(r"^(?:# \w+\n\n)?\[[^\]]+\]\(((?:\.\./)+[A-Z]+\.md)\)$", re.MULTILINE)
PAGES = re.compile(r"^<!-- pages:\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
LINKED_PAGES = re.compile(r"^(.*)^<!-- pages: those linked above -->$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]+)\.md\)")
HOME = ":end-before: <!-- the home page of the site ends here -->"


def include(found: re.Match[str]) -> str:
    """Return the directive that includes a page: of the README, the part that is the home page of the site."""
    options = [":relative-docs: docs", ":relative-images:", *([HOME] if "README" in found[1] else [])]
    return "\n".join([f"```{{include}} {found[1]}", *options, "```"])


def list_linked(found: re.Match[str]) -> str:
    """Return the text, and the list of pages to which it links, each once."""
    return "\n".join([f"{found[1]}<!-- pages:", *dict.fromkeys(LINK.findall(found[1])), "-->"])


def use_sphinx(app: Sphinx, name: str, source: list[str]) -> None:
    """Adapt a page, which also reads well in the repository.

    Notebooks are pages, and drawings have links in them. A line that is only a link to a page outside docs/ stands for
    that page, and a comment lists the pages below this one.
    """
    if Path(app.env.doc2path(name)).suffix == ".md":
        source[0] = NOTEBOOK.sub(r"{doc}`\1 </\2>`", source[0])
        source[0] = PAGE.sub(include, source[0])
        source[0] = LINKED_PAGES.sub(list_linked, source[0])
        source[0] = PAGES.sub("```{toctree}\n:hidden:\n:glob:\n\n\\1```", source[0])
        source[0] = DRAWING.sub("```{raw} html\n:file: \\1\n```", source[0])


def write_players(app: Sphinx, error: Exception | None) -> None:
    """Write the pages with the recorded runs, which docs/recordings/record.py has made."""
    if error is not None or app.builder.format != "html":
        return
    recordings, pages = Path(app.confdir) / "recordings", Path(app.outdir) / "_static"
    runs = {"Do nothing": recordings / "do-nothing.nbl", "Restart it": recordings / "restart-worker.nbl"}
    player = nbloader.play(runs, fork="a worker hangs")
    player.save(pages / "recorded-run.html", title="A worker hangs", plots=False)
    nbloader.play(recordings / "late-batch.nbl").save(pages / "late-batch.html", title="A batch is late", plots=False)


def setup(app: Sphinx) -> None:
    """Adapt the pages when they are read, and write the players once the site is built."""
    app.connect("source-read", use_sphinx)
    app.connect("build-finished", write_players)

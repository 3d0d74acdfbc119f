"""The dashboard as static HTML and SVG that needs no kernel, no script and no network.

It has the structure and the styles of the live view, so that one can take the place of the other. It stays below 100 kB
whatever the loader does: plots are thinned, tables are cut, and every text from outside has a bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from html import escape

from nbloader.dashboard import assets


@cache
def _styles() -> str:
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", assets.styles(), flags=re.DOTALL)).strip()


def html(name: str, panels: Iterable[str]) -> str:
    """Put the static forms of the panels on one page.

    Args:
        name: Identity of the dashboard; its live views hide the static one.
        panels: HTML of each panel, with all texts escaped.

    Returns:
        A fragment of HTML with its own styles.
    """
    return (
        f'<div class="nbl nbl-static" data-nbl="{escape(name)}" role="group" aria-label="nbloader, last state">'
        f"<style>{_styles()}</style>{''.join(panels)}</div>"
    )

"""Static form of the dashboard: HTML and SVG that need no kernel, no script and no network.

It has the structure and the styles of the live view, so that either can replace the other. It stays below 100 kB
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


def html(name: str, panels: Iterable[str], notice: str = "") -> str:
    """Join the static forms of the panels to one fragment of HTML.

    Args:
        name: Identity of the dashboard. Its live views hide the static form.
        panels: HTML of each panel, with all texts escaped.
        notice: HTML to show above the panels.

    Returns:
        A fragment of HTML with its own styles.
    """
    return (
        f'<div class="nbl nbl-static" data-nbl="{escape(name)}" role="group" aria-label="nbloader, last state">'
        f"<style>{_styles()}</style>{notice}{''.join(panels)}</div>"
    )

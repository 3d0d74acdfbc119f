"""HTML page that plays recorded runs: one file with all content, compressed."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
POLICY = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy of the page: whatever a recording contains, the browser loads nothing from elsewhere."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{styles}
</style>
</head>
<body>
<h1>{title}</h1>
<div id="player"><noscript>To play the run, this page needs JavaScript.</noscript></div>
{assets}
<script type="module">
{script}
</script>
</body>
</html>
"""


def page(sources: Mapping[str, Callable[[], bytes]], title: str) -> str:
    """Build the page.

    Args:
        sources: Content that `player.js` and the dashboard's code request, by name.
        title: Title of the page.
    """
    assets = "\n".join(
        f'<script type="text/plain" data-asset="{escape(name)}">{_packed(read())}</script>'
        for name, read in sources.items()
    )
    return _PAGE.format(
        policy=escape(POLICY),
        title=escape(title),
        styles=(HERE / "page.css").read_text("utf-8").strip(),
        assets=assets,
        script=(HERE / "page.js").read_text("utf-8").strip(),
    )


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()

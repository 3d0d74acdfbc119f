"""Checks the built documentation without a network: `python docs/check_site.py build/site`.

Every link within the site must lead to a page and, if it names one, to an element of that page. No page may load
anything from another host. Every page must have the links to other pages at its left. Every public name must be in
the reference.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbloader

LINKS = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}
NO_PAGES = {"genindex.html", "search.html", "py-modindex.html"}
"""Made by Sphinx; scripts fill them in."""


class Page(HTMLParser):
    """The links of a page, and the ids that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        """Element and target."""
        self.ids: set[str] = set()
        self.has_navigation = False
        self._in_navigation = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links and ids."""
        values = dict(attrs)
        if tag == "nav":
            self._in_navigation = "bd-docs-nav" in (values.get("class") or "").split()
        elif tag == "a" and self._in_navigation:
            self.has_navigation = True
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        target = values.get(LINKS.get(tag, ""))
        if target:
            self.links.append((tag, target))

    def handle_endtag(self, tag: str) -> None:
        """Leave the navigation."""
        if tag == "nav":
            self._in_navigation = False


def problems(site: Path, names: list[str]) -> list[str]:
    """What is wrong with a site, one line each.

    Args:
        site: The folder with the built pages.
        names: Names that the reference must contain.
    """
    files = (path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts)
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in files}
    found = [
        f"{path.relative_to(site)}: {problem}"
        for path, page in pages.items()
        if path.name not in NO_PAGES
        for tag, target in page.links
        if (problem := _problem(path, tag, target, pages))
    ]
    found += [f"{path.relative_to(site)}: no navigation" for path, page in pages.items() if not page.has_navigation]
    ids = set().union(*(page.ids for page in pages.values()))
    return found + [f"{name} is not in the reference" for name in names if name not in ids]


def _problem(path: Path, tag: str, target: str, pages: dict[Path, Page]) -> str:
    url = urlsplit(target)
    if url.scheme or url.netloc:
        return "" if tag == "a" or url.scheme == "data" else f"loads {target}"
    to = (path.parent / unquote(url.path)).resolve() if url.path else path
    if not to.exists():
        return f"links to {target}, which does not exist"
    anchor = unquote(url.fragment)
    if anchor and to in pages and anchor not in pages[to].ids:
        return f"links to {target}, but there is no such element"
    return ""


def main() -> None:
    """Check the site that the command line names."""
    site = Path(sys.argv[1]).resolve()
    found = problems(site, [f"nbloader.{name}" for name in nbloader.__all__])
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

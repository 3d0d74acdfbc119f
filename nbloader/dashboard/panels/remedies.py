"""What to write instead of the slowest lines: tried after a click, in a worker process of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, factor, percent
from nbloader.dashboard.panels.base import Frame, Panel, Reply, section
from nbloader.remedies.results import RemedyResult, alternatives, choice_of, named_pictures

if TYPE_CHECKING:
    from nbloader.metrics.control import LoaderControl

log = logging.getLogger(__name__)

COLUMNS = {
    "Line": "A slow line, and its share of the workers' time",
    "Now": "Time of a sample with your code; CPU time if it is about threads",
    "Then": "The same with the other code",
    "Gain": "How many times as fast a sample is produced",
    "Samples": "Whether the samples are the same",
    "Loop": "How many times as fast the loop would be, as predicted",
}
"""Headings and their tooltips."""
ROWS = 8
"""Maximum number of remedies that are shown."""
HINT = (
    "Looks for what you could write instead of the slowest lines, and tries it on 30 of your samples in a process of "
    "its own. Batches, and your code, stay as they are."
)
NO_LINES = "The slowest lines are not known yet: run the loop for a few seconds, or sample the lines above."
_TEXT, _SOURCE, _PLACE, _CODE = 700, 100, 80, 8000


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for remedies, as far as it is."""

    number: int = 0
    """Number of the search, from 1; 0 if there was none."""
    running: bool = False
    text: str = ""
    """What it does, or what it has found if that is nothing."""
    done: float = 0.0
    """The part of it that is done, 0 to 1."""
    found: tuple[RemedyResult, ...] = ()


class Remedies(Panel):
    """A button that starts the search, its progress, and what was found."""

    name = "remedies"
    title = "What to write instead"

    def __init__(self) -> None:
        self._search = _Search()
        self._lock = threading.Lock()
        """Held while a search is started, so that two clicks start one."""

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the progress and the table. Pictures are sent when a view asks for them."""
        search = self._search
        return {
            "ready": bool(frame.lines.lines),
            "running": search.running,
            "number": search.number,
            "done": round(search.done, 3),
            "text": search.text or ("" if search.found else HINT if frame.lines.lines else NO_LINES),
            "first": _first(search),
            "columns": [*COLUMNS.items()] if search.found else [],
            "rows": _rows(search.found[:ROWS]),
        }

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:
        """Search, on the present thread, or return the pictures of a remedy."""
        if request.get("name") == "search":
            self._try(loader)
        elif request.get("name") == "pictures":
            return self._pictures(int(request["number"]), int(request["row"]))
        return None

    def html(self, payload: dict[str, Any]) -> str:
        """Return the table without pictures."""
        if not payload["rows"]:
            return ""
        head = "".join(f'<th scope="col" title="{escape(tip)}">{name}</th>' for name, tip in COLUMNS.items())
        rows = "".join(map(_row_html, payload["rows"]))
        table = f'<div class="nbl-scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        return section(self.title, table)

    def _try(self, loader: LoaderControl) -> None:
        with self._lock:
            if self._search.running:
                return
            number = self._search.number + 1
            self._search = _Search(number, running=True, text="reading a sample…")
        self.changed()

        def report(name: str, position: int, count: int) -> None:
            self._search = _Search(number, True, f"trying {position + 1} of {count}: {name}…", position / count)
            self.changed()

        try:
            found = loader.remedies(report=report)
            text = clean(found.advice if found else found, _TEXT)
            self._search = _Search(number, text=text, found=tuple(found))
        except Exception as error:  # whatever the dataset raises, also while a worker reads it
            log.debug("the search for remedies failed", exc_info=True)
            self._search = _Search(number, text=clean(f"{type(error).__name__}: {error}", _TEXT))
        self.changed()

    def _pictures(self, number: int, row: int) -> Reply | None:
        search = self._search
        if search.number != number or not 0 <= row < len(search.found):
            return None
        pictures = named_pictures(search.found[row])
        return Reply(
            {"number": number, "row": row, "names": [name for name, _png in pictures]}, [png for _name, png in pictures]
        )


def _first(search: _Search) -> str:
    """The best remedy in a few words, for the heading."""
    best = next((found for found in search.found if found.samples), None)
    if best is None:
        return ""
    gain = factor(best.gain) if best.cells()[2] else ""
    return f"{gain} {best.name} · {clean(best.line.place, _PLACE)}".strip()


def _rows(found: Sequence[RemedyResult]) -> list[dict[str, Any]]:
    """Return the rows. `found` has alternatives next to each other: the first one says that they are a choice."""
    return [
        _row(one, choice_of(group) if one is group[0] else "") for group in alternatives(found) for one in group
    ]  # fmt: skip


def _row(found: RemedyResult, choice: str) -> dict[str, Any]:
    line = found.line
    return {
        "choice": choice,
        "share": percent(line.share),
        "source": clean(line.source or line.function, _SOURCE),
        "place": clean(line.place, _PLACE),
        "why": clean(found.proposal.why, _TEXT),
        "instead": clean(found.proposal.instead, _TEXT),
        "cells": [clean(cell, 200) for cell in found.cells()],
        "said": clean(found.measurement(), _TEXT),
        "code": found.code[:_CODE],
        "pictures": len(named_pictures(found)),
    }


def _row_html(row: dict[str, Any]) -> str:
    code = f"<details><summary>Code</summary><pre>{escape(row['code'])}</pre></details>" if row["code"] else ""
    why = escape(f"{row['why']} {row['instead']}")
    measured = "".join(f"<td>{escape(cell)}</td>" for cell in row["cells"])
    line = f"{escape(row['share'])} <code>{escape(row['source'])}</code><br>{escape(row['place'])}"
    choice = f'<tr class="nbl-detail"><td colspan="{len(COLUMNS)}">{escape(row["choice"])}</td></tr>'
    return (choice if row["choice"] else "") + (
        f'<tr><th scope="row">{line}</th>{measured or _untried(row)}</tr>'
        f'<tr class="nbl-detail"><td colspan="{len(COLUMNS)}">{why}{code}</td></tr>'
    )


def _untried(row: dict[str, Any]) -> str:
    return f'<td colspan="5" class="nbl-prose">{escape(row["said"])}</td>'

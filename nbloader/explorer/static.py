"""Renders what was on screen as static HTML of less than 300 kB, which needs no kernel, script or network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from nbloader._util.format import duration, plural
from nbloader.explorer import kinds
from nbloader.explorer.reader import ReadSample

MAX_PICTURES = 200_000
"""Maximum total length of the covers, in characters."""
MAX_CARDS = 60


def html(
    name: str, styles: str, title: str, total: int, cards: Iterable[tuple[int, ReadSample]], notice: str = ""
) -> str:
    """Render a page of cards.

    Args:
        name: Identifies the explorer, so that its live views can hide this static copy.
        styles: The style sheet.
        title: Title of the dataset.
        total: Number of samples.
        cards: Index and content of each sample that was on screen.
        notice: HTML to show above the samples.

    Returns:
        An HTML fragment with its own styles.
    """
    room = MAX_PICTURES
    boxes = []
    for index, sample in list(cards)[:MAX_CARDS]:
        content = json.loads(sample.content)
        cover = _cover(content, sample, room)
        room -= len(cover)
        failed = " nbx-failed" if "error" in content else ""
        boxes.append(
            f'<div class="nbx-card{failed}"><div class="nbx-cover">{cover}</div><div class="nbx-foot">'
            f'<span class="nbx-index">{index:,}</span><span class="nbx-cost">{duration(sample.seconds)}</span>'
            f'<span class="nbx-caption">{_caption(content)}</span></div></div>'
        )
    small = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", styles, flags=re.DOTALL)).strip()
    shown = f", {len(boxes)} of them below" if boxes else ""
    return (
        f'<div class="nbl nbx nbl-static" data-nbl="{escape(name)}" role="group" aria-label="nbloader, last state">'
        f'<style>{small}</style>{notice}<div class="nbx-head"><span class="nbx-title">{escape(title)}: '
        f'{plural(total, "sample")}{shown}</span></div><div class="nbx-page">{"".join(boxes)}</div></div>'
    )


def _cover(content: dict[str, Any], sample: ReadSample, room: int) -> str:
    if "error" in content:
        return f'<div class="nbx-error">{escape(content["error"])}</div>'
    fields, at = content["fields"], content["cover"]
    field = fields[at] if 0 <= at < len(fields) else None
    if field is None:
        return ""
    drawn = kinds.named(field["kind"]).html(field, sample.buffers)
    return drawn if len(drawn) < room else kinds.words(field)


def _caption(content: dict[str, Any]) -> str:
    if "error" in content:
        return "failed"
    return escape(" \N{MIDDLE DOT} ".join(content["caption"]))

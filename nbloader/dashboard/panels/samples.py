"""The slowest samples and the failed samples."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration
from nbloader.dashboard.panels.base import Frame, Panel, section

if TYPE_CHECKING:
    from nbloader.events.records import SampleFailed
    from nbloader.metrics.snapshot import Snapshot

FAILED = 20
"""Maximum number of failed samples in the list; each sample is listed once per error."""
STATIC = 10
"""Maximum number of samples per list in the static form."""
TITLES = {"slowest": "Slowest of the last three epochs", "failed": "Failed"}
_INDEX_LIMIT, _ERROR_LIMIT = 200, 160


class Samples(Panel):
    """Two lists; a click opens a sample in the explorer."""

    name = "samples"
    title = "Samples"
    unfolded = False

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return both lists, each with the most important samples first."""
        s = frame.snapshot
        return {"lists": _lists(s), "failures": s.skipped + s.replaced}

    def html(self, payload: dict[str, Any]) -> str:
        """Return both lists without buttons."""
        columns = "".join(
            f'<div><div class="nbl-box-title">{escape(part["title"])}</div><ul class="nbl-samples">'
            f"{''.join(map(_item_html, part['samples'][:STATIC]))}</ul></div>"
            for part in payload["lists"]
            if part["samples"]
        )
        return section(self.title, columns and f'<div class="nbl-columns">{columns}</div>', unfolded=False)


def _lists(s: Snapshot) -> list[dict[str, Any]]:
    slowest = [
        _sample(x.index, duration(x.seconds), f"batch {x.batch} of epoch {x.epoch}", x.worker) for x in s.slowest
    ]
    again: dict[tuple[str, str], list[SampleFailed]] = {}  # by index and error, because failures recur in each epoch
    for event in reversed(s.failed_samples):
        again.setdefault((clean(event.sample, _INDEX_LIMIT), clean(event.error, _ERROR_LIMIT)), []).append(event)
    failed = [
        _sample(events[0].sample, error, _where_failed(events), events[0].worker)
        for (_index, error), events in list(again.items())[:FAILED]
    ]
    common = f"; slow ones have in common: {clean(s.slow_in_common, _ERROR_LIMIT)}" if s.slow_in_common else ""
    return [
        {"name": "slowest", "title": f"{TITLES['slowest']}{common}", "samples": slowest},
        {"name": "failed", "title": TITLES["failed"], "samples": failed},
    ]


def _where_failed(events: list[SampleFailed]) -> str:
    """Describe where a sample failed last, and how often.

    Args:
        events: Its failures, newest first.
    """
    last = f"batch {events[0].index}, {events[0].done}"
    return last if len(events) == 1 else f"{len(events)} times, last in {last}"


def _sample(index: object, what: str, where: str, worker: int) -> dict[str, Any]:
    who = "this process" if worker < 0 else f"worker {worker}"
    number = index if type(index) is int else None  # the explorer cannot open samples by other keys, such as strings
    return {"index": clean(index, _INDEX_LIMIT), "number": number, "what": what, "where": f"{where}, {who}"}


def _item_html(sample: dict[str, Any]) -> str:
    return (
        f"<li><i>{escape(sample['index'])}</i><span>{escape(sample['what'])}</span>"
        f'<span class="nbl-note">{escape(sample["where"])}</span></li>'
    )

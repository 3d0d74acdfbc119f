"""The top of the dashboard: the verdict, the progress of the epoch, four figures, and the sample cache."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, number, percent
from nbloader.dashboard.panels.base import Frame, Panel
from nbloader.metrics.ages import age_in
from nbloader.metrics.snapshot import ENDED
from nbloader.report.render import cache, headspace, so_far, span, throughput, time_left, wait_share

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import Snapshot

SHORT_WAIT_S = 0.25
"""Shorter waits of the loop, in seconds, are not shown: they change too fast to be read."""
NONE = "\N{EN DASH}"


class Summary(Panel):
    """Verdict, progress and figures."""

    name = "summary"

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the texts. Screen readers speak the sentence when its `topic` changes, not with each number."""
        s = frame.snapshot
        stuck = ",".join(str(w.worker) for w in s.workers if w.stuck)
        return {
            "state": s.state,
            "verdict": clean(_sentence(s), 600),
            **({"failure": clean(s.failure, 600)} if s.failure else {}),
            "outlook": clean(s.outlook.text, 300),
            "suggestions": [suggestion._asdict() for suggestion in s.outlook.suggestions],
            "trial": s.tuning._asdict() if s.tuning is not None and s.tuning.chosen else None,
            "topic": f"{s.state} {s.epoch} {bool(s.batches_done)} {s.cause} {stuck}",
            "progress": _progress(s),
            "tiles": _tiles(s),
            "cache": cache(s),
        }

    def html(self, payload: dict[str, Any]) -> str:
        """Return the same elements as the live view."""
        progress = payload["progress"]
        return (
            f'<div class="nbl-head">{verdict_html(payload["verdict"], payload.get("failure", ""))}'
            f"{_outlook_html(payload)}</div>"
            f'<div class="nbl-progress"><span class="nbl-chip">snapshot · {escape(payload["state"])}</span>'
            f'<div class="nbl-bar"><span style="width:{100 * (progress["share"] or 0):.1f}%">'
            f"</span></div><span>{escape(progress['text'])}</span></div>"
            f'<div class="nbl-tiles">{"".join(map(_tile_html, payload["tiles"]))}</div>'
            f"{_cache_html(payload['cache'])}"
        )


def _sentence(s: Snapshot) -> str:
    """The verdict without the statements that have buttons."""
    text = s.verdict
    for suggestion in s.outlook.suggestions:
        text = text.replace(f": {suggestion.call}", "")
    return text


def verdict_html(verdict: str, failure: str) -> str:
    """Return the verdict as HTML.

    Args:
        verdict: The sentences.
        failure: The first of them if it says which error ended the epoch, else "".
    """
    said = verdict[: len(failure)] if verdict.startswith(failure) else ""
    return f'<p class="nbl-verdict"><span class="nbl-failure">{escape(said)}</span>{escape(verdict[len(said) :])}</p>'


def _outlook_html(payload: dict[str, Any]) -> str:
    text = payload["outlook"]
    return f'<p class="nbl-outlook">Predicted: {escape(text)}</p>' if text else ""


def _cache_html(text: str) -> str:
    return f'<p class="nbl-note">Cache: {escape(text)}</p>' if text else ""


def _progress(s: Snapshot) -> dict[str, Any]:
    share = None
    if s.epoch < 0:
        text = "no epoch yet"
    elif s.batches_total:
        share = round(s.batches_done / s.batches_total, 4)
        text = f"epoch {s.epoch} · batch {s.batches_done:,} of {s.batches_total:,} · {percent(share)}"
    else:
        text = f"epoch {s.epoch} · batch {s.batches_done:,}"
    if s.iterators > 1:
        text += f" · newest of {s.iterators} iterators"
    return {"share": share, "text": text}


TIPS = {
    "Throughput": "Batches per second. Headspace is the rate if loading took no time",
    "Time left": "Until the end of the epoch, at the current throughput",
    "Epoch duration": "From the start of the epoch to its end, pauses included",
    "Loop waiting": "Share of the time in which your loop waited for a batch",
    "In flight": "Batches that workers have been given and that have not arrived. Reordering: they have arrived, and "
    "wait for an earlier one. The window is how many are requested ahead. While a batch is late, more are requested, "
    "so that workers do not wait: those are beyond the window",
    "Time per batch": "Mean time to fetch and collate one of the last 200 batches; your loop waits meanwhile",
}
"""Tooltips of the tiles."""


def _ended(s: Snapshot) -> bool:
    return s.state in ENDED


def _tiles(s: Snapshot) -> list[dict[str, Any]]:
    if s.epoch < 0:
        return [_tile(label, NONE) for label in ("Throughput", "Time left", "Loop waiting", "In flight")]
    return [_throughput(s), _time(s), _waiting(s), _ahead(s)]


def _throughput(s: Snapshot) -> dict[str, Any]:
    rates = throughput(s)
    if rates is None:
        return _tile("Throughput", NONE, "", "no batch yet", span=span(s))
    if s.stalled is not None:
        return _tile("Throughput", number(rates.batches), "batches/s", f"no batch for {age_in(s, s.stalled)}")
    note = f"{number(rates.samples)} samples/s"
    if rates.megabytes is not None:
        note += f" · {number(rates.megabytes)} MB/s"
    if space := headspace(s):
        note += f" · headspace {space.removesuffix(' batches/s')}"  # the unit of the figure above
    return _tile("Throughput", number(rates.batches), "batches/s", note, span=span(s))


def _time(s: Snapshot) -> dict[str, Any]:
    took = so_far(s)
    if _ended(s):
        return _tile("Epoch duration", took, "", f"{s.samples_done:,} samples")
    if s.stalled is not None:
        return _tile("Time left", "stalled", f"for {age_in(s, s.stalled)}", f"{took} so far")
    return _tile("Time left", time_left(s) or NONE, "", f"{took} so far{_first(s)}")


def _first(s: Snapshot) -> str:
    return "" if s.first_batch_in is None else f" · first batch in about {duration(s.first_batch_in)}"


def _waiting(s: Snapshot) -> dict[str, Any]:
    note = ""
    if _ended(s):
        note = f"{duration(s.wait_share_epoch * s.elapsed)} in all"
    elif s.state == "paused":
        note = "paused" if s.waiting_for is None else f"paused before batch {s.waiting_for}"
    elif s.waiting is not None and s.waiting >= SHORT_WAIT_S:
        note = f"now for batch {NONE if s.waiting_for is None else s.waiting_for}: {age_in(s, s.waiting)}"
    return _tile("Loop waiting", percent(wait_share(s)), "of its time", note, span=span(s))


def _ahead(s: Snapshot) -> dict[str, Any]:
    if not s.workers:
        took = sum(stage.mean for stage in s.stages if stage.name in ("fetch", "collate"))
        return _tile("Time per batch", duration(took / 1e3) if took else NONE, "", "mean of the last 200")
    beyond = s.in_flight + s.reordering + s.ready - s.window * max(1, s.iterators)
    window = f"window of {s.window}, and {beyond} beyond it" if beyond > 0 else f"window of {s.window}"
    waiting = [f"{count} {what}" for count, what in ((s.reordering, "reordering"), (s.ready, "ready")) if count]
    note = " · ".join((*waiting, window))
    return _tile("In flight", str(s.in_flight), "batch" if s.in_flight == 1 else "batches", note)


def _tile(label: str, value: str, unit: str = "", note: str = "", *, span: str = "") -> dict[str, Any]:
    """Describe a tile.

    Args:
        label: Its name.
        value: The figure.
        unit: Unit of the figure.
        note: Text below the figure.
        span: The time over which the figure was measured; "" if it is the present value.
    """
    name = f"{label}, {span}" if span else label
    return {"label": name, "value": value, "unit": unit, "note": note, "tip": TIPS[label]}


def _tile_html(tile: dict[str, Any]) -> str:
    return (
        f'<div class="nbl-tile" title="{escape(tile["tip"])}">'
        f'<div class="nbl-label">{escape(tile["label"])}</div><div class="nbl-value">'
        f'{escape(tile["value"])} <span class="nbl-unit">{escape(tile["unit"])}</span></div>'
        f'<div class="nbl-note">{escape(tile["note"])}</div></div>'
    )

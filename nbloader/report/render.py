"""Render a snapshot as text for a terminal and as HTML for a notebook. Pure.

Text from samples, workers and errors is untrusted: it is cut to 200 characters, made printable, and escaped.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbloader._util import palette
from nbloader._util.format import age, clean, consumable, duration, megabytes, number, percent, plural, tail, text_table
from nbloader.metrics.ages import age_in
from nbloader.metrics.snapshot import ENDED, OVERLAPPING_STAGES

if TYPE_CHECKING:
    from nbloader.metrics.snapshot import SlowSample, Snapshot, WorkerStats

WIDTH = 80
WORKERS = "Workers; batches since the loader was created"
WORKER_COLUMNS = ("worker", "pid", "state", "batch", "for", "batches", "per s", "CPU", "memory", "restarts")
STAGE_COLUMNS = ("stage, ms", "mean", "median", "95%", "99%", "max")
SAMPLE_COLUMNS = ("sample", "took", "batch", "epoch", "worker")
SLOWEST = "Slowest samples of the last three epochs"
BAR = 24
STAGE_MEANING = {
    "queue": "assigned to a worker, not started",
    "fetch": "the worker fetches the samples",
    "collate": "the worker collates them",
    "transport": "from the worker to the loop's process",
    "transfer": "from another machine",
    "reorder": "waiting for an earlier batch",
    "ready": "waiting for the loop",
    "pin": "concurrently: into pinned memory",
    "upload": "concurrently: to the device",
    "step": "the loop works on it",
}


# --- text


def one_line(s: Snapshot) -> str:
    """Format a snapshot for its `repr`: state, progress, rate and queue depths in one line."""
    return (
        f"<Snapshot {s.state}: epoch {s.epoch}, {_done(s)}, {', '.join(_rates(s)[:1])}, "
        f"loop waits {percent(wait_share(s))}, in flight {s.in_flight}, reorder {s.reordering}, ready {s.ready}>"
    )


def to_text(s: Snapshot) -> str:
    """Format the whole snapshot as aligned text of about 80 columns."""
    verdicts = ["\n".join(textwrap.wrap(text, WIDTH)) for text in (s.verdict, other_verdict(s), outlook(s)) if text]
    blocks = [*verdicts, _progress_text(s)]
    if s.stages:
        rows = [[st.name, *(f"{ms:,.2f}" for ms in (st.mean, st.p50, st.p95, st.p99, st.max))] for st in s.stages]
        grid = text_table([STAGE_COLUMNS, *rows], left=(0,))
        blocks.append(f"Stages, the last 200 batches\n{grid}")
    if s.workers and not any(w.pid or w.exit_reason for w in s.workers):
        blocks.append(_no_workers(s))
    elif s.workers:
        notes = [
            line for w in s.workers for note in _notes(w) for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")
        ]
        grid = text_table([WORKER_COLUMNS, *(_worker_row(w, s) for w in s.workers)], left=(2,))
        blocks.append("\n".join([WORKERS, grid, *notes]))
    if s.slowest:
        rows = [[clean(x.index, 30), duration(x.seconds), str(x.batch), str(x.epoch), _who(x)] for x in s.slowest]
        grid = text_table([SAMPLE_COLUMNS, *rows], left=(0,))
        common = f"\nSlow ones have in common: {clean(s.slow_in_common, 100)}" if s.slow_in_common else ""
        blocks.append(f"{SLOWEST}\n{grid}{common}")
    return "\n\n".join(blocks)


def other_verdict(s: Snapshot) -> str:
    """Name what limited the loop over the other span; "" if the headline already says it, or if it is unknown.

    What to do follows from the headline alone: two spans may have different causes, and remedies that contradict.
    The headline is about the last seconds while an epoch runs, and about the whole epoch afterwards.
    """
    ended = s.state in ENDED
    head, other = ("At its end", s.now_verdict) if ended else ("The whole epoch so far", s.epoch_verdict)
    told = (s.cause, s.epoch_verdict.also if ended else s.now_verdict.also)
    if s.cause in ("idle", "starting") or other.cause in (*told, "", "unknown"):
        return ""
    return f"{head}: {other.evidence}"


def outlook(s: Snapshot) -> str:
    """Describe what changes of the settings would gain, and how to make them; "" if nothing is known."""
    parts = [f"Predicted: {s.outlook.text}."] if s.outlook.text else []
    calls = [x.call for x in s.outlook.suggestions if x.call not in s.verdict]
    if calls:
        parts.append(f"To try it: {' or '.join(calls)}.")
    return " ".join(parts)


def _done(s: Snapshot) -> str:
    if s.batches_total is None:
        return plural(s.batches_done, "batch")
    return f"{s.batches_done:,} of {plural(s.batches_total, 'batch')}"


def _share_done(s: Snapshot) -> float | None:
    return min(1.0, s.batches_done / s.batches_total) if s.batches_total else None


def _no_workers(s: Snapshot) -> str:
    idle = "stopped with the epoch" if s.batches_done else "not started"
    return f"{plural(len(s.workers), 'worker')}: {'ended' if s.state == 'closed' else idle}"


def _times(s: Snapshot) -> str:
    left = time_left(s)
    left = f", {left}" if s.stalled is not None else f", {left} left" if left else ""
    mean = f" ({number(s.epoch_rate)} batches/s, start-up included)" if s.epoch_rate else ""
    return f"{so_far(s)}{left}{mean}"


def so_far(s: Snapshot) -> str:
    """How long the epoch has lasted, or took: the same number wherever it is shown."""
    return duration(s.elapsed) if s.state in ENDED else age_in(s, s.elapsed)


def span(s: Snapshot) -> str:
    """The time over which rates and the share of waiting are shown: that of the verdict."""
    if s.state in ENDED:
        return "whole epoch"
    return f"last {duration(s.rate_seconds)}" if s.rate_seconds else "epoch so far"


class Throughput(NamedTuple):
    """Rates over the `span` of a snapshot, per second."""

    batches: float
    samples: float
    megabytes: float | None
    """None if unknown."""


def throughput(s: Snapshot) -> Throughput | None:
    """The rates to show; None before the first batch of an epoch."""
    if s.state in ENDED:
        return Throughput(s.epoch_rate, s.epoch_rate * s.samples_done / max(1, s.batches_done), None)
    if not (s.rate_seconds or s.batches_per_second) and s.stalled is None:
        return None
    return Throughput(s.batches_per_second, s.samples_per_second, s.mb_per_second)


def wait_share(s: Snapshot) -> float:
    """The share of its time for which the loop waits, over the `span` of a snapshot."""
    return s.wait_share_epoch if s.state in ENDED else s.wait_share


def headspace(s: Snapshot) -> str:
    """How many batches per second the loop would consume if loading took no time, over the `span`; "" if unknown."""
    rate = s.headspace_epoch if s.state in ENDED else s.headspace
    return "" if rate is None or s.stalled is not None else f"{consumable(rate)} batches/s"


def time_left(s: Snapshot) -> str:
    """Time until the end of the epoch, such as "3 min 20 s", "about 20.0 s" or "stalled for 9.0 s"; "" if unknown."""
    if s.stalled is not None:
        return f"stalled for {age_in(s, s.stalled)}"
    return "" if s.eta is None else f"{'about ' if s.eta_rough else ''}{duration(s.eta)}"


def _rates(s: Snapshot) -> list[str]:
    if s.stalled is not None:
        return [f"no batch for {age_in(s, s.stalled)}"]
    rates = throughput(s)
    if rates is None:
        return ["no batch yet"]
    found = [f"{number(rates.batches)} batches/s", f"{number(rates.samples)} samples/s"]
    return found if rates.megabytes is None else [*found, f"{number(rates.megabytes)} MB/s"]


def _loop(s: Snapshot) -> str:
    now = ""
    if s.waiting is not None:
        what = "" if s.waiting_for is None else f" for batch {s.waiting_for}"
        now = f", now {age_in(s, s.waiting)}{what}"
    if s.state in ENDED:
        return f"waited for {percent(s.wait_share_epoch)} of the epoch"
    if not s.rate_seconds:
        return f"waits for {percent(s.wait_share)} of the epoch so far{now}"
    return f"waits for {percent(s.wait_share)} of the {span(s)} ({percent(s.wait_share_epoch)} of the epoch){now}"


def _faults(s: Snapshot) -> str:
    found = (
        (s.errors, "failed batch"),
        (s.deaths, "worker death"),
        (s.restarts, "restart"),
        (s.supervisor_failures, "supervisor failure"),
    )
    return ", ".join(plural(count, noun) for count, noun in found if count)


def uploads(s: Snapshot) -> str:
    """Describe in one line how batches are transferred to their device; "" if they are not."""
    u = s.uploads
    if u is None:
        return ""
    where = f"to {s.device} from" if s.device else "no device, into"
    way = ", ".join(f"{way} ({count})" if len(u.ways) > 1 else way for way, count in u.ways)
    parts = [f"{where} {way} memory"]
    if u.pin >= 0.01:  # noqa: PLR2004 - 10 us: less is measurement noise
        parts.append(f"pinned in {duration(u.pin / 1e3)}")
    if u.copy is not None and u.gb_per_second is not None:
        parts.append(f"{duration(u.copy / 1e3)} a batch, {number(u.gb_per_second)} GB/s")
    if u.hidden is not None:
        parts.append(f"{percent(u.hidden)} of it hidden behind the work of the loop")
    return ", ".join(parts)


def cache(s: Snapshot) -> str:
    """Describe in one line what the sample cache has done and what it holds; "" if it was not used."""
    c = s.cache
    if c is None or not c.hits + c.misses:
        return ""
    parts = [f"{c.hits:,} hits, {plural(c.misses, 'miss')}, {duration(c.saved)} of computing saved"]
    if c.disk_hits:
        parts.append(f"{c.disk_hits:,} of the hits from {clean(c.directory, 60)}")
    parts.append(f"{megabytes(c.nbytes)} of {megabytes(c.limit)} in memory, {plural(c.entries, 'sample')}")
    if c.evictions:
        parts.append(f"{c.evictions:,} replaced")
    return ", ".join(parts)


def _queues(s: Snapshot) -> tuple[str, ...]:
    return f"in flight {s.in_flight}", f"reorder {s.reordering}", f"ready {s.ready}", f"window {s.window}"


def _progress_text(s: Snapshot) -> str:
    if s.epoch < 0:
        lines = [f"State   {s.state}"]
    else:
        share = _share_done(s)
        filled = round(BAR * share) if share is not None else 0
        bar = "" if share is None else f"[{'#' * filled}{'.' * (BAR - filled)}]  "
        part = "" if share is None else f" ({percent(share)})"
        lines = [
            f"Epoch   {s.epoch}, {s.state}  {bar}{_done(s)}{part}",
            f"Time    {_times(s)}",
            f"Rate    {'   '.join(_rates(s))}{f'   ({span(s)})' if s.stalled is None else ''}",
            *([f"        headspace: {space} if loading took no time"] if (space := headspace(s)) else []),
            f"Loop    {_loop(s)}",
        ]
    if s.iterators > 1:
        lines.append(f"Loops   {s.iterators} iterators: rates and queues of all, progress of the newest")
    lines.append(f"Queues  {'   '.join(_queues(s))}")
    if s.uploads is not None:
        lines += textwrap.wrap(f"Upload  {uploads(s)}", WIDTH, subsequent_indent=" " * 8)
    if cached := cache(s):
        lines += textwrap.wrap(f"Cache   {cached}", WIDTH, subsequent_indent=" " * 8)
    if faults := _faults(s):
        lines.append(f"Faults  {faults}")
    return "\n".join(lines)


def _worker_row(w: WorkerStats, s: Snapshot) -> list[str]:
    return [
        f"{w.worker} on {w.node}" if w.node else str(w.worker),
        str(w.pid or "-"),
        state_of(w, s) + (" (!)" if w.stuck else ""),
        "-" if w.batch is None else str(w.batch),
        "-" if w.batch_age is None else age(w.batch_age),
        f"{w.batches:,}",
        number(w.batches_per_second),
        "-" if w.cpu_percent is None else f"{w.cpu_percent:.0f}%",
        "-" if w.rss is None else megabytes(w.rss),
        str(w.restarts),
    ]


def state_of(w: WorkerStats, s: Snapshot) -> str:
    """Name a worker's state in a word or two. A worker without a process is not necessarily "dead"."""
    if w.state == "dead" and not w.pid:
        if s.state in ("idle", "closed") and (w.batches or w.exit_reason):
            return "stopped"
        if not w.exit_reason:
            return "not started"
    return f"{clean(w.state, 12)}, discarding" if w.left else clean(w.state, 12)


def previous_process(w: WorkerStats) -> str:
    """Describe how the previous process of a worker id ended; "" if there was none."""
    if not w.exit_reason:
        return ""
    verb = "was " if w.exit_reason.startswith("restarted") else ""
    return f"the previous process {verb}{clean(w.exit_reason)}"


def _notes(w: WorkerStats) -> list[str]:
    notes = []
    if w.stuck:
        sample = "" if w.sample is None else f", sample {clean(w.sample, 40)}"
        notes.append(f"worker {w.worker} seems stuck: batch {w.batch}{sample}")
    if w.left:
        notes.append(f"worker {w.worker} is finishing a batch of an iterator that has ended")
    if w.errors:
        notes.append(f"worker {w.worker}: {plural(w.errors, 'failed batch')}")
    if w.exit_reason:
        notes.append(f"worker {w.worker}: {previous_process(w)}")
    return notes


# --- HTML: styles are inline, so that no style sheet is needed; text colours come from the page

_MUTED = "opacity:.65"
_LINE = "1px solid rgba(128,128,128,.28)"


def to_html(s: Snapshot) -> str:
    """Format the whole snapshot as HTML without scripts or style sheets, for light and dark pages."""
    return fragment((_verdict_html(s), _progress_html(s), _stages_html(s), _workers_html(s), _slowest_html(s)))


def fragment(parts: Iterable[str]) -> str:
    """Join parts to a fragment of HTML in the font of the page."""
    return (
        '<div class="nbloader-report" style="font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);'
        'color:var(--jp-ui-font-color1,inherit);max-width:860px;padding:2px 0;font-variant-numeric:tabular-nums">'
        + "".join(parts)
        + "</div>"
    )


def _text(value: object) -> str:
    return html.escape(clean(value))


def _verdict_html(s: Snapshot) -> str:
    color = palette.BAD if s.failure else palette.cause_color(s.cause)
    return verdict_box((s.verdict, other_verdict(s), outlook(s)), color)


def verdict_box(texts: Iterable[str], colour: str) -> str:
    """Build a box with sentences, one a line. Empty ones are left out."""
    verdict = "<br>".join(html.escape(clean(text, 1000)) for text in texts if text)
    return (
        f'<div style="border-left:4px solid {colour};background:{colour}1c;border-radius:4px;'
        f'padding:7px 11px;margin:0 0 10px">{verdict}</div>'
    )


def _progress_html(s: Snapshot) -> str:
    chips = _queues(s)
    if s.epoch < 0:
        return _chips([s.state, *chips])
    share = _share_done(s)
    bar = ""
    if share is not None:
        bar = (
            '<div style="height:6px;border-radius:3px;background:rgba(128,128,128,.22);overflow:hidden;'
            'margin:3px 0 7px">'
            f'<div style="height:100%;width:{100 * share:.1f}%;background:{palette.STAGES["fetch"]}"></div></div>'
        )
    part = "" if share is None else f" ({percent(share)})"
    head = (
        '<div style="display:flex;justify-content:space-between;flex-wrap:wrap;gap:0 16px">'
        f"<span><b>Epoch {s.epoch}</b>, {_text(s.state)}: {_done(s)}{part}</span>"
        f'<span style="{_MUTED}">{_times(s)}</span></div>'
    )
    faults = _faults(s)
    more = f'<div style="color:{palette.BAD};margin-top:4px">{faults}</div>' if faults else ""
    several = f" {s.iterators} iterators are active; rates and queues cover all of them." if s.iterators > 1 else ""
    covered = "" if s.stalled is not None or not s.rate_seconds else f" Rates: {span(s)}."
    loop = f'<div style="{_MUTED};margin-top:4px">The loop {_loop(s)}.{covered}{several}</div>'
    way = "" if s.uploads is None else f'<div style="{_MUTED};margin-top:4px">Upload {_text(uploads(s))}.</div>'
    cached = cache(s)
    kept = f'<div style="{_MUTED};margin-top:4px">Cache: {_text(cached)}.</div>' if cached else ""
    space = [f"headspace {text}"] if (text := headspace(s)) else []
    return head + bar + _chips([*_rates(s), *space, *chips]) + loop + way + kept + more


def _chips(texts: Iterable[str]) -> str:
    chips = "".join(
        f'<span style="border:{_LINE};border-radius:9px;padding:0 8px;white-space:nowrap">{_text(t)}</span>'
        for t in texts
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:5px">{chips}</div>'


def _stages_html(s: Snapshot) -> str:
    whole = [stage for stage in s.stages if stage.name not in OVERLAPPING_STAGES]
    total = sum(stage.mean for stage in whole)
    if not total:
        return ""
    bar = "".join(
        f'<div title="{stage.name}: {stage.mean:.2f} ms" '
        f'style="width:{100 * stage.mean / total:.2f}%;background:{palette.STAGES[stage.name]}"></div>'
        for stage in whole
    )
    rows = [
        [
            dot(palette.STAGES[stage.name]) + f'{stage.name} <span style="{_MUTED}">{STAGE_MEANING[stage.name]}</span>',
            *(f"{ms:,.2f}" for ms in (stage.mean, stage.p50, stage.p95, stage.p99, stage.max)),
        ]
        for stage in s.stages
    ]
    share = "" if s.cpu_share is None else f"; fetching is {percent(s.cpu_share)} CPU time"
    return (
        _title(f"Stages of the last 200 batches: {duration(total / 1e3)} on average{share}")
        + f'<div style="display:flex;height:14px;border-radius:4px;overflow:hidden;margin:0 0 4px">{bar}</div>'
        + html_table(STAGE_COLUMNS, rows, left=(0,))
    )


def _workers_html(s: Snapshot) -> str:
    if not s.workers:
        return ""
    if not any(w.pid or w.exit_reason for w in s.workers):
        return f'<div style="{_MUTED};margin-top:10px">{_no_workers(s)}</div>'
    rows = []
    for w in s.workers:
        row = [html.escape(cell) for cell in _worker_row(w, s)]
        colour = palette.BAD if w.stuck else palette.STATES.get(w.state, palette.OTHER)
        state = f"{_text(state_of(w, s))}, stuck" if w.stuck else _text(state_of(w, s))
        row[2] = dot(colour, radius="50%") + state
        rows.append(row)
    notes = "".join(f'<div style="{_MUTED}">{_text(note)}</div>' for w in s.workers for note in _notes(w))
    return _title(WORKERS) + html_table(WORKER_COLUMNS, rows, left=(2,)) + notes + "".join(map(_stderr_html, s.workers))


def _stderr_html(w: WorkerStats) -> str:
    lines = tail(w.stderr_tail)
    if not lines:
        return ""
    text = "<br>".join(html.escape(line) for line in lines)
    return (
        f'<details style="margin-top:3px"><summary style="{_MUTED};cursor:pointer">'
        f"last lines of standard error of worker {w.worker}</summary>"
        f'<div style="font-family:var(--jp-code-font-family,monospace);font-size:12px;overflow-wrap:anywhere;'
        f'border-left:2px solid rgba(128,128,128,.35);padding:2px 9px;margin:3px 0">{text}</div></details>'
    )


def _who(sample: SlowSample) -> str:
    return "this process" if sample.worker < 0 else str(sample.worker)


def _slowest_html(s: Snapshot) -> str:
    if not s.slowest:
        return ""
    longest = max(x.seconds for x in s.slowest) or 1.0
    rows = [
        [
            f'<span style="overflow-wrap:anywhere">{_text(x.index)}</span>',
            meter(max(0.0, x.seconds) / longest) + duration(x.seconds),
            str(x.batch),
            str(x.epoch),
            _who(x),
        ]
        for x in s.slowest
    ]
    common = f'<div style="{_MUTED}">Slow ones have in common: {_text(s.slow_in_common)}</div>'
    return _title(SLOWEST) + html_table(SAMPLE_COLUMNS, rows, left=(0,)) + (common if s.slow_in_common else "")


def _title(text: str) -> str:
    return f'<div style="font-weight:600;margin:13px 0 4px">{html.escape(text)}</div>'


def dot(colour: str, radius: str = "2px") -> str:
    """A colored mark in front of a word."""
    return (
        f'<span style="display:inline-block;width:9px;height:9px;border-radius:{radius};margin-right:6px;'
        f'background:{colour}"></span>'
    )


def meter(share: float, colour: str = palette.STAGES["fetch"]) -> str:
    """A bar in front of a figure, for a share from 0 to 1."""
    return (
        f'<span style="display:inline-block;height:7px;width:{90 * share:.0f}px;border-radius:2px;margin-right:7px;'
        f'background:{colour}"></span>'
    )


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: tuple[int, ...]) -> str:
    """Build an HTML table. The cells of `rows` must already be HTML; `head` is escaped."""

    def line(cells: Sequence[str], tag: str, style: str) -> str:
        made = "".join(
            f'<{tag} style="text-align:{"left" if i in left else "right"};padding:2px 8px;border:0;'
            f'max-width:none;{"" if i in left else "white-space:nowrap;"}{style}">{cell}</{tag}>'
            for i, cell in enumerate(cells)
        )
        return f'<tr style="background:transparent;border-bottom:{_LINE}">{made}</tr>'

    top = line([html.escape(h) for h in head], "th", f"font-weight:500;{_MUTED}")
    body = "".join(line(row, "td", "") for row in rows)
    return (
        '<table style="border-collapse:collapse;width:100%;margin:0;font-size:12px;color:inherit;table-layout:auto">'
        f"<thead>{top}</thead><tbody>{body}</tbody></table>"
    )

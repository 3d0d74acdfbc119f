"""There are no workers: the loop produces each batch itself."""

from __future__ import annotations

from nbloader._util.format import percent
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import MAJORITY, Part, own_ms
from nbloader.diagnose.phrases import cpu_share, line_remedy, millis, waits, with_line_remedy
from nbloader.diagnose.work import CONTENDED, split_work
from nbloader.metrics.evidence import Evidence, Place


def _sentence(e: Evidence) -> str:
    queued = split_work(e).fetching.queued
    core = f", {percent(queued)} waiting for a core" if queued >= CONTENDED else ""
    computing = "" if e.fetch_cpu is None else f" ({cpu_share(e)} of fetching is CPU time{core})"
    collating = "" if e.collate_ms < e.fetch_ms else f", {millis(e.collate_ms)} of it to collate"
    return (
        f"Loading is the bottleneck: {waits(e)}, because batches are produced between its steps. Producing one takes "
        f"{millis(e.fetch_ms + e.collate_ms)}{collating}{computing}, and a step takes {millis(own_ms(e))}."
    )


def _remedy(e: Evidence) -> Remedy:
    work = split_work(e)
    computing = work.fetching if e.fetch_ms >= e.collate_ms else work.collating
    if e.cores == 1 and computing.computing >= MAJORITY:
        cheaper = line_remedy(e) or "Make samples cheaper"
        return Remedy(f"{cheaper}. There is one core, so workers compute no faster.", more_workers=False)
    if computing.queued >= CONTENDED and computing.queued > computing.waiting:
        return Remedy("Free the cores that other programs use, or use num_workers=2 or more.")
    workers = "Use num_workers=2 or more, which produce several batches at the same time"
    return Remedy(with_line_remedy(e, workers, waits=computing.computing < MAJORITY), more_workers=True)


IN_PROCESS = Cause(
    name="in_process",
    takes={Part.PRODUCTION: lambda e: e.place is Place.CONSUMER},
    sentence=_sentence,
    short=lambda _e: "batches are produced between the loop's steps",
    remedy=_remedy,
    names_line=True,
)

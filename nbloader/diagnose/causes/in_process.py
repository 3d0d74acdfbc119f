"""There are no workers: the loop produces each batch itself."""

from __future__ import annotations

from nbloader._util.format import percent
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import MAJORITY, Part, own_ms
from nbloader.diagnose.phrases import cheaper_line, cpu_share, free_cores, millis, waits, with_line_remedy
from nbloader.diagnose.work import CONTENDED, Work, split_work
from nbloader.metrics.evidence import Evidence, Place

SENT_MS = 0.1
"""What it takes at least to get a batch from a worker, ms."""


def _sentence(e: Evidence) -> str:
    queued = split_work(e).fetching.queued
    core = f", {percent(queued)} waiting for a core" if queued >= CONTENDED else ""
    computing = "" if e.fetch_cpu is None else f" ({cpu_share(e)} of fetching is CPU time{core})"
    collating = "" if e.collate_ms < e.fetch_ms else f", {millis(e.collate_ms)} of it to collate"
    return (
        f"Loading is the bottleneck: {waits(e)}, because it produces each batch itself, between two steps. "
        f"A batch takes {millis(e.fetch_ms + e.collate_ms)}{collating}{computing}, and a step takes "
        f"{millis(own_ms(e))}.{' There is only one core.' if _one_core(e) else ''}"
    )


def _larger_part(e: Evidence) -> Work:
    """How the larger part of producing a batch is spent: fetching or collating."""
    work = split_work(e)
    return work.fetching if e.fetch_ms >= e.collate_ms else work.collating


def _one_core(e: Evidence) -> bool:
    """Whether a batch mostly computes, and there is no second core for a worker."""
    return e.cores == 1 and _larger_part(e).computing >= MAJORITY


def _remedy(e: Evidence) -> Remedy:
    computing = _larger_part(e)
    if e.fetch_ms + e.collate_ms < SENT_MS:
        return Remedy(
            "Use larger batches: a worker takes longer to send such a batch than the loop to make it.",
            more_workers=False,
        )
    if _one_core(e):
        return Remedy(f"{cheaper_line(e)}.", more_workers=False)
    if computing.queued >= CONTENDED and computing.queued > computing.waiting:
        return Remedy(free_cores(e, ", or use num_workers=2 or more"), more_workers=True)
    workers = "Use num_workers=2 or more, so that several batches are produced at the same time"
    return Remedy(with_line_remedy(e, workers, waits=computing.computing < MAJORITY), more_workers=True)


IN_PROCESS = Cause(
    name="in_process",
    takes={Part.PRODUCTION: lambda e: e.place is Place.CONSUMER},
    sentence=_sentence,
    short=lambda _e: "the loop produces batches itself, between its steps",
    remedy=_remedy,
    names_line=True,
)

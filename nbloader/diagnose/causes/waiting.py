"""Fetching waits: for a disk, the network, a sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import number, percent
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import is_one_round, one_round_remedy, usable_cores, with_line_remedy, workers_limit
from nbloader.diagnose.work import split_work

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _share(e: Evidence) -> str:
    return percent(split_work(e).fetching.waiting)


def _sentence(e: Evidence) -> str:
    if e.overlap > 1:
        return (
            f"{workers_limit(e)} Each worker fetches samples of {number(e.overlap)} batches at a time, and spends "
            f"{_share(e)} of its time waiting for them (network, disk or sleep)."
        )
    return f"{workers_limit(e)} Fetching waits for {_share(e)} of its time (disk, network or sleep)."


def _remedy(e: Evidence) -> Remedy:
    if e.overlap > 1:
        return Remedy("Use a higher concurrency, or more workers.", more_workers=True)
    if is_one_round(e):
        return Remedy(one_round_remedy(e, waits=True), more_workers=False)
    more = f"Use more workers, even beyond {usable_cores(e)}"
    return Remedy(with_line_remedy(e, more, waits=True), more_workers=True, larger_window=False)


WAITING = Cause(
    name="workers_wait",
    takes={Part.WAITING: always},
    sentence=_sentence,
    short=lambda e: f"fetching waits for {_share(e)} of its time (disk, network or sleep)",
    remedy=_remedy,
    names_line=True,
)

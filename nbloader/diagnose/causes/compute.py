"""Fetching computes, with free cores or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import number, plural
from nbloader.diagnose.causes.base import Cause, Remedy, always
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import (
    cheaper_line,
    cpu_share,
    is_one_round,
    line_remedy,
    one_round_remedy,
    usable_cores,
    with_line_remedy,
    workers_limit,
)
from nbloader.diagnose.work import (
    CONTENDED,
    SATURATED,
    all_used,
    computing_cores,
    core_wait,
    cores_needed,
    cores_used,
    opening_is_queued,
    workers_usage,
)

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _unmeasured_and_full(e: Evidence) -> bool:
    """Whether workers on other machines use all cores: one that does not compute waits for a core then."""
    return all_used(e) and workers_usage(e) is None and bool(e.elsewhere)


def _all_cores(e: Evidence) -> str:
    """How many cores the workers and the loop use, on each machine."""
    if not e.elsewhere:
        verb = "need" if core_wait(e) >= CONTENDED and cores_used(e) < SATURATED * e.cores else "use"
        return f"the workers and the loop {verb} {_cores_needed(e)}"
    count, cores = sum(m.workers for m in e.elsewhere), sum(m.cores for m in e.elsewhere)
    used = number(min(count * computing_cores(e), cores))
    full = cores_needed(e) >= SATURATED * e.cores
    here = f", and {_cores_needed(e)} of this one" if e.workers_here or full else ""
    machines = plural(len(e.elsewhere), "other machine")
    return f"the workers use {used} of the {plural(round(cores), 'core')} of {machines}{here}"


def _cores_needed(e: Evidence) -> str:
    return f"{number(min(e.cores, cores_needed(e)))} of {plural(e.cores, 'core')}"


def _remedy(e: Evidence) -> Remedy:
    if is_one_round(e):
        return Remedy(one_round_remedy(e), more_workers=False)
    if not e.elsewhere and e.workers >= e.cores:  # each core has its worker already
        return Remedy(f"{cheaper_line(e)}.", more_workers=None)
    cheaper = "" if line_remedy(e) else ", or make transforms cheaper"
    return Remedy(with_line_remedy(e, f"Use more workers, up to {usable_cores(e)}{cheaper}"), more_workers=True)


def _remedy_full(e: Evidence) -> Remedy:
    where = ", or add machines" if e.elsewhere else ""
    return Remedy(f"{cheaper_line(e)}{where}.", more_workers=None if e.elsewhere else False)


COMPUTE = Cause(
    name="workers_compute",
    takes={Part.COMPUTING: always},
    sentence=lambda e: f"{workers_limit(e)} Fetching is {cpu_share(e)} CPU time.",
    short=lambda e: f"fetching computes for {cpu_share(e)} of its time",
    remedy=_remedy,
    names_line=True,
)
COMPUTE_FULL = Cause(
    name="workers_compute_full",
    takes={
        Part.OPENING: opening_is_queued,
        Part.COLLATING_QUEUED: always,  # if other programs do not use the cores, workers and loop do
        Part.FETCHING: _unmeasured_and_full,
        Part.COMPUTING: all_used,
        Part.QUEUED: always,
    },
    sentence=lambda e: f"{workers_limit(e)} Fetching is {cpu_share(e)} CPU time, and {_all_cores(e)}.",
    short=lambda e: f"fetching computes, and {_all_cores(e)}",
    remedy=_remedy_full,
    names_line=True,
)

"""Workers use many threads each, which compete for the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import percent, plural
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.parts import Part
from nbloader.diagnose.phrases import cores_in_use, preemptions, waits
from nbloader.diagnose.work import many_threads

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence


def _sentence(e: Evidence) -> str:
    usage = e.usage
    threads, others = (0, 0.0) if usage is None else (usage.threads, usage.other_threads)
    return (
        f"The workers have too many threads: {waits(e)}. {plural(e.workers, 'worker')} with up to "
        f"{plural(threads, 'thread')} each use {cores_in_use(e)}, {percent(others)} of that in threads other than the "
        f"one that loads{preemptions(e, ', which loses its core')}."
    )


def _remedy(_e: Evidence) -> Remedy:
    return Remedy(
        "Use one thread per worker: loader.remedies() has the code for linear algebra. For OpenCV, call "
        "cv2.setNumThreads(0) in worker_init_fn.",
        more_workers=False,
    )


THREADS = Cause(
    name="threads",
    takes={Part.FETCHING: many_threads},
    sentence=_sentence,
    short=lambda _e: "workers have too many threads",
    remedy=_remedy,
    unmodeled="the workers have several threads each",
    names_line=True,
)

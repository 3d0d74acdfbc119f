"""Batches have large parts that must be pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbloader._util.format import megabytes
from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.causes.transport import dominates
from nbloader.diagnose.parts import MAJORITY, Part, sending_ms
from nbloader.diagnose.phrases import millis, per_batch, waits
from nbloader.diagnose.work import opening_is_queued

if TYPE_CHECKING:
    from nbloader.metrics.evidence import Evidence

PICKLE_BYTES = 50_000
"""Pickling may matter if more than this many bytes of a batch are pickled."""
REBUILD_RATE = 3e6
"""Bytes of pickled objects per second that the loop makes small tensors of."""
PICKLE_RATE = 30e6
"""Bytes per second at which Python pickles small objects."""


def _is_pickled(e: Evidence) -> bool:
    return e.pickled > PICKLE_BYTES or e.by_pickle > MAJORITY


def _takes_long_to_open(e: Evidence) -> bool:
    """Whether large objects are unpickled, or so many small ones that this explains the time."""
    explained = e.pickled / REBUILD_RATE * 1e3 >= per_batch(e, e.opening_wait) / 2
    return _is_pickled(e) or (explained and not opening_is_queued(e))


def _takes_most_of_collating(e: Evidence) -> bool:
    return e.pickled > PICKLE_BYTES and e.pickled / PICKLE_RATE > e.collate_ms / 1e3 / 2


def _sentence(e: Evidence) -> str:
    return (
        f"Pickling is the bottleneck: {waits(e)}. A worker pickles "
        f"{megabytes(max(e.pickled, e.nbytes if e.by_pickle else 0))} of each batch ({millis(e.collate_ms)} to collate "
        f"and pickle, {millis(e.transport_ms)} to transport), and the loop unpickles it "
        f"({millis(per_batch(e, e.opening_wait))})."
    )


def _remedy(e: Evidence) -> Remedy:
    if _is_pickled(e):
        return Remedy("Return tensors or arrays from the collate function, because these use shared memory.")
    return Remedy(
        "Return a few tensors of the whole batch from the collate function, because the loop rebuilds objects with "
        "their tensors one by one."
    )


PICKLE = Cause(
    name="pickle",
    takes={
        Part.OPENING: _takes_long_to_open,
        Part.PRODUCTION: lambda e: dominates(e) and _is_pickled(e),
        Part.COLLATING: lambda e: sending_ms(e) > 0 or _takes_most_of_collating(e),
    },
    sentence=_sentence,
    short=lambda e: f"{megabytes(e.pickled or e.nbytes)} of each batch is pickled",
    remedy=_remedy,
    unmodeled="batches are pickled",
)

"""Decides which entries of a cache are worth their memory. Pure functions.

A sample is used once per epoch, in an order that changes: each entry is as likely to be needed next as any other. The
least recently used entry is no worse than the others. If the cache replaced it, and the dataset were larger than the
cache, every entry would be replaced before its next use. So an entry is rated by the time that it saves per byte of
memory, and a new entry replaces others only if it is worth clearly more than they are.

Entries of code and files that are no longer used must still be dropped. The mean number of accesses between two uses of
an entry is the length of an epoch; with shuffling, the number is at most twice that. An entry that has not been used
for longer loses half of its worth with each further epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MARGIN = 1.25
"""How many times the worth of an entry a new one must have to replace it, since measured times vary."""
GRACE = 2.0
"""Epochs without a use after which an entry begins to lose its worth."""


def worth(cost: Any, nbytes: Any, age: Any, interval: float) -> Any:
    """Return the time that entries save per byte. Entries that have not been used for long count less.

    Args:
        cost: How long each entry took to compute, in any unit. Each of the first three arguments is an array or a
            number.
        nbytes: The memory that each entry takes.
        age: Accesses to the cache since the last use of each entry.
        interval: Mean number of accesses between two uses of an entry; infinite if none was used twice.
    """
    epochs = np.asarray(age, np.float64) / max(1.0, interval)
    return (1.0 + np.asarray(cost, np.float64)) / nbytes * np.exp2(-np.clip(epochs - GRACE, 0.0, 500.0))


def victims(worths: Any, nbytes: Any, needed: int, spare: int, new: float) -> Any:
    """Choose the entries to drop for a new one, the least useful first.

    Args:
        worths: Worth of each entry.
        nbytes: Size of each entry.
        needed: Bytes that must become free.
        spare: Bytes that may become free beyond that, so that the next entries need no search.
        new: The worth of the new entry.

    Returns:
        Positions of the entries; empty if dropping all that are worth less than the new one would not be enough.
    """
    order = np.argsort(worths, kind="stable")
    order = order[np.asarray(worths)[order] * MARGIN < new]
    freed = np.cumsum(np.asarray(nbytes, np.int64)[order])
    if not len(freed) or freed[-1] < needed:
        return order[:0]
    enough = int(np.searchsorted(freed, needed)) + 1
    return order[: max(enough, int(np.searchsorted(freed, needed + spare, side="right")))]

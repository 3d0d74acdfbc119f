"""The header of a produced batch: its identity, location and size, and the time to produce it.

A worker process packs it in front of the batch in a `BATCH` frame; worker threads and the inline pool create it
directly. All times are `perf_counter_ns` or durations in ns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

_STRUCT = struct.Struct("<qqiiqqqqqqqqqq")
_new = tuple.__new__  # takes half as long as `_make`

HEADER_SIZE = _STRUCT.size
"""Bytes of a packed header."""
IN_ARENA = -2
"""Value of `segment`: a chunk that was written into the arena of its batch (chunk_arena.py)."""
NOT_MEASURED = -1
"""Value of `fetch_cpu` and `collate_cpu`: this batch was not measured."""
CPU_MEASURED = 8
"""The CPU time of one batch in so many is measured while batches take less than `MEASURE_NS`. Reading it three times,
with a system call each, took 3 % of the time of tiny batches."""
MEASURE_NS = 500_000
"""Production time from which on each batch is measured, ns."""
PICKLED = -1
"""Value of `layout`: there is none; the extras hold the message of a pickled object (serialize.py)."""


class BatchHeader(NamedTuple):
    """Identity, location, size and cost of a produced batch (or chunk of one)."""

    run: int
    """The iteration that it belongs to."""
    number: int
    """Batch number within the iteration; job number of a chunk."""
    layout: int
    """Id of the layout among the worker's layouts, or `PICKLED`."""
    segment: int
    """Number of the worker's segment, `segment.NO_SEGMENT` where the batch is in the frame, or `IN_ARENA`."""
    nbytes: int
    """Size of the arrays, bytes."""
    extras_nbytes: int
    """Size of the pickled extras (parts that are not arrays), bytes."""
    samples: int
    fetch_begin: int
    fetch_end: int
    collate_end: int
    fetch_cpu: int
    """CPU time of the fetch, ns, or `NOT_MEASURED`."""
    collate_cpu: int
    """CPU time of the collation, ns, or `NOT_MEASURED`."""
    slowest: int
    """Position of the slowest sample in the batch; -1 where samples were not fetched one by one."""
    slowest_ns: int
    """Time to fetch that sample."""


pack_header: Callable[..., bytes] = _STRUCT.pack
"""Pack a header; the arguments are the fields of `BatchHeader`, in their order. (A method of it would cost 0.4 us.)"""


def unpack_header(body: Any) -> BatchHeader:
    """Read the header at the beginning of a frame's body."""
    return _new(BatchHeader, _STRUCT.unpack_from(body))

"""The header of a produced batch: its identity, location and size, and the time taken to produce it.

A worker process writes it in packed form in front of the batch in a `BATCH` frame; where a thread of the notebook
produces, it creates the header directly. All times are values of `perf_counter_ns` or durations in ns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

_STRUCT = struct.Struct("<qqiqqqqqqqqqq")
_new = tuple.__new__  # takes half as long as `_make`

HEADER_SIZE = _STRUCT.size
"""Size of a packed header in bytes."""
NOT_MEASURED = -1
"""Value of `fetch_cpu` and `collate_cpu` if the CPU time of the batch was not measured."""
MEASURE_CPU_EVERY = 8
"""While batches take less than `MEASURE_NS`, the CPU time is measured for one in this many. A measurement needs
three system calls, which took 3 % of the time of tiny batches when every batch was measured."""
MEASURE_NS = 500_000
"""If a batch took at least this long to produce, in ns, the next one is always measured."""


class BatchHeader(NamedTuple):
    """Identity, location, size and cost of a produced batch (or of a chunk)."""

    epoch: int
    """Number of the epoch that the batch belongs to."""
    job: int
    """Job number of the batch or chunk."""
    segment: int
    """Number of the worker's segment, or `segment.NO_SEGMENT` if the batch is not in a segment."""
    nbytes: int
    """Size of the arrays in bytes."""
    skeleton_nbytes: int
    """Size of the skeleton in bytes: the pickled parts that are not arrays."""
    samples: int
    fetch_begin: int
    fetch_end: int
    collate_end: int
    fetch_cpu: int
    """CPU time of the fetch in ns, or `NOT_MEASURED`."""
    collate_cpu: int
    """CPU time of the collation in ns, or `NOT_MEASURED`."""
    slowest: int
    """Position of the slowest sample in the batch; -1 if the samples were not fetched one by one."""
    slowest_ns: int
    """Time to fetch the slowest sample."""


pack_header: Callable[..., bytes] = _STRUCT.pack
"""Pack a header. The arguments are the fields of `BatchHeader`, in order. (A method would cost 0.4 us.)"""


def unpack_header(body: Any) -> BatchHeader:
    """Read the header at the beginning of a frame's body."""
    return _new(BatchHeader, _STRUCT.unpack_from(body))

"""The slowest samples of the last epochs."""

from __future__ import annotations

from nbloader.events import BatchRecord
from nbloader.metrics.snapshot import SlowSample

SLOWEST = 10
"""Number of samples to list."""
EPOCHS = 3
"""Number of epochs whose slowest samples are kept."""


class SlowSamples:
    """Keeps the records of the batches with the slowest samples."""

    def __init__(self) -> None:
        self.floor: dict[int, int] = {}
        """A sample that took no longer than this is not among the slowest of its epoch, ns, by epoch."""
        self._records: dict[int, list[BatchRecord]] = {}
        self._epoch = -1

    def begin(self, epoch: int) -> None:
        """Note the newest epoch, and forget those that are too old."""
        self._epoch = epoch
        for old in sorted(self._records)[: -(EPOCHS - 1)]:
            del self._records[old]
            self.floor.pop(old, None)

    def add(self, record: BatchRecord) -> None:
        """Add the record of a batch whose slowest sample took longer than `floor`."""
        if record.epoch <= self._epoch - EPOCHS:
            return
        kept = self._records.setdefault(record.epoch, [])
        kept.append(record)
        if len(kept) >= 4 * SLOWEST:
            kept[:] = slowest(kept)
            if len(kept) == SLOWEST:
                self.floor[record.epoch] = kept[-1].slowest_ns

    def forget(self) -> None:
        """Forget all samples."""
        self._records.clear()
        self.floor.clear()

    def listed(self) -> tuple[SlowSample, ...]:
        """Return the slowest samples, slowest first, each once."""
        records = slowest([record for kept in self._records.values() for record in kept])
        return tuple([SlowSample(r.slowest_index, r.slowest_ns / 1e9, r.index, r.epoch, r.worker) for r in records])


def slowest(records: list[BatchRecord]) -> list[BatchRecord]:
    """Return the batch records of the slowest samples, slowest first, each sample once."""
    best: dict[object, BatchRecord] = {}
    for r in sorted(records, key=lambda r: -r.slowest_ns):
        # Only integers and strings are compared: other indices may be unhashable.
        key = r.slowest_index if isinstance(r.slowest_index, int | str) else (id(r), None)
        best.setdefault(key, r)
        if len(best) == SLOWEST:
            break
    return list(best.values())

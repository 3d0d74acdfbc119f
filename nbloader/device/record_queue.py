"""Completes the records of transferred batches with the device's times, and publishes them in order."""

from __future__ import annotations

import collections
from collections.abc import Callable

from nbloader.device.accelerator import Copy
from nbloader.events import BatchRecord, Placed

MAX_PENDING_RECORDS = 64
"""Maximum number of records that wait for the device's times; older ones are published without these times."""


class PendingPlacement:
    """The `Placed` entry of a batch's record, which is complete once the device has reported its times."""

    __slots__ = ("_begin", "_copy", "_device")

    def __init__(self, device: str, copy: Copy, begin: int) -> None:
        self._device = device
        self._copy = copy
        self._begin = begin

    def get(self, *, at_once: bool) -> Placed | None:
        """Return the entry; None if times are still missing and `at_once` is False."""
        copy = self._copy
        if not (at_once or copy.times_known()):
            return None
        times = copy.times()
        return Placed(
            device=self._device, memory=copy.memory, begin=self._begin, pinned=copy.pinned, upload_begin=times.begin,
            uploaded=times.end, needed=times.needed, nbytes=copy.nbytes,
        )  # fmt: skip


class RecordQueue:
    """Publishes batch records in order, each as soon as the device has reported its times.

    Args:
        publish: Called with each complete record.
    """

    def __init__(self, publish: Callable[[BatchRecord], object]) -> None:
        self._publish = publish
        self._waiting: collections.deque[tuple[BatchRecord, PendingPlacement | None]] = collections.deque()

    def add(self, record: BatchRecord, placement: PendingPlacement | None) -> None:
        """Queue a record that is complete except for `placed`, and publish the records whose times are known."""
        self._waiting.append((record, placement))
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        """Publish complete records. If `at_once`, publish all records, with 0 for unknown times."""
        while self._waiting:
            record, placement = self._waiting[0]
            if placement is not None:
                placed = placement.get(at_once=at_once or len(self._waiting) > MAX_PENDING_RECORDS)
                if placed is None:
                    return
                record = record._replace(placed=placed)
            self._waiting.popleft()
            self._publish(record)

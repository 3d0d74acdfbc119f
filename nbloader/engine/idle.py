"""Decides what is due while nobody requests a batch: workers release memory, and later they are stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping

from nbloader.engine.receiver import Receiver
from nbloader.shm.segment import KEEP

IDLE_TIMEOUT = 300.0
"""Seconds without a request after which a loader stops its workers. The next request starts them again."""
SUPERSEDED_TIMEOUT = 2.0
"""Seconds without a request after which a loader stops its workers if the cell that created it was run again."""
MEMORY_RELEASE_DELAY = KEEP
"""Seconds without a request, between epochs, after which idle workers release unused memory. The next epoch must
allocate it again: with 2 s, epochs of 40 batches of 38 MB separated by pauses reached 12% of the memcpy bandwidth of
one thread instead of 50%."""


class IdleWatch:
    """Measures how long a loader that has workers is idle.

    Args:
        timeout: Seconds without a request after which the workers are stopped; None for never.
        receivers: The consumers of open iterations, which the engine adds and removes.
    """

    def __init__(self, timeout: float | None, receivers: Mapping[int, Receiver]) -> None:
        self.superseded = False
        """Whether the cell that created the loader was run again. Any thread may set it."""
        self.memory_released = False
        """Whether workers have released memory since the last epoch."""
        self._timeout = timeout
        self._receivers = receivers
        self._last_request = time.monotonic()

    def epoch_began(self) -> None:
        """Note that a consumer has begun an epoch: the loader is in use."""
        self._last_request = time.monotonic()
        self.superseded = self.memory_released = False

    def epoch_ended(self, receiver: Receiver) -> None:
        """Note when the consumer of an iteration that ends has used it last."""
        self._last_request = max(self._last_request, receiver.requested_at, receiver.taken_at)

    def seconds_to_memory_release(self) -> float | None:
        """Return the seconds until the workers release memory; None if they have, or if an iteration is open."""
        if self.memory_released or self._receivers:
            return None
        return MEMORY_RELEASE_DELAY - self._idle_for()

    def seconds_to_stop(self) -> float | None:
        """Return the seconds until the workers are stopped; None for never, or while a consumer waits for a batch."""
        limit = SUPERSEDED_TIMEOUT if self.superseded else self._timeout
        if limit is None or any(receiver.awaited is not None for receiver in self._receivers.values()):
            return None
        return limit - self._idle_for()

    def _idle_for(self) -> float:
        used = [max(receiver.requested_at, receiver.taken_at) for receiver in self._receivers.values()]
        return time.monotonic() - max(self._last_request, *used, 0.0)

"""Limits the prefetch window to the batches that fit into the available memory.

In a small container, a window of large batches could otherwise get the kernel killed for lack of memory.
"""

from __future__ import annotations

from collections.abc import Callable

from nbloader._util.format import megabytes, plural
from nbloader._util.system import Cgroup, available_memory, cgroups

FIRST_CHECK = 1 << 20
"""Total size of the batches, in bytes, after which the available memory is measured for the first time."""
CHECK_EVERY = 256 << 20
"""The least number of bytes between two measurements, which read several system files each."""
CHECK_SHARE = 8
"""Memory is measured again when batches that total 1/CHECK_SHARE of the available memory have arrived."""
USABLE = 0.75
"""Part of the available memory that batches may take. The rest is left for the samples that workers collate, and for
the loop's own use."""


class MemoryWatch:
    """Measures the available memory from time to time, by the size of the batches that arrive.

    Args:
        available: Measures it: bytes, or None if the system does not report it. By default it asks the system, and the
            control groups in which this process was at the first measurement.
    """

    def __init__(self, available: Callable[[], int | None] | None = None) -> None:
        self._available = available or self._of_this_process
        self._groups: tuple[Cgroup, ...] | None = None
        self._until_check = FIRST_CHECK
        self.measured = 0
        """Result of the last measurement, bytes."""

    def _of_this_process(self) -> int | None:
        if self._groups is None:
            self._groups = tuple(cgroups("memory"))
        return available_memory(groups=self._groups)

    def due(self, nbytes: int) -> bool:
        """Count a batch that has arrived, and return whether `affordable` should be called."""
        self._until_check -= nbytes
        return self._until_check <= 0

    def affordable(self, nbytes: int, arrived: int) -> int | None:
        """Measure how many batches may be outstanding, at least one; None if the system does not report it.

        Args:
            nbytes: Size of a batch.
            arrived: Batches that are in memory already, but not delivered.
        """
        available = self._available()
        if available is None:
            self._until_check = 1 << 62
            return None
        self.measured = available
        self._until_check = max(CHECK_EVERY, available // CHECK_SHARE)
        return max(1, arrived + int(USABLE * available) // max(1, nbytes))


def notice(nbytes: int, available: int, window: int, planned: int) -> str:
    """The notice for a cell whose loader requests fewer batches ahead than its arguments say.

    Args:
        nbytes: Size of a batch.
        available: Available memory, bytes.
        window: Batches that it requests ahead now.
        planned: Batches that it would request ahead.
    """
    return (
        f"nbloader: a batch takes {megabytes(nbytes)}, and {megabytes(available)} of memory are available: "
        f"{plural(window, 'batch')} may be requested ahead, not {planned}. A smaller batch_size, prefetch_factor or "
        "num_workers needs less memory. In a container its memory limit applies.\n"
    )

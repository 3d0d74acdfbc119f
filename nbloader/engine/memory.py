"""How many batches the available memory allows: in a small container, a window of huge batches ends the kernel."""

from __future__ import annotations

from collections.abc import Callable

from nbloader._util.format import megabytes, plural
from nbloader._util.system import Cgroup, available_memory, cgroups

FIRST_CHECK = 1 << 20
"""Batches in bytes, in total, after which the available memory is measured for the first time."""
CHECK_EVERY = 256 << 20
"""The least number of bytes between two measurements, which read several system files each."""
CHECK_SHARE = 8
"""The next measurement comes when batches of one part in so many of the available memory have arrived."""
USABLE = 0.75
"""Part of the available memory that batches may take. The rest is for the samples that workers collate, and for what
the loop does with the batches."""


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
        """Count a batch that has arrived. Returns whether to measure."""
        self._until_check -= nbytes
        return self._until_check <= 0

    def affordable(self, nbytes: int, arrived: int) -> int | None:
        """Measure: how many batches may be outstanding, at least one; None if the system does not report it.

        Args:
            nbytes: Size of a batch.
            arrived: Batches that are in memory already, and not delivered.
        """
        available = self._available()
        if available is None:
            self._until_check = 1 << 62
            return None
        self.measured = available
        self._until_check = max(CHECK_EVERY, available // CHECK_SHARE)
        return max(1, arrived + int(USABLE * available) // max(1, nbytes))


def notice(nbytes: int, available: int, window: int, planned: int) -> str:
    """The line for a cell whose loader requests fewer batches than it was asked to.

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

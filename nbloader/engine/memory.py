"""Limits the prefetch window to the batches that fit into the available memory.

Otherwise, in a small container, a window of large batches could exhaust the memory and get the notebook's kernel
killed.
"""

from __future__ import annotations

from collections.abc import Callable

from nbloader._platform import available_memory
from nbloader._util.format import megabytes, plural

CHECK_SHARE = 8
"""Memory is measured again when batches that total 1/CHECK_SHARE of the available memory have arrived. Each measurement
reads several system files, which takes 0.2 ms."""
USABLE = 0.75
"""Fraction of the memory that batches may take, of what they have and what is available. The rest is left for the
samples that workers collate, and for the user's loop."""


class MemoryWatch:
    """Measures the available memory whenever enough bytes of batches have arrived.

    Args:
        available: Returns the available memory in bytes; None if the system does not report it.
    """

    def __init__(self, available: Callable[[], int | None] = available_memory) -> None:
        self._available = available
        self._until_check = 0
        self.measured = 0
        """Result of the last measurement, bytes."""

    def due(self, nbytes: int) -> bool:
        """Count a batch that has arrived, and return whether `affordable` should be called."""
        self._until_check -= nbytes
        return self._until_check <= 0

    def affordable(self, nbytes: int, arrived: int) -> int | None:
        """Measure the memory and return how many batches may be outstanding, at least one; None if that is unknown.

        Args:
            nbytes: Size of a batch.
            arrived: Number of batches that have arrived but have not been delivered.
        """
        available = self._available()
        if available is None:
            self._until_check = 1 << 62
            return None
        self.measured = available
        self._until_check = available // CHECK_SHARE
        return max(1, int(USABLE * (arrived + available / max(1, nbytes))))


def notice(nbytes: int, available: int, window: int, planned: int) -> str:
    """Return the notice for a cell whose loader requests fewer batches ahead than its arguments specify.

    Args:
        nbytes: Size of a batch.
        available: Available memory, bytes.
        window: Number of batches that the loader requests ahead now.
        planned: Number of batches that it would request ahead if there were enough memory.
    """
    return (
        f"nbloader: a batch takes {megabytes(nbytes)}, and {megabytes(available)} of memory is available, so the "
        f"loader requests {plural(window, 'batch')} ahead instead of {planned}. A smaller batch_size, prefetch_factor "
        "or num_workers needs less memory. In a container, the memory limit of the container applies.\n"
    )

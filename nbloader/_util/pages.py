"""What the kernel knows of a private mapping of a file: which pages were written to, and are the file's no longer."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

_PAGEMAP = Path("/proc/self/pagemap")
_SHIFTS = (61, 62, 63)
"""Of a page's 64 bits: it is a file's; it is in swap; it is in memory (the kernel's Documentation/admin-guide/mm)."""


def written(address: int, nbytes: int) -> bool:
    """Whether a page of a private mapping of a file was written to. True where the system does not tell."""
    first, last = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
    try:
        with _PAGEMAP.open("rb") as file:
            file.seek(first * 8)
            pages = np.frombuffer(file.read((last - first + 1) * 8), np.uint64)
    except OSError:
        return True
    files, swapped, present = (pages >> np.uint64(shift) & np.uint64(1) for shift in _SHIFTS)
    return pages.size != last - first + 1 or bool(((present | swapped) > files).any())

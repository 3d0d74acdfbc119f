"""The remedies, one module each. A new one is a module with `REMEDY`, and a line in this list."""

from __future__ import annotations

from nbloader.remedies.kinds import (
    array_to_tensor,
    deep_copy,
    full_size_jpeg,
    json_text,
    listing,
    opencv_size,
    opencv_threads,
    opened_each_time,
    pandas_row,
    printing,
    python_padding,
    read_each_time,
)
from nbloader.remedies.remedy import Remedy

REMEDIES: tuple[Remedy, ...] = (
    full_size_jpeg.REMEDY,
    opencv_size.REMEDY,
    opencv_threads.REMEDY,
    opened_each_time.REMEDY,
    read_each_time.REMEDY,
    listing.REMEDY,
    pandas_row.REMEDY,
    json_text.REMEDY,
    array_to_tensor.REMEDY,
    python_padding.REMEDY,
    deep_copy.REMEDY,
    printing.REMEDY,
)
"""In this order: a remedy that removes more of the work stands first."""

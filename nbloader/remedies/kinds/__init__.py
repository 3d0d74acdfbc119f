"""The remedies, one module each. A new one is a module with `REMEDY`, and a line in this list.

The first line of a module says what is slow. docs/diagnosis.md lists these lines.
"""

from __future__ import annotations

from nbloader.remedies.kinds import (
    array_to_tensor,
    blas_threads,
    compressed_stream,
    computed_each_time,
    connection_each_time,
    deep_copy,
    float_in_workers,
    full_size_jpeg,
    hdf5_chunks,
    json_text,
    list_membership,
    listing,
    lock_held,
    npz_archive,
    numbers_one_by_one,
    opencv_size,
    opencv_threads,
    opened_each_time,
    pandas_row,
    picture_round_trip,
    printing,
    python_loop,
    python_objects,
    python_padding,
    read_each_time,
    regular_expressions,
    same_each_epoch,
    sql_lookup,
    tokenizer_per_sample,
    whole_array,
)
from nbloader.remedies.remedy import Remedy

REMEDIES: tuple[Remedy, ...] = (
    full_size_jpeg.REMEDY,
    opencv_size.REMEDY,
    opened_each_time.REMEDY,
    compressed_stream.REMEDY,
    connection_each_time.REMEDY,
    whole_array.REMEDY,
    read_each_time.REMEDY,
    npz_archive.REMEDY,
    hdf5_chunks.REMEDY,
    listing.REMEDY,
    sql_lookup.REMEDY,
    pandas_row.REMEDY,
    json_text.REMEDY,
    tokenizer_per_sample.REMEDY,
    lock_held.REMEDY,
    python_padding.REMEDY,
    picture_round_trip.REMEDY,
    python_loop.REMEDY,
    array_to_tensor.REMEDY,
    numbers_one_by_one.REMEDY,
    float_in_workers.REMEDY,
    regular_expressions.REMEDY,
    list_membership.REMEDY,
    computed_each_time.REMEDY,
    deep_copy.REMEDY,
    opencv_threads.REMEDY,
    blas_threads.REMEDY,
    printing.REMEDY,
    python_objects.REMEDY,
    same_each_epoch.REMEDY,
)
"""In this order: a remedy that removes more of the work stands first."""

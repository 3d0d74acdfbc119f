"""Rows of tables: data frames of pandas and polars, tables, files and datasets of Arrow, Lance and zarr."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nbloader.explorer.adapters import Adapted

MISSING_SIGNS = ("NAType", "NaTType")
"""Types of pandas with the single value that is missing."""
MAX_GROUPS = 2
"""Maximum number of row groups of a Parquet file that are kept."""


def rows_of(x: Any) -> Adapted | None:
    """Return the rows of a table, each as a dict; None if the object is no table.

    Raises:
        TypeError: It is a query that was not executed.
    """
    if hasattr(x, "iloc") and hasattr(x, "columns"):  # pandas: x[0] would be a column
        return Adapted(len(x), partial(_of_pandas, x))
    if hasattr(x, "iloc") and hasattr(x, "to_list"):  # a column of pandas: x[0] would be the row with this label
        return Adapted(len(x), partial(_of_pandas_column, x))
    if hasattr(x, "collect") and hasattr(x, "collect_schema"):
        raise TypeError("a LazyFrame has no rows until it is executed. Pass frame.collect().")
    if hasattr(x, "row") and hasattr(x, "iter_rows"):  # polars
        return Adapted(len(x), partial(_of_polars, x))
    if hasattr(x, "to_pylist") and hasattr(x, "schema") and hasattr(x, "slice"):  # a table or a record batch of Arrow
        return Adapted(int(x.num_rows), partial(_of_arrow, x))
    if hasattr(x, "to_pylist") and hasattr(x, "type") and hasattr(x, "slice"):  # a column of Arrow
        return Adapted(len(x), partial(_of_arrow_column, x))
    if hasattr(x, "read_row_group") and hasattr(x, "metadata"):
        return Adapted(int(x.metadata.num_rows), ParquetGroups(x.metadata, x.read_row_group).row)
    if hasattr(x, "count_rows") and hasattr(x, "take") and hasattr(x, "schema"):  # a dataset of Arrow or Lance
        return Adapted(int(x.count_rows()), partial(_of_dataset, x))
    return None


def opened(path: str | Path) -> Any:
    """Open a file or folder of a table with the library for it.

    Args:
        path: Path that ends in ".parquet", ".lance" or ".zarr".

    Raises:
        TypeError: It has another ending.
        ModuleNotFoundError: The library is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".parquet":
        from pyarrow import dataset, parquet

        return dataset.dataset(path) if Path(path).is_dir() else ParquetPath(path, parquet)
    if suffix == ".lance":
        import lance

        return lance.dataset(path)
    if suffix == ".zarr":
        import zarr

        return zarr.open(str(path), mode="r")
    raise TypeError(
        f"explore() opens files that end in .parquet, .lance or .zarr, not {str(path)[:80]!r}. Pass a dataset, an "
        "array or a data frame."
    )


def arrays_of(x: Any) -> Mapping[str, Any] | None:
    """Return the arrays of a group of zarr by name; None if it is none.

    Raises:
        TypeError: The group has no arrays itself, but its groups may.
    """
    if not (callable(getattr(x, "arrays", None)) and callable(getattr(x, "array_keys", None))):
        return None
    arrays = {str(name): array for name, array in x.arrays()}
    groups = [str(name) for name in x.group_keys()] if not arrays else []
    if groups:
        raise TypeError(
            f"the group has no arrays, only groups. Pass one of them, such as group[{groups[0]!r}]: {', '.join(groups)}"
        )
    return arrays


def length_of_array(x: Any) -> int | None:
    """Return the length of the first axis of an array without `__len__`, such as one of zarr; None if it has none."""
    shape = getattr(x, "shape", None)
    usable = isinstance(shape, tuple) and bool(shape) and hasattr(x, "__getitem__")
    return int(shape[0]) if usable and shape is not None else None


class ParquetPath:
    """A Parquet file that is open only while something is read from it.

    Args:
        path: The file.
        parquet: The module `pyarrow.parquet`.
    """

    def __init__(self, path: str | Path, parquet: Any) -> None:
        self._path = path
        self._parquet = parquet
        self.metadata: Any = parquet.read_metadata(path)
        """Numbers of rows and row groups."""

    def read_row_group(self, group: int) -> Any:
        """Return a row group as a table."""
        with self._parquet.ParquetFile(self._path) as file:
            return file.read_row_group(group)


class ParquetGroups:
    """The row groups of a Parquet file that were read last.

    Args:
        metadata: Numbers of rows and row groups.
        read: Returns a row group as a table.
    """

    def __init__(self, metadata: Any, read: Callable[[int], Any]) -> None:
        self._read = read
        self._starts = [0]
        for group in range(metadata.num_row_groups):
            self._starts.append(self._starts[-1] + metadata.row_group(group).num_rows)
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def row(self, index: int) -> dict[str, Any]:
        """Return a row."""
        group = next(at for at, start in enumerate(self._starts[1:]) if index < start)
        with self._lock:  # a file of pyarrow must not be read by two threads
            if group not in self._tables:
                self._tables[group] = self._read(group)
                if len(self._tables) > MAX_GROUPS:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(group)
            table = self._tables[group]
        return _of_arrow(table, index - self._starts[group])


def _of_pandas(frame: Any, index: int) -> Any:
    return {name: _without_signs(value) for name, value in frame.iloc[index].to_dict().items()}


def _of_pandas_column(column: Any, index: int) -> Any:
    return _without_signs(column.iloc[index])


def _without_signs(value: Any) -> Any:
    """Return None for what stands for a missing value in pandas. In other tables, NaN is a number."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else value
    if isinstance(value, (float, np.floating)):
        return None if np.isnan(value) else value
    return None if type(value).__name__ in MISSING_SIGNS else value


def _of_polars(frame: Any, index: int) -> Any:
    return frame.row(index, named=True)


def _of_arrow(table: Any, index: int) -> dict[str, Any]:
    row: dict[str, Any] = table.slice(index, 1).to_pylist()[0]
    return row


def _of_arrow_column(column: Any, index: int) -> Any:
    return column[index].as_py()


def _of_dataset(dataset: Any, index: int) -> dict[str, Any]:
    return _of_arrow(dataset.take([index]), 0)

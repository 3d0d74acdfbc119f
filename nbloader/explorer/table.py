"""Facts about the samples that were read: rows, columns, histograms that filter one another, costs, problems.

    reader -> content of a sample -> SampleTable.add: a row, and a check if a scan has read it
    SampleTable.statistics(filters) -> counts per bin, for the browser, of the rows that pass all *other* filters

A column is numeric or categorical (label names, shapes, types). Free text has no histogram, but its lengths have one.
Columns are created from the rows when they are needed, and cached until a sample is added. Thread-safe.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.problems import Check, Form, Found, ProblemKind, find_problems, groups
from nbloader.explorer.reader import ReadSample

Row: TypeAlias = "dict[str, Any]"
"""Facts about a sample, see `Explorer.rows`."""
Filters: TypeAlias = "Mapping[str, Sequence[float] | Sequence[str]]"
"""By column: minimum and maximum, or categories."""

MAX_ROWS = 100_000
"""Maximum number of samples whose costs and values are kept, about 1.2 kB each."""
BINS = 24
"""Number of bars of a histogram."""
LARGEST_GROUPS = 12
"""Number of categories that have their own bar; the others share one."""
MAX_CATEGORIES = 200
"""Maximum number of distinct values of a categorical column; a column with more is treated as text."""
MAX_COLUMNS = 60
MAX_SHARED = 1000
"""Maximum number of distinct sets of names, and of distinct forms, that are cached so that rows can share them."""
POINTS = 4000
"""Maximum number of points of a scatter plot."""
LOGARITHMIC = 100
"""If all numbers are positive and the largest exceeds this multiple of the smallest, the axis is logarithmic."""
LARGEST_EXACT = 2.0**52
"""Limit below which floats represent all whole numbers exactly."""
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one name in all rows: numbers, or category codes."""

    name: str
    values: NDArray[np.float64]
    """NaN if a row has no value."""
    categories: tuple[str, ...] | None
    """The most frequent one first; None for a numeric column."""
    edges: NDArray[np.float64]
    """Edges of the bins."""
    logarithmic: bool
    whole: bool = False
    """Whether each bin holds a single whole number."""

    def bins(self) -> NDArray[np.int64]:
        """Return the bin of each row; -1 if it is in none."""
        found = np.searchsorted(self.edges, self.values, "right") - 1
        found[self.values == self.edges[-1]] -= 1  # the last bin includes both of its edges
        return np.where(np.isfinite(self.values) & (found >= 0), np.minimum(found, len(self.edges) - 2), -1)

    def passes(self, chosen: Sequence[Any]) -> NDArray[np.bool_]:
        """Return which rows pass a filter of this column."""
        if self.categories is None:
            low, high = float(chosen[0]), float(chosen[1])
            return (self.values >= low) & (self.values <= high)
        wanted = [at for at, name in enumerate(self.categories) if name in chosen]
        if OTHERS in chosen:
            wanted += range(LARGEST_GROUPS, len(self.categories))
        return np.isin(self.values, wanted)


class _Line(NamedTuple):
    """A compact row: rows with the same names share the mapping of names."""

    places: dict[str, int]
    """Position of the value, by name."""
    values: tuple[Any, ...]

    def get(self, name: str) -> Any:
        """Return a value; None if there is none."""
        at = self.places.get(name)
        return None if at is None else self.values[at]

    def row(self) -> Row:
        """Return the row as a dict."""
        return dict(zip(self.places, self.values, strict=True))


class SampleTable:
    """Facts about samples, by dataset index; the last `MAX_ROWS` are kept."""

    def __init__(self) -> None:
        self._rows: dict[int, _Line] = {}
        self._places: dict[tuple[str, ...], dict[str, int]] = {}
        self._checks: dict[int, Check] = {}
        self._forms: dict[tuple[Form, ...], tuple[Form, ...]] = {}  # shared, because most samples have equal ones
        self._columns: dict[str, Column] | None = None
        self._problems: Found | None = None
        self._lock = threading.RLock()

    # ---- rows -------------------------------------------------------------------------------------------------------

    def add(self, index: int, sample: ReadSample) -> None:
        """Add a sample that was read.

        Args:
            index: Dataset index of the sample.
            sample: What was read.
        """
        content = json.loads(sample.content)
        row, check = _row(index, sample, content), content.get("check")
        with self._lock:
            self._rows.pop(index, None)
            names = tuple(row)
            if names not in self._places:
                if len(self._places) >= MAX_SHARED:
                    self._places.clear()  # the rows keep theirs
                self._places[names] = {name: at for at, name in enumerate(names)}
            shared = (sys.intern(value) if type(value) is str else value for value in row.values())
            self._rows[index] = _Line(self._places[names], tuple(shared))
            if check is not None:
                found = Check.from_json(check)
                if len(self._forms) >= MAX_SHARED:
                    self._forms.clear()
                self._checks[index] = found._replace(
                    forms=self._forms.setdefault(found.forms, found.forms),
                    labels=tuple((sys.intern(path), sys.intern(value)) for path, value in found.labels),
                )
            if len(self._rows) > MAX_ROWS:
                self._forget(next(iter(self._rows)))
            self._columns = self._problems = None

    def drop(self, indices: Iterable[int]) -> None:
        """Forget samples that are about to be read again."""
        with self._lock:
            for index in indices:
                self._forget(index)
            self._columns = self._problems = None

    def _forget(self, index: int) -> None:
        self._rows.pop(index, None)
        self._checks.pop(index, None)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._rows)

    def __contains__(self, index: object) -> bool:
        """Whether the sample was read."""
        return index in self._rows

    def checked(self, index: int) -> bool:
        """Whether a scan has read the sample, or reading it has failed."""
        with self._lock:
            return index in self._checks or (index in self._rows and self._rows[index].get("error") is not None)

    def rows(self) -> list[Row]:
        """Return a copy of the rows, in the order of the indices."""
        with self._lock:
            return [self._rows[index].row() for index in sorted(self._rows)]

    def failed(self) -> list[int]:
        """Indices of the samples that could not be read."""
        with self._lock:
            return [index for index, line in self._rows.items() if line.get("error") is not None]

    def slowest(self) -> list[int]:
        """All indices, the slowest sample first."""
        with self._lock:
            return sorted(self._rows, key=lambda index: -self._rows[index].get("seconds"))

    # ---- problems ---------------------------------------------------------------------------------------------------

    def problems(self) -> Found:
        """See `find_problems`."""
        with self._lock:
            if self._problems is None:
                errors = {index: line.get("error") for index, line in self._rows.items()}
                failed = {index: error for index, error in errors.items() if error is not None}
                self._problems = find_problems(failed, self._checks)
            return self._problems

    def listed(self, kind: ProblemKind) -> dict[int, str]:
        """Return what to show for a kind of problem; duplicates are listed with the sample that they repeat."""
        with self._lock:
            found = self.problems()[kind]
            if kind != "duplicate":
                return found
            listed = {}
            for first, *others in groups(dict(sorted(self._checks.items()))):
                listed[first] = f"the first of {len(others) + 1} that are equal"
                listed |= {index: found[index] for index in others}
            return listed

    # ---- columns ----------------------------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        """The columns that have a histogram."""
        with self._lock:
            if self._columns is None:
                rows = [self._rows[index] for index in sorted(self._rows)]
                shared = {id(line.places): line.places for line in rows}
                names = dict.fromkeys(name for places in shared.values() for name in places)
                hidden = {"index", "error", *(name for name in names if f"{name}.shape" in names)}  # array fields
                drawn = [name for name in names if name not in hidden]
                made = (_column(name, [row.get(name) for row in rows]) for name in drawn[:MAX_COLUMNS])
                self._columns = {column.name: column for column in made if column is not None}
            return self._columns

    def indices(self) -> NDArray[np.int64]:
        """Return the dataset indices of the rows, in the order of the columns' values."""
        with self._lock:
            return np.array(sorted(self._rows), np.int64)

    def filtered(self, filters: Filters) -> list[int]:
        """Indices of the samples that pass all filters."""
        with self._lock:
            passed = _passed(self.columns(), filters)
            indices = self.indices()
            found: list[int] = indices[np.logical_and.reduce(list(passed.values()))].tolist() if passed else []
            return found if passed else indices.tolist()

    def costs(self, by: str) -> list[Row]:
        """See `Explorer.costs`.

        Raises:
            KeyError: No row has a field of this name.
        """
        with self._lock:
            pairs = [(line.get(by), line.get("seconds")) for line in self._rows.values() if by in line.places]
        grouped: dict[Any, list[float]] = {}
        for value, seconds in pairs:
            grouped.setdefault(value, []).append(seconds)
        if not grouped:
            raise KeyError(
                f"no sample that was read has a field {by!r}: view.rows() lists them, view.scan() reads more"
            )
        return _costs(grouped)

    def statistics(self, filters: Filters, x: str, y: str, by: str) -> tuple[dict[str, Any], list[bytes]]:
        """Return what the browser draws, as JSON values and buffers.

        Args:
            filters: Filters by column.
            x: Column of the scatter plot; any other string for no plot.
            y: Column of the scatter plot.
            by: Column whose costs are listed.
        """
        with self._lock:
            columns, indices = self.columns(), self.indices()
            problems = {kind: len(found) for kind, found in self.problems().items()}
            checked = len(self._checks)
            seconds = np.array([self._rows[index].get("seconds") for index in indices.tolist()])
        passed = _passed(columns, filters)
        count = np.zeros(len(indices), np.int64)  # number of filters that each row passes
        for mask in passed.values():
            count += mask
        all_pass: NDArray[np.bool_] = count == len(passed)
        content: dict[str, Any] = {
            "rows": len(indices),
            "passed": int(all_pass.sum()),
            "problems": problems,
            "checked": checked,
            "columns": [
                _drawn(column, all_pass if name not in passed else (count - passed[name]) == len(passed) - 1)
                for name, column in columns.items()
            ],
            "costs": _cost_lines(columns[by], seconds, all_pass) if by in columns else [],
        }
        if x not in columns or y not in columns:
            return content, []
        both = np.flatnonzero(np.isfinite(columns[x].values) & np.isfinite(columns[y].values))
        shown = both[:: max(1, -(-len(both) // POINTS))]
        content["scatter"] = {"x": _axis(columns[x], both), "y": _axis(columns[y], both), "points": len(shown)}
        arrays = (
            columns[x].values[shown],
            columns[y].values[shown],
            indices[shown].astype(np.float64),
            all_pass[shown],
        )
        return content, [np.ascontiguousarray(array).tobytes() for array in arrays]


def _passed(columns: Mapping[str, Column], filters: Filters) -> dict[str, NDArray[np.bool_]]:
    return {name: columns[name].passes(chosen) for name, chosen in filters.items() if name in columns}


_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON cannot represent, by their text form."""


def _row(index: int, sample: ReadSample, content: Mapping[str, Any]) -> Row:
    """Build the row of a sample. The sample's fields cannot replace the built-in names."""
    values: Row = {}
    derived: Row = {}
    for field in content.get("fields", ()):
        if field.get("absent"):
            continue
        name = field["path"] or "value"
        values[name] = field.get("value", _NOT_FINITE.get(field["summary"], field["summary"]))
        derived |= {f"{name}.{fact}": value for fact, value in field.get("facts", {}).items()}
    known = {
        "index": index,
        "seconds": sample.seconds,
        "cpu_seconds": sample.cpu_seconds,
        "nbytes": content.get("nbytes"),
        "worker": sample.worker,
        "error": content.get("error"),
    }
    return {**known, **values, **{name: value for name, value in derived.items() if name not in values}, **known}


def _column(name: str, values: list[Any]) -> Column | None:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if all(type(value) in (int, float) for value in present):
        return _numeric(name, values)
    if not all(type(value) in (str, bool) for value in present):
        return None
    counts: dict[str, int] = {}
    for value in present:
        text = str(value)
        counts[text] = counts.get(text, 0) + 1
        if len(counts) > MAX_CATEGORIES:
            return None
    if len(counts) > LARGEST_GROUPS and 2 * len(counts) > len(present):  # free text
        return None
    categories = tuple(sorted(counts, key=lambda text: (-counts[text], text)))
    numbers = {text: at for at, text in enumerate(categories)}
    codes = np.array([math.nan if value is None else numbers[str(value)] for value in values], np.float64)
    edges = np.arange(min(len(categories), LARGEST_GROUPS + 1) + 1, dtype=np.float64)
    return Column(name, codes, categories, edges, logarithmic=False)


def _numeric(name: str, values: list[Any]) -> Column | None:
    array = np.array([math.nan if value is None else value for value in values], np.float64)
    finite = array[np.isfinite(array)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    few = high / 2 - low / 2 < BINS / 2 and abs(high) < LARGEST_EXACT and bool((finite == np.rint(finite)).all())
    logarithmic = low > 0 and high / LOGARITHMIC > low
    if low == high:
        edges = np.array([low, high])
    elif few:
        edges = np.arange(low, high + 2)
    else:
        with np.errstate(over="ignore"):  # the last edge of geomspace may be rounded up and overflow
            edges = np.geomspace(low, high, BINS + 1) if logarithmic else 2 * np.linspace(low / 2, high / 2, BINS + 1)
        edges[0], edges[-1] = low, high
    return Column(name, array, None, edges, logarithmic and not few, few and low < high)


def _axis(column: Column, drawn: NDArray[np.intp]) -> dict[str, Any]:
    """Return the properties of an axis.

    Args:
        column: The column.
        drawn: Rows of the points, whose range the axis spans.
    """
    low, high = float(column.edges[0]), float(column.edges[-1])
    if column.categories is None and len(drawn):
        low, high = float(column.values[drawn].min()), float(column.values[drawn].max())
    return {
        "name": column.name,
        "categories": None if column.categories is None else [clean(c, 60) for c in column.categories[:MAX_CATEGORIES]],
        "low": low,
        "high": high,
        "logarithmic": column.logarithmic,
    }


def _drawn(column: Column, passed: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a histogram of all rows, and of those that pass the filters of the other columns."""
    bins, count = column.bins(), len(column.edges) - 1
    there = bins >= 0
    labels = None
    if column.categories is not None:
        labels = [*column.categories[:LARGEST_GROUPS], *([OTHERS] if len(column.categories) > LARGEST_GROUPS else [])]
    finite = column.values[there]
    return {
        "name": column.name,
        "edges": [float(edge) for edge in column.edges],
        "labels": labels,
        "logarithmic": column.logarithmic,
        "whole": column.whole,
        "all": np.bincount(bins[there], minlength=count).tolist(),
        "passed": np.bincount(bins[there & passed], minlength=count).tolist(),
        "missing": int(len(bins) - there.sum()),
        "mean": _mean(finite) if column.categories is None and finite.size else None,
    }


def _mean(values: NDArray[np.float64]) -> float:
    scale = float(np.abs(values).max()) or 1.0  # so that the sum does not overflow
    return float(np.mean(values / scale)) * scale


def _cost_lines(column: Column, seconds: NDArray[np.float64], passed: NDArray[np.bool_]) -> list[Row]:
    """Return the costs by category, or by bin of a numeric column."""
    bins = column.bins()
    names = _drawn(column, passed)["labels"]
    grouped: dict[Any, list[float]] = {}
    for at in np.unique(bins[passed & (bins >= 0)]).tolist():
        if names is None:
            low, high = float(column.edges[at]), float(column.edges[at + 1])
            name: Any = [low, high]
        else:
            name = names[at]
        grouped[json.dumps(name)] = seconds[passed & (bins == at)].tolist()
    return [{**line, "value": json.loads(line["value"])} for line in _costs(grouped)[:LARGEST_GROUPS]]


def _costs(grouped: Mapping[Any, list[float]]) -> list[Row]:
    """Return each group's share of the samples and of the time, the most expensive group first."""
    samples, seconds = sum(map(len, grouped.values())), sum(map(sum, grouped.values()))
    table = [
        {
            "value": value,
            "samples": len(times),
            "share_of_samples": len(times) / samples,
            "share_of_time": sum(times) / seconds if seconds else 0.0,
            "seconds": sum(times) / len(times),
        }
        for value, times in grouped.items()
    ]
    return sorted(table, key=lambda line: -line["share_of_time"])

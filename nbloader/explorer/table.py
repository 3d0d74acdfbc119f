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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.own_columns import OwnColumn
from nbloader.explorer.problems import Check, Form, Found, ProblemKind, find_problems, groups, suspects
from nbloader.explorer.reader import ReadSample
from nbloader.explorer.text_index import TextIndex, excerpt

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
MIN_CORNERS = 3
"""Minimum number of corners of a polygon."""
MAX_CLASSES = 100
"""Maximum number of classes in a table of pairs."""
POINTS = 4000
"""Maximum number of points of a scatter plot."""
LOGARITHMIC = 100
"""If all numbers are positive and the largest exceeds this multiple of the smallest, the axis is logarithmic."""
LARGEST_EXACT = 2.0**52
"""Limit below which floats represent all whole numbers exactly."""
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one name: numbers, or category codes."""

    name: str
    values: NDArray[np.float64]
    """NaN if a sample has no value."""
    categories: tuple[str, ...] | None
    """The most frequent one first; None for a numeric column."""
    edges: NDArray[np.float64]
    """Edges of the bins."""
    logarithmic: bool
    whole: bool = False
    """Whether each bin holds a single whole number."""
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions of the values among `SampleTable.indices()`."""

    def spread(self, count: int, values: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return one value for each of `count` samples: NaN, or False for bools, where the column has none.

        Args:
            count: Number of samples.
            values: A value for each value of the column; None for its own.
        """
        given = self.values if values is None else values
        out = np.zeros(count, np.bool_) if given.dtype == np.bool_ else np.full(count, np.nan)
        out[self.places] = given
        return out

    def names(self) -> list[str] | None:
        """Return the name of each category, or of each whole number; None for other numbers."""
        if self.categories is not None:
            return list(self.categories)
        return [f"{edge:.0f}" for edge in self.edges[:-1]] if self.whole else None

    def codes(self) -> NDArray[np.float64]:
        """Return the position of each value in `names()`."""
        return self.values if self.categories is not None else self.values - self.edges[0]

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
    """Facts about samples, by dataset index; the last `MAX_ROWS` are kept, and all values that the user has added."""

    def __init__(self) -> None:
        self._rows: dict[int, _Line] = {}
        self._own: dict[str, OwnColumn] = {}
        self._own_made: dict[str, Column] = {}
        self._texts = TextIndex()
        self._places: dict[tuple[str, ...], dict[str, int]] = {}
        self._checks: dict[int, Check] = {}
        self._forms: dict[tuple[Form, ...], tuple[Form, ...]] = {}  # shared, because most samples have equal ones
        self._columns: dict[str, Column] | None = None
        self._indices: NDArray[np.int64] | None = None
        self._problems: Found | None = None
        self._probes: dict[int, str] = {}  # digests of suspects under other seeds
        self._drawn = ""
        """Digest of a content that follows from the seed and not from the index; "" if there is none."""
        self.lock = threading.RLock()
        """Held during several calls that must find the same samples."""

    # ---- rows -------------------------------------------------------------------------------------------------------

    def add(self, index: int, sample: ReadSample) -> None:
        """Add a sample that was read.

        Args:
            index: Dataset index of the sample.
            sample: What was read.
        """
        content = json.loads(sample.content)
        row, check = _row(index, sample, content), content.get("check")
        with self.lock:
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
            self._texts.add(index, content.get("fields", ()))
            if len(self._rows) > MAX_ROWS:
                self._forget(next(iter(self._rows)))
            self._columns = self._indices = self._problems = None

    def add_column(self, name: str, column: OwnColumn) -> None:
        """Add values of the user, or replace those of the same name.

        Raises:
            ValueError: No sample has a value, or there are too many distinct strings to tell them apart.
        """
        numbers, texts = column.values, column.texts
        made = _numeric(name, numbers) if texts is None else _categorical(name, numbers, texts)
        if made is None:
            raise ValueError(f"column {name!r} must have numbers, or at most {MAX_CATEGORIES} distinct strings")
        with self.lock:
            self._own[name], self._own_made[name] = column, made
            self._columns = self._indices = None

    def remove_column(self, name: str) -> None:
        """Remove values of the user.

        Raises:
            KeyError: There is no such column.
        """
        with self.lock:
            if name not in self._own:
                raise KeyError(f"you have added no column {name!r}. Yours: {', '.join(self._own) or 'none'}")
            del self._own[name], self._own_made[name]
            self._columns = self._indices = None

    def drop(self, indices: Iterable[int]) -> None:
        """Forget samples that are about to be read again."""
        with self.lock:
            for index in indices:
                self._forget(index)
            self._columns = self._indices = self._problems = None
            self._probes.clear()
            self._drawn = ""

    def _forget(self, index: int) -> None:
        self._rows.pop(index, None)
        self._checks.pop(index, None)
        self._texts.drop(index)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._rows)

    def __contains__(self, index: object) -> bool:
        """Whether the sample was read."""
        return index in self._rows

    def checked(self, index: int) -> bool:
        """Whether a scan has read the sample, or reading it has failed."""
        with self.lock:
            return index in self._checks or (index in self._rows and self._rows[index].get("error") is not None)

    def rows(self, *, every: bool = False) -> list[Row]:
        """Return a copy of the rows, in the order of the indices.

        Args:
            every: Also for samples that were not read, but for which the user has added values.
        """
        with self.lock:
            indices = self.indices().tolist() if every else sorted(self._rows)
            found = [self._rows[at].row() if at in self._rows else {"index": at} for at in indices]
            for name, column in self._own.items():
                for row in found:
                    value = column.at(row["index"])
                    if value is not None:
                        row[name] = value
            return found

    def failed(self) -> list[int]:
        """Indices of the samples that could not be read."""
        with self.lock:
            return [index for index, line in self._rows.items() if line.get("error") is not None]

    def slowest(self) -> list[int]:
        """Indices of the samples that were read, the slowest one first."""
        with self.lock:
            return sorted(self._rows, key=lambda index: -self._rows[index].get("seconds"))

    # ---- problems ---------------------------------------------------------------------------------------------------

    def problems(self) -> Found:
        """See `find_problems`."""
        with self.lock:
            if self._problems is None:
                errors = {index: line.get("error") for index, line in self._rows.items()}
                failed = {index: error for index, error in errors.items() if error is not None}
                self._problems = find_problems(failed, self._checks, self._drawn)
            return self._problems

    def suspects(self) -> dict[int, int]:
        """Return the samples to read under other seeds, because they are equal to more than half of all.

        Returns:
            The number of the random draw, by dataset index.
        """
        with self.lock:
            if self._drawn:
                return {}
            found = suspects(dict(sorted(self._checks.items())))
            return {index: draw for draw, index in enumerate(found, start=1) if index not in self._probes}

    def add_probe(self, index: int, sample: ReadSample) -> str:
        """Add a suspect that was read under a seed of its own.

        Returns:
            What was found out about the dataset, as a sentence; "" if there is nothing to say.
        """
        check = json.loads(sample.content).get("check")
        with self.lock:
            self._probes[index] = "" if check is None else check["digest"]
            found = suspects(dict(sorted(self._checks.items())))
            digests = {self._probes.get(index, "") for index in found}
            if len(found) < 2 or len(digests) < len(found) or "" in digests:
                return ""
            common = self._checks[found[0]].digest
            if common in digests:
                return ""
            self._drawn, self._problems = common, None
            count = sum(check.digest == common for check in self._checks.values())
            return (
                f"What a sample is depends on the random generators and not on its index: {count:,} of "
                f"{len(self._checks):,} are equal under one seed, and samples {found[0]} and {found[1]} differ under "
                "others. They are not listed as duplicates."
            )

    def listed(self, kind: ProblemKind) -> dict[int, str]:
        """Return what to show for a kind of problem; duplicates are listed with the sample that they repeat."""
        with self.lock:
            found = self.problems()[kind]
            if kind != "duplicate":
                return found
            listed = {}
            for first, *others in groups(dict(sorted(self._checks.items())), self._drawn):
                listed[first] = f"the first of {len(others) + 1} that are equal"
                listed |= {index: found[index] for index in others}
            return listed

    # ---- columns ----------------------------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        """The columns that have a histogram: fields of the samples that were read, and values of the user."""
        with self.lock:
            if self._columns is None:
                self._columns = {**self._field_columns(), **self._own_columns()}
            return self._columns

    def _field_columns(self) -> dict[str, Column]:
        read = sorted(self._rows)
        rows = [self._rows[index] for index in read]
        shared = {id(line.places): line.places for line in rows}
        names = dict.fromkeys(name for places in shared.values() for name in places)
        hidden = {"index", "error", *(name for name in names if f"{name}.shape" in names)}  # array fields
        drawn = [name for name in names if name not in hidden]
        made = (_column(name, [row.get(name) for row in rows]) for name in drawn[:MAX_COLUMNS])
        places = _places(self.indices(), np.array(read, np.int64))
        return {column.name: replace(column, places=places) for column in made if column is not None}

    def _own_columns(self) -> dict[str, Column]:
        indices = self.indices()
        return {
            name: replace(made, places=_places(indices, self._own[name].indices))
            for name, made in self._own_made.items()
        }

    def indices(self) -> NDArray[np.int64]:
        """Return the dataset indices of the samples that were read or have values of the user, in ascending order."""
        with self.lock:
            if self._indices is None:
                every = np.array(sorted(self._rows), np.int64)
                for column in self._own.values():
                    if not (_is_range(column.indices) and len(every) and every[-1] < len(column.indices)):
                        every = np.union1d(every, column.indices)
                    else:
                        every = column.indices
                self._indices = every
            return self._indices

    def filtered(self, filters: Filters) -> NDArray[np.int64]:
        """Return the indices of the samples that pass all filters, in ascending order."""
        with self.lock:
            indices = self.indices()
            passed = self._passed(filters, len(indices))
            return indices[np.logical_and.reduce(list(passed.values()))] if passed else indices

    def _passed(self, filters: Filters, count: int) -> dict[str, NDArray[np.bool_]]:
        columns = self.columns()
        return {
            name: columns[name].spread(count, columns[name].passes(chosen))
            for name, chosen in filters.items()
            if name in columns
        }

    def costs(self, by: str) -> list[Row]:
        """See `Explorer.costs`.

        Raises:
            KeyError: No row has a field of this name.
        """
        with self.lock:
            own = self._own.get(by)
            pairs = [
                (line.get(by) if own is None else own.at(index), line.get("seconds"))
                for index, line in self._rows.items()
                if own is not None or by in line.places
            ]
        grouped: dict[Any, list[float]] = {}
        for value, seconds in pairs:
            grouped.setdefault(value, []).append(seconds)
        if not grouped:
            raise KeyError(
                f"no sample that was read has a field {by!r}. view.rows() lists the fields, and view.scan() reads more "
                "samples."
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
        with self.lock:
            columns, indices = self.columns(), self.indices()
            passed = self._passed(filters, len(indices))
            problems = {kind: len(found) for kind, found in self.problems().items()}
            checked = len(self._checks)
            read = sorted(self._rows)
            seconds = np.full(len(indices), np.nan)
            seconds[_places(indices, np.array(read, np.int64))] = [self._rows[index].get("seconds") for index in read]
            own = [name for name in columns if name in self._own]
        count = np.zeros(len(indices), np.int64)  # number of filters that each row passes
        for mask in passed.values():
            count += mask
        all_pass: NDArray[np.bool_] = count == len(passed)
        content: dict[str, Any] = {
            "rows": len(read),
            "passed": int(all_pass.sum()),
            "problems": problems,
            "checked": checked,
            "columns": [
                _drawn(column, all_pass if name not in passed else (count - passed[name]) == len(passed) - 1)
                for name, column in columns.items()
            ],
            "own": own,
            "costs": _cost_lines(columns[by], seconds, all_pass) if by in columns else [],
        }
        if x not in columns or y not in columns:
            return content, []
        across, up = columns[x].spread(len(indices)), columns[y].spread(len(indices))
        both = np.flatnonzero(np.isfinite(across) & np.isfinite(up))
        shown = both[:: max(1, -(-len(both) // POINTS))]
        axes = {"x": _axis(columns[x], across[both]), "y": _axis(columns[y], up[both])}
        content["scatter"] = {**axes, "points": len(shown)}
        arrays = (across[shown], up[shown], indices[shown].astype(np.float64), all_pass[shown])
        return content, [np.ascontiguousarray(array).tobytes() for array in arrays]

    # ---- orders and groups ------------------------------------------------------------------------------------------

    def sortable(self) -> list[str]:
        """Names by which samples can be sorted: fields with one value, and columns of the user."""
        with self.lock:
            shared = {id(line.places): line.places for line in self._rows.values()}
            names = dict.fromkeys(name for places in shared.values() for name in places)
            fields = [name for name in names if name not in ("error", "index") and f"{name}.shape" not in names]
            return list(dict.fromkeys([*self._own, *fields]))[:MAX_COLUMNS]

    def groupable(self) -> list[str]:
        """Names by which samples can be grouped: columns with few distinct values."""
        return [name for name, column in self.columns().items() if len(column.names() or ()) > 1]

    def sorted_by(self, name: str, chosen: NDArray[np.int64], *, descending: bool = False) -> NDArray[np.int64]:
        """Sort samples by a column; those without a value are the last ones.

        Args:
            name: The column.
            chosen: Indices of the samples, in ascending order.
            descending: Whether the largest value is the first one.

        Returns:
            The indices of the samples.

        Raises:
            KeyError: There is no such column.
        """
        if name == "index":
            return chosen[::-1] if descending else chosen
        with self.lock:
            column, indices = self.columns().get(name), self.indices()
            if column is None:
                return self._sorted_by_text(name, chosen.tolist(), descending=descending)
        values = column.spread(len(indices))[_places(indices, chosen)]
        if column.categories is not None:
            alphabetical = np.argsort(np.argsort(column.categories)).astype(np.float64)
            there = np.isfinite(values)
            values[there] = alphabetical[values[there].astype(np.int64)]
        return chosen[np.argsort(-values if descending else values, kind="stable")]  # NaN is last

    def _sorted_by_text(self, name: str, chosen: list[int], *, descending: bool) -> NDArray[np.int64]:
        if name not in self.sortable():
            raise KeyError(f"there is no column {name!r}. {_choices(self.sortable())}")
        keys = {index: self._rows[index].get(name) for index in chosen if index in self._rows}
        there = [index for index in keys if keys[index] is not None]
        missing = [index for index in chosen if keys.get(index) is None]
        ordered = sorted(there, key=lambda index: str(keys[index]).lower(), reverse=descending)
        return np.array(ordered + missing, np.int64)

    def groups(self, by: str, filters: Filters, each: int, order: NDArray[np.int64]) -> list[Group]:
        """Return samples by the value of a column, the largest group first.

        Args:
            by: The column.
            filters: The filters that led to these samples.
            each: Maximum number of samples that are listed of a group.
            order: The samples to group, in the order in which they are listed.

        Raises:
            KeyError: There is no column of this name with few distinct values.
        """
        with self.lock:
            column, indices = self.columns().get(by), self.indices()
        names = None if column is None else column.names()
        if column is None or names is None:
            raise KeyError(f"samples cannot be grouped by {by!r}. {_choices(self.groupable())}")
        codes = column.spread(len(indices), column.codes())[_places(indices, order)]
        there = (codes >= 0) & (codes < len(names))
        listed, numbers = order[there], codes[there].astype(np.int16)
        together = listed[np.argsort(numbers, kind="stable")]
        sizes = np.bincount(numbers, minlength=len(names)).tolist()
        found, begin = [], 0
        for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
            chosen = [name] if column.categories is not None else [float(column.edges[at])] * 2
            members = together[begin : begin + min(size, each)].tolist()
            found.append(Group(name, size, members, {**filters, by: chosen}))
            begin += size
        return sorted((group for group in found if group.size), key=lambda group: -group.size)

    def confusion(self, rows: str, columns: str) -> Confusion:
        """Count pairs of values of two columns, such as labels and predictions.

        Raises:
            KeyError: A column does not exist, or has too many distinct values.
        """
        with self.lock:
            known, count = self.columns(), len(self.indices())
        coded = []
        for name in (rows, columns):
            column = known.get(name)
            names = None if column is None else column.names()
            if column is None or names is None:
                raise KeyError(f"column {name!r} has no classes. {_choices(self.groupable())}")
            coded.append((names, column.spread(count, column.codes())))
        classes = _in_order({name for names, _codes in coded for name in names})
        if len(classes) > MAX_CLASSES:
            raise KeyError(
                f"{rows!r} and {columns!r} have {len(classes)} classes, but a table shows at most {MAX_CLASSES}"
            )
        both = np.isfinite(coded[0][1]) & np.isfinite(coded[1][1])
        place = {name: at for at, name in enumerate(classes)}
        first, second = (
            np.array([place[name] for name in names])[codes[both].astype(np.int64)] for names, codes in coded
        )
        counts = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts, (first, second), 1)
        return Confusion(classes, counts.tolist())

    def within(self, x: str, y: str, corners: Sequence[Sequence[float]]) -> list[int]:
        """Return the indices of the samples inside of a polygon in the scatter plot of two columns.

        Args:
            x: Column of the horizontal axis.
            y: Column of the vertical axis.
            corners: Corners of the polygon: values of both columns; for a logarithmic one, their logarithms.
        """
        with self.lock:
            columns, indices = self.columns(), self.indices()
        if x not in columns or y not in columns or len(corners) < MIN_CORNERS:
            return []
        axes = []
        for name in (x, y):
            values = columns[name].spread(len(indices))
            with np.errstate(all="ignore"):
                axes.append(np.log(values) if columns[name].logarithmic else values)
        found: list[int] = indices[_inside(axes[0], axes[1], np.array(corners, np.float64))].tolist()
        return found

    def search(self, words: str) -> NDArray[np.int64]:
        """Return the indices of the samples whose texts contain all words in any case, in ascending order.

        Texts are those of the samples that were read, and strings in columns of the user.

        Args:
            words: Words with spaces between them.
        """
        wanted = words.lower().split()
        with self.lock:
            indices = self.indices()
            known = [column for column in self._own.values() if column.texts]
            passed = np.full(len(indices), bool(wanted))
            for word in wanted:
                contains = np.zeros(len(indices), np.bool_)
                contains[_places(indices, self._texts.with_word(word))] = True
                for column in known:
                    matches = np.array([*(word in text.lower() for text in column.texts or ()), False])  # -1: no text
                    contains[_places(indices, column.indices[matches[column.values]])] = True
                passed &= contains
            found: NDArray[np.int64] = indices[passed]
            return found

    def excerpt(self, index: int, words: str) -> str:
        """Return the text of a sample around the first of these words."""
        with self.lock:
            values = [column.at(index) for column in self._own.values() if column.texts is not None]
            texts = [self._texts.get(index), *(str(value) for value in values if value)]
        return excerpt(words.split(maxsplit=1)[0], texts)


class Group(NamedTuple):
    """Samples with one value of a column."""

    name: str
    size: int
    """Number of its samples."""
    indices: list[int]
    """The first ones."""
    filters: dict[str, Any]
    """The filters that list all of them."""


class Confusion(NamedTuple):
    """How often each pair of classes occurs."""

    classes: list[str]
    counts: list[list[int]]
    """By the class in the first column, then by the class in the second one."""


def _in_order(names: Iterable[str]) -> list[str]:
    """Sort names: as numbers, if all are."""
    every = sorted(names)
    return sorted(every, key=int) if all(name.lstrip("-").isdecimal() for name in every) else every


def _inside(x: NDArray[np.float64], y: NDArray[np.float64], corners: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points are inside of a polygon: those with an odd number of its edges to their right."""
    found = np.zeros(len(x), np.bool_)
    with np.errstate(all="ignore"):
        for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            if y1 != y2:
                found ^= ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return found


_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON cannot represent, by their text form."""


def _row(index: int, sample: ReadSample, content: Mapping[str, Any]) -> Row:
    """Build the row of a sample. The sample's fields cannot replace the built-in names."""
    values: Row = {}
    derived: Row = {}
    for item in content.get("fields", ()):
        if item.get("absent"):
            continue
        name = item["path"] or "value"
        values[name] = item.get("value", _NOT_FINITE.get(item["summary"], item["summary"]))
        derived |= {f"{name}.{fact}": value for fact, value in item.get("facts", {}).items()}
    known = {
        "index": index,
        "seconds": sample.seconds,
        "cpu_seconds": sample.cpu_seconds,
        "nbytes": content.get("nbytes"),
        "worker": sample.worker,
        "error": content.get("error"),
    }
    return {**known, **values, **{name: value for name, value in derived.items() if name not in values}, **known}


def _is_range(indices: NDArray[np.int64]) -> bool:
    """Whether ascending indices are 0, 1, 2 and so on."""
    return len(indices) > 0 and bool(indices[0] == 0 and indices[-1] == len(indices) - 1)


def _places(indices: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of some indices among all, which are ascending."""
    return chosen if _is_range(indices) else np.searchsorted(indices, chosen)


def _column(name: str, values: list[Any]) -> Column | None:
    """Return a column of the samples that were read; None if it is neither numeric nor categorical."""
    present = [value for value in values if value is not None]
    types = set(map(type, present))
    if not present:
        return None
    if types <= {int, float}:
        return _numeric(name, np.array(values, np.float64))  # None becomes NaN
    if not types <= {str, bool}:
        return None
    texts = tuple(dict.fromkeys(map(str, present)))
    if len(texts) > LARGEST_GROUPS and 2 * len(texts) > len(present):  # free text
        return None
    numbers = {text: at for at, text in enumerate(texts)}
    return _categorical(name, np.array([-1 if v is None else numbers[str(v)] for v in values], np.int64), texts)


def _categorical(name: str, codes: NDArray[np.int64], texts: Sequence[str]) -> Column | None:
    """Return a categorical column; None if it has too many categories.

    Args:
        name: Its name.
        codes: Positions of the values in `texts`; -1 for none.
        texts: Distinct values.
    """
    if not texts or len(texts) > MAX_CATEGORIES:
        return None
    counts = np.bincount(codes + 1, minlength=len(texts) + 1)[1:].tolist()
    order = sorted(range(len(texts)), key=lambda at: (-counts[at], texts[at]))
    ranks = np.full(len(texts) + 1, np.nan)  # the last one is for -1
    ranks[order] = np.arange(len(texts))
    edges = np.arange(min(len(texts), LARGEST_GROUPS + 1) + 1, dtype=np.float64)
    return Column(name, ranks[codes], tuple(texts[at] for at in order), edges, logarithmic=False)


def _numeric(name: str, values: NDArray[Any]) -> Column | None:
    array = values.astype(np.float64)
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


def _axis(column: Column, drawn: NDArray[np.float64]) -> dict[str, Any]:
    """Return the properties of an axis.

    Args:
        column: The column.
        drawn: Values of the points, whose range the axis spans.
    """
    low, high = float(column.edges[0]), float(column.edges[-1])
    if column.categories is None and len(drawn):
        low, high = float(drawn.min()), float(drawn.max())
    return {
        "name": column.name,
        "categories": None if column.categories is None else [clean(c, 60) for c in column.categories[:MAX_CATEGORIES]],
        "low": low,
        "high": high,
        "logarithmic": column.logarithmic,
    }


def _drawn(column: Column, passed: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a histogram of all values, and of those of samples that pass the filters of the other columns."""
    bins, count = column.bins(), len(column.edges) - 1
    there, passed = bins >= 0, passed[column.places]
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
    seconds = seconds[column.places]
    passed = passed[column.places] & np.isfinite(seconds)
    grouped: dict[Any, list[float]] = {}
    for at in np.unique(bins[passed & (bins >= 0)]).tolist():
        if names is None:
            low, high = float(column.edges[at]), float(column.edges[at + 1])
            name: Any = f"{low:.0f}" if column.whole else [low, high]
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


def _choices(names: Sequence[str]) -> str:
    """Return the sentence that lists the columns that an error offers instead."""
    return f"Choose one of these: {', '.join(names)}" if names else "No sample was read yet."

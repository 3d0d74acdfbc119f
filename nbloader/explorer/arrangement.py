"""Which samples a view lists and in which order: filters, words, a sorting, groups. And the same as Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader.explorer.table import Filters, Group, SampleTable

EACH = 12
"""Number of samples of each group that are listed. The group's heading lists all of them."""
MAX_NOTES = 2000
"""Maximum number of samples in a list that come with the reason why they are listed."""


class Arrangement(NamedTuple):
    """What was chosen in a view or in Python. Its parts apply together."""

    filters: Filters = MappingProxyType({})
    words: str = ""
    """Words that the texts of a sample contain."""
    sort: str = ""
    """The column by which samples are sorted; "" for the order of their indices."""
    descending: bool = False
    group: str = ""
    """The column by which samples are grouped; "" for no groups."""
    each: int = EACH
    """Maximum number of samples that are listed of a group."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Arrangement:
        """Create an arrangement from the message of a view."""
        return cls(
            dict(message["filters"]),
            str(message.get("words", "")),
            str(message.get("sort", "")),
            bool(message.get("descending", False)),
            str(message.get("group", "")),
        )

    def listed(self, table: SampleTable) -> Listed:
        """Return the samples.

        Args:
            table: What is known about samples.

        Raises:
            KeyError: A column does not exist, or cannot be used so.
        """
        with table.lock:
            indices, groups = table.filtered(self.filters), list[Group]()
            if self.words.strip():
                indices = np.intersect1d(indices, table.search(self.words), assume_unique=True)
            if self.sort:
                indices = table.sorted_by(self.sort, indices, descending=self.descending)
            if self.group:
                groups = table.groups(self.group, self.filters, self.each, indices)
                indices = np.array([index for group in groups for index in group.indices], np.int64)
            noted = indices[:MAX_NOTES].tolist() if self.words.strip() else []
            return Listed(indices, {index: table.excerpt(index, self.words) for index in noted}, groups)

    def code(self) -> list[str]:
        """Return the statements that arrange the samples in the same way in Python; none if all are listed."""
        lines = []
        conditions = [_condition(name, chosen) for name, chosen in self.filters.items()]
        if conditions:
            lines.append(f"view.filter(lambda row: {' and '.join(conditions)})")
        if self.words.strip():
            lines.append(f"view.search({self.words!r})")
        if self.sort:
            lines.append(f"view.sort({self.sort!r}{', descending=True' if self.descending else ''})")
        if self.group:
            lines.append(f"view.group({self.group!r})")
        return lines


class Listed(NamedTuple):
    """The samples of an arrangement."""

    indices: NDArray[np.int64]
    notes: Mapping[int, str]
    """Why a sample is listed, by dataset index, for at most the first `MAX_NOTES`."""
    groups: list[Group]
    """Groups, in whose order the samples are listed; none if they are not grouped."""


def _condition(name: str, chosen: Sequence[Any]) -> str:
    """Return a filter as an expression of `row`."""
    if all(isinstance(value, str) for value in chosen):
        return f"str(row[{name!r}]) in {tuple(chosen)!r}"
    low, high = chosen
    return f"row[{name!r}] == {low!r}" if low == high else f"{low!r} <= row[{name!r}] <= {high!r}"

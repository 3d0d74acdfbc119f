"""Which samples a view lists and in which order: filters, words, a sorting, groups. And the same as Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from nbloader.explorer.table import Filters, Group, SampleTable

EACH = 12
"""Number of samples of each group that are listed. The group's heading lists all of them."""


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
        notes = table.search(self.words) if self.words.strip() else None
        if self.sort:
            indices = table.sorted_by(self.sort, self.filters, descending=self.descending)
        else:
            indices = table.filtered(self.filters)
        if notes is not None:
            indices = [index for index in indices if index in notes]
        if not self.group:
            return Listed(indices, notes or {}, [])
        groups = table.groups(self.group, self.filters, self.each, indices)
        return Listed([index for group in groups for index in group.indices], notes or {}, groups)

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

    indices: list[int]
    notes: Mapping[int, str]
    """Why a sample is listed, by dataset index."""
    groups: list[Group]
    """Groups, in whose order the samples are listed; none if they are not grouped."""


def _condition(name: str, chosen: Sequence[Any]) -> str:
    """Return a filter as an expression of `row`."""
    if all(isinstance(value, str) for value in chosen):
        return f"str(row[{name!r}]) in {tuple(chosen)!r}"
    low, high = chosen
    return f"row[{name!r}] == {low!r}" if low == high else f"{low!r} <= row[{name!r}] <= {high!r}"

"""Columns of a Parquet file, for which all columns are read."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from nbloader.remedies import flow
from nbloader.remedies.parts import Parts, parts_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

READER = "pandas.read_parquet"


class ParquetColumns:
    """`pd.read_parquet(path)["x"]`: with `columns=["x"]`, the other columns are neither read nor decoded."""

    name = "parquet-columns"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        edits = []
        for call in site.calls(READER, anywhere=True):
            parts = parts_of(site, call)
            given = {keyword.arg for keyword in call.keywords}
            columns = None if parts is None else _columns(site, call, parts)
            if columns is None or len(call.args) != 1 or not given.isdisjoint({"columns", None}):
                continue
            if parts is not None and parts.is_measured:  # `frame.shape` counts the columns
                continue
            arguments = [*map(site.text, (*call.args, *call.keywords)), f"columns={columns}"]
            edits.append(Edit(call, f"{site.text(call.func)}({', '.join(arguments)})"))
        if not edits:
            return []
        return [
            Proposal(
                why="All columns of the file are read and decoded, although the sample needs only some of them.",
                instead="Name the columns that are needed.",
                code=site.rewritten(*edits),
                must_be_equal=True,
                short="Read only the columns that are needed",
                is_certain=bool(site.calls(READER)),
                shortens_waits=True,
            )
        ]


def _columns(site: Site, call: ast.Call, parts: Parts) -> str | None:
    """Return the columns that are taken from a data frame, as code; None if they are something else.

    A column that is not always taken may be missing in some files, which could then not be read.
    """
    names: list[str] = []
    certain: set[str] = set()
    indices = [part.slice for part in parts.taken]
    for index in indices:
        given = index.elts if isinstance(index, ast.List) else [index]
        values = [node.value if isinstance(node, ast.Constant) else None for node in given]
        if len(indices) == 1 and isinstance(value := site.target(index), list) and _are_names(value):
            return site.text(index) if flow.always_follows(site, index, call) else None
        if not _are_names(values):
            return None
        found = [value for value in values if isinstance(value, str)]
        names += found
        certain |= set(found) if flow.always_follows(site, index, call) else set()
    if not certain.issuperset(names):
        return None
    return json.dumps(list(dict.fromkeys(names)), ensure_ascii=False)


def _are_names(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


REMEDY = ParquetColumns()

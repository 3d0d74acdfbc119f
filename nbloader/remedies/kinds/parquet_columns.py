"""Columns of a Parquet file, for which all columns are read."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from nbloader.remedies.parts import parts_of
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
            columns = None if parts is None else _columns(site, [part.slice for part in parts.taken])
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
                short="Read only the columns that are needed" if site.calls(READER) else "",
                shortens_waits=True,
            )
        ]


def _columns(site: Site, indices: Sequence[ast.expr]) -> str | None:
    """Return the columns that some indices of a data frame name, as code; None if they are something else."""
    names: list[str] = []
    for index in indices:
        given = index.elts if isinstance(index, ast.List) else [index]
        values = [node.value if isinstance(node, ast.Constant) else None for node in given]
        if len(indices) == 1 and isinstance(value := site.target(index), list) and _are_names(value):
            return site.text(index)
        if not _are_names(values):
            return None
        names += [value for value in values if isinstance(value, str)]
    return json.dumps(list(dict.fromkeys(names)), ensure_ascii=False)


def _are_names(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


REMEDY = ParquetColumns()

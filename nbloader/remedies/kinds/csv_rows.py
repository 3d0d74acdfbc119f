"""Rows of a CSV file, for which the file is parsed from its beginning."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

READER = "pandas.read_csv"
OTHERS = frozenset({"index_col", "header", "chunksize", "iterator", "skipfooter", None})
"""Arguments with which the rows of the whole table are others, or are no table."""
HELPER = '''\
_tables = {}

def rows_of(file, start, count, read):
    """Some rows of a table, which each worker reads once; it keeps up to eight tables."""
    if file not in _tables:
        if len(_tables) == 8:
            del _tables[next(iter(_tables))]
        _tables[file] = read()
    return _tables[file].iloc[start : start + count].reset_index(drop=True)
'''


class CsvRows:
    """`pd.read_csv(path, skiprows=range(1, start + 1), nrows=n)`: the whole table, read once, has these rows."""

    name = "csv-rows"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = site.calls(READER)
        text = _rows(site, calls[0]) if len(calls) == 1 and len(site.calls(READER, anywhere=True)) == 1 else ""
        if not text:
            return []
        return [
            Proposal(
                why="pandas parses the file from its beginning for each sample: skiprows drops only what was read.",
                instead="Read the table once, in __init__ or once per worker as below, and take its rows.",
                code=site.rewritten(Edit(calls[0], text)),
                helper=HELPER,
                must_be_equal=True,
                short="Read the table once per worker",
                shortens_waits=True,
            )
        ]


def _rows(site: Site, call: ast.Call) -> str:
    """Return what takes the rows from the whole table; "" if the call reads something else."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    start, count = _start(site, given.pop("skiprows", None), header=given.get("header")), given.pop("nrows", None)
    if "header" in given and isinstance(given["header"], ast.Constant) and given["header"].value is None:
        others = {name: value for name, value in given.items() if name != "header"}
    else:
        others = given
    if not start or count is None or len(call.args) != 1 or not OTHERS.isdisjoint(others):
        return ""
    own = {site.instance} if site.owner is not None else set()
    if any(isinstance(node, ast.Call) or not own.issuperset(site.local(value))
           for value in others.values() for node in ast.walk(value)):  # fmt: skip
        return ""  # the tables of two samples could differ
    path = site.text(call.args[0])
    arguments = ", ".join([path, *(f"{name}={site.text(value)}" for name, value in given.items())])
    return f"rows_of({path}, {start}, {site.text(count)}, lambda: {site.text(call.func)}({arguments}))"


def _start(site: Site, skipped: ast.expr | None, *, header: ast.expr | None) -> str:
    """Return the number of rows of data that are skipped, as code; "" if something else is skipped."""
    if skipped is None:
        return ""
    if isinstance(header, ast.Constant) and header.value is None:  # no line has the names of the columns
        return "" if isinstance(skipped, (ast.Call, ast.Lambda, ast.List, ast.Constant)) else site.text(skipped)
    if not isinstance(skipped, ast.Call) or site.target(skipped.func) is not range or len(skipped.args) != 2:  # noqa: PLR2004
        return ""
    first, end = skipped.args
    if not isinstance(first, ast.Constant) or first.value != 1:
        return ""
    last = end.right if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) else None
    if isinstance(end, ast.BinOp) and isinstance(last, ast.Constant) and last.value == 1:
        return site.text(end.left)
    return f"({site.text(end)}) - 1"


REMEDY = CsvRows()

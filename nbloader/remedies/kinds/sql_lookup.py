"""A query of a database for each sample, which may read the whole table."""

from __future__ import annotations

import ast
import re
import sys

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

QUERY = re.compile(
    r"\s*select\s+(?P<columns>[\w\s,]+?|\*)\s+from\s+(?P<table>\w+)\s+where\s+(?P<key>\w+)\s*=\s*\?\s*(?P<limit>limit\s+1\s*)?;?\s*",
    re.IGNORECASE,
)
HELPER = '''\
_tables = {}
_largest = 200_000_000  # bytes of a database whose table is read into memory

def rows_where(database, columns, table, key, value):
    """The rows of a table with a value in a column. The table is read once per process."""
    file = database.execute("PRAGMA database_list").fetchone()[2]
    name = file, columns, table, key
    if name not in _tables:
        rows = {}
        pages, size = (database.execute(f"PRAGMA {one}").fetchone()[0] for one in ("page_count", "page_size"))
        rules = database.execute("SELECT 1 FROM sqlite_master WHERE sql LIKE '%collate%'").fetchone()
        if file and not rules and pages * size <= _largest:
            for found, *row in database.execute(f"SELECT {key}, {columns} FROM {table}").fetchall():
                rows.setdefault(found, []).append(tuple(row))
        _tables[name] = rows
    if value is not None and value in _tables[name]:
        return _tables[name][value]
    return database.execute(f"SELECT {columns} FROM {table} WHERE {key} = ?", (value,)).fetchall()
'''
WHY = "Each sample is a query of its own, which reads the whole table if {key} has no index."
INDEX = "Create an index once, if there is none: CREATE INDEX {table}_{key} ON {table} ({key})."
TABLE = " If each worker has memory for the table, read it once per worker, as below. Later changes are not seen."


class SqlLookup:
    """`db.execute("SELECT x FROM t WHERE id = ?", (i,)).fetchone()`: an index, or the table in memory."""

    name = "sql-lookup"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. The index is not tried, since that would change the user's file."""
        if "sqlite3" not in sys.modules:
            return []
        for call in site.methods("execute"):
            query = QUERY.fullmatch(_text(site, call.args[0])) if call.args else None
            if query is None:
                continue
            names = query.groupdict()
            why, index = WHY.format(**names), INDEX.format(**names)
            fetched = _fetched(site, call)
            if names["limit"] and fetched is not None and fetched.func.attr != "fetchone":  # type: ignore[attr-defined]
                fetched = None
            given = call.args[1] if len(call.args) == 2 else None  # noqa: PLR2004
            if fetched is None or not isinstance(given, (ast.Tuple, ast.List)) or len(given.elts) != 1:
                return [Proposal(why, index, untried="that would change the database")]
            database = site.text(call.func.value)  # type: ignore[attr-defined]
            columns = " ".join(names["columns"].split())
            texts = [f'"{part}"' for part in (columns, names["table"], names["key"])]
            rows = f"rows_where({', '.join([database, *texts, site.text(given.elts[0])])})"
            first = fetched.func.attr == "fetchone"  # type: ignore[attr-defined]
            code = site.rewritten(Edit(fetched, f"next(iter({rows}), None)" if first else f"list({rows})"))
            return [
                Proposal(
                    why,
                    index + TABLE,
                    code,
                    HELPER,
                    must_help=True,
                    short="Read the table once per worker",
                    is_certain=False,
                    shortens_waits=True,
                )
            ]
        return []


def _text(site: Site, node: ast.expr) -> str:
    """Return the text of a query, if it is known."""
    value = node.value if isinstance(node, ast.Constant) else site.target(node)
    return value if isinstance(value, str) else ""


def _fetched(site: Site, call: ast.Call) -> ast.Call | None:
    """Return the call of `fetchone` or `fetchall` for what a call returns; None if there is none."""
    for node in site.body:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.value is call:
            return node if node.func.attr in ("fetchone", "fetchall") and not node.args else None
    return None


REMEDY = SqlLookup()

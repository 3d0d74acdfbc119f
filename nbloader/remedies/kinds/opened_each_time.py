"""An HDF5 file or an archive that is opened for each sample."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

OPENED = (
    "h5py.File",
    "zipfile.ZipFile",
    "tarfile.open",
    "netCDF4.Dataset",
    "zarr.open",
    "lmdb.open",
    "sqlite3.connect",
)
"""What each worker can keep open. Processes that are forks of each other must not share it, so it is opened in each."""
SHARED_BY_THREADS = ("lmdb.open",)
"""What threads may share, and what a process may not open twice. Of all others, each thread opens its own."""


class OpenedEachTime:
    """`with h5py.File(path) as f:`: each worker can open the file once."""

    name = "opened-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. The slow line may be any line of the `with` block, since closing takes time, too."""
        calls = [call for opened in OPENED for call in site.calls(opened, anywhere=True)]
        calls = [call for call in calls if self._concerns(site, call)]
        if not calls:
            return []
        function = site.text(calls[0].func)
        calls = [call for call in calls if site.text(call.func) == function]
        managed = {id(item.context_expr) for node in site.body if isinstance(node, ast.With) for item in node.items}
        tools, os_, context = (
            site.module("functools", "functools"),
            site.module("os", "os"),
            site.module("contextlib", "contextlib"),
        )
        modules, worker = [tools, os_, context], f"{os_.name}.getpid()"
        if calls[0] not in site.calls(*SHARED_BY_THREADS, anywhere=True):
            threads = site.module("threading", "threading")
            modules, worker = [*modules, threads], f"({worker}, {threads.name}.get_ident())"
        imports = "\n".join(part.helper for part in modules if part.helper)
        helper = (
            f"{imports}\n\n@{tools.name}.lru_cache(maxsize=64)\ndef opened_in(worker, *args, **kwargs):\n"
            f"    return {function}(*args, **kwargs)\n\n"
            f"def kept_open(*args, **kwargs):\n    return opened_in({worker}, *args, **kwargs)\n"
        ).lstrip()
        edits = []
        for call in calls:
            arguments = ", ".join(site.text(part) for part in (*call.args, *call.keywords))
            opened = f"kept_open({arguments})"
            edits.append(Edit(call, f"{context.name}.nullcontext({opened})" if id(call) in managed else opened))
        edits += [Edit(stmt, "pass") for call in calls for stmt in _closings(site, call)]
        why = "The file is opened and closed for each sample: its index and its metadata are read each time."
        instead = "Let each worker open it once, and keep it open."
        here = [call for call in site.calls(*OPENED) if site.is_fixed(call)]
        short, code = "Open the file once per worker", site.rewritten(*edits)
        return [Proposal(why, instead, code, helper, short=short, is_certain=bool(here), shortens_waits=True)]

    @staticmethod
    def _concerns(site: Site, call: ast.Call) -> bool:
        """Whether a file is opened on the slow line, or is open while the slow line is executed."""
        statement = site.statement(call)
        return statement.lineno <= site.number <= (statement.end_lineno or statement.lineno)


def _closings(site: Site, call: ast.Call) -> list[ast.stmt]:
    """Return the statements that close what a call opens, if that is assigned to a variable."""
    statement = site.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return []
    closes = f"{site.text(statement.targets[0])}.close()"
    return [node for node in site.body if isinstance(node, ast.Expr) and site.text(node) == closes]


REMEDY = OpenedEachTime()

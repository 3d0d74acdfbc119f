"""A folder that is listed for each sample."""

from __future__ import annotations

import ast

from nbloader.remedies.kept import keep_results
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

LISTINGS = ("os.listdir", "glob.glob")
ITERATORS = ("os.scandir", "os.walk", "glob.iglob")
METHODS = ("iterdir", "glob", "rglob")
"""Methods of `pathlib.Path`."""
WHY = "The folder is listed again for each sample, and its files are the same each time."
INSTEAD = "List it once, in __init__ or as below, and keep the list."
SHORT = "List the files once, in __init__"


class Listing:
    """`os.listdir`, `glob.glob`, `Path.glob`: the list of files is the same for each sample."""

    name = "listing"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for listing in LISTINGS:
            found = keep_results(site, site.calls(listing), why=WHY, instead=INSTEAD, short=SHORT)
            if found:
                return found
        edits = []
        for call in (call for listing in ITERATORS for call in site.calls(listing)):
            arguments = [site.text(part) for part in (call.func, *call.args, *call.keywords)]
            edits.append(Edit(call, f"listed({', '.join(arguments)})"))
        for call in site.methods(*METHODS):
            if isinstance(call.func, ast.Attribute):
                arguments = [site.text(part) for part in (call.func.value, *call.args, *call.keywords)]
                edits.append(Edit(call, f"listed({', '.join([f'type({arguments[0]}).{call.func.attr}', *arguments])})"))
        if not edits:
            return []
        tools = site.module("functools", "functools")
        imports = f"{tools.helper}\n\n" if tools.helper else ""
        helper = (
            f"{imports}@{tools.name}.lru_cache(maxsize=8)\ndef listed(function, *args, **kwargs):\n"
            f"    return list(function(*args, **kwargs))\n"
        )
        return [Proposal(WHY, INSTEAD, site.rewritten(*edits), helper, short=SHORT, shortens_waits=True)]


REMEDY = Listing()

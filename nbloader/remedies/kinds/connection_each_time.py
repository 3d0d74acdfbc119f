"""A connection to a server that is opened for each sample."""

from __future__ import annotations

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

METHODS = ("get", "post", "head")
HELPER = '''\
{imports}@{tools}.lru_cache(maxsize=2)
def session_of(process):
    """The connections of a process, which stay open."""
    return {requests}.Session()
'''


class ConnectionEachTime:
    """`requests.get(url)`: a session keeps the connection open for the next sample."""

    name = "connection-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        os_ = site.module("os", "os")
        edits = [
            Edit(call.func, f"session_of({os_.name}.getpid()).{method}")
            for method in METHODS
            for call in site.calls(f"requests.{method}")
        ]
        if not edits:
            return []
        tools, requests = site.module("functools", "functools"), site.module("requests", "requests")
        imports = "".join(f"{part.helper}\n" for part in (tools, os_, requests) if part.helper)
        helper = HELPER.format(imports=f"{imports}\n" if imports else "", tools=tools.name, requests=requests.name)
        return [
            Proposal(
                why="Each sample opens a new connection to the server.",
                instead=(
                    "Keep the connection open in each worker. Use more workers or an asynchronous dataset, so that "
                    "several samples wait for the server at the same time."
                ),
                code=site.rewritten(*edits),
                helper=helper,
                short="Keep the connection open in each worker",
                shortens_waits=True,
            )
        ]


REMEDY = ConnectionEachTime()

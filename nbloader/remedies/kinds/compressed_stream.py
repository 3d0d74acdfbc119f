"""A compressed file that is read at random: it is unpacked from its beginning for each sample."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

PACKERS = ("gzip", "bz2", "lzma")
TAR_MODES = ("r:gz", "r:bz2", "r:xz")
WHY = "For each sample, the file is unpacked from its beginning up to that sample."
INSTEAD = (
    "Unpack it once to disk, and read the unpacked file. If each worker has enough memory for it, unpack it once per "
    "worker, as below."
)
SHORT = "Unpack compressed files once, on the disk"
HELPER = '''\
{imports}

@{tools}.lru_cache(maxsize=2)
def unpacked(path):
    """The content of a compressed file, unpacked once per process."""
    with {opened}(path, "rb") as packed:
        return packed.read()
'''


class CompressedStream:
    """`gzip.open(path)`, `tarfile.open(path, "r:gz")`: unpacked once, any place can be read at once."""

    name = "compressed-stream"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for packer in PACKERS:
            calls = [call for call in site.calls(f"{packer}.open", anywhere=True) if self._concerns(site, call)]
            if calls:
                return self._streams(site, packer, calls)
        tars = [call for call in site.calls("tarfile.open", anywhere=True) if self._concerns(site, call)]
        packed = [call for call in tars if _mode(site, call).strip("'\"") in TAR_MODES]
        return self._tars(site, packed) if packed else []

    def _streams(self, site: Site, packer: str, calls: list[ast.Call]) -> list[Proposal]:
        io = site.module("io", "io")
        edits = []
        for call in calls:
            mode = _mode(site, call).strip("'\"")
            if not call.args or mode not in ("", "r", "rb", "rt"):
                return []
            content = f"{io.name}.BytesIO(unpacked({site.text(call.args[0])}))"
            options = [site.text(keyword) for keyword in call.keywords if keyword.arg in ("encoding", "newline")]
            wrapped = f"{io.name}.TextIOWrapper({', '.join([content, *options])})"
            edits.append(Edit(call, wrapped if mode == "rt" else content))
        return [self._proposal(site, f"{site.module(packer, packer).name}.open", packer, edits, io.helper)]

    def _tars(self, site: Site, calls: list[ast.Call]) -> list[Proposal]:
        io = site.module("io", "io")
        mode = _mode(site, calls[0]).strip("'\"")
        packer = {"gz": "gzip", "bz2": "bz2", "xz": "lzma"}[mode.partition(":")[2]]
        edits = [
            Edit(call, f"{site.text(call.func)}(fileobj={io.name}.BytesIO(unpacked({site.text(call.args[0])})))")
            for call in calls
            if call.args
        ]
        return [self._proposal(site, f"{site.module(packer, packer).name}.open", packer, edits, io.helper)]

    @staticmethod
    def _proposal(site: Site, opened: str, packer: str, edits: list[Edit], io: str) -> Proposal:
        tools = site.module("functools", "functools")
        imports = "\n".join(part for part in (io, tools.helper, site.module(packer, packer).helper) if part)
        helper = HELPER.format(imports=imports, tools=tools.name, opened=opened).lstrip()
        reads = site.calls(opened) or site.methods("read", "seek", "extractfile")
        return Proposal(
            WHY, INSTEAD, site.rewritten(*edits), helper, short=SHORT, is_certain=bool(reads), shortens_waits=True
        )

    @staticmethod
    def _concerns(site: Site, call: ast.Call) -> bool:
        """Whether a file is opened on the slow line, or is open while the slow line is executed."""
        statement = site.statement(call)
        after = not isinstance(statement, ast.With) and statement.lineno <= site.number
        return after or statement.lineno <= site.number <= (statement.end_lineno or statement.lineno)


def _mode(site: Site, call: ast.Call) -> str:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    modes = [*call.args[1:2], *given]
    return site.text(modes[0]) if modes else ""


REMEDY = CompressedStream()

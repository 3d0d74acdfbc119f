"""A table or an archive that is read for each sample, although many samples come from it."""

from __future__ import annotations

import ast

from nbloader.remedies.constants import constant_parts
from nbloader.remedies.kept import keep_results
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

READERS = (
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_json",
    "pandas.read_pickle",
    "pandas.read_feather",
    "pandas.read_excel",
    "pyarrow.parquet.read_table",
    "numpy.load",
    "numpy.memmap",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "torch.load",
    "scipy.io.loadmat",
    "tifffile.imread",
)

WHOLE = "The whole file is read and parsed for each sample, although the sample is a part of it."
ONCE = "Read the file once, in __init__ or as below, and take each sample from what it contains."
SHORT = "Read the file once, in __init__"


class ReadEachTime:
    """`pd.read_csv(...)`, `open(self.path).readlines()`: each worker can read a file once and keep it."""

    name = "read-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for reader in READERS:
            calls = [call for call in site.calls(reader) if not _is_in_lambda(site, call)]
            found = keep_results(
                site, calls,
                why="The file is read and decoded again for each sample.",
                instead=(
                    "If several samples come from one file, read it once per worker. If each sample has a file of its "
                    "own, store it without compression: numpy.save instead of savez_compressed, Parquet instead of CSV."
                ),
                short="Read the file once per worker", is_certain=all(map(site.is_fixed, calls)),
            )  # fmt: skip
            if found:
                return found
        whole = [
            part.proposal(site, WHOLE, ONCE, SHORT, is_certain=True) for part in constant_parts(site) if part.reads
        ]
        return [proposal for proposal in whole if proposal is not None]


def _is_in_lambda(site: Site, call: ast.Call) -> bool:
    """Whether a function that is passed on reads the file: the one that gets it may keep what it reads."""
    return any(isinstance(node, ast.Lambda) and call in set(ast.walk(node)) for node in site.nodes)


REMEDY = ReadEachTime()

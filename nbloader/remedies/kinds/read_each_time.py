"""A table or an archive that is read for each sample, although many samples come from it."""

from __future__ import annotations

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
)


class ReadEachTime:
    """`pd.read_csv(...)`, `np.load(...)`: each worker can read a file once and keep it."""

    name = "read-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for reader in READERS:
            calls = site.calls(reader)
            found = keep_results(
                site, calls,
                why="The file is read and decoded again for each sample.",
                instead=(
                    "If several samples come from one file, read it once per worker. If each sample has a file of its "
                    "own, store it without compression: numpy.save instead of savez_compressed, Parquet instead of CSV."
                ),
                short="Read the file once per worker" if all(map(site.is_fixed, calls)) else "",
            )  # fmt: skip
            if found:
                return found
        return []


REMEDY = ReadEachTime()

"""A folder that is listed, or a pattern that is compiled, for each sample."""

from __future__ import annotations

from nbloader.remedies.kept import keep_results
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

LISTINGS = ("os.listdir", "glob.glob")


class Listing:
    """`os.listdir`, `glob.glob`: the list of files is the same for each sample."""

    name = "listing"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for listing in LISTINGS:
            found = keep_results(
                site, site.calls(listing),
                why="The folder is listed anew for each sample, and its files are the same each time.",
                instead="List it once, in __init__ or as below, and keep the list.",
            )  # fmt: skip
            if found:
                return found
        return []


REMEDY = Listing()

"""A constant that is computed for each sample, such as a window, a grid, a lookup table or a sorted list."""

from __future__ import annotations

from nbloader.remedies.constants import constant_parts
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site

WHY = "This does not depend on the index, but it is computed again for each sample."
INSTEAD = "Compute it once, in __init__ or as below. All samples then share one object, so do not modify it."
SHORT = "Compute the constant once per worker"


class ComputedEachTime:
    """`np.hanning(self.n)`, `sorted(self.names)`, `{name: n for n, name in enumerate(self.names)}`: computed once."""

    name = "computed-each-time"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        parts = [part for part in constant_parts(site) if not part.reads]
        found = [part.proposal(site, WHY, INSTEAD, SHORT, is_certain=False) for part in parts]
        return [proposal for proposal in found if proposal is not None]


REMEDY = ComputedEachTime()

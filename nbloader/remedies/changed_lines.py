"""Which lines of a function a proposal replaces: two that replace the same line are alternatives. Pure."""

from __future__ import annotations

import difflib

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site


def changed_lines(site: Site, proposal: Proposal) -> frozenset[int]:
    """Return the numbers of the lines that a proposal replaces, or before which it inserts something, from 1.

    A change of a setting, such as the number of threads, replaces none. One that is not of this function, such as
    another format of the files, takes the place of the slow line.
    """
    if proposal.saves == "threads":
        return frozenset()
    if not proposal.code:
        return frozenset({site.number})
    before, after = site.source.splitlines(), proposal.code.splitlines()
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return frozenset(
        number
        for kind, begin, end, _begin, _end in changes if kind != "equal"
        for number in range(begin + 1, max(end, begin + 1) + 1)
    )  # fmt: skip

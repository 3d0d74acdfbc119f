"""What a remedy is: it recognizes a slow line, says why it is slow, and writes a faster version of the function."""

from __future__ import annotations

import ast
import re
from typing import Literal, NamedTuple, Protocol, TypeAlias

from nbloader.remedies.site import Site

Gain: TypeAlias = Literal["time", "later", "threads", "lock"]
"""What a change saves: time per sample; time per sample once it has been produced before ("later"); CPU time, because
fewer threads compute ("threads"); or the workers' waits for a lock ("lock")."""


class Proposal(NamedTuple):
    """What to write instead of a slow line."""

    why: str
    """Why the line is slow, as a sentence."""
    instead: str
    """What to do, as a sentence."""
    code: str = ""
    """The function, rewritten; "" if the change is not one of this function."""
    helper: str = ""
    """Code to put before the function's class or before the function, which `code` uses; "" if there is none."""
    package: str = ""
    """Package that `code` needs and that is not installed; "" if there is none."""
    loop: str = ""
    """What the loop computes instead of the workers: an expression of `batch`, a tensor or array; "" if nothing."""
    saves: Gain = "time"
    must_help: bool = False
    """Whether it is left out unless a trial shows that it works: the code alone does not tell."""
    must_be_equal: bool = False
    """Whether it is left out if the samples differ in a trial: something is not the same each time, then."""
    must_differ: bool = False
    """Whether it is left out if the samples are equal in a trial: then it changes nothing, and its gain is noise."""
    alone: bool = False
    """Whether other remedies for the line are left out, because the line runs too rarely for a trial."""
    untried: str = ""
    """Why it cannot be tried, as part of a sentence; "" if it can."""
    short: str = ""
    """What to do in a few words: a clause."""
    is_certain: bool = True
    """Whether the code alone tells that it helps: then a verdict says it in these words."""
    shortens_waits: bool = False
    """Whether it also shortens the waits of the line, such as for a disk or the network, not only what it computes."""

    fallback: bool = False
    """Whether it is tried only if the proposal before it could not be tried, or has changed the samples."""

    @property
    def keeps_in_worker(self) -> bool:
        """Whether a worker keeps something for later samples, so that new workers compute it again."""
        return re.search(r"lru_cache|^_\w+ = \{\}$|numba\.njit", self.helper, re.MULTILINE) is not None

    @property
    def is_valid(self) -> bool:
        """Whether its code can be compiled: not if, before Python 3.12, a quote ends the f-string that contains it."""
        try:
            ast.parse(self.code)
        except SyntaxError:
            return False
        return True


class Remedy(Protocol):
    """One kind of slow line. Each module of `nbloader.remedies.kinds` has one as `REMEDY`."""

    name: str
    """Name in tables and tests, such as "full-size-jpeg"."""

    def propose(self, site: Site) -> list[Proposal]:
        """Return what could be written instead of a line; an empty list if the line is not of this kind.

        If there are several proposals, the fastest one whose values are equal, or close, is shown. This method does not
        run the user's code.
        """
        ...

"""A deep copy of each sample."""

from __future__ import annotations

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class DeepCopy:
    """`copy.deepcopy(x)`: it visits each object inside the sample."""

    name = "deep-copy"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("copy.deepcopy") if call.args]
        if not calls:
            return []
        why = "copy.deepcopy visits and copies each object inside the sample, in Python."
        instead = (
            "Copy only what later code changes in place. Each worker is a separate process, so what it does not "
            "change needs no copy. A shallow copy protects the list or dict, but not its contents."
        )
        module = site.module("copy", "copy")
        shallow = [Edit(call, f"{module.name}.copy({site.text(call.args[0])})") for call in calls]
        short = "Replace copy.deepcopy with a copy of what later code changes"
        code = site.rewritten(*shallow)
        untried = "a shallow copy changes the samples, so some of their contents have to be copied as well"
        return [
            Proposal(why, instead, code, module.helper, must_be_equal=True, short=short),
            Proposal(why, instead, untried=untried, fallback=True),
        ]


REMEDY = DeepCopy()

"""A deep copy of each sample."""

from __future__ import annotations

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

WHY = "copy.deepcopy visits and copies each object inside the sample, in Python, and remembers them all."
LESS = (
    "Copy only what later code changes in place. Each worker is a separate process, so what it does not change needs "
    "no copy."
)
SHALLOW = f"{LESS} A shallow copy protects the list or dict, but not its contents."
CONTENTS = f"{LESS} The code below copies all contents, as long as they do not contain each other."
SHORT = "Replace copy.deepcopy with a copy of what later code changes"
UNTRIED = "other copies change the samples, or gain nothing"
HELPER = '''\
_PLAIN = (int, float, complex, bool, str, bytes, type(None))

def copied(value):
    """A copy of a value and its contents, which must not contain each other."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [one if type(one) in _PLAIN else copied(one) for one in value]
    if kind is dict:
        return {{key: one if type(one) in _PLAIN else copied(one) for key, one in value.items()}}
    if kind is tuple:
        return tuple([copied(one) for one in value])
    if kind.__module__ == __name__ and hasattr(value, "__dict__"):
        new = {copy}(value)
        new.__dict__.update(copied(value.__dict__))
        return new
    return {deepcopy}(value)
'''


class DeepCopy:
    """`copy.deepcopy(x)`: it visits each object inside the sample."""

    name = "deep-copy"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("copy.deepcopy") if call.args]
        if not calls:
            return []
        module = site.module("copy", "copy")
        shallow = [Edit(call, f"{module.name}.copy({site.text(call.args[0])})") for call in calls]
        contents = [Edit(call.func, "copied") for call in calls]
        helper = f"{module.helper}\n\n".lstrip() + HELPER.format(
            deepcopy=site.text(calls[0].func), copy=f"{module.name}.copy"
        )
        return [
            Proposal(WHY, SHALLOW, site.rewritten(*shallow), module.helper, must_be_equal=True, short=SHORT),
            Proposal(
                WHY, CONTENTS, site.rewritten(*contents), helper, must_help=True, must_be_equal=True, short=SHORT,
                fallback=True,
            ),
            Proposal(WHY, LESS, untried=UNTRIED, fallback=True),
        ]  # fmt: skip


REMEDY = DeepCopy()

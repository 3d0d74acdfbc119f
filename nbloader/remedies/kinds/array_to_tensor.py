"""`torch.tensor` of an array or a list: a copy, or a conversion of each number."""

from __future__ import annotations

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

WHY = "torch.tensor copies an array, and converts a list number by number."
SHORT = "Replace torch.tensor with torch.as_tensor of a NumPy array"


class ArrayToTensor:
    """`torch.tensor(x)`: NumPy converts a list faster, and torch can share the memory of an array."""

    name = "array-to-tensor"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("torch.tensor") if call.args]
        if not calls:
            return []
        np = site.module("numpy", "np")
        proposals = []
        for instead, first in (
            ("Use torch.as_tensor, which shares the memory of an array.", "{0}"),
            ("Let NumPy convert the list.", f"{np.name}.asarray({{0}}, {np.name}.float32)"),
            ("Let NumPy convert the list.", f"{np.name}.asarray({{0}})"),
        ):
            edits = []
            for call in calls:
                value, *rest = [site.text(part) for part in (*call.args, *call.keywords)]
                tensor = site.text(call.func).removesuffix("tensor") + "as_tensor"
                edits.append(Edit(call, f"{tensor}({', '.join([first.format(value), *rest])})"))
            helper = np.helper if "asarray" in first else ""
            proposals.append(Proposal(WHY, instead, site.rewritten(*edits), helper, short=SHORT))
        return proposals


REMEDY = ArrayToTensor()

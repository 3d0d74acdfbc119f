"""`torch.tensor` of an array or a list: a copy, or a conversion of each number."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

WHY = "torch.tensor copies an array, and converts a list number by number."
CONVERTS = frozenset({"double", "int", "long", "short", "to", "type", "type_as"})
"""Methods of tensors that change their type."""
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
        list_of_floats = f"{np.name}.asarray({{0}}, {np.name}.float32)"
        for instead, first in (
            ("Use torch.as_tensor, which shares the memory of an array.", "{0}"),
            ("Let NumPy convert the list.", list_of_floats),
            ("Let NumPy convert the list.", f"{np.name}.asarray({{0}})"),
        ):
            if first == list_of_floats and any(map(_converts, site.body)):
                continue  # the samples do not show whether the list has integers, which may be too large for a float32
            edits = []
            for call in calls:
                value, *rest = [site.text(part) for part in (*call.args, *call.keywords)]
                tensor = site.text(call.func).removesuffix("tensor") + "as_tensor"
                edits.append(Edit(call, f"{tensor}({', '.join([first.format(value), *rest])})"))
            helper = np.helper if "asarray" in first else ""
            proposals.append(Proposal(WHY, instead, site.rewritten(*edits), helper, short=SHORT))
        return proposals


def _converts(node: ast.AST) -> bool:
    """Whether values may get another type: those of a tensor that others are written into, or by a method."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.Attribute) and node.attr in CONVERTS


REMEDY = ArrayToTensor()

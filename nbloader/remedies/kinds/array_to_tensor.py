"""`torch.tensor` or `torch.LongTensor` of an array or a list: a copy, or a conversion of each number."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

WHY = "torch.tensor copies an array, and converts a list number by number."
CONVERTS = frozenset({"double", "int", "long", "short", "to", "type", "type_as"})
"""Methods of tensors that change their type."""
SHORT = "Replace torch.tensor with torch.as_tensor of a NumPy array"
TYPES = {
    "torch.FloatTensor": "float32",
    "torch.DoubleTensor": "float64",
    "torch.ByteTensor": "uint8",
    "torch.IntTensor": "int32",
    "torch.LongTensor": "int64",
    "torch.BoolTensor": "bool_",
}
"""NumPy's types of the tensors that torch makes of a list."""
TYPED = "{} converts a list number by number."
SHORT_TYPED = "Replace {} with torch.tensor of a NumPy array"


class ArrayToTensor:
    """`torch.tensor(x)`: NumPy converts a list faster, and torch can share the memory of an array."""

    name = "array-to-tensor"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [call for call in site.calls("torch.tensor") if call.args]
        if not calls:
            return _typed(site)
        np = site.module("numpy", "np")
        shared = _proposal(
            site, "Use torch.as_tensor, which shares the memory of an array.", dict.fromkeys(calls, "{}")
        )
        proposals = [shared]
        for floats in _lists_of_floats(site, calls):
            instead = "Let NumPy convert the list." if len(calls) == 1 else "Let NumPy convert the lists."
            arrays = {
                call: f"{np.name}.asarray({{}}, {np.name}.float32)" if call in floats else f"{np.name}.asarray({{}})"
                for call in calls
            }
            proposals.append(_proposal(site, instead, arrays)._replace(helper=np.helper))
        return proposals


def _typed(site: Site) -> list[Proposal]:
    """Propose to let NumPy convert what tensors of a type are made of, in the statement with the slow line.

    torch copies an array, too: `as_tensor` would share its memory, and the sample's changes would be the dataset's.
    """
    calls = {call: kind for kind in TYPES for call in site.calls(kind, anywhere=True) if _is_converted(call)}
    slow = next((node for node in site.nodes if node in calls), None)
    if slow is None:
        return []
    here = set(ast.walk(site.statement(slow)))
    inner = {node for call in calls for node in ast.walk(call) if node is not call}
    found = {call: kind for call, kind in calls.items() if call in here and call not in inner}
    if slow not in found:
        return []
    np, torch = site.module("numpy", "np"), site.module("torch", "torch")
    edits = [
        Edit(call, f"{torch.name}.tensor({np.name}.asarray({site.text(call.args[0])}, {np.name}.{TYPES[kind]}))")
        for call, kind in found.items()
    ]
    helper = "\n".join(filter(None, [np.helper, torch.helper]))
    name = found[slow]
    return [
        Proposal(
            TYPED.format(name), "Let NumPy convert it.", site.rewritten(*edits), helper, must_be_equal=True,
            short=SHORT_TYPED.format(name),
        )
    ]  # fmt: skip


def _is_converted(call: ast.Call) -> bool:
    """Whether a call may convert a list, and does not make a tensor of some size."""
    return len(call.args) == 1 and not (call.keywords or isinstance(call.args[0], (ast.Starred, ast.Constant)))


def _proposal(site: Site, instead: str, arrays: dict[ast.Call, str]) -> Proposal:
    """Propose to make the tensors of arrays, each of which is an expression of what it is made of."""
    edits = []
    for call, array in arrays.items():
        value, *rest = [site.text(part) for part in (*call.args, *call.keywords)]
        tensor = site.text(call.func).removesuffix("tensor") + "as_tensor"
        edits.append(Edit(call, f"{tensor}({', '.join([array.format(value), *rest])})"))
    return Proposal(WHY, instead, site.rewritten(*edits), short=SHORT)


def _lists_of_floats(site: Site, calls: list[ast.Call]) -> list[list[ast.Call]]:
    """Return which calls may convert lists of floats without a type: all, each one alone, or none.

    Of lists of integers, NumPy finds the type itself. Of floats, it would make float64, and torch.tensor float32.
    """
    if any(map(_converts, site.body)):
        return [[]]  # the samples do not show whether a list has integers, which may be too large for a float32
    untyped = [call for call in calls if not any(keyword.arg == "dtype" for keyword in call.keywords)]
    each = [[call] for call in untyped] if len(untyped) > 1 else []
    return [untyped, *each, []] if untyped else [[]]


def _converts(node: ast.AST) -> bool:
    """Whether values may get another type: those of a tensor that others are written into, or by a method."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.Attribute) and node.attr in CONVERTS


REMEDY = ArrayToTensor()

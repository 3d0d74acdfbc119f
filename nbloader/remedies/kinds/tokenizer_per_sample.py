"""A tokenizer that is called for each text: a call costs as much as many texts in one call."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import UNKNOWN, Site

WHY = "The tokenizer is called for each text, and each call has a fixed cost."
INSTEAD = "Call it once for the texts of a batch: a dataset with __getitems__ produces whole batches."
SHORT = "Call the tokenizer once per batch, in __getitems__"
PART = '''\
def part_of(encoded, position):
    """What the tokenizer returns for one text of several."""
    values = encoded.items()
    return type(encoded)({
        name: value[position : position + 1] if hasattr(value, "shape") else value[position] for name, value in values
    })
'''
METHOD = """\
def __getitems__(self, indices):
    texts = []
    for {index} in indices:
        {before}
        texts.append({text})
    all_encoded = {call}
    samples = []
    for position, {index} in enumerate(indices):
        {body}
    return samples
"""


class TokenizerPerSample:
    """`tokenizer(text)` in `__getitem__`: the tokenizer takes a list of texts."""

    name = "tokenizer"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        calls = [
            call for call in site.nodes
            if isinstance(call, ast.Call) and call.args and self._tokenizes(site, call)
            and not site.in_loop_or_lambda(call)
        ]  # fmt: skip
        if len(calls) != 1:
            return []
        (call,) = calls
        body = [node for node in site.tree.body if not _is_docstring(node)]
        returns = [node for node in site.body if isinstance(node, ast.Return)]
        last = body[-1]
        holder = next(number for number, node in enumerate(body) if call in set(ast.walk(node)))
        arguments = site.tree.args.args
        simple = (
            site.tree.name == "__getitem__" and site.owner is not None and len(arguments) == 2  # noqa: PLR2004
            and isinstance(last, ast.Return) and last.value is not None and len(returns) == 1
            and isinstance(body[holder], (ast.Assign, ast.Return, ast.Expr))
        )  # fmt: skip
        if not simple:
            untried = "the function is not simple enough to be written for a batch here"
            return [Proposal(WHY, INSTEAD, untried=untried, short=SHORT)]
        single = isinstance(call.func, ast.Attribute) and call.func.attr == "encode"
        part = "all_encoded[position]" if single else "part_of(all_encoded, position)"
        before = [_deeper(site.text(node)) for node in body[:holder]]
        after = self._after(site, body, holder, call, part)
        code = METHOD.format(
            index=arguments[1].arg, before="\n        ".join(before) or "pass", text=site.text(call.args[0]),
            call=self._batched(site, call), body="\n        ".join(after),
        ).replace("        pass\n", "")  # fmt: skip
        return [Proposal(WHY, INSTEAD, code, "" if single else PART, short=SHORT)]

    @staticmethod
    def _after(site: Site, body: list[ast.stmt], holder: int, call: ast.Call, part: str) -> list[str]:
        """Return the statements of the second loop, with what the tokenizer has returned for the text."""
        lines = []
        for node in body:
            text = site.text(node)
            if node is body[holder]:
                text = text.replace(site.text(call), part)
            if isinstance(node, ast.Return):
                value = text.removeprefix("return").strip()
                text = f"samples.append(({value}))" if isinstance(node.value, ast.Tuple) else f"samples.append({value})"
            lines.append(_deeper(text))
        return lines

    @staticmethod
    def _batched(site: Site, call: ast.Call) -> str:
        rest = [site.text(part) for part in (*call.args[1:], *call.keywords)]
        function = site.text(call.func)
        if function.endswith(".encode"):
            function += "_batch"
        elif function.endswith(".encode_plus"):
            function = function.removesuffix(".encode_plus")
        return f"{function}({', '.join(['texts', *rest])})"

    @staticmethod
    def _tokenizes(site: Site, call: ast.Call) -> bool:
        """Whether a call is one of a tokenizer of transformers or tokenizers."""
        function = call.func
        owner = function.value if isinstance(function, ast.Attribute) else function
        if isinstance(function, ast.Attribute) and function.attr in ("encode", "encode_plus"):
            target = site.target(owner)
            batches = hasattr(target, "encode_batch" if function.attr == "encode" else "batch_decode")
            return target is not UNKNOWN and batches
        target = site.target(function)
        return target is not UNKNOWN and callable(target) and hasattr(target, "batch_decode")


def _deeper(text: str) -> str:
    """Indent the lines of a statement after the first one by one level."""
    return text.replace("\n", "\n    ")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


REMEDY = TokenizerPerSample()

"""Lines of a text file that are found by reading the file from its beginning."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

HELPER = '''\
_line_starts = {{}}

def lines_of(path, start, stop{options}):
    """Some lines of a text file. Where its lines begin is found once per process."""
    if path not in _line_starts:
        with open(path, "rb") as file:
            _line_starts[path] = {np}.cumsum([0, *map(len, file)])
    starts = _line_starts[path]
    begin, end = (int(starts[min(number, len(starts) - 1)]) for number in (start, stop))
    with open(path, "rb") as file:
        file.seek(begin)
        part = {io}.BytesIO(file.read(max(0, end - begin)))
    return list({io}.TextIOWrapper(part{passed}))
'''
OPTIONS = ("encoding", "errors")


class TextLines:
    """`islice(file, start, stop)`, `for n, line in enumerate(file): if n == i:`: a place in a file can be looked up."""

    name = "text-lines"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for opened in _opened(site):
            edit = _edit(site, *opened)
            if edit is not None:
                return [_proposal(site, edit, opened[1])]
        return []


def _opened(site: Site) -> list[tuple[ast.With, ast.Call, str]]:
    """Return the `with` statements around the slow line that open a text file which is used once, and its name."""
    found = []
    calls = site.calls("builtins.open", anywhere=True)
    for node in site.body:
        if not isinstance(node, ast.With) or not node.lineno <= site.number <= (node.end_lineno or node.lineno):
            continue
        call = next((call for call in calls if call is node.items[0].context_expr), None)
        name = node.items[0].optional_vars
        if len(node.items) > 1 or not isinstance(name, ast.Name) or call is None or not _is_text(call):
            continue
        uses = [one for one in site.body if isinstance(one, ast.Name) and one.id == name.id]
        if len(uses) == 2:  # noqa: PLR2004 - bound and read
            found.append((node, call, name.id))
    return found


def _is_text(call: ast.Call) -> bool:
    """Whether a call opens a text file for reading, without options that change where lines end."""
    modes = [*call.args[1:], *(one.value for one in call.keywords if one.arg == "mode")]
    known = all(isinstance(one, ast.Constant) and one.value in ("r", "rt") for one in modes)
    return bool(call.args) and known and all(one.arg in (*OPTIONS, "mode") for one in call.keywords)


def _edit(site: Site, block: ast.With, opened: ast.Call, file: str) -> Edit | None:
    """Return what to write instead of the code that passes over the first lines."""
    path = site.text(opened.args[0])
    options = "".join(f", {site.text(one)}" for one in opened.keywords if one.arg in OPTIONS)
    calls = {id(one.args[0]): one for one in ast.walk(block) if isinstance(one, ast.Call) and one.args}
    for call in site.calls("itertools.islice", anywhere=True):
        if len(call.args) != 3 or site.text(call.args[0]) != file:  # noqa: PLR2004 - file, start, stop
            continue
        start, stop = (site.text(one) for one in call.args[1:])
        around = calls.get(id(call))
        if around is not None and site.text(around.func) == "next":
            return Edit(call, f"iter(lines_of({path}, {start}, {start} + 1{options}))")
        return None if stop == "None" else Edit(call, f"lines_of({path}, {start}, {stop}{options})")
    for loop in (one for one in ast.walk(block) if isinstance(one, ast.For)):
        number = _wanted(site, loop, file)
        if number:
            return Edit(loop.iter, f"enumerate(lines_of({path}, {number}, {number} + 1{options}), {number})")
    return None


def _wanted(site: Site, loop: ast.For, file: str) -> str:
    """Return the number of the line for which a loop passes over all lines before it; "" if it does something else."""
    numbered = isinstance(loop.iter, ast.Call) and site.text(loop.iter) == f"enumerate({file})"
    if not numbered or not isinstance(loop.target, ast.Tuple) or len(loop.body) != 1 or loop.orelse:
        return ""
    test = loop.body[0].test if isinstance(loop.body[0], ast.If) and not loop.body[0].orelse else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return ""
    counter, (left, right) = site.text(loop.target.elts[0]), (test.left, test.comparators[0])
    for one, other in ((left, right), (right, left)):
        if site.text(one) == counter and isinstance(other, (ast.Name, ast.Attribute)):
            return site.text(other)
    return ""


def _proposal(site: Site, edit: Edit, opened: ast.Call) -> Proposal:
    given = [one.arg for one in opened.keywords if one.arg in OPTIONS]
    np, io = site.module("numpy", "np"), site.module("io", "io")
    helper = HELPER.format(
        options="".join(f", {name}=None" for name in given), passed="".join(f", {name}={name}" for name in given),
        np=np.name, io=io.name,
    )  # fmt: skip
    imports = "".join(f"{part.helper}\n" for part in (io, np) if part.helper)
    return Proposal(
        why="For each sample, the file is read from its beginning up to the lines of the sample.",
        instead="Find out once where each line begins, and read from there.",
        code=site.rewritten(edit),
        helper=f"{imports}\n{helper}" if imports else helper,
        must_be_equal=True,
        short="Look up where the lines of the file begin",
        shortens_waits=True,
    )


REMEDY = TextLines()

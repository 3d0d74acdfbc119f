"""A sample of an HDF5 dataset whose chunks hold many samples: each read unpacks a whole chunk."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from nbloader.remedies import flow
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

KEPT = '''\
{imports}@{tools}.lru_cache(maxsize=16)
def in_memory(path, name):
    """A dataset of an HDF5 file as an array, read once per process."""
    with {h5py}.File(path, "r") as file:
        return file[name][:]
'''


class Hdf5Chunks:
    """`file["x"][i]`: the whole chunk of the sample is read and unpacked."""

    name = "hdf5-chunks"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. All datasets that the function reads are tried first: then it need not open the file."""
        here = _reads(site, list(site.nodes))
        if not here:
            return []
        every = _reads(site, list(site.body))
        choices = [every, here] if len(every) > len(here) else [here]
        return [_proposal(site, choice, fallback=choice is not choices[0]) for choice in choices]


class _Read(NamedTuple):
    """A dataset that is read."""

    edit: Edit
    is_certain: bool
    """Whether it is known to be one."""


def _reads(site: Site, nodes: Sequence[ast.AST]) -> list[_Read]:
    """Return the datasets of HDF5 files that some code reads a part of."""
    files = paths_of_files(site)
    found = []
    for node in nodes:
        if not isinstance(node, ast.Subscript):
            continue
        dataset = _dataset(site, node.value)
        if dataset is None:
            continue
        name, path = dataset.slice, files.get(site.text(dataset.value))
        is_certain = isinstance(name, ast.Constant) and isinstance(name.value, str)
        if path is None and _may_be_file(site, dataset.value):
            path, is_certain = f"{site.text(dataset.value)}.file.filename", False
        if path is not None and not isinstance(name, (ast.Slice, ast.Tuple)):
            found.append(_Read(Edit(node.value, f"in_memory({path}, {site.text(name)})"), is_certain))
    return found


def _proposal(site: Site, reads: Sequence[_Read], *, fallback: bool) -> Proposal:
    tools, h5py = site.module("functools", "functools"), site.module("h5py", "h5py")
    imports = "".join(f"{part.helper}\n" for part in (tools, h5py) if part.helper)
    helper = KEPT.format(imports=f"{imports}\n" if imports else "", tools=tools.name, h5py=h5py.name)
    which = "the datasets fit" if len(reads) > 1 else "the dataset fits"
    return Proposal(
        why="Each sample reads a whole chunk of the file, and unpacks it if it is compressed.",
        instead=(
            "Write the file with one sample per chunk (create_dataset(..., chunks=(1, ...))), without gzip. If "
            f"{which} into the memory of each worker, read {'them' if len(reads) > 1 else 'it'} once, as below."
        ),
        code=_without_unused(site.rewritten(*(one.edit for one in reads))),
        helper=helper,
        must_help=not all(one.is_certain for one in reads),
        short=f"Read the HDF5 dataset{'s' if len(reads) > 1 else ''} once per worker",
        is_certain=False,
        fallback=fallback,
    )


def _dataset(site: Site, node: ast.expr) -> ast.Subscript | None:
    """Return `file["x"]`, also if it was assigned to a variable before."""
    if isinstance(node, ast.Subscript):
        return node
    if not isinstance(node, ast.Name):
        return None
    values = [one.value for one in site.body if isinstance(one, ast.Assign) and node.id in flow.assigned(one.targets)]
    return values[0] if len(values) == 1 and isinstance(values[0], ast.Subscript) else None


def _may_be_file(site: Site, node: ast.expr) -> bool:
    """Whether a parameter may be an open HDF5 file: the user's code has imported h5py. A trial finds out."""
    imported = not site.module("h5py", "h5py").helper
    return imported and isinstance(node, ast.Name) and node.id in flow.parameters(site)


def _without_unused(code: str) -> str:
    """Remove the `with` statement whose file is no longer read."""
    lines = code.splitlines(keepends=True)
    for node in list(ast.walk(ast.parse(code))):
        if not isinstance(node, ast.With) or len(node.items) != 1:
            continue
        handle, inside = node.items[0].optional_vars, [one for part in node.body for one in ast.walk(part)]
        texts = (one for one in inside if isinstance(one, ast.expr) and one.lineno != one.end_lineno)
        opens = "File(" in ast.unparse(node.items[0].context_expr) and node.body[0].lineno == node.lineno + 1
        if not opens or not isinstance(handle, ast.Name) or any(texts):
            continue
        if any(isinstance(one, ast.Name) and one.id == handle.id for one in inside):
            continue
        begin, depth = node.lineno, node.body[0].col_offset - node.col_offset
        kept = [line[depth:] if line.strip() else line for line in lines[begin : node.end_lineno]]
        return "".join([*lines[: begin - 1], *kept, *lines[node.end_lineno or begin :]])
    return code


def paths_of_files(site: Site) -> dict[str, str]:
    """Return the paths of the HDF5 files that are open in the function, by the names of their variables."""
    found = {}
    opened = site.calls("h5py.File", anywhere=True)
    for node in site.body:
        for item in node.items if isinstance(node, ast.With) else ():
            if item.context_expr in opened and item.optional_vars is not None:
                found[site.text(item.optional_vars)] = item.context_expr
        if isinstance(node, ast.Assign) and node.value in opened and len(node.targets) == 1:
            found[site.text(node.targets[0])] = node.value
    paths = {name: site.text(call.args[0]) for name, call in found.items() if getattr(call, "args", None)}
    for node in site.body:  # a file that is an attribute
        if isinstance(node, ast.Attribute):
            file = site.target(node)
            if type(file).__module__.startswith("h5py") and hasattr(file, "filename"):
                paths[site.text(node)] = f"{site.text(node)}.filename"
    return paths


REMEDY = Hdf5Chunks()

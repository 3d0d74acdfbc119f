"""A part of an HDF5 dataset, for which the whole dataset is read."""

from __future__ import annotations

import ast

from nbloader.remedies.kinds.hdf5_chunks import paths_of_files
from nbloader.remedies.parts import can_read_later, first_index, is_number, parts_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class Hdf5Whole:
    """`file["x"][:][i]`: `file["x"][i]` reads only the chunks that hold row i."""

    name = "hdf5-whole"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        files = paths_of_files(site)
        opened = site.calls("h5py.File", anywhere=True)
        edits = []
        for node in site.body:
            if not isinstance(node, ast.Subscript) or not _is_all(node.slice):
                continue
            dataset = node.value
            file = dataset.value if isinstance(dataset, ast.Subscript) else None
            if file is None or not (file in opened or site.text(file) in files):
                continue
            parts = parts_of(site, node)
            if parts is None or parts.is_changed or not (can_read_later(site, parts) and _is_open(site, file)):
                continue
            indices = [_indices(site, part) for part in parts.taken]
            if None not in indices:
                edits.append(Edit(node, site.text(dataset)))
                edits += [edit for found in indices for edit in found or ()]
        if not edits:
            return []
        return [
            Proposal(
                why="The whole dataset of the HDF5 file is read, although the sample is a part of it.",
                instead="Index the dataset itself: h5py reads only the chunks that hold the part.",
                code=site.rewritten(*edits),
                must_be_equal=True,
                short="Index the HDF5 dataset without [:]",
                is_certain=any(edit.node in site.nodes for edit in edits),
                shortens_waits=True,
            )
        ]


def _is_all(index: ast.expr) -> bool:
    """Whether an index is `:`, `...` or `()`."""
    if isinstance(index, ast.Slice):
        return index.lower is index.upper is index.step is None
    return (isinstance(index, ast.Constant) and index.value is ...) or (isinstance(index, ast.Tuple) and not index.elts)


def _indices(site: Site, part: ast.Subscript) -> list[Edit] | None:
    """Return the edits after which indices are numbers or slices; None if they cannot be.

    An array of indices would have to be sorted, and must not contain one twice. `int` refuses it.
    """
    first, others = first_index(part)
    edits = []
    for index in (first, *others):
        if isinstance(index, ast.Slice):
            if index.step is not None and not isinstance(index.step, ast.Constant):  # h5py has no negative ones
                return None
        elif isinstance(index, (ast.List, ast.ListComp, ast.Compare, ast.Starred)) or _is_none(index):
            return None
        elif not (is_number(index) or isinstance(index, ast.Constant)):
            edits.append(Edit(index, f"int({site.text(index)})"))
    return edits


def _is_none(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value is None


def _is_open(site: Site, file: ast.expr) -> bool:
    """Whether the function neither closes the file itself nor writes to it."""
    text = site.text(file)
    closed = [node for node in site.body if isinstance(node, ast.Attribute) and node.attr == "close"]
    written = [node for node in site.body if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)]
    return all(site.text(node.value) != text for node in closed) and all(
        text not in map(site.text, ast.walk(node.value)) for node in written
    )


REMEDY = Hdf5Whole()

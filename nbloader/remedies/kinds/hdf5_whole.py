"""A part of an HDF5 dataset, for which the whole dataset is read."""

from __future__ import annotations

import ast

from nbloader.remedies.kinds.hdf5_chunks import paths_of_files
from nbloader.remedies.parts import Parts, parts_of
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
            if parts is not None and _is_open(site, parts):
                edits.append(Edit(node, site.text(dataset)))
        if not edits:
            return []
        return [
            Proposal(
                why="The whole dataset of the HDF5 file is read, although the sample is a part of it.",
                instead="Index the dataset itself: h5py reads only the chunks that hold the part.",
                code=site.rewritten(*edits),
                must_be_equal=True,
                short="Index the HDF5 dataset without [:]" if any(edit.node in site.nodes for edit in edits) else "",
                shortens_waits=True,
            )
        ]


def _is_all(index: ast.expr) -> bool:
    """Whether an index is `:`, `...` or `()`."""
    if isinstance(index, ast.Slice):
        return index.lower is index.upper is index.step is None
    return (isinstance(index, ast.Constant) and index.value is ...) or (isinstance(index, ast.Tuple) and not index.elts)


def _is_open(site: Site, parts: Parts) -> bool:
    """Whether the file is open where the parts are used: a `with` statement closes it at its end."""
    if parts.assigned is None:
        return True
    around = [node for node in site.body if isinstance(node, ast.With) and parts.assigned in set(ast.walk(node))]
    return all(set(ast.walk(block)).issuperset(parts.taken) for block in around)


REMEDY = Hdf5Whole()

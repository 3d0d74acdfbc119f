"""A .npz file for each sample: a zip archive, which NumPy unpacks in Python."""

from __future__ import annotations

from nbloader.remedies.kept import members_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site


class NpzArchive:
    """`np.load(self.paths[i])["x"]`: a .npy file is read without unpacking."""

    name = "npz-archive"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. One file for all samples is better read once per worker."""
        members = members_of(site)
        if not any(id(call) in members and not site.is_fixed(call) for call in site.calls("numpy.load")):
            return []
        return [
            Proposal(
                why="A .npz file is a zip archive, which is opened and unpacked for each sample.",
                instead="Write each array with numpy.save once, and load the .npy file.",
                untried="the files must be written again",
                short="Store arrays with numpy.save, not as .npz",
            )
        ]


REMEDY = NpzArchive()

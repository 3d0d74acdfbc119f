"""A picture that becomes an array, a picture and an array again, or whose pixels become Python numbers."""

from __future__ import annotations

import ast

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

PIXELS = '''\
def pixels_of(picture):
    """The pixels of a picture, row by row, as whole numbers."""
    pixels = {np}.asarray(picture).astype({np}.int64)
    return pixels.reshape(-1, pixels.shape[2]) if pixels.ndim == 3 else pixels.ravel()
'''
ARRAYS = ("numpy.array", "numpy.asarray")


class PictureRoundTrip:
    """`np.array(picture.getdata())`, `Image.fromarray(np.array(picture))`: PIL and NumPy share memory layouts."""

    name = "picture-round-trip"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        pixels = self._pixels(site)
        if pixels:
            return pixels
        edits = []
        for call in site.calls("PIL.Image.fromarray"):
            inner = call.args[0] if len(call.args) == 1 and not call.keywords else None
            if isinstance(inner, ast.Call) and inner in site.calls(*ARRAYS) and len(inner.args) == 1:
                edits.append(Edit(call, site.text(inner.args[0])))
        if not edits:
            return []
        why = "The picture is converted to an array and back, which copies all pixels twice."
        short = "Leave out the conversion to an array and back"
        return [Proposal(why, "Use the picture as it is.", site.rewritten(*edits), short=short)]

    @staticmethod
    def _pixels(site: Site) -> list[Proposal]:
        """Propose an array instead of one Python object per pixel."""
        np = site.module("numpy", "np")
        calls = [
            (call, site.text(call.func.value))
            for call in site.methods("getdata", "get_flattened_data")
            if isinstance(call.func, ast.Attribute) and not call.args
        ]
        if not calls:
            return []
        why = "getdata() makes a Python object of each pixel."
        instead = "Let NumPy read the memory of the picture."
        helper = "\n\n".join(part for part in (np.helper, PIXELS.format(np=np.name)) if part)
        code = site.rewritten(*(Edit(_listed(site, call), f"pixels_of({picture})") for call, picture in calls))
        return [Proposal(why, instead, code, helper, short="Let NumPy read the pixels instead of getdata()")]


def _listed(site: Site, call: ast.Call) -> ast.Call:
    """Return `list(x)` around a call; the call itself if there is none."""
    around = [outer for outer in site.calls("list") if len(outer.args) == 1 and outer.args[0] is call]
    return around[0] if around else call


REMEDY = PictureRoundTrip()

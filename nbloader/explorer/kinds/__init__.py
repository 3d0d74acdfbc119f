"""The kinds of values that the explorer draws, one module each, and their registry.

To add a kind:

1. Write `kinds/<name>.py` with a subclass of `Kind`: a name, `recognizes(value)`, which says whether a value is of this
   kind, and `describe()`, which fills in the field that is sent to the browser.
2. Write `kinds/<name>.js` beside it with `export function draw(el, field, api)`, which draws the field in full.
   `../drawing.js` describes what else it may export.
3. Add the class to `KINDS` below, before the kinds that would recognize its values, too. (From outside this package,
   call `register()` before the explorer is opened.)

The explorer walks through the sample and asks the kinds in the order of `KINDS`: the first one that recognizes a value
describes it. Shape, type, statistics and histogram of an array are added to every kind that has one, and so are notes.

A kind can be drawn over the picture of another one, as boxes are over an image: see `Kind.belongs_to()`,
`Kind.draw_over()` and `Kind.canvas()`.
"""

from __future__ import annotations

from nbloader.explorer.kinds.array import Array
from nbloader.explorer.kinds.audio import Audio
from nbloader.explorer.kinds.base import NO_PARTS, Context, Cover, Drawn, Kind, Names, Value, words
from nbloader.explorer.kinds.boxes import Boxes
from nbloader.explorer.kinds.bytes import Bytes
from nbloader.explorer.kinds.cloud import Cloud
from nbloader.explorer.kinds.error import Failure
from nbloader.explorer.kinds.file import File
from nbloader.explorer.kinds.flags import Flags
from nbloader.explorer.kinds.flow import Flow
from nbloader.explorer.kinds.graph import Graph
from nbloader.explorer.kinds.image import Image
from nbloader.explorer.kinds.keypoints import Keypoints
from nbloader.explorer.kinds.label import Label
from nbloader.explorer.kinds.mask import Mask
from nbloader.explorer.kinds.media import Media
from nbloader.explorer.kinds.none import Nothing
from nbloader.explorer.kinds.number import Number
from nbloader.explorer.kinds.object import Object
from nbloader.explorer.kinds.objects import Objects
from nbloader.explorer.kinds.rate import Rate
from nbloader.explorer.kinds.signal import Signal
from nbloader.explorer.kinds.text import Text
from nbloader.explorer.kinds.tokens import Tokens
from nbloader.explorer.kinds.tree import Tree
from nbloader.explorer.kinds.volume import Volume
from nbloader.frontend import scripted

__all__ = [
    "KINDS",
    "NO_PARTS",
    "Context",
    "Cover",
    "Drawn",
    "Failure",
    "Kind",
    "Names",
    "Value",
    "named",
    "register",
    "words",
]

KINDS: list[type[Kind]] = [
    Failure,  # recognizes nothing: it stands for values that raise
    Audio,  # a mapping, but one value
    Graph,  # a container with a drawing of its own
    Objects,  # a list, but one table
    Tree,
    Nothing,
    File,  # a string that is the path of one
    Text,
    Media,  # bytes that can be played
    Bytes,
    Rate,  # a number beside a waveform
    Label,  # a number with a name
    Number,
    Tokens,  # by name and shape, and by what is beside them
    Keypoints,
    Boxes,
    Mask,
    Flow,
    Cloud,
    Image,  # arrays, by their shape
    Volume,
    Flags,
    Signal,
    Array,
    Object,
]
"""Classes of the kinds. The first one that recognizes a value describes it."""


def register(kind: type[Kind]) -> None:
    """Add a kind, which is asked before the others, to all explorers that are opened later.

    A class with the name of a registered kind replaces that kind, for example if a notebook cell is run twice.

    Args:
        kind: The class of the kind.

    Raises:
        FileNotFoundError: There is no JavaScript module beside its Python module.
    """
    scripted.add(KINDS, kind, at=0)


def named(name: str) -> type[Kind]:
    """Return the kind with this name."""
    return next((kind for kind in KINDS if kind.name == name), Object)

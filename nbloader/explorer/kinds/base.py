"""Base class of the kinds of values: their Python half. `drawing.js` describes their JavaScript half."""

from __future__ import annotations

import enum
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.field import LABEL_NAMES, SUMMARY, Field, shape_text
from nbloader.explorer.normalization import Normalization
from nbloader.explorer.overview import PictureIn
from nbloader.explorer.pictures import Picture, Pixels
from nbloader.explorer.problems import Form
from nbloader.explorer.texts import type_name
from nbloader.explorer.values import as_array, figures_of
from nbloader.explorer.view import View
from nbloader.frontend.scripted import Scripted

Names: TypeAlias = Mapping[str, Sequence[str]]
"""Class names by field. Those under "*" apply to the first integer in a field of `LABEL_NAMES`."""
Content: TypeAlias = Literal["picture", "signal", "text", "value"]
"""The content by which samples are compared, see `problems`."""


NO_NUMBERS: NDArray[Any] = np.empty(0)
NO_PARTS: Mapping[str, Any] = {}


class Cover(enum.IntEnum):
    """How well a field represents its sample in the gallery, the best first."""

    PICTURE = 0
    WAVE = 1
    TEXT = 2
    OTHER = 3


class Value:
    """A value in a sample, and what several kinds ask of it.

    Args:
        path: Where it is: the names of the fields that lead to it, with dots between them; "" for the sample itself.
        content: The value.
        context: What it shares with the other values of the sample.
        expandable: Whether its parts may be described: it is not too deep in the sample, and does not contain itself.
        neighbors: The parts of the container that it is in, by name, in their order; itself among them.
        key: Its name among them; None for the last part of the path.
    """

    def __init__(
        self,
        path: str,
        content: Any,
        context: Context,
        *,
        expandable: bool = True,
        neighbors: Mapping[str, Any] = NO_PARTS,
        key: str | None = None,
    ) -> None:
        self.path = path
        self.key = path.rpartition(".")[2] if key is None else key
        """Its name in its container, in which there may be dots."""
        self.content = content
        self.context = context
        self.expandable = expandable
        self.neighbors = neighbors

    @property
    def name(self) -> str:
        """The key in lower case."""
        return self.key.lower()

    def named(self, words: Sequence[str]) -> bool:
        """Return whether one of these words is in the name."""
        return any(word in self.name for word in words)

    def beside_picture(self, size: tuple[int, int], *, channels: int = 1, other: Sequence[str] = ()) -> bool:
        """Return whether the sample has another value that is a picture of this size.

        Args:
            size: Width and height in pixels.
            channels: Least number of its channels.
            other: Words that are not in its name.
        """
        return any(
            picture.size == size
            and picture.channels >= channels
            and picture.path != self.path
            and not any(word in picture.path.rpartition(".")[2].lower() for word in other)
            for picture in self.context.pictures
        )

    @cached_property
    def type(self) -> str:
        """The name of its type."""
        return type_name(self.content)

    @property
    def is_pil(self) -> bool:
        """Whether it is an image of Pillow."""
        return hasattr(self.content, "getbands")

    @cached_property
    def array(self) -> NDArray[Any] | None:
        """The value as an array; None for Python's numbers and strings, and for anything that is no array."""
        if isinstance(self.content, (str, bytes, bytearray, bool, int, float, complex)):
            return None
        return as_array(_plain_picture(self.content))

    @cached_property
    def numbers(self) -> NDArray[Any]:
        """The value as an array if it has axes and elements, which are numbers; else an array without elements."""
        array = self.array
        if array is None or not array.ndim or not array.size:
            return NO_NUMBERS
        return array if array.dtype.kind in "biufc" or figures_of(array, 1) is not None else NO_NUMBERS

    @cached_property
    def number(self) -> Any:
        """The value as a number of Python if it is one, or an array without axes that holds one; else None."""
        if isinstance(self.content, (bool, int, float, complex)):
            return self.content
        array = self.array
        return array.item() if array is not None and not array.ndim and array.dtype.kind in "biufc" else None

    def dtype_of(self, array: NDArray[Any]) -> str:
        """Return the type of the elements, by the name that the library of the value gives it.

        Args:
            array: The value as an array.
        """
        return clean(getattr(self.content, "dtype", array.dtype), SUMMARY).removeprefix("torch.")

    @property
    def shape_and_type(self) -> str:
        """Shape and type of the elements of an array, in one line; "" for anything else."""
        return "" if self.array is None else f"{shape_text(self.array.shape)} {self.dtype_of(self.array)}"


class Context:
    """What the values of one sample share while it is described.

    Args:
        view: How the sample is to be described.
        names: Class names by field.
        normalization: The normalization to undo when pictures are drawn.
        pictures: What looks like a picture in the sample.
        tokenizer: Turns token ids into text; None if there is none.
        root: Folder of the dataset's files; "" if it is not known.
        tabular: Whether the sample is a row of a table.
    """

    def __init__(
        self,
        view: View,
        names: Names,
        normalization: Normalization | None,
        pictures: Sequence[PictureIn] = (),
        *,
        tokenizer: Any = None,
        root: str = "",
        tabular: bool = False,
    ) -> None:
        self.view = view
        self.names = names
        self.normalization = normalization
        self.pictures = pictures
        self.tokenizer = tokenizer
        self.root = root
        self.tabular = tabular
        self.buffers: list[bytes] = []
        """Pictures and sounds, to which fields refer by number."""
        self.labeled = False
        """Whether an integer was named: the names under "*" apply to one only."""
        self._pictured = False
        self._choices = dict(view.choices)

    def class_name(self, path: str, number: Any) -> str | None:
        """Return the name of the class with this number; None if it has none."""
        if isinstance(number, bool) or not isinstance(number, int):
            return None
        names = self.names.get(path, self.names.get(without_numbers(path)))
        if names is None and not self.labeled and path.rpartition(".")[2] in LABEL_NAMES:
            names = self.names.get("*")
        return None if names is None or not 0 <= number < len(names) else str(names[number])

    def choice(self, path: str, default: int, name: str = "") -> int:
        """Return what the user chose to see of a field.

        Args:
            path: The field.
            default: What to see if nothing was chosen.
            name: Which of several choices: the JavaScript half asks for it with `api.choose(number, name)`.
        """
        return self._choices.get(f"{path}#{name}" if name else path, default)

    def attach(self, data: bytes) -> int:
        """Send bytes to the browser; return the number by which the JavaScript half gets them."""
        self.buffers.append(data)
        return len(self.buffers) - 1

    @property
    def draws_picture(self) -> bool:
        """Whether to draw another picture: a card has one, and a scan has none."""
        return not self.view.scan and (self.view.full or not self._pictured)

    def show(self, field: Field, picture: Picture | None) -> None:
        """Set or replace the picture of a field."""
        if picture is None:
            return
        if field.picture < 0:
            field.picture = self.attach(picture.png)
        else:
            self.buffers[field.picture] = picture.png
        field.size, field.note = (picture.width, picture.height), picture.note
        field.drawn = self._pictured = True


class Drawn(NamedTuple):
    """A picture with something drawn over it."""

    pixels: Pixels
    note: str = ""
    """How it was drawn."""


class Kind(Scripted):
    """A kind of value. The class recognizes values; an instance describes one of them.

    A subclass needs `name`, `recognizes()` and `describe()`. The other methods have defaults. What raises when it is
    recognized or described is shown as an error.

    Args:
        value: The value.
    """

    caption: ClassVar[int] = 3
    """Rank among the texts in the caption of a card, the least first."""
    compared_as: ClassVar[Content | None] = None
    """The content as which a scan compares it with other samples; None if it does not count."""
    varies: ClassVar[bool] = False
    """Whether a scan reports an array of this kind with a single value as a problem."""
    is_canvas: ClassVar[bool] = False
    """Whether other kinds can be drawn over its picture: see `canvas()`."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.context = value.context
        self.field = Field(value.path, self.name, value.type)
        """The description, which `describe()` fills in."""

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the value is of this kind. Called in the order of `KINDS`, until one returns True."""
        raise NotImplementedError

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether a value can be drawn as this kind where the user says that it is of this kind."""
        return cls.recognizes(value)

    def parts(self) -> Iterator[tuple[str, Any]] | None:
        """Return the parts of a container by name, each of which becomes a field; None if it is not a container."""
        return None

    def describe(self) -> None:
        """Fill in `self.field`: at least its `summary`.

        `field.data` takes JSON values of bounded size for the JavaScript half. Text from the sample must be cut to a
        bounded length (`_util.format.clean`, `texts.printable`) but not escaped. Shape, type and statistics of
        `self.array` are added afterwards.
        """
        raise NotImplementedError

    @property
    def array(self) -> NDArray[Any] | None:
        """The array whose shape, type and statistics are shown and checked; None if there is none."""
        return self.value.array

    # ---- several fields in one picture -------------------------------------------------------------------------------

    def canvas(self) -> Pixels | None:
        """Return the picture for others to draw over, in three channels, at most `view.side` high and wide.

        Called if `is_canvas`: if the field has a picture, or in a scan, which compares pictures. Each call returns
        pixels that the caller may modify.
        """
        return None

    def belongs_to(self, picture: Field) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether this value is drawn over the picture of another field."""
        return False

    def draw_over(self, pixels: Pixels, picture: Field) -> Drawn:
        """Draw this value over a picture. Called if it `belongs_to` it.

        Args:
            pixels: The picture, which may be modified.
            picture: The field of the picture; `picture.size` is its size in the sample, in pixels.
        """
        raise NotImplementedError

    # ---- what others ask of a field ----------------------------------------------------------------------------------

    def cover(self) -> Cover:
        """Return how well the described field represents its sample in the gallery."""
        return Cover.PICTURE if self.field.picture >= 0 else Cover.OTHER

    def form(self) -> Form:
        """Return what a scan compares with the same field of other samples: see `problems.Form`."""
        field, array = self.field, self.array
        if array is None:
            return Form(field.path, field.type, "")
        axes = f"{array.ndim} {'axis' if array.ndim == 1 else 'axes'}"
        return Form(field.path, f"{field.dtype} {field.kind} with {axes}", shape_text(array.shape))

    def label(self) -> str | None:
        """Return the label of the sample, if this is one."""
        return None

    @classmethod
    def html(cls, field: Mapping[str, Any], buffers: Sequence[bytes]) -> str:
        """Return the cover of a card in the static form, without scripts and with all text escaped.

        Args:
            field: The description as JSON values.
            buffers: What was attached while the sample was described.
        """
        if "picture" in field:
            data = b64encode(buffers[field["picture"]]).decode()
            return f'<img class="nbx-picture" alt="" src="data:image/png;base64,{data}">'
        return words(field)


def without_numbers(path: str) -> str:
    """Return a path without the positions in lists: "objects.0.category" is "objects.category"."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def words(field: Mapping[str, Any]) -> str:
    """Return the summary of a field as HTML."""
    return f'<div class="nbx-words">{escape(field["summary"])}</div>'


def _plain_picture(value: Any) -> Any:
    """Convert a PIL image that is neither grayscale nor RGB(A), such as one with a palette, to RGB or RGBA."""
    mode = getattr(value, "mode", None)
    if mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "LA", "La", "RGBa") and hasattr(value, "getbands"):
        return value.convert("RGBA" if mode in ("PA", "LA", "La", "RGBa") else "RGB")
    return value

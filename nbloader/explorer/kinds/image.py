"""Pictures: images of Pillow, and arrays with the shape of a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from nbloader._util.format import plural
from nbloader.explorer import pictures
from nbloader.explorer.field import Field, shape_text
from nbloader.explorer.kinds.base import Context, Kind, Value
from nbloader.explorer.problems import Form
from nbloader.explorer.texts import joined
from nbloader.explorer.windows import windows_of


class Image(Kind):
    """A picture, over which masks and boxes may be drawn."""

    name = "image"
    compared_as = "picture"
    varies = True
    is_canvas = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the array has rows and columns, and channels or none."""
        return _layout(value) is not None

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether the array has rows and columns, however few."""
        return pictures.layout_of(value.numbers.shape, least=1) is not None

    def describe(self) -> None:
        """Draw the picture."""
        array, layout = self.value.numbers, _layout(self.value, least=1) or "HW"
        self.field.summary = self.value.shape_and_type
        self._shown = show(self.field, array, layout, self.context, array)

    def canvas(self) -> pictures.Pixels | None:
        """Return the picture as it is shown."""
        return pictures.to_rgb(self._shown.array, self._shown.layout, self.context.view.side, self._shown.limits)

    def form(self) -> Form:
        """Return the number of channels, which pictures of different sizes have in common."""
        array, layout = self.value.numbers, _layout(self.value, least=1) or "HW"
        channels = plural(pictures.rows_columns(array, layout).shape[2], "channel")
        return Form(self.field.path, f"{self.field.dtype} picture with {channels}", shape_text(array.shape))


class Shown(NamedTuple):
    """The array that is drawn."""

    array: NDArray[Any]
    layout: pictures.Layout
    limits: pictures.Limits | None = None
    """Which values are black and white; None if they follow from the array."""


def show(field: Field, array: NDArray[Any], layout: pictures.Layout, context: Context, whole: NDArray[Any]) -> Shown:
    """Draw an array as the picture of a field, without its normalization, in the window that the user chose.

    Args:
        field: The field.
        array: An array of numbers.
        layout: Layout of its axes.
        context: Context of the field.
        whole: The stack of which it is a slice, whose values determine what is black and white; or itself.
    """
    shown, normalization = Shown(array, layout), context.normalization
    undone = None if normalization is None or context.view.scan else normalization.undone(array, layout)
    if undone is not None:
        shown = Shown(undone, "HWC")
    elif not context.view.scan:
        shown = shown._replace(limits=_limits(field, shown, context, whole))
    if context.draws_picture:
        context.show(field, pictures.picture_of(shown.array, shown.layout, context.view.side, shown.limits))
        if undone is not None:
            field.note = joined(field.note, "normalization undone")
    height, width = pictures.rows_columns(array, layout).shape[:2]
    field.size = (int(width), int(height))
    return shown


def _limits(field: Field, shown: Shown, context: Context, whole: NDArray[Any]) -> pictures.Limits | None:
    """Return which values are black and white, and tell the JavaScript half which windows there are."""
    windows = windows_of(whole) if shown.layout == "HW" else []
    if len(windows) > 1:
        chosen = min(max(context.choice(field.path, 0, "window"), 0), len(windows) - 1)
        if context.view.full:
            field.data |= {"windows": [name for name, _limits in windows], "window": chosen}
        return windows[chosen][1]
    if whole.dtype.kind in "bc" or whole.dtype == "uint8":
        return None
    colored = pictures.rows_columns(shown.array, shown.layout).shape[2] > 1
    return pictures.limits_of(whole, colored=colored)


def _layout(value: Value, least: int = pictures.MIN_SIDE) -> pictures.Layout | None:
    return pictures.layout_of(value.numbers.shape, least=1 if value.is_pil else least)

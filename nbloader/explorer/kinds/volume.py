"""Volumes, videos, pictures with many bands, and batches of pictures: arrays that are stacks of pictures."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbloader._util.png import png
from nbloader.explorer import pictures
from nbloader.explorer.field import shape_text
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.kinds.image import show
from nbloader.explorer.texts import joined

FRAMES, FRAME_SIDE = 48, 112
"""Maximum number of small frames for playing, and their maximum width and height in pixels."""


class Stack(NamedTuple):
    """The array along whose first axis the user moves."""

    array: NDArray[Any]
    layout: pictures.Layout
    """Layout of each picture."""
    axes: int
    """Along how many axes the user may move: those of a volume."""
    note: str
    """How it was made of the value."""


class Volume(Kind):
    """One picture of a stack, which the user chooses, and small ones that are played: a volume, or a video."""

    name = "volume"
    compared_as = "picture"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether two axes are those of a picture."""
        return pictures.has_slices(_numbers(value).shape)

    @classmethod
    def fits(cls, value: Value) -> bool:
        """Return whether there are at least three axes, two of which are those of a picture."""
        array = _numbers(value)
        return array.ndim >= 3 and pictures.has_slices(array.shape)

    def describe(self) -> None:
        """Draw the slice that was chosen, or the middle one."""
        field, context = self.field, self.context
        field.summary = self.value.shape_and_type
        array = _numbers(self.value)
        default = pictures.slice_axis(array.shape) if array.ndim == 3 else 0
        axis = min(max(context.choice(field.path, default, "axis"), 0), 2)
        stack = _stack(array, axis)
        count = len(stack.array)
        at = min(max(context.choice(field.path, count // 2), 0), count - 1)
        unit = "slice" if array.ndim == 3 else "picture"
        field.data |= {"slices": count, "slice": at, "unit": unit}
        shown = show(field, stack.array[at], stack.layout, context, stack.array)
        if stack.axes > 1:
            field.data |= {"axes": stack.axes, "axis": axis}
        if context.view.full and count > 1:
            self._attach_frames(stack, shown.limits)
        series = f"volume 0 of {self.value.numbers.shape[3]}" if array.ndim < self.value.numbers.ndim else ""
        field.note = joined(field.note, f"{unit} {at} of {count}{stack.note}", series)

    def _attach_frames(self, stack: Stack, limits: pictures.Limits | None) -> None:
        """Attach small pictures of the slices, one below the other, which are played one after another."""
        step = -(-len(stack.array) // FRAMES)
        frames = [self._frame(part, stack.layout, limits) for part in stack.array[::step]]
        drawn = [frame for frame in frames if frame is not None]
        if not drawn:
            return
        gray = all((frame == frame[:, :, :1]).all() for frame in drawn)
        strip = np.concatenate([frame[:, :, :1] if gray else frame for frame in drawn])
        number = self.context.attach(png(strip))
        self.field.data["frames"] = {"strip": number, "count": len(drawn), "step": step}

    def _frame(
        self, array: NDArray[Any], layout: pictures.Layout, limits: pictures.Limits | None
    ) -> pictures.Pixels | None:
        normalization = self.context.normalization
        undone = None if normalization is None else normalization.undone(array, layout)
        if undone is not None:
            return pictures.to_rgb(undone, "HWC", FRAME_SIDE)
        return pictures.to_rgb(array, layout, FRAME_SIDE, limits)


def _numbers(value: Value) -> NDArray[Any]:
    """Return the array; for an image of nibabel with a time axis, which is its last one, the first volume."""
    array = value.numbers
    return array[..., 0] if array.ndim == 4 and hasattr(value.content, "dataobj") else array


def _stack(array: NDArray[Any], axis: int) -> Stack:
    """Return the stack of pictures in an array.

    Args:
        array: An array with at least three axes.
        axis: The axis along which the user moves, if the array has three.
    """
    shape, note = array.shape, ""
    while array.ndim > 4:
        array = array[0]
    if array.ndim == 4 and pictures.layout_of(array.shape[1:]) is None:
        if array.shape[0] in pictures.CHANNELS and min(array.shape[2:]) >= pictures.MIN_SIDE:
            return Stack(np.moveaxis(array, 0, 1), "CHW", 1, ", channels first")
        array = array[0]
    if array.ndim != len(shape):
        note = f" of the first array of shape {shape_text(array.shape)}"
    if array.ndim == 4:
        return Stack(array, pictures.layout_of(array.shape[1:]) or "HWC", 1, note)
    axes = 3 if min(array.shape) >= pictures.MIN_SIDE else 1
    moved = np.moveaxis(array, axis if axes > 1 else pictures.slice_axis(array.shape), 0)
    return Stack(moved, "HW", axes, note)

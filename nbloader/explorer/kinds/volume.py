"""Volumes, videos and batches of pictures: arrays that are stacks of pictures."""

from __future__ import annotations

from nbloader.explorer import pictures
from nbloader.explorer.field import shape_text
from nbloader.explorer.kinds.base import Kind, Value
from nbloader.explorer.kinds.image import show
from nbloader.explorer.texts import joined


class Volume(Kind):
    """One slice of a stack of pictures, which the user chooses."""

    name = "volume"
    compared_as = "picture"
    varies = True

    @classmethod
    def recognizes(cls, value: Value) -> bool:
        """Return whether the last axes are those of a picture."""
        array = value.numbers
        return pictures.has_slices(array.shape)

    def describe(self) -> None:
        """Draw the slice that was chosen, or the middle one."""
        array, field = self.value.numbers, self.field
        field.summary = self.value.shape_and_type
        axes = array.ndim
        while array.ndim > 4 or (array.ndim == 4 and pictures.layout_of(array.shape[1:]) is None):
            array = array[0]
        count = int(array.shape[0])
        at = min(max(self.context.choice(field.path, count // 2), 0), count - 1)
        field.data |= {"slices": count, "slice": at}
        layout = pictures.layout_of(array.shape[1:])
        if layout is not None:
            show(field, array[at], layout, self.context)
        of = f" of the first array of shape {shape_text(array.shape)}" if axes != array.ndim else ""
        field.note = joined(field.note, f"slice {at} of {count}{of}")

"""Draws several fields of a sample into one picture: boxes and masks over an image, without knowing what they are.

A *canvas* is a field over whose picture others are drawn: `Kind.is_canvas`, `Kind.canvas()`. An *overlay* is drawn over
the picture that it belongs to: `Kind.belongs_to()`, `Kind.draw_over()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nbloader.explorer.kinds import Context, Kind
from nbloader.explorer.pictures import Picture, Pixels, png
from nbloader.explorer.texts import joined


def draw_overlays(kinds: Sequence[Kind], context: Context) -> None:
    """Draw each overlay over the first picture that it belongs to.

    In a full description, each is drawn over its own copy of the picture; on a card, all over the same picture.

    Args:
        kinds: What was described, in the order of the fields.
        context: Their context.
    """
    canvases = [kind for kind in kinds if kind.is_canvas and kind.field.picture >= 0]
    shared: dict[str, Pixels] = {}
    """On a card: pictures with overlays, by the path of the canvas."""
    for kind in kinds:
        canvas = next((canvas for canvas in canvases if kind.belongs_to(canvas.field)), None)
        if canvas is None or canvas.field.size is None:
            continue
        path = canvas.field.path
        pixels = shared[path] if path in shared else canvas.canvas()
        if pixels is None:
            continue
        drawn = kind.draw_over(pixels, canvas.field)
        if context.view.full:
            note = joined(f"over {path or 'the picture'}", drawn.note)
            context.show(kind.field, Picture(png(drawn.pixels), *canvas.field.size, note))
        else:
            shared[path] = drawn.pixels
    for canvas in canvases:
        field = canvas.field
        if field.path in shared and field.size is not None:
            context.show(field, Picture(png(shared[field.path]), *field.size, field.note))

"""Draws several fields of a sample into one picture: boxes and masks over an image, without knowing what they are.

A *canvas* is a field over whose picture others are drawn: `Kind.is_canvas`, `Kind.canvas()`. An *overlay* is drawn over
the picture that it belongs to: `Kind.belongs_to()`, `Kind.draw_over()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nbloader._util.format import clean
from nbloader._util.png import png
from nbloader.explorer.kinds import Context, Kind
from nbloader.explorer.pictures import Picture, Pixels
from nbloader.explorer.texts import joined


def draw_overlays(kinds: Sequence[Kind], context: Context) -> None:
    """Draw each overlay over the picture that it belongs to; of several, the first one in the nearest container.

    On a card, they are part of the picture. In a full description, the picture comes with all of them and without
    (`field.data["annotated"]` is the number of the former), and each overlay has its own copy besides. An overlay that
    raises is left out, and its note says so.

    Args:
        kinds: What was described, in the order of the fields.
        context: Their context.
    """
    canvases = [kind for kind in kinds if kind.is_canvas and kind.field.picture >= 0]
    drawn_on: dict[str, Pixels] = {}  # by the path of the canvas
    for kind in kinds:
        try:
            _draw(kind, canvases, drawn_on, context)
        except Exception as error:  # noqa: BLE001 - a kind may raise anything, and the sample is shown nevertheless
            note = clean(f"not drawn over the picture: {type(error).__name__}: {error}")
            kind.field.note = joined(kind.field.note, note)
    for canvas in canvases:
        field = canvas.field
        if field.path not in drawn_on or field.size is None:
            continue
        annotated = png(drawn_on[field.path])
        if context.view.full:
            field.data |= {"annotated": context.attach(annotated)}
        else:
            context.show(field, Picture(annotated, *field.size, field.note))


def _draw(kind: Kind, canvases: Sequence[Kind], drawn_on: dict[str, Pixels], context: Context) -> None:
    """Draw one field, if it is an overlay.

    Args:
        kind: The field.
        canvases: What it may be drawn over.
        drawn_on: Pictures with the overlays so far, to which the result is added.
        context: Context of the fields.
    """
    fitting = [canvas for canvas in canvases if canvas is not kind and kind.belongs_to(canvas.field)]
    canvas = max(fitting, key=lambda canvas: _in_common(canvas.field.path, kind.field.path), default=None)
    if canvas is None or canvas.field.size is None:
        return
    path, full = canvas.field.path, context.view.full
    alone = canvas.canvas() if full or path not in drawn_on else None
    if full and alone is not None:
        drawn = kind.draw_over(alone.copy(), canvas.field)
        note = joined(f"over {path or 'the picture'}", drawn.note)
        context.show(kind.field, Picture(png(drawn.pixels), *canvas.field.size, note))
    pixels = drawn_on.get(path, alone)
    if pixels is not None:
        drawn_on[path] = kind.draw_over(pixels, canvas.field).pixels


def _in_common(path: str, other: str) -> int:
    """Return the number of containers that two fields share."""
    count = 0
    for one, two in zip(path.split(".")[:-1], other.split(".")[:-1], strict=False):
        if one != two:
            break
        count += 1
    return count

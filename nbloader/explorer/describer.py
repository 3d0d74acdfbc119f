"""Describes a sample: its fields, with their types, shapes and statistics, and how each field is drawn.

    describe(sample, names, renderers, view, ...) -> Description: fields, and the binary buffers that they refer to
    with View(scan=True): a check of all elements, from which `problems` finds problems, and no pictures

A card is what the gallery and the table show of a sample: one picture and short strings. The full description has
statistics, large pictures and long strings. Both have a bounded size for any sample and contain no markup: the browser
shows every string as plain text. Describing a sample never raises.

    value   -> a renderer of the user may replace it; encoded pictures are decoded
               -> the kind that the user names, or the first of `kinds.KINDS` that recognizes it, describes it
               -> the same for its parts, if it is a container
    fields  -> `overlays.draw_overlays`: those that belong over the picture of another one are drawn there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from nbloader._util.format import clean
from nbloader.explorer.encoded import decoded
from nbloader.explorer.field import CARD_FIELDS, FEW, SUMMARY, Description, shape_text
from nbloader.explorer.inspector import Inspector
from nbloader.explorer.kinds import KINDS, NO_PARTS, Context, Failure, Kind, Names, Value
from nbloader.explorer.normalization import Normalization
from nbloader.explorer.overlays import draw_overlays
from nbloader.explorer.overview import PictureIn, pictures_in
from nbloader.explorer.texts import joined
from nbloader.explorer.values import FULL_ELEMENTS, facts_of, figures_of
from nbloader.explorer.view import View

MAX_FIELDS = 200
"""Maximum number of fields of a sample that are described."""
MAX_DEPTH = 8
CAPTION_FIELDS = 3
"""Maximum number of fields in the caption of a card."""


Hints: TypeAlias = "Mapping[str, str]"
"""The kind of a field, by its path or its name, as the user states it."""


class Renderer(NamedTuple):
    """A user-defined renderer."""

    applies: str | type | Callable[[str, Any], bool]
    """The name of a field, a type, or a predicate on name and value."""
    draw: Callable[[Any], Any]
    """Returns what to show instead of the value: a picture, a string, an array, a dict."""

    def matches(self, path: str, value: Any) -> bool:
        """Whether it draws this field."""
        if isinstance(self.applies, str):
            return path == self.applies or path.rpartition(".")[2] == self.applies
        if isinstance(self.applies, type):
            return isinstance(value, self.applies)
        return bool(self.applies(path, value))


def describe(
    sample: Any,
    names: Names,
    renderers: Sequence[Renderer] = (),
    view: View | None = None,
    normalization: Normalization | None = None,
    kinds: Sequence[type[Kind]] = KINDS,
    *,
    hints: Hints | None = None,
    tokenizer: Any = None,
    root: str = "",
    tabular: bool = False,
) -> Description:
    """Describe a sample.

    Args:
        sample: Anything.
        names: Class names by field.
        renderers: User-defined renderers; the first that matches a field draws it.
        view: How to describe the sample.
        normalization: The normalization to undo when pictures are drawn. Statistics are not affected.
        kinds: The kinds of values; the first that recognizes a value describes it.
        hints: Kinds of fields, as the user states them.
        tokenizer: Turns token ids into text.
        root: Folder of the dataset's files.
        tabular: Whether the sample is a row of a table, in which None is a missing value.
    """
    pictures = _overview(sample)
    context = Context(view or View(), names, normalization, pictures, tokenizer=tokenizer, root=root, tabular=tabular)
    return _Describer(renderers, context, kinds, hints or {}).describe(sample)


def _overview(sample: Any) -> Sequence[PictureIn]:
    try:
        return pictures_in(sample)
    except Exception:  # noqa: BLE001 - an unknown type of object may raise anything when it is inspected
        return ()


class _Describer:
    """Describes one sample."""

    def __init__(
        self, renderers: Sequence[Renderer], context: Context, kinds: Sequence[type[Kind]], hints: Hints
    ) -> None:
        self._renderers = renderers
        self._context = context
        self._kinds = kinds
        self._hints = hints
        self._described: list[Kind] = []
        self._left_out = 0
        self._open: set[int] = set()  # containers being described: one may contain itself
        self._inspector = Inspector() if context.view.scan else None

    def describe(self, sample: Any) -> Description:
        self._walk("", sample, 0)
        if self._inspector is None:
            draw_overlays(self._described, self._context)
        fields = [kind.field for kind in self._described]
        cover = self._cover()
        return Description(
            fields=fields,
            buffers=self._context.buffers,
            cover=cover,
            caption=self._caption(cover),
            nbytes=sum(field.nbytes for field in fields),
            left_out=self._left_out,
            check=None if self._inspector is None else self._inspector.check(),
        )

    def _walk(
        self, path: str, content: Any, depth: int, neighbors: Mapping[str, Any] = NO_PARTS, key: str = ""
    ) -> None:
        if len(self._described) >= MAX_FIELDS:
            self._left_out += 1
            return
        try:
            content, note = self._rendered(path, content)
            expandable = depth < MAX_DEPTH and id(content) not in self._open
            value = Value(path, content, self._context, expandable=expandable, neighbors=neighbors, key=key)
            kind_of_it, misfit = self._kind_of(value)
            kind = kind_of_it(value)
            parts = kind.parts()
            kind.describe()
            kind.field.container = parts is not None
            if parts is None:
                if kind.array is not None:
                    self._add_figures(kind, kind.array)
                if self._inspector is not None:
                    self._inspector.inspect(kind)
            kind.field.note = joined(note, misfit, kind.field.note)
        except Exception as error:  # noqa: BLE001 - an unknown type of object may raise anything when it is inspected
            kind, parts = Failure(Value(path, content, self._context), error), None
            kind.describe()
        kind.field.depth = depth
        self._described.append(kind)
        if parts is not None:
            self._open.add(id(content))
            listed = list(parts)
            beside = dict(listed)
            for name, part in listed:
                self._walk(f"{path}.{name}" if path else name, part, depth + 1, beside, name)
            self._open.discard(id(content))

    def _kind_of(self, value: Value) -> tuple[type[Kind], str]:
        """Return the kind that describes a value, and a note if it is not the one that the user states."""
        stated = self._hints.get(value.path, self._hints.get(value.key))
        kind = next((kind for kind in self._kinds if kind.name == stated), None)
        if kind is not None and kind.fits(value):
            return kind, ""
        recognized = next(kind for kind in self._kinds if kind.recognizes(value))
        return recognized, f"not drawn as {stated}: neither its shape nor its type suits" if stated else ""

    def _rendered(self, path: str, content: Any) -> tuple[Any, str]:
        for renderer in self._renderers:
            if renderer.matches(path, content):
                return renderer.draw(content), f"drawn by {getattr(renderer.draw, '__name__', 'a renderer')}()"
        return decoded(content)

    def _add_figures(self, kind: Kind, array: NDArray[Any]) -> None:
        """Add what is shown of every array: shape, type and statistics."""
        field, content = kind.field, kind.value.content
        field.shape = tuple(int(n) for n in array.shape)
        field.dtype = kind.value.dtype_of(array)
        itemsize = getattr(content, "itemsize", None)  # NumPy lacks bfloat16: the array has larger elements
        field.nbytes = array.size * (itemsize if isinstance(itemsize, int) else array.itemsize)
        if array.ndim:  # without axes it is one value, which is a column of the table itself
            field.facts["shape"] = shape_text(array.shape)
        if array.size > FEW:
            field.facts |= facts_of(array)
        device = getattr(content, "device", None)
        if device is not None and str(device) != "cpu":
            field.note = joined(field.note, f"on {clean(device, SUMMARY)}")
        if self._context.view.full and array.ndim and array.size > FEW:  # fewer are listed themselves
            field.figures = figures_of(array, FULL_ELEMENTS)

    def _cover(self) -> int:
        """Return the field that represents the sample: a picture, else a wave, a string, or the first field."""
        ranks = [
            (kind.cover(), at)
            for at, kind in enumerate(self._described)
            if (kind.field.drawn or not kind.field.container) and not kind.field.absent
        ]
        return min(ranks)[1] if ranks else -1

    def _caption(self, cover: int) -> list[int]:
        """Return the fields whose summaries are below the cover of a card."""
        leaves = [(kind.caption, at) for at, kind in enumerate(self._described) if not kind.field.container]
        ranks = [
            (rank, at) for rank, at in leaves[:CARD_FIELDS] if at != cover and not self._described[at].field.absent
        ]
        return [at for _rank, at in sorted(ranks)[:CAPTION_FIELDS]]

"""Describes a sample: its fields, with their types, shapes and statistics, and how each field is drawn.

    describe(sample, names, renderers, view, ...) -> Description: fields, and the binary buffers that they refer to
    with View(scan=True): a check of all elements, from which `problems` finds problems, and no pictures

A card is what the gallery and the table show of a sample: one picture and short strings. The full description has
statistics, large pictures and long strings. Both have a bounded size for any sample and contain no markup: the browser
shows every string as plain text. Describing a sample never raises.

The kind of a field is determined in this order:

    a renderer that was registered -> mapping, sequence, dataclass -> text, bytes, number, label
    -> array by its shape: mask, picture, volume, signal -> anything else: its repr
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbloader._util.format import clean, number, plural
from nbloader.explorer import pictures
from nbloader.explorer.audio import sound_of, wave_file
from nbloader.explorer.field import FEW, LABEL_NAMES, SUMMARY, Description, Field, shape_text
from nbloader.explorer.inspector import Inspector
from nbloader.explorer.normalization import Normalization
from nbloader.explorer.values import (
    FULL_ELEMENTS,
    as_array,
    envelope,
    facts_of,
    figures_of,
)

MAX_FIELDS = 200
"""Maximum number of fields of a sample that are described."""
MAX_DEPTH = 8
MAX_ITEMS = 40
"""Maximum number of items of a list that are described one by one."""
CARD_SIDE, FULL_SIDE = 192, 1024
"""Maximum width and height of a picture, in pixels."""
CARD_POINTS, FULL_POINTS = 96, 600
"""Maximum number of sections into which the envelope of a signal is divided."""
CARD_TEXT, FULL_TEXT = 240, 20_000
"""Maximum lengths of strings, in characters; see also `SUMMARY`."""
AUDIO_SECONDS = 60
"""Maximum length, in seconds, of the sound that is sent to the browser."""

Names: TypeAlias = Mapping[str, Sequence[str]]
"""Class names by field. Those under "*" apply to the first integer in a field of `LABEL_NAMES`."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = SUMMARY
_long = reprlib.Repr()
_long.maxstring = _long.maxother = FULL_TEXT
_long.maxlist = _long.maxtuple = _long.maxdict = _long.maxset = 100


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


class View(NamedTuple):
    """How a sample is to be described."""

    full: bool = False
    scan: bool = False
    """Collect only facts, from all elements, without drawing anything."""
    slices: tuple[tuple[str, int], ...] = ()
    """Slices of volumes to show, by field; by default the middle one."""


def describe(
    sample: Any,
    names: Names,
    renderers: Sequence[Renderer] = (),
    view: View | None = None,
    normalization: Normalization | None = None,
) -> Description:
    """Describe a sample.

    Args:
        sample: Anything.
        names: Class names by field.
        renderers: User-defined renderers; the first that matches a field draws it.
        view: How to describe the sample.
        normalization: The normalization to undo when pictures are drawn. Statistics are not affected.
    """
    return _Describer(names, renderers, view or View(), normalization).describe(sample)


class _Describer:
    """Describes one sample."""

    def __init__(
        self, names: Names, renderers: Sequence[Renderer], view: View, normalization: Normalization | None
    ) -> None:
        self._normalization = normalization
        self._names = names
        self._renderers = renderers
        self._view = view
        self._full = view.full
        self._slices = dict(view.slices)
        self._side = FULL_SIDE if view.full else CARD_SIDE
        self._out = Description()
        self._open: set[int] = set()  # containers being described: one may contain itself
        self._arrays: dict[str, NDArray[Any]] = {}
        self._boxes: dict[str, Any] = {}
        self._has_cover_picture = False
        self._named = False
        self._inspector = Inspector() if view.scan else None

    def describe(self, sample: Any) -> Description:
        self._walk("", sample, 0)
        if self._inspector is not None:
            self._out.check = self._inspector.check()
        else:
            self._draw_over()
        self._choose_cover()
        return self._out

    # ---- the tree -------------------------------------------------------------------------------------------------

    def _walk(self, path: str, value: Any, depth: int) -> None:
        out = self._out
        if len(out.fields) >= MAX_FIELDS:
            out.left_out += 1
            return
        try:
            value, note = self._rendered(path, value)
            children = None if depth >= MAX_DEPTH or id(value) in self._open else self._children(path, value)
            if children is None:
                item = self._leaf(path, value)
                if self._inspector is not None:
                    self._inspector.inspect(item, value)
            else:
                item = Field(path, "tree", _type_name(value), _count(value))
            item.note = "; ".join(part for part in (note, item.note) if part)
        except Exception as error:  # noqa: BLE001 - an unknown type of object may raise anything when it is inspected
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-FULL_TEXT:]
            item = Field(path, "error", _type_name(value), clean(f"{type(error).__name__}: {error}"), text=text)
            children = None
        item.depth = depth
        out.fields.append(item)
        out.nbytes += item.nbytes
        if children is not None:
            self._open.add(id(value))
            for name, child in children:
                self._walk(f"{path}.{name}" if path else name, child, depth + 1)
            self._open.discard(id(value))

    def _rendered(self, path: str, value: Any) -> tuple[Any, str]:
        for renderer in self._renderers:
            if renderer.matches(path, value):
                return renderer.draw(value), f"drawn by {getattr(renderer.draw, '__name__', 'a renderer')}()"
        return value, ""

    def _children(self, path: str, value: Any) -> Iterator[tuple[str, Any]] | None:
        """Return the parts of a container by name; None if it is not a container."""
        if isinstance(value, Mapping):
            if sound_of(value) is not None:
                return None
            return iter([(clean(key, SUMMARY), value[key]) for key in list(value)[:MAX_ITEMS]])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return iter([(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)][:MAX_ITEMS])
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return iter(list(zip(value._fields, value, strict=False))[:MAX_ITEMS])
        if isinstance(value, (list, tuple)) and value and (not path or as_array(value) is None):
            if len(value) > 1 and all(type(part) in (int, float) for part in value) and len(value) > MAX_ITEMS:
                return None
            return iter([(str(at), part) for at, part in enumerate(value[:MAX_ITEMS])])
        return None

    # ---- leaves ---------------------------------------------------------------------------------------------------

    def _leaf(self, path: str, value: Any) -> Field:
        kind = _type_name(value)
        if value is None:
            return Field(path, "none", kind, "None")
        if isinstance(value, str):
            return self._text(path, kind, value)
        if isinstance(value, (bytes, bytearray)):
            shown = self._repr(bytes(value[:FULL_TEXT]))
            return Field(path, "object", kind, plural(len(value), "byte"), nbytes=len(value), text=shown)
        if isinstance(value, (bool, int, float, complex)):
            return self._number(path, kind, value)
        if isinstance(value, Mapping) and (sound := sound_of(value)) is not None:
            return self._audio(path, kind, *sound)
        array = as_array(_plain_picture(value))
        if array is None:
            return Field(path, "object", kind, _safe_repr(value, _short, SUMMARY), text=self._repr(value))
        return self._array(path, value, kind, array)

    def _repr(self, value: Any) -> str:
        return _safe_repr(value, _long, FULL_TEXT) if self._full else ""

    def _text(self, path: str, kind: str, value: str) -> Field:
        limit = FULL_TEXT if self._full else CARD_TEXT
        note = f"the first {limit:,} of {len(value):,} characters" if self._full and len(value) > limit else ""
        size = len(value.encode("utf-8", "surrogatepass"))
        text = _printable(value[:limit])
        item = Field(path, "text", kind, clean(value, SUMMARY), nbytes=size, note=note, text=text)
        item.facts["length"] = len(value)
        return item

    def _number(self, path: str, kind: str, value: Any) -> Field:
        name = self._class_name(path, value)
        if name is not None:
            return Field(path, "label", kind, clean(f"{name} ({value})", SUMMARY), value=name)
        text = str(value) if not isinstance(value, float) else f"{value:.10g}" if self._full else f"{value:.4g}"
        finite = value if isinstance(value, (bool, int, float)) and math.isfinite(value) else None
        return Field(path, "number", kind, clean(text, SUMMARY), value=finite)

    def _class_name(self, path: str, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        names = self._names.get(path)
        if names is None and not self._named and path.rpartition(".")[2] in LABEL_NAMES:
            names = self._names.get("*")
        if names is None or not 0 <= value < len(names):
            return None
        self._named = True
        return str(names[value])

    def _array(self, path: str, value: Any, kind: str, array: NDArray[Any]) -> Field:
        if array.ndim == 0 and array.dtype.kind in "biufc":
            item = self._number(path, kind, array.item())
        elif path in self._names and array.ndim == 1 and 0 < array.size <= MAX_ITEMS and array.dtype.kind in "iu":
            named = [self._class_name(path, at) or str(at) for at in array.tolist()]
            item = Field(path, "label", kind, clean(", ".join(named), SUMMARY), value=clean(", ".join(named), SUMMARY))
        elif array.ndim == 0:
            item = Field(path, "object", kind, _safe_repr(array[()], _short, SUMMARY), text=self._repr(array[()]))
        else:
            item = self._shaped(path, value, kind, array)
        item.shape = tuple(int(n) for n in array.shape)
        item.dtype = _dtype(value, array)
        item.nbytes = int(array.nbytes)
        item.facts["shape"] = shape_text(array.shape)
        if array.size > FEW and item.kind != "object":
            item.facts |= facts_of(array)
        if self._inspector is not None:
            self._inspector.inspect_array(path, array)
        device = getattr(value, "device", None)
        if device is not None and str(device) != "cpu":
            item.note = "; ".join(part for part in (item.note, f"on {clean(device, SUMMARY)}") if part)
        if self._full and item.figures is None:
            item.figures = figures_of(array, FULL_ELEMENTS)
        return item

    def _shaped(self, path: str, value: Any, kind: str, array: NDArray[Any]) -> Field:
        """Draw an array by its shape."""
        name = path.rpartition(".")[2].lower()
        summary = f"{shape_text(array.shape)} {_dtype(value, array)}"
        item = Field(path, "array", kind, summary)
        numeric = array.dtype.kind in "biufc" or figures_of(array, 1) is not None
        if not numeric or not array.size:
            if not array.size:
                item.note = "no elements"
            elif self._full:
                item.text = self._repr(array)
            return item
        if "box" in name and array.ndim == 2 and array.shape[1] == 4:
            item.kind, item.summary = "boxes", plural(len(array), "box").replace("boxs", "boxes")
            self._boxes[path] = value
            self._arrays[path] = array
            return item
        is_pil = hasattr(value, "getbands")
        layout = pictures.layout_of(array.shape, least=1 if is_pil else pictures.MIN_SIDE)
        if layout is not None:
            self._arrays[path] = array
            self._picture(item, array, layout)
            if layout == "HW" and not is_pil and _may_be_mask(name) and pictures.is_mask(array):
                self._mask(item, array)
        elif pictures.has_slices(array.shape):
            self._volume(item, array)
        elif max(array.shape) == array.size or (array.ndim == 2 and array.shape[0] <= 8 < array.shape[1]):
            self._signal(item, array)
        if not self._full and item.kind == "array":
            item.summary = _few_numbers(array) or summary
        return item

    def _picture(self, item: Field, array: NDArray[Any], layout: pictures.Layout) -> None:
        item.kind = "image"
        undone = None if self._normalization is None or self._view.scan else self._normalization.undone(array, layout)
        if undone is not None:
            array, layout = undone, "HWC"
            self._arrays[item.path] = undone  # masks and boxes are drawn over it
        if not self._view.scan and (self._full or not self._has_cover_picture):  # a card shows only one picture
            self._replace_picture(item, pictures.picture_of(array, layout, self._side))
            self._has_cover_picture = item.picture >= 0
            if undone is not None:
                item.note = "; ".join(part for part in (item.note, "normalization undone") if part)
        height, width = pictures.rows_columns(array, layout).shape[:2]
        item.size = (int(width), int(height))

    def _mask(self, item: Field, array: NDArray[Any]) -> None:
        item.kind = "mask"
        if not self._view.scan and (self._full or not self._has_cover_picture):
            self._replace_picture(item, _mask_picture(array, self._side))

    def _replace_picture(self, item: Field, picture: pictures.Picture | None) -> None:
        if picture is None or (item.picture < 0 and not self._full and self._has_cover_picture):
            return
        if item.picture >= 0:
            self._out.buffers[item.picture] = picture.png
        else:
            item.picture = len(self._out.buffers)
            self._out.buffers.append(picture.png)
        item.size, item.note = (picture.width, picture.height), picture.note

    def _volume(self, item: Field, array: NDArray[Any]) -> None:
        item.kind = "volume"
        before = array.shape
        while array.ndim > 4 or (array.ndim == 4 and pictures.layout_of(array.shape[1:]) is None):
            array = array[0]
        item.slices = int(array.shape[0])
        item.slice = min(max(self._slices.get(item.path, item.slices // 2), 0), item.slices - 1)
        layout = pictures.layout_of(array.shape[1:])
        if layout is not None:
            self._picture(item, array[item.slice], layout)
            item.kind = "volume"
        note = f"slice {item.slice} of {item.slices}"
        if len(before) != array.ndim:
            note += f" of the first array of shape {shape_text(array.shape)}"
        item.note = f"{item.note}; {note}" if item.note else note

    def _signal(self, item: Field, array: NDArray[Any]) -> None:
        line = array.reshape(-1) if max(array.shape) == array.size else array[0]
        item.kind = "signal" if line.size > FEW else "array"
        if item.kind == "array":
            item.summary = _few_numbers(line) or item.summary
            return
        if not self._view.scan:
            item.points = envelope(np.abs(line) if line.dtype.kind == "c" else line, self._points)
        if line.size < array.size:
            item.note = f"the first of {plural(array.shape[0], 'channel')} is drawn"

    @property
    def _points(self) -> int:
        return FULL_POINTS if self._full else CARD_POINTS

    def _audio(self, path: str, kind: str, array: NDArray[Any], rate: int) -> Field:
        channel = array.reshape(-1) if array.ndim == 1 else array[0] if array.shape[0] <= 8 else array[:, 0]
        seconds = channel.size / rate
        item = Field(path, "audio", kind, f"{number(seconds)} s at {rate:,} Hz")
        item.shape, item.dtype, item.nbytes = tuple(array.shape), str(array.dtype), int(array.nbytes)
        item.facts |= {"shape": shape_text(array.shape), "seconds": seconds, "rate": rate, **facts_of(array)}
        if self._inspector is not None:
            self._inspector.inspect_array(path, array)
            return item
        item.points = envelope(channel, self._points)
        if self._full:
            item.figures = figures_of(array, FULL_ELEMENTS)
            item.sound = len(self._out.buffers)
            self._out.buffers.append(wave_file(channel[: rate * AUDIO_SECONDS], rate))
            item.note = f"the first {AUDIO_SECONDS} s can be played" if seconds > AUDIO_SECONDS else ""
        return item

    # ---- fields that belong together ------------------------------------------------------------------------------

    def _draw_over(self) -> None:
        """Draw masks and boxes over the picture that they belong to.

        In a full description, each is drawn over its own copy of the picture; on a card, all over the same picture.
        """
        drawn_on: dict[str, pictures.Pixels] = {}  # on cards: by the path of the picture
        images = [item for item in self._out.fields if item.kind == "image" and item.picture >= 0 and item.size]
        for item in self._out.fields:
            if item.kind not in ("mask", "boxes"):
                continue
            image = next((im for im in images if item.kind == "boxes" or im.size == item.size), None)
            if image is None:
                continue
            base = self._arrays[image.path]
            layout = pictures.layout_of(base.shape, least=1)
            pixels = drawn_on.get(image.path)
            if pixels is None and layout is not None:
                pixels = pictures.to_rgb(base, layout, self._side)
            if pixels is None or image.size is None:
                continue
            if item.kind == "mask":
                drawn, note = pictures.mask_over(pixels, self._arrays[item.path]), f"over {image.path or 'the picture'}"
            else:
                corners, how = _corners(self._boxes[item.path], self._arrays[item.path], item.path, image.size)
                scale = np.array([pixels.shape[1] / image.size[0], pixels.shape[0] / image.size[1]] * 2)
                drawn, note = pictures.boxes_over(pixels, corners * scale), f"over {image.path or 'the picture'}; {how}"
            if self._full:
                self._replace_picture(item, pictures.Picture(pictures.png(drawn), *image.size, note))
            else:
                drawn_on[image.path] = drawn
        for image in images:
            if image.path in drawn_on and image.size is not None:
                self._replace_picture(
                    image, pictures.Picture(pictures.png(drawn_on[image.path]), *image.size, image.note)
                )

    def _choose_cover(self) -> None:
        """Choose the field that represents the sample: a picture, else a waveform, a string, or the first field."""
        fields = self._out.fields
        ranks: list[Callable[[Field], bool]] = [
            lambda item: item.picture >= 0,
            lambda item: bool(item.points),
            lambda item: item.kind == "text",
            lambda item: item.kind not in ("tree", "none"),
        ]
        for rank in ranks:
            found = next((at for at, item in enumerate(fields) if rank(item)), None)
            if found is not None:
                self._out.cover = found
                return


def _type_name(value: Any) -> str:
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    return clean(cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__name__}", SUMMARY)


def _count(value: Any) -> str:
    size = len(value) if hasattr(value, "__len__") else len(dataclasses.fields(value))
    shown = f", of which {MAX_ITEMS} are shown" if size > MAX_ITEMS else ""
    return plural(size, "item") + shown


def _dtype(value: Any, array: NDArray[Any]) -> str:
    return clean(getattr(value, "dtype", array.dtype), SUMMARY).removeprefix("torch.")


def _safe_repr(value: Any, brief: reprlib.Repr, limit: int) -> str:
    try:
        text = brief.repr(value)
    except Exception as error:  # noqa: BLE001 - the user's __repr__ may raise anything
        return f"<{_type_name(value)}; its repr raises {type(error).__name__}>"
    return clean(text, limit) if limit == SUMMARY else _printable(text[:limit])


def _printable(text: str) -> str:
    """Make a string safe for JSON and HTML: control characters and lone surrogates become visible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _few_numbers(array: NDArray[Any]) -> str:
    """Format a short array; empty for a longer one."""
    if array.size > FEW:
        return ""
    try:
        return clean("[" + ", ".join(f"{value:.4g}" for value in array.reshape(-1).tolist()) + "]", SUMMARY)
    except (TypeError, ValueError):  # elements that do not support this format
        return ""


def _plain_picture(value: Any) -> Any:
    """Convert a PIL image that is neither grayscale nor RGB(A), such as one with a palette, to RGB or RGBA."""
    mode = getattr(value, "mode", None)
    if mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "LA", "La", "RGBa") and hasattr(value, "getbands"):
        return value.convert("RGBA" if mode in ("PA", "LA", "La", "RGBa") else "RGB")
    return value


def _may_be_mask(name: str) -> bool:
    return any(word in name for word in ("mask", "seg", "annotation", "label"))


def _mask_picture(array: NDArray[Any], side: int) -> pictures.Picture:
    labels = pictures.shrink(array[:, :, None], side, average=False)[:, :, 0]
    count = len(np.unique(array))
    note = f"{count} labels in color; 0 is black"
    return pictures.Picture(pictures.png(pictures.colored_labels(labels)), array.shape[1], array.shape[0], note)


def _corners(value: Any, boxes: NDArray[Any], path: str, size: tuple[int, int]) -> tuple[NDArray[np.float64], str]:
    """Return boxes as left, top, right, bottom in pixels of the picture, and a phrase that names the assumed format.

    torchvision's boxes state their format. For others, the name of the field may state it ("boxes_xywh", COCO's
    "bbox"); otherwise the second pair is the opposite corner if it is to the right of and below the first in every box.
    """
    corners = np.nan_to_num(boxes[:1000].astype(np.float64))
    stated = clean(getattr(getattr(value, "format", None), "value", "") or "", SUMMARY).lower()
    names = path.lower()
    if not stated:
        stated = next((form for form in ("xyxy", "cxcywh", "xywh") if form in names), "")
    if not stated:
        opposite = bool((corners[:, 2:] >= corners[:, :2]).all()) and "bbox" not in names
        stated = "xyxy" if opposite else "xywh"
    if stated == "xywh":
        corners[:, 2:] += corners[:, :2]
    elif stated == "cxcywh":
        half = corners[:, 2:] / 2
        corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
    if corners.size and corners.max() <= 1.5:  # normalized coordinates: fractions of width and height
        corners *= np.array([*size, *size], np.float64)
        stated += ", as fractions of the size"
    return corners, f"read as {stated}"

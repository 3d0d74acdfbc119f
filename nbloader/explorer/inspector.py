"""Checks all elements of a sample, for the search for problems."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from nbloader._util.format import clean, plural
from nbloader.explorer import pictures
from nbloader.explorer.field import FEW, LABEL_NAMES, SUMMARY, Field, Kind, shape_text
from nbloader.explorer.problems import Check, Form
from nbloader.explorer.values import content_of, extremes

_FAMILIES: Mapping[Kind, str] = {
    "image": "picture", "volume": "picture", "audio": "signal", "signal": "signal", "array": "signal", "text": "text",
    "number": "value", "label": "value", "none": "value",
}  # fmt: skip
"""By kind of field: the kind of content by which samples are compared, see `problems`. Boxes and masks are left out,
since they describe the picture."""


class Inspector:
    """Checks the fields of one sample, and collects what `problems` needs to find problems."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._forms: list[Form] = []
        self._constant: list[str] = []
        self._not_finite: list[str] = []
        self._labels: list[tuple[str, str]] = []
        self._digests: dict[str, Any] = {}

    def inspect_array(self, path: str, array: NDArray[Any]) -> None:
        """Remember the array of a field until the call of `inspect` that follows."""
        self._arrays[path] = array

    def inspect(self, item: Field, value: Any) -> None:
        """Check a field that was described."""
        array = self._arrays.pop(item.path, None)
        self._forms.append(_form(item, array))
        if item.kind == "label" or (item.kind == "number" and item.path.rpartition(".")[2] in LABEL_NAMES):
            self._labels.append((item.path, clean(item.value if item.kind == "label" else item.summary, SUMMARY)))
        if array is not None:
            found = extremes(array)
            if found is not None and not found.finite:
                self._not_finite.append(item.path)
            drawn = item.kind in ("image", "volume", "signal", "audio")
            if found is not None and found.constant and drawn and array.size > FEW:
                self._constant.append(item.path)
        elif isinstance(value, float) and not math.isfinite(value):
            self._not_finite.append(item.path)
        self._digest(item, value, array)

    def _digest(self, item: Field, value: Any, array: NDArray[Any] | None) -> None:
        family = "text" if isinstance(value, (bytes, bytearray)) else _FAMILIES.get(item.kind)
        if family is None:
            return
        digest = self._digests.setdefault(family, hashlib.blake2b(digest_size=16))
        digest.update(f"{len(item.path)} {item.path} ".encode("utf-8", "surrogatepass"))
        if array is not None:
            for part in content_of(array):
                digest.update(part)
        elif isinstance(value, (bytes, bytearray)):
            digest.update(value)
        else:
            digest.update(f"{item.type} {value!r}".encode("utf-8", "surrogatepass"))

    def check(self) -> Check:
        """Return what was found."""
        family = next((name for name in ("picture", "signal", "text", "value") if name in self._digests), None)
        digest = "" if family is None else f"{family} {self._digests[family].hexdigest()}"
        return Check(digest, tuple(self._forms), tuple(self._constant), tuple(self._not_finite), tuple(self._labels))


def _form(item: Field, array: NDArray[Any] | None) -> Form:
    if array is None or item.kind in ("label", "number"):
        return Form(item.path, item.type, "")
    shape = shape_text(array.shape)
    if item.kind == "image":
        layout = pictures.layout_of(array.shape, least=1)
        channels = 1 if layout == "HW" else array.shape[0] if layout == "CHW" else array.shape[-1]
        return Form(item.path, f"{item.dtype} picture with {plural(channels, 'channel')}", shape)
    return Form(item.path, f"{item.dtype} {item.kind} with {array.ndim} {'axis' if array.ndim == 1 else 'axes'}", shape)

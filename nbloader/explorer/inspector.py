"""Checks all elements of a sample, for the search for problems."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from nbloader.explorer.field import FEW
from nbloader.explorer.kinds import Kind
from nbloader.explorer.looks import look_of
from nbloader.explorer.problems import MISSING, Check, Form
from nbloader.explorer.values import content_of, extremes

ROW = 2
"""Least number of numbers beside texts with which a sample is a row of a table, whose texts may be categories. A single
number beside a text is a label, an identifier or a length."""


class Inspector:
    """Checks the fields of one sample, and collects what `problems` needs to find problems."""

    def __init__(self) -> None:
        self._forms: list[Form] = []
        self._constant: list[str] = []
        self._not_finite: list[str] = []
        self._missing: list[str] = []
        self._labels: list[tuple[str, str]] = []
        self._digests: dict[str, Any] = {}
        self._numbers = 0  # those that are no labels
        self._look = ""

    def inspect(self, kind: Kind) -> None:
        """Check a field that was described."""
        path, array, value = kind.field.path, kind.array, kind.value.content
        self._forms.append(kind.form())
        label = kind.label()
        if label is not None:
            self._labels.append((path, label))
        if kind.field.absent:
            if self._forms[-1].form == MISSING:
                self._missing.append(path)
        elif array is not None:
            found = extremes(array)
            if found is not None and not found.finite:
                self._not_finite.append(path)
            if found is not None and found.constant and kind.varies and array.size > FEW:
                self._constant.append(path)
        elif isinstance(value, float) and not math.isfinite(value):
            self._not_finite.append(path)
        self._digest(kind, kind.compared_as)
        if label is None and kind.compared_as in ("text", "value"):
            self._numbers += kind.compared_as == "value"
            self._digest(kind, "row")
        if kind.is_canvas and not self._look:
            pixels = kind.canvas()
            self._look = "" if pixels is None else look_of(pixels)

    def _digest(self, kind: Kind, family: str | None) -> None:
        if family is None:
            return
        path, value = kind.field.path, kind.value.content
        digest = self._digests.setdefault(family, hashlib.blake2b(digest_size=16))
        digest.update(f"{len(path)} {path} ".encode("utf-8", "surrogatepass"))
        if kind.array is not None:
            for part in content_of(kind.array):
                digest.update(part)
        elif isinstance(value, (bytes, bytearray)):
            digest.update(value)
        else:
            digest.update(f"{kind.field.type} {value!r}".encode("utf-8", "surrogatepass"))

    def check(self) -> Check:
        """Return what was found."""
        family: str | None = next(
            (name for name in ("picture", "signal", "text", "value") if name in self._digests), None
        )
        if family == "text" and self._numbers >= ROW:
            family = "row"
        digest = "" if family is None else f"{family} {self._digests[family].hexdigest()}"
        return Check(
            digest,
            tuple(self._forms),
            tuple(self._constant),
            tuple(self._not_finite),
            tuple(self._labels),
            self._look,
            tuple(self._missing),
        )

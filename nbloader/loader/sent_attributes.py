"""The attributes of a dataset that workers have a copy of, to notice that they have changed since.

Workers that persist keep their copy of the dataset. A change of the notebook's dataset, such as `set_epoch()`, does not
reach them, as in torch. Nor does it reach the workers of an epoch that was started early.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from nbloader._util.attributes import PLAIN, walk
from nbloader._util.format import clean
from nbloader._util.user_warning import warn
from nbloader.workers.fault_signs import MAX_BYTES

MAX_NAMED = 3
"""Maximum number of attributes that a warning names."""


class _Missing:
    """Stands for an attribute that does not exist."""


_MISSING = _Missing()


class _Content(NamedTuple):
    """What is compared of a value that is not plain."""

    value: Any
    """The object itself, which is kept so that no other object can get its id."""
    checksum: int = 0


class SentAttributes:
    """The attributes of a dataset when it was sent to workers.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._sent = _contents(dataset)

    def have_changed(self) -> bool:
        """Whether an attribute has changed since."""
        return any(self._has_changed(path, content) for path, content in _contents(self._dataset).items())

    def warn_of_changes(self) -> None:
        """Warn of attributes that have changed since, once for each."""
        now = _contents(self._dataset)
        changed = [path for path in now if self._has_changed(path, now[path])]
        if not changed:
            return
        named = [f"`{path}`{self._values(path, now[path])}" for path in changed[:MAX_NAMED]]
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        self._sent.update(dict.fromkeys(changed, _IGNORED))
        warn(
            f"{', '.join(named)}{more} of the dataset ({type(self._dataset).__name__}) changed after the dataset was "
            "sent to the workers, which persist and keep the old value. Omit persistent_workers=True, so that each "
            "epoch begins with the current dataset, or call loader.reload() after the change"
        )

    def _has_changed(self, path: str, content: Any) -> bool:
        before = self._sent.get(path, _MISSING)
        private = path.rpartition(".")[2].startswith("_")
        if before is _MISSING:  # an item may be part of a cache
            return not (private or path.endswith("]") or isinstance(content, _Content))
        if before is _IGNORED or (before is None and private):  # a private value is created when it is needed
            return False
        if isinstance(before, _Content) and isinstance(content, _Content):
            replaced = before.value is not content.value
            return not private if replaced else before.checksum != content.checksum
        return type(before) is not type(content) or before != content

    def _values(self, path: str, content: Any) -> str:
        before = self._sent.get(path, _MISSING)
        if not isinstance(before, PLAIN) or not isinstance(content, PLAIN):
            return ""
        return f" (from {clean(repr(before), 40)} to {clean(repr(content), 40)})"


_IGNORED = _Missing()
"""Stands for the content of an attribute of which there was a warning."""


def _contents(dataset: Any) -> dict[str, Any]:
    """Return what is compared of each attribute, by its path."""
    return {path: _content(value) for path, value in walk(dataset)}


def _content(value: Any) -> Any:
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN differs from itself
        return "nan"
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= MAX_BYTES:
        return _Content(value, zlib.crc32(value.tobytes()))
    return _Content(value, len(value) if type(value) is list else 0)

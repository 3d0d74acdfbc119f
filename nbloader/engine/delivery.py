"""The last steps of a batch before the consumer has it: names for its parts, one batch for each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def check_names(names: Any) -> tuple[str, ...] | None:
    """What `names=` means.

    Raises:
        TypeError: It is no sequence of strings.
        ValueError: It is empty, or a name comes twice.
    """
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or any(type(n) is not str for n in names):
        raise TypeError(f"names must be a sequence of strings such as ('image', 'label'), not {names!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"names must be one or more different strings, not {names!r}")
    return tuple(names)


def named(batch: Any, names: tuple[str, ...]) -> Any:
    """A batch of several parts as a dict of them (paddle's feed names); dicts stay as they are.

    Raises:
        ValueError: It has another number of parts.
    """
    if isinstance(batch, Mapping):
        return batch
    if not isinstance(batch, (tuple, list)) or len(batch) != len(names):
        parts = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else f"one part, a {type(batch).__name__}"
        raise ValueError(f"names={names!r} are for batches of {len(names)} parts, but this one has {parts}")
    return dict(zip(names, batch, strict=True))


class Groups(Iterator[list[Any]]):
    """An epoch in lists of batches, one for each device; the last list may be shorter.

    Args:
        epoch: Gives the batches.
        size: Batches in a list.
    """

    def __init__(self, epoch: Iterator[Any], size: int) -> None:
        self._epoch = epoch
        self._size = size
        self._group: list[Any] = []

    def __iter__(self) -> Groups:
        """Give the iterator itself."""
        return self

    def __next__(self) -> list[Any]:
        """The next batches, one for each device.

        Raises:
            StopIteration: The epoch is over.
            Exception: As the epoch. The batches before it are kept: the iteration can go on.
        """
        while len(self._group) < self._size:
            try:
                self._group.append(next(self._epoch))
            except StopIteration:
                if not self._group:
                    raise
                break
        group, self._group = self._group, []
        return group

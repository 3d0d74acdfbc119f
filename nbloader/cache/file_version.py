"""The version of a file at one moment: a change of the file gives another one."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

SETTLED = 0.05
"""Seconds after which a later change of a file is certain to change its modification time: the kernel's clock for it
advances in steps of up to 10 ms."""
SETTLED_COARSE = 2.5
"""The same for a file system that stores times in whole seconds."""


class FileVersion(NamedTuple):
    """The version of a file at one moment."""

    path: str
    """The path with all symbolic links resolved."""
    size: int
    modified: int
    """Time of the last change of its content, ns."""
    changed: int
    """Time of the last change of its content or attributes, ns. Programs cannot set it, unlike `modified`."""
    inode: int
    """Number of the file in its file system: files that are written in one tick of the clock have equal times."""
    is_folder: bool

    @classmethod
    def now(cls, path: str) -> FileVersion | None:
        """Return the version of the file or folder at a path; None if there is none."""
        try:
            status, real = os.stat(path), os.path.realpath(path)  # noqa: PTH116 - pathlib takes three times as long
        except (OSError, ValueError):
            return None
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(real, status.st_size, *times, status.st_ino, stat.S_ISDIR(status.st_mode))

    def settled(self) -> bool:
        """Whether a change made now would be detected: a change in the same tick of the file clock could be missed."""
        coarse = self.modified % 1_000_000_000 == 0
        return time.time_ns() - max(self.modified, self.changed) > 1e9 * (SETTLED_COARSE if coarse else SETTLED)

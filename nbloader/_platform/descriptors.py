"""Opens file descriptors so that an interrupt loses none of them.

Python calls signal handlers when a function begins, and after each call before the result is assigned. So after
`fd = os.dup(other)`, a descriptor can be open although no variable refers to it. The functions of this module store
descriptors in a list of the caller before any handler can run:

    opened: list[int] = []
    try:
        open_into(opened, os.dup, other)
        ...
    finally:
        close_all(opened)

An interrupt at the beginning of `close_all` leaves the descriptors open. Where that matters, the list belongs to an
object with a finalizer that calls `close_all`, or to one that is closed after an interrupt.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""Error numbers of the limits of open files, of this process and of the system."""


def open_into(opened: list[T], function: Callable[..., T], *args: Any) -> None:
    """Call a function and append its result to a list. No signal handler runs in between.

    Args:
        opened: Receives the result.
        function: A function that is implemented in C, such as `os.dup`.
        *args: Its arguments.
    """
    opened.extend(itertools.starmap(function, (args,)))


def open_pipe(read_ends: list[int], write_ends: list[int]) -> None:
    """Create a pipe and append its two ends to two lists.

    Raises:
        OSError: There are too many open files.
    """
    ends: list[tuple[int, int]] = []
    try:
        open_into(ends, os.pipe)
        read_ends += ends[0][:1]  # no function is called after the first addition, so no signal handler runs
        write_ends += ends[0][1:]
    except BaseException:
        for pair in ends:
            close_all(list(pair))
        raise


def close_all(opened: list[int]) -> None:
    """Close descriptors and empty the list. An interrupt or an error is raised when the others are closed."""
    try:
        while opened:
            fd = opened[-1]
            del opened[-1]
            os.close(fd)
    except BaseException:
        close_all(opened)
        raise

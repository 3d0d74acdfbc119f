"""Shows the output of workers in the notebook cell that iterates."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import sys
from typing import NamedTuple


class Text(NamedTuple):
    """Something to print."""

    stream: str
    """ "stdout" or "stderr"."""
    text: str


class WorkerOutput:
    """Holds what workers wrote until a thread that may print shows it.

    The kernel's streams send text to the cell in whose context they are written, so the supervisor thread writes in the
    context that the cell had when it began to iterate.
    """

    def __init__(self) -> None:
        self._texts: collections.deque[Text] = collections.deque()
        self._context = contextvars.copy_context()

    def add(self, stream: str, text: str) -> None:
        """Keep a text for "stdout" or "stderr"."""
        self._texts.append(Text(stream, text))

    def notify(self, text: str) -> None:
        """Keep a notice of the loader's own, for "stderr"."""
        self.add("stderr", text)

    def use_this_context(self) -> None:
        """The cell that runs now is the one that iterates."""
        self._context = contextvars.copy_context()

    def show(self) -> None:
        """Print what is kept, from the thread of the cell."""
        while self._texts:
            try:
                stream, text = self._texts.popleft()
            except IndexError:  # another thread took it
                return
            target = sys.stdout if stream == "stdout" else sys.stderr
            with contextlib.suppress(Exception):  # a closed or replaced stream must not end the epoch
                target.write(text)
                target.flush()

    def show_in_context(self) -> None:
        """Print what is kept, from any thread, in the context of the cell.

        Each call enters a copy of the context (made in constant time): a `Context` can be entered only once at a time,
        and the supervisor and callers of `stats()` print concurrently.
        """
        if self._texts:
            self._context.copy().run(self.show)

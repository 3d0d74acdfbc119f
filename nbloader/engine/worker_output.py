"""Shows the output of workers in the notebook cell that iterates."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import sys
from typing import NamedTuple


class Text(NamedTuple):
    """A text to print."""

    stream: str
    """ "stdout" or "stderr"."""
    text: str


class WorkerOutput:
    """Buffers the output of workers until a thread that may print shows it.

    The kernel's streams send text to the cell in whose context they are written, so the engine's thread writes in the
    context that the cell had when it began to iterate.
    """

    def __init__(self) -> None:
        self._texts: collections.deque[Text] = collections.deque()
        self._context = contextvars.copy_context()

    def add(self, stream: str, text: str) -> None:
        """Buffer a text for "stdout" or "stderr"."""
        self._texts.append(Text(stream, text))

    def notify(self, text: str) -> None:
        """Buffer a notice from the loader itself, for "stderr", unless it is empty."""
        if text:
            self.add("stderr", text)

    def use_this_context(self) -> None:
        """Show output in the context of the caller, which is the cell that iterates."""
        self._context = contextvars.copy_context()

    def show(self) -> None:
        """Print the buffered texts. Called on the thread of the cell."""
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
        """Print the buffered texts in the context of the cell. Thread-safe.

        Each call enters a copy of the context, which takes constant time. The reason is that a `Context` cannot be
        entered twice at the same time, and the threads of several loaders print concurrently.
        """
        if self._texts:
            self._context.copy().run(self.show)

"""Pause, resume and step: whether batches are assigned and delivered."""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Callable


class Gate:
    """Whether batches of a loader may be assigned to workers and delivered to consumers.

    A loader has one gate for all its engines: while a second iterator is open, there are two.

    Any thread may call any method, also in a signal handler or a finalizer: each of them changes one thing, in one
    call. The numbers of steps are the lengths of queues, whose operations are atomic.
    """

    def __init__(self) -> None:
        self.paused = False
        """Whether the loader is paused."""
        self._steps: collections.deque[None] = collections.deque()
        """Batches that may be delivered although the loader is paused."""
        self._owed: collections.deque[None] = collections.deque()
        """Jobs that may be assigned although the loader is paused: one for each step that was taken."""
        self._listeners: list[weakref.WeakMethod[Callable[[], object]]] = []

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Let `announce` call a method, as long as its object lives. It must not block."""
        self._listeners = [*(ref for ref in self._listeners if ref() is not None), weakref.WeakMethod(listener)]

    def announce(self) -> None:
        """Call the listeners, after a change."""
        for ref in self._listeners:
            listener = ref()
            if listener is not None:
                listener()

    def pause(self) -> bool:
        """Let nothing pass until `resume`. Returns whether this changed anything."""
        before, self.paused = self.paused, True
        return not before

    def resume(self) -> bool:
        """Let everything pass again. Returns whether this changed anything."""
        before, self.paused = self.paused, False
        self.forget_steps()
        return before

    def step(self) -> None:
        """Let one more batch pass while the loader is paused."""
        self._steps.append(None)

    def forget_steps(self) -> None:
        """Forget steps that were not taken: those beyond the last batch of an epoch do not count for the next one."""
        self._steps.clear()
        self._owed.clear()

    # ---- delivering ---------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether no batch may be delivered."""
        return self.paused and not self._steps

    def delivered(self) -> None:
        """Record that a batch was delivered."""
        if self.paused:
            with contextlib.suppress(IndexError):  # resumed and paused meanwhile
                self._steps.popleft()
                self._owed.append(None)

    # ---- assigning ----------------------------------------------------------------------------------------------

    @property
    def assigns(self) -> bool:
        """Whether a job may be assigned."""
        return not self.paused or bool(self._steps) or bool(self._owed)

    def assigned(self) -> None:
        """Record that a job was assigned."""
        if self.paused and not self._steps:
            with contextlib.suppress(IndexError):
                self._owed.popleft()

"""Another thread, or an interrupt, acts at a chosen point of nbloader's code.

A random attack needs thousands of attempts for that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import nbloader

ROOT = os.path.dirname(nbloader.__file__)


class Line:
    """A line of code in some of nbloader's files; `lines` are all that this thread executes, without repetition.

    Args:
        files: The end of the path of each file.
        unless: Lines do not count while this returns true.
    """

    def __init__(self, *files, unless=lambda: False):
        self._paths = tuple(os.path.join(ROOT, file) for file in files)
        self._unless = unless
        self.lines = {}
        """Lines, in the order of their first execution."""
        self._at = None
        self._act = None

    def at(self, line, act):
        """Call `act` on another thread when this thread executes the line for the first time, and wait for it."""
        self._at, self._act = line, act

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_exc):
        sys.settrace(None)

    def _call(self, frame, _event, _arg):
        return self._line if frame.f_code.co_filename.startswith(self._paths) else None

    def _line(self, frame, event, _arg):
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and not self._unless():
            self.lines[line] = None
            if line == self._at and self._act is not None:
                act, self._act = self._act, None
                thread = threading.Thread(target=act)
                thread.start()
                thread.join()
        return self._line


def interrupt(frame):
    """Call the present handler of Ctrl-C, as Python would do here. Its default one raises KeyboardInterrupt."""
    signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)


class Interrupts:
    """Raises KeyboardInterrupt where this thread enters or leaves a function of nbloader: there signals are handled.

    `points` are all that this thread passes, without repetition.

    Args:
        at: Where; None for nowhere.
        callers: Whether points in the same line, reached from different lines, are different points.
    """

    def __init__(self, at=None, *, callers=False):
        self.points = {}
        """Points, in the order in which they were first passed."""
        self._at = at
        self._callers = callers

    def __enter__(self):
        self._pid = os.getpid()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_exc):
        sys.setprofile(None)

    def _profile(self, frame, event, arg):
        if os.getpid() != self._pid:
            return  # a forked process: signals are for this one
        code = frame.f_code
        if event == "c_call" or not code.co_filename.startswith(ROOT) or code.co_name == "<genexpr>":
            return
        if event == "return" and code.co_name in ("_next", "_next_in_turn", "__next__"):
            return  # then the consumer has the batch: CPython handles no signal before it is assigned
        point = code.co_filename, frame.f_lineno, event, getattr(arg, "__name__", "") if event == "c_return" else ""
        if self._callers:
            point += (frame.f_back.f_lineno if frame.f_back else 0,)
        self.points[point] = None
        if point == self._at:
            sys.setprofile(None)
            interrupt(frame)


class CountedInterrupt:
    """Raises KeyboardInterrupt when this thread passes a given number of points, see `Interrupts`.

    Args:
        files: The end of the path of each file whose points count.
        number: Which point, from 1; 0 for none.
    """

    def __init__(self, *files, number=0):
        self._paths = tuple(os.path.join(ROOT, file) for file in files)
        self._number = number
        self.passed = 0

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_exc):
        sys.setprofile(None)

    def _profile(self, frame, event, _arg):
        if event in ("call", "c_return") and frame.f_code.co_filename in self._paths:
            self.passed += 1
            if self.passed == self._number:
                sys.setprofile(None)
                interrupt(frame)

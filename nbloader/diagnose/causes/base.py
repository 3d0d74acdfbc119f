"""What a cause is: its rule, its words, and what helps against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nbloader.diagnose.parts import Part
from nbloader.metrics.evidence import Evidence, Place


class Remedy(NamedTuple):
    """What helps against a cause, and what does not."""

    text: str = ""
    """What to do, as a sentence; "" if that is unknown."""
    more_workers: bool | None = None
    """Whether more workers help; None if that depends."""
    larger_window: bool | None = None
    """Whether a larger prefetch window helps; None if that depends."""
    restart: tuple[int, ...] = ()
    """Workers whose restart helps, if the evidence is about the last seconds."""

    def beside(self, other: Remedy) -> Remedy:
        """Return this remedy without denials of what helps against another cause at the same time."""
        return self._replace(
            more_workers=None if self.more_workers is False and other.more_workers else self.more_workers,
            larger_window=None if self.larger_window is False and other.larger_window else self.larger_window,
        )

    def no_help(self, e: Evidence, *, alone: bool) -> str:
        """A sentence about what does not help, which begins with a space; "" if nothing is known.

        Args:
            e: The evidence.
            alone: Whether there is no second cause.
        """
        if alone and self.more_workers is False and self.larger_window is False:
            return " A faster loader would not help."
        workers = f"more {'threads' if e.place is Place.THREADS else 'workers'}"
        denied = [workers] if self.more_workers is False else []
        denied += ["a larger prefetch window"] if self.larger_window is False else []
        text = " and ".join(denied)
        return f" {text[0].upper()}{text[1:]} would not help." if denied else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cause:
    """Something that can limit a loop. All functions take the evidence of one span."""

    name: str
    """The word in `Snapshot.cause`."""
    takes: Mapping[Part, Callable[[Evidence], bool]]
    """The parts of the loop's time that it may be the cause of, each with its rule: whether the evidence points to this
    cause. Of several causes that apply to a part, the first one in `CAUSES` takes it."""
    sentence: Callable[[Evidence], str]
    """Returns what limits the loop, with the numbers that this is based on: one or more sentences."""
    short: Callable[[Evidence], str]
    """Returns how this cause is named if it is the second of two: a phrase without a period."""
    remedy: Callable[[Evidence], Remedy]
    """Returns what helps against it."""
    by_settings: bool = True
    """Whether some number of workers or some prefetch window may remove it."""
    names_line: bool = False
    """Whether the line of code that takes most of the workers' time is named with it."""
    unmodeled: str = ""
    """Why there is no prediction (`what_if`) while it limits the loop, as a clause; "" if there is one."""
    discount: float = 1.0
    """It outranks another cause only if its part of the time is more than this many times as long."""

    def applies(self, part: Part, e: Evidence) -> bool:
        """Whether it may be the cause of a part of the loop's time, and the evidence points to it."""
        rule = self.takes.get(part)
        return rule is not None and rule(e)


def always(_e: Evidence) -> bool:
    """The rule of a cause that applies to a part unless an earlier one does."""
    return True

"""Search for the settings with which a running loop is fastest: which to try next, and which to keep. Pure.

    present settings -> twice the workers, as long as that is faster -> the middle, after a doubling that is no gain
                     -> half the workers, if more were no gain
                     -> twice the prefetch factor, as long as that is faster

A setting is kept if it is faster by more than both `GAIN` and twice the standard error of the comparison. The search
ends early when the loop hardly waits any more: then the loop itself is the limit.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nbloader._util.format import number, percent

if TYPE_CHECKING:
    from nbloader.events import BatchRecord

GAIN = 0.03
"""A setting must be faster by this share to be kept."""
FREE = 0.05
"""A loop that waits for less than this share of its time is not limited by the loader."""
MAX_PREFETCH = 32
"""Largest prefetch factor to try."""
BLOCKS = 6
"""Parts of a measurement whose spread gives its error."""


class Setting(NamedTuple):
    """What is changed."""

    num_workers: int
    prefetch_factor: int | None
    """None for the loader's own window: `prefetch`, or one that adapts itself."""

    def __str__(self) -> str:
        """As arguments of the loader."""
        window = "" if self.prefetch_factor is None else f", prefetch_factor={self.prefetch_factor}"
        return f"num_workers={self.num_workers}{window}"


class Measurement(NamedTuple):
    """The rate of a loop."""

    rate: float
    """Batches per second, without the time between epochs."""
    error: float
    """Its standard error, as a share of it."""
    wait_share: float
    """Share of its time in which the loop waited for batches."""
    batches: int
    seconds: float


class Trial(NamedTuple):
    """A setting that was tried."""

    setting: Setting
    measured: Measurement
    kept: bool
    """Whether it was faster than those before it."""


def measure(records: Sequence[BatchRecord]) -> Measurement | None:
    """Measure the rate between consecutive deliveries of the same epoch.

    Args:
        records: In the order of delivery.

    Returns:
        None without two consecutive deliveries.
    """
    pairs = [(a, b) for a, b in itertools.pairwise(records) if a.run == b.run]
    gaps = [b.delivered - a.delivered for a, b in pairs]
    total = sum(gaps)
    if total <= 0:
        return None
    waited = sum(max(0, b.delivered - b.requested) for _a, b in pairs)
    size = len(gaps) // BLOCKS
    error = 1.0
    if size:
        rates = [size / max(1, sum(gaps[i * size : (i + 1) * size])) for i in range(BLOCKS)]
        error = statistics.stdev(rates) / math.sqrt(BLOCKS) / statistics.mean(rates)
    return Measurement(len(gaps) * 1e9 / total, error, min(1.0, waited / total), len(gaps), total / 1e9)


def is_faster(new: Measurement, old: Measurement) -> bool:
    """Whether a rate is higher by more than chance and `GAIN`."""
    return new.rate > old.rate * (1 + max(GAIN, 2 * math.hypot(new.error, old.error)))


class Plan(Protocol):
    """Which settings are tried. `next` and `measured` are called in turn."""

    start: Setting
    """The setting before."""
    trials: list[Trial]
    best: Trial | None
    """The fastest; None before the first measurement."""
    ahead: int
    """Batches that the loader's own window (`prefetch_factor=None`) now requests ahead, per worker."""

    @property
    def result(self) -> Setting:
        """The setting that stays if nothing else is tried."""
        ...

    def next(self) -> Setting | None:
        """The setting to measure; None at the end."""
        ...

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Add what was measured. Returns whether the setting stays."""
        ...

    def keep_workers(self) -> None:
        """Do not change the number of workers any more."""
        ...

    def summary(self, *, finished: bool) -> str:
        """What was found, in a sentence or two; "" before the first measurement."""
        ...


class Change:
    """One setting that the user has chosen. It stays, whatever is measured.

    Args:
        start: The present setting.
        setting: The new one.
        before: What was measured with the present one; None if nothing was.
    """

    def __init__(self, start: Setting, setting: Setting, before: Measurement | None) -> None:
        self.start, self.result = start, setting
        self.trials = [] if before is None else [Trial(start, before, kept=True)]
        self.best: Trial | None = None
        self.ahead = 0
        self._given = False

    def next(self) -> Setting | None:
        """The setting, once."""
        given, self._given = self._given, True
        return None if given else self.result

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Add what was measured. It stays."""
        self.best = Trial(setting, measurement, kept=True)
        self.trials.append(self.best)
        return True

    def keep_workers(self) -> None:
        """Nothing: there is no other setting."""

    def summary(self, *, finished: bool) -> str:
        """The gain."""
        if self.best is None:
            when = "from the next epoch on" if bool(self.start.num_workers) != bool(self.result.num_workers) else "now"
            return f"{self.result} {when}." if finished else f"{self.result} {when}: measuring."
        new = self.best.measured
        if len(self.trials) == 1:
            return f"{self.result}: {number(new.rate)} batches/s."
        old = self.trials[0].measured
        rates = f"{number(old.rate)} to {number(new.rate)} batches/s"
        if is_faster(new, old):
            return f"{self.result} is {number(new.rate / old.rate)} times as fast as before ({rates})."
        if is_faster(old, new):
            return f"{self.result} is slower than before ({rates}): undo it."
        return f"{self.result} is no faster than before ({rates})."


class Search:
    """Searches for the fastest setting.

    Args:
        start: The present setting.
        max_workers: Largest number of workers to try; the present one if it must not change.
        ahead: See `Plan`.
    """

    def __init__(self, start: Setting, max_workers: int, ahead: int = 2) -> None:
        self.start = start
        self.ahead = ahead
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        """The fastest; None before the first measurement."""
        self._fixed = max_workers == start.num_workers
        self._max_workers = max(max_workers, start.num_workers)
        self._order = self._settings()

    def next(self) -> Setting | None:
        """The setting to measure; None at the end."""
        if self.free:
            return None
        return next(self._order, None)

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Add what was measured. Returns whether the setting is the best so far."""
        kept = self.best is None or is_faster(measurement, self.best.measured)
        trial = Trial(setting, measurement, kept)
        self.trials.append(trial)
        if kept:
            self.best = trial
        return kept

    def keep_workers(self) -> None:
        """Do not change the number of workers."""
        self._fixed = True

    @property
    def result(self) -> Setting:
        """The fastest setting so far."""
        return self.start if self.best is None else self.best.setting

    def summary(self, *, finished: bool) -> str:
        """The best setting, and its gain."""
        best, trials = self.best, self.trials
        if best is None:
            return ""
        state = "" if finished else "So far: "
        if best is trials[0]:
            text = f"{state}The present settings are the best of {len(trials)}: {best.setting}."
        else:
            gain = best.measured.rate / trials[0].measured.rate
            text = f"{state}DataLoader(..., {best.setting}) is {number(gain)} times as fast as {trials[0].setting}."
        if self.free:
            text += f" The loop waits only {percent(best.measured.wait_share)} of its time: it is the limit itself."
        return text

    @property
    def free(self) -> bool:
        """Whether the best setting leaves nothing to gain: the loop hardly waits."""
        return self.best is not None and self.best.measured.wait_share < FREE

    def _settings(self) -> Iterator[Setting]:
        yield self.start
        if not self._fixed:
            yield from self._workers()
        prefetch = self.ahead if self.result.prefetch_factor is None else self.result.prefetch_factor
        while (prefetch := max(1, prefetch * 2)) <= MAX_PREFETCH:
            setting = Setting(self.result.num_workers, prefetch)
            yield setting
            if self.result != setting:
                break

    def _workers(self) -> Iterator[Setting]:
        low, prefetch = self.start.num_workers, self.start.prefetch_factor
        while low < self._max_workers:
            high = min(2 * low, self._max_workers)
            yield Setting(high, prefetch)
            if self.result.num_workers != high:  # too far
                middle = (low + high) // 2
                if middle > low:
                    yield Setting(middle, prefetch)
                break
            low = high
        workers = self.result.num_workers
        while workers == self.result.num_workers <= self.start.num_workers and workers > 1:
            workers //= 2
            yield Setting(workers, prefetch)


def outcome(trial: Trial, best: Trial | None) -> str:
    """What became of a setting, in a word."""
    return "best" if trial is best else "faster" if trial.kept else "undone"


def table(trials: Sequence[Trial], best: Trial | None) -> str:
    """The trials as lines of text, with a bar for each rate."""
    if not trials:
        return "no setting has been measured"
    highest = max(trial.measured.rate for trial in trials)
    width = max(len(str(trial.setting)) for trial in trials)
    lines = []
    for trial in trials:
        m = trial.measured
        bar = "\N{FULL BLOCK}" * max(1, round(20 * m.rate / highest))
        note = outcome(trial, best)
        lines.append(
            f"{trial.setting!s:<{width}}  {number(m.rate):>8} batches/s  loop waits {percent(m.wait_share):>5}  "
            f"{bar:<20}  {note}"
        )
    return "\n".join(lines)

"""Search for the fastest settings of a running loop: decide which to try next and which to keep. Pure.

    climb     present settings -> double the workers until two in a row bring no gain -> halve them if none did
              (if the gain can be predicted, begin at the number of workers that is predicted to be enough)
              -> double the prefetch factor likewise; if a larger one is a gain, try more workers again
              -> the other kind of workers, if it may be tried
    between   the midpoints between the best number of workers and its neighbors
    finals    measure the candidates and the present settings again, in turns, because the load of a machine changes

A setting replaces the present one if it is faster by more than `GAIN`. The search ends early once the loop hardly waits
any more: the loop itself is then the limit.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nbloader._util.format import number, percent

if TYPE_CHECKING:
    from nbloader.events import BatchRecord

GAIN = 0.03
"""A setting is kept only if it is faster by at least this share."""
FREE = 0.03
"""A loop that waits for less than this share of its time is not limited by the loader."""
PATIENCE = 2
"""The climb ends after this many numbers of workers, or prefetch factors, in a row without a gain."""
ENOUGH = 0.97
"""The climb begins at the smallest number of workers with at least this share of the highest predicted rate."""
NEARLY = 0.8
"""A setting that reaches less than this share of the best rate is a clear loss."""
CLEAR = 1.25
"""A setting that is this many times as fast as the present one is not compared with it again."""
ROUNDS, FINALISTS = 3, 3
"""Rounds of the finals, and the number of settings in them."""
MAX_PREFETCH = 32
"""Largest prefetch factor to try."""
BLOCKS = 6
"""A measurement is split into this many parts; their spread gives its error."""


class Setting(NamedTuple):
    """Values of the settings that the search changes."""

    num_workers: int
    prefetch_factor: int | None
    """None for the loader's own window: a given `prefetch`, or the adaptive one."""
    kind: str = ""
    """"process" or "thread"; "" for the kind that the loader has."""

    def __str__(self) -> str:
        """The setting as arguments of the loader."""
        window = "" if self.prefetch_factor is None else f", prefetch_factor={self.prefetch_factor}"
        kind = f', workers="{self.kind}"' if self.kind else ""
        return f"num_workers={self.num_workers}{window}{kind}"


class Measurement(NamedTuple):
    """The rate of a loop."""

    rate: float
    """Batches per second, without the time between epochs."""
    error: float
    """Standard error of the rate, as a share of the rate."""
    wait_share: float
    """Share of the time for which the loop waited for batches."""
    batches: int
    seconds: float


class Trial(NamedTuple):
    """A setting that was tried."""

    setting: Setting
    measured: Measurement
    """The first measurement; for a setting in the finals, the measurements of the finals, pooled."""
    kept: bool
    """Whether it was faster than all earlier settings when it was first tried."""


def measure(records: Sequence[BatchRecord]) -> Measurement | None:
    """Measure the rate between consecutive deliveries of the same epoch.

    Args:
        records: The batches, in the order of delivery.

    Returns:
        The measurement; None if there are no two consecutive deliveries.
    """
    pairs = [(a, b) for a, b in itertools.pairwise(records) if a.epoch == b.epoch]
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
    """Whether a rate is higher by more than `GAIN` and by more than chance explains."""
    return new.rate > old.rate * (1 + max(GAIN, 2 * math.hypot(new.error, old.error)))


class Plan(Protocol):
    """Decides which settings to try. `next` and `measured` are called in turn."""

    start: Setting
    """The setting before the first trial."""
    trials: list[Trial]
    ahead: int
    """Batches per worker that the loader's own window (`prefetch_factor=None`) requests ahead at present."""

    @property
    def best(self) -> Trial | None:
        """The fastest trial; None before the first measurement."""
        ...

    @property
    def result(self) -> Setting:
        """The setting to keep if nothing else is tried."""
        ...

    def next(self) -> Setting | None:
        """Return the setting to measure; None at the end."""
        ...

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Record a measurement. Returns whether to keep the setting."""
        ...

    def keep_workers(self) -> None:
        """Do not change the number of workers any more."""
        ...

    def summary(self, *, finished: bool) -> str:
        """Describe the result in a sentence or two; "" before the first measurement."""
        ...


class Change:
    """Plan that measures one setting, which the user chose. The setting is kept regardless of its rate.

    Args:
        start: The present setting.
        setting: The new setting.
        before: A measurement of the present setting; None if there is none.
    """

    def __init__(self, start: Setting, setting: Setting, before: Measurement | None) -> None:
        self.start, self.result = start, setting
        self.trials = [] if before is None else [Trial(start, before, kept=True)]
        self.best: Trial | None = None
        self.ahead = 0
        self._given = False

    def next(self) -> Setting | None:
        """Return the setting on the first call, then None."""
        given, self._given = self._given, True
        return None if given else self.result

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Record a measurement. The setting is always kept."""
        self.best = Trial(setting, measurement, kept=True)
        self.trials.append(self.best)
        return True

    def keep_workers(self) -> None:
        """Do nothing: there is no other setting to try."""

    def summary(self, *, finished: bool) -> str:
        """Describe the gain."""
        if self.best is None:
            when = "from the next epoch on" if bool(self.start.num_workers) != bool(self.result.num_workers) else "now"
            return f"{self.result} applies {when}{'' if finished else ', and is being measured'}."
        new = self.best.measured
        if len(self.trials) == 1:
            return f"{self.result}: {number(new.rate)} batches/s."
        old = self.trials[0].measured
        rates = f"{number(old.rate)} to {number(new.rate)} batches/s"
        if is_faster(new, old):
            return f"{self.result} is {number(new.rate / old.rate)} times as fast as before ({rates})."
        if is_faster(old, new):
            return f"{self.result} is slower than before ({rates}). Undo it."
        return f"{self.result} is no faster than before ({rates})."


class Search:
    """Plan that searches for the fastest setting.

    Args:
        start: The present setting.
        max_workers: Largest number of workers to try; the present number if it must not change.
        ahead: See `Plan`.
        other_kind: The other kind of workers, if it may be tried, and "" otherwise. If it is given, `start` has the
            present kind.
        predict: Predicts the gain with another number of workers. It returns None if the gain is unknown.
    """

    def __init__(
        self,
        start: Setting,
        max_workers: int,
        ahead: int = 2,
        *,
        other_kind: str = "",
        predict: Callable[[int], float | None] | None = None,
    ) -> None:
        self.start = start
        self.ahead = ahead
        self.trials: list[Trial] = []
        self._windows: dict[Setting, list[Measurement]] = {}
        self._finals: list[list[Setting]] = []  # the settings of each round
        self._best: Setting | None = None
        self._fixed = max_workers == start.num_workers
        self._max_workers = max(max_workers, start.num_workers)
        self._other_kind = other_kind
        self._predict = predict
        self._order = self._settings()

    def next(self) -> Setting | None:
        """Return the setting to measure; None at the end. The finals return settings that were measured before."""
        if self.free:
            return None
        return next(self._order, None)

    def measured(self, setting: Setting, measurement: Measurement) -> bool:
        """Record a measurement. Returns whether the setting is the best so far."""
        windows = self._windows.setdefault(setting, [])
        windows.append(measurement)
        if len(windows) == 1:
            best = self.best
            kept = best is None or measurement.rate > best.measured.rate * (1 + GAIN)
            self.trials.append(Trial(setting, measurement, kept))
            if kept:
                self._best = setting
            return kept
        if self._complete:
            self._decide()
        return self._best == setting

    def keep_workers(self) -> None:
        """Do not change the number of workers."""
        self._fixed = True

    @property
    def best(self) -> Trial | None:
        """The fastest trial; None before the first measurement."""
        return None if self._best is None else self._trial(self._best)

    @property
    def result(self) -> Setting:
        """The fastest setting so far."""
        return self.start if self._best is None else self._best

    def summary(self, *, finished: bool) -> str:
        """Name the best setting and its gain."""
        best, trials = self.best, self.trials
        if best is None:
            return ""
        state = "" if finished else "So far: "
        if best.setting == self.start:
            text = f"{state}The current settings are the best of {len(trials)}: {best.setting}."
        else:
            gain = best.measured.rate / trials[0].measured.rate
            text = f"{state}DataLoader(..., {best.setting}) is {number(gain)} times as fast as {trials[0].setting}."
        if self.free:
            text += f" The loop itself is the limit: it waits for only {percent(best.measured.wait_share)} of the time."
        return text

    @property
    def free(self) -> bool:
        """Whether the best setting leaves nothing to gain: the loop hardly waits."""
        best = self.best
        return best is not None and best.measured.wait_share < FREE

    # ---- which to try -----------------------------------------------------------------------------------------------

    def _settings(self) -> Iterator[Setting]:
        yield self.start
        yield from self._climb(self.start, self._begin())
        window = self.result.prefetch_factor
        yield from self._larger_windows()
        if window != self.result.prefetch_factor:  # with a larger window, more workers may help
            yield from self._more_workers(self.result, patience=1)
        if self._other_kind:
            other = self.result._replace(kind=self._other_kind)
            yield other
            if other in self._windows:  # otherwise this kind is not possible
                yield from self._climb(other, other.num_workers)
        yield from self._between()
        for turn in range(ROUNDS):
            contenders = self._contenders()
            if len(contenders) < 2:  # noqa: PLR2004 - to compare
                return
            self._finals.append(contenders)
            yield from contenders if turn % 2 == 0 else reversed(contenders)

    def _begin(self) -> int:
        """The number of workers at which the climb begins."""
        now = self.start.num_workers
        if self._fixed or self._predict is None:
            return now
        gains = {now: 1.0}
        for workers in self._doublings(now):
            gain = self._predict(workers)
            if gain is None:
                return now
            gains[workers] = gain
        enough = ENOUGH * max(gains.values())
        return next(workers for workers, gain in gains.items() if gain >= enough)

    def _doublings(self, workers: int) -> Iterator[int]:
        while workers < self._max_workers:
            workers = min(2 * workers, self._max_workers)
            yield workers

    def _climb(self, start: Setting, begin: int) -> Iterator[Setting]:
        """Try more workers as long as that is a gain; try fewer if it never was.

        Args:
            start: A setting that has been measured.
            begin: The number of workers to begin with.
        """
        first = start._replace(num_workers=begin)
        if not self._fixed:
            yield from self._new(first)
        if self.result != first:  # it is not as good as predicted
            first = start
        yield from self._more_workers(first, PATIENCE)
        fewer = first
        while self.result == fewer and fewer.num_workers > 1 and not self._fixed:
            fewer = fewer._replace(num_workers=fewer.num_workers // 2)
            yield from self._new(fewer)

    def _more_workers(self, first: Setting, patience: int) -> Iterator[Setting]:
        """Double the workers until `patience` numbers in a row bring no gain, or one is a clear loss."""
        failed = 0
        for workers in self._doublings(first.num_workers):
            if self._fixed or failed >= patience:
                return
            setting = first._replace(num_workers=workers)
            yield from self._new(setting)
            failed = 0 if self.result == setting else failed + (patience if self._is_clear_loss(setting) else 1)

    def _larger_windows(self) -> Iterator[Setting]:
        """Double the prefetch factor until two in a row bring no gain, or one is a clear loss."""
        first, failed = self.result, 0
        prefetch = self.ahead if first.prefetch_factor is None else first.prefetch_factor
        while failed < PATIENCE and (prefetch := max(1, prefetch * 2)) <= MAX_PREFETCH:
            setting = first._replace(prefetch_factor=prefetch)
            yield from self._new(setting)
            failed = 0 if self.result == setting else failed + (PATIENCE if self._is_clear_loss(setting) else 1)

    def _between(self) -> Iterator[Setting]:
        """Try the midpoints between the best number of workers and its neighbors.

        The lower midpoint is tried only if the lower neighbor is nearly as fast.
        """
        best = self._measured(self.result)
        like = self.result
        tried = [s.num_workers for s in self._windows if s._replace(num_workers=0) == like._replace(num_workers=0)]
        below = max((n for n in tried if n < like.num_workers), default=like.num_workers)
        above = min((n for n in tried if n > like.num_workers), default=like.num_workers)
        nearly = self._measured(like._replace(num_workers=below)).rate >= NEARLY * best.rate
        for neighbor in (above, below) if nearly else (above,):
            if not self._fixed:
                yield from self._new(like._replace(num_workers=(neighbor + like.num_workers) // 2))

    def _new(self, setting: Setting) -> Iterator[Setting]:
        """Yield a setting unless it has been tried."""
        if setting not in self._windows:
            yield setting

    # ---- which to keep ----------------------------------------------------------------------------------------------

    def _contenders(self) -> list[Setting]:
        """The settings that may be the fastest, and the present setting unless it is clearly slower."""
        best = self._measured(self.result)
        if self._finals:
            ahead = [s for s in self._finals[-1] if not self._is_beaten(s)]
        else:
            ahead = [
                trial.setting
                for trial in sorted(self.trials, key=lambda trial: -trial.measured.rate)
                if self.start != trial.setting != self.result and _may_be_faster(trial.measured, best)
            ]
            unclear = self.start != self.result and best.rate < CLEAR * self._measured(self.start).rate
            ahead = [*([self.start] if unclear else ()), self.result, *ahead][:FINALISTS]
        return ahead if self.result in ahead else [self.result, *ahead]

    def _is_beaten(self, setting: Setting) -> bool:
        """Whether the best setting was faster in the paired measurements by more than chance explains."""
        pairs = zip(self._windows[setting][1:], self._windows[self.result][1:], strict=False)
        ratios = [math.log(other.rate / best.rate) for other, best in pairs]
        if len(ratios) < 2:  # noqa: PLR2004 - a spread needs two
            return not _may_be_faster(self._measured(setting), self._measured(self.result), 0.0)
        return statistics.fmean(ratios) + 2 * statistics.stdev(ratios) / math.sqrt(len(ratios)) < 0

    @property
    def _complete(self) -> bool:
        """Whether all settings of the present round of the finals have been measured."""
        turns = len(self._finals)
        return bool(turns) and all(len(self._windows[setting]) > turns for setting in self._finals[-1])

    def _decide(self) -> None:
        """End a round of the finals: choose the fastest setting, but the present one unless the gain exceeds `GAIN`."""
        for position, trial in enumerate(self.trials):
            finals = self._windows[trial.setting][1:]
            if finals:
                self.trials[position] = trial._replace(measured=_pooled(finals))
        contenders = self._finals[-1]
        fastest = max(contenders, key=lambda setting: self._measured(setting).rate)
        if self.start in contenders and self._measured(fastest).rate <= (1 + GAIN) * self._measured(self.start).rate:
            fastest = self.start
        self._best = fastest

    def _is_clear_loss(self, setting: Setting) -> bool:
        return self._measured(setting).rate < NEARLY * self._measured(self.result).rate

    def _measured(self, setting: Setting) -> Measurement:
        return self._trial(setting).measured

    def _trial(self, setting: Setting) -> Trial:
        return next(trial for trial in self.trials if trial.setting == setting)


def _may_be_faster(new: Measurement, old: Measurement, gain: float = GAIN) -> bool:
    """Whether a rate may be higher by more than `gain`, considering the errors of both."""
    return new.rate * (1 + 2 * math.hypot(new.error, old.error)) > old.rate * (1 + gain)


def _pooled(windows: Sequence[Measurement]) -> Measurement:
    """Combine several measurements into one."""
    seconds, batches = sum(m.seconds for m in windows), sum(m.batches for m in windows)
    rate = batches / seconds
    inside = math.sqrt(sum((m.error * m.seconds) ** 2 for m in windows)) / seconds
    between = statistics.stdev(m.rate for m in windows) / rate / math.sqrt(len(windows)) if len(windows) > 1 else 0.0
    waited = sum(m.wait_share * m.seconds for m in windows) / seconds
    return Measurement(rate, max(inside, between), waited, batches, seconds)


def outcome(trial: Trial, best: Trial | None, trials: Sequence[Trial]) -> str:
    """Describe the outcome of a trial in a word or two, compared with the first one.

    The words agree with the rates. A setting that was measured once, and seemed faster then than the best one was in
    the finals, is "not confirmed".

    Args:
        trial: The trial.
        best: The fastest.
        trials: All trials; the first one measured the settings before the search.
    """
    before = trials[0]
    if trial is best and (trial is before or trial.measured.rate > before.measured.rate * (1 + GAIN)):
        return "best"
    if best is not None and trial is not best and trial.measured.rate > best.measured.rate and trial is not before:
        return "not confirmed"
    if trial is before:
        return "before"
    if is_faster(trial.measured, before.measured):
        return "faster"
    return "slower" if is_faster(before.measured, trial.measured) else "no faster"


def table(trials: Sequence[Trial], best: Trial | None) -> str:
    """Format the trials as lines of text, with a bar for each rate."""
    if not trials:
        return "no setting has been measured"
    highest = max(trial.measured.rate for trial in trials)
    width = max(len(str(trial.setting)) for trial in trials)
    lines = []
    for trial in trials:
        m = trial.measured
        bar = "\N{FULL BLOCK}" * max(1, round(20 * m.rate / highest))
        note = outcome(trial, best, trials)
        lines.append(
            f"{trial.setting!s:<{width}}  {number(m.rate):>8} batches/s  loop waits {percent(m.wait_share):>4}  "
            f"{bar:<20}  {note}"
        )
    return "\n".join(lines)

"""The remedies that were found, as a table: what each line costs now, and what it costs as it is written instead."""

from __future__ import annotations

import itertools
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import overload

from nbloader._util.format import clean, duration, factor, megabytes, percent, plural
from nbloader.diagnose.what_if import Prediction
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.difference import EQUAL, Difference, largest
from nbloader.remedies.kept_samples import PAGE
from nbloader.remedies.pictures import Pictures
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import LAMBDA
from nbloader.remedies.trial import LATE, NOTHING_KEPT, RAISES, Cost, Kept, Measured

CLOSE = 0.025
"""Values are close if they differ, on average, by at most this share of their range."""
EXACT = 1e-4
"""Values are the same but for rounding if none differs by more than this share of their range."""
MIN_GAIN = 1.1
"""A remedy is not shown if it gains less, for a sample or for the loop, or loses."""
LATER_GAIN = 1.2
"""Smallest gain of a cache that takes memory and gains only from the second epoch on."""
PAYS_AFTER = 5
"""Such a cache is not shown if so many epochs do not gain what the first one loses."""
SLOWER_FIRST = 1.25
"""If the first epoch takes this many times as long, that is said."""
ONCE = 1.0
"""What each worker does once is named from so many seconds on."""
FORKED = "Forked workers do not, if you make one sample in the notebook before the loop."
"""What to do about that."""
ABOUT = 1.2
MUCH_LESS = 2
"""A cache is preferred if it takes this many times less memory, and gains no more than so many times less."""
CLEAR_GAIN = 1.5
"""A remedy whose samples gain as much is shown whatever is predicted for the loop."""
MIN_SAVED = 5e-6
"""Smallest gain per sample, seconds. Less is within the precision of a trial, unless many samples were tried."""
MIN_SAVED_IN_ALL = 1e-3
"""Gain of all samples of a trial, seconds, that is no chance even if each sample gains little."""
LATER_WINS = 5
"""A cache that gains only from the second epoch on comes first if it gains so many times as much as another cache."""
MANY = 10
"""If at least so many samples share each result of a cache, the first epoch gains, too."""
SHARED = 1.5
"""From so many samples for each result on, samples share results, which the text says."""
_SOURCE = 70
NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RemedyResult:
    """A line, what to write instead, and what that has gained on some samples."""

    line: HotLine
    """The slow line."""
    name: str
    """Name of the remedy, such as "full-size-jpeg"."""
    proposal: Proposal
    samples: int = 0
    """Number of samples on which it was tried; 0 if it was not."""
    before: Cost = NOTHING
    """What a sample takes now."""
    after: Cost = NOTHING
    """What a sample takes with the rewritten code."""
    difference: Difference = EQUAL
    """How much the samples differ."""
    problem: str = ""
    """Why it could not be tried; "" if it was."""
    prediction: Prediction | None = None
    """What the loop's rate would be; None if it was not predicted."""
    loop: float = 0.0
    """Time per sample that the loop takes for what workers no longer compute, seconds; on this CPU."""
    workers: int = 0
    """Number of workers, which share what they save, if the loop computes on the CPU; 0 if it has an accelerator."""
    parts: tuple[str, ...] = ()
    """The parts of a batch that the loop computes, such as `["image"]`; none if it was not tried."""
    locked: float = 0.0
    """Share of the workers' time in which they wait for the lock, if the remedy is about one."""
    pictures: Pictures | None = None
    """The picture that differs most; None if no picture differs."""
    cached: Kept = NOTHING_KEPT
    """What the cache kept in the trial, if the remedy is one."""
    kept_in_all: float = 0.0
    """Memory that the cache takes for all samples, bytes. Samples with the same arguments share a result."""
    shared_by: float = 1.0
    """Number of calls of all samples for each result that the cache keeps."""
    filling: Cost | None = None
    """What a sample takes in the first epoch, which fills the cache; None if the remedy is none."""
    filled: Cost | None = None
    """What a sample takes once the cache has all results; None if that is `after`."""
    once: float = 0.0
    """How much longer the first samples take in each process, seconds: something is compiled, read or sorted then."""
    uncached: bool = False
    """Whether both codes were tried without a cache that keeps what they compute: only the first epoch gains."""
    in_class: str = ""
    """Name of the class whose method is rewritten; "" if the function is no method."""
    changed: frozenset[int] = frozenset()
    """The lines of the file or cell that the code replaces."""

    @property
    def gain(self) -> float:
        """How many times as fast a sample is produced; 0 if that was not measured.

        If fewer threads compute, it is the gain in CPU time. One worker alone does not wait for a lock: then it is the
        predicted gain of the loop.
        """
        if not self.samples or not self.after.seconds:
            return 0.0
        if self.proposal.saves == "threads":
            return self.before.computing / self.after.computing if self.after.computing else 0.0
        if self.proposal.saves == "lock":
            return self._speedup or 1 / max(0.1, 1 - self.locked)
        return self.before.seconds / self.after.seconds

    @property
    def _speedup(self) -> float | None:
        return None if self.prediction is None else self.prediction.speedup

    @property
    def gains_later(self) -> bool:
        """Whether the first epoch gains nothing: a cache, unless many samples share each result."""
        return self.proposal.saves == "later" and self.shared_by < MANY

    @property
    def first_loses(self) -> float:
        """How many times as long the first epoch takes, which fills a cache."""
        if self.filling is None or not self.gains_later or not self.before.seconds:
            return 1.0
        return self.filling.seconds / self.before.seconds

    @property
    def _pays_late(self) -> bool:
        """Whether many epochs do not gain what the first one loses."""
        saved = 1 - self.after.seconds / self.before.seconds if self.before.seconds else 0.0
        return self.first_loses - 1 > max(0.0, PAYS_AFTER * saved)

    @property
    def repeats(self) -> bool:
        """Whether a cache has equal results for different arguments, such as for an index that is reduced later.

        Small results, such as labels, are equal by chance.
        """
        return self.kept > PAGE and 0 < self.cached.different * SHARED <= self.cached.computed

    @property
    def kept(self) -> float:
        """Memory that the cache takes for a result, bytes; 0 if the remedy is no cache."""
        return self.cached.nbytes / self.cached.results if self.cached.results > 0 else 0.0

    def excludes(self, other: RemedyResult) -> bool:
        """Whether another remedy replaces some of the same code."""
        lines = self.line, other.line
        same = (lines[0].file, lines[0].function) == (lines[1].file, lines[1].function)
        if lines[0].function.endswith(LAMBDA) and lines[0].line != lines[1].line:  # all lambdas have this name
            return False
        return same and not self.changed.isdisjoint(other.changed)

    @property
    def helps(self) -> bool:
        """Whether it gains something, or could not be tried, although it is known for the line."""
        p = self.proposal
        if self.raised or self.is_late:
            return False
        if not self.samples:
            return not self.problem or not (p.loop or p.saves == "later" or p.must_help)
        if not self._has_the_samples or (p.loop and (self._slows_the_loop or not self.keeps_values)):
            return False
        enough = self.gain >= (LATER_GAIN if self.gains_later else MIN_GAIN)
        saved = self.before.seconds - self.after.seconds
        clear = self.gain >= CLEAR_GAIN and saved * self.samples >= MIN_SAVED_IN_ALL
        enough &= p.saves in ("lock", "threads") or saved >= MIN_SAVED or clear
        enough &= not self._pays_late
        return enough and self._speeds_up_the_loop and not self.difference.problem

    @property
    def _has_the_samples(self) -> bool:
        """Whether the samples are the same but for rounding, or differ as the remedy says."""
        p = self.proposal
        if p.saves == "later" or p.must_be_equal:
            return self.difference.equal  # otherwise it depends on random numbers
        if p.must_differ:
            return not self.difference.equal
        return bool(p.loop) or self.difference.within(EXACT)

    @property
    def _speeds_up_the_loop(self) -> bool:
        """Whether the loop would be faster, or nothing is predicted.

        Of short epochs, the prediction says little: a large gain of the samples counts more.
        """
        return self._speedup is None or self._speedup >= MIN_GAIN or self.gain >= CLEAR_GAIN

    @property
    def _slows_the_loop(self) -> bool:
        """Whether the loop takes longer for a sample than all workers together save."""
        return self.loop * self.workers > max(0.0, self.before.seconds - self.after.seconds)

    @property
    def raised(self) -> bool:
        """Whether the rewritten code has raised an exception: then it does not fit, and is not shown."""
        return self.problem.startswith(RAISES)

    @property
    def is_late(self) -> bool:
        """Whether it was not tried because other trials have taken long: what is not tried may be wrong."""
        return self.problem.startswith(LATE)

    @property
    def only_listed(self) -> bool:
        """Whether it cannot be tried here, as the proposal says."""
        return not self.samples and self.problem == self.proposal.untried

    @property
    def keeps_values(self) -> bool:
        """Whether the samples are equal or close."""
        found = self.difference
        return not found.problem and found.mean <= CLOSE * found.span if not found.equal else True

    @property
    def code(self) -> str:
        """The code to paste: what goes before the class or function, the function, and what the loop computes."""
        p = self.proposal
        computed = [f"batch{part}" for part in self.parts] or ["pixels"]
        loop = [f"# in the loop: {one} = {p.loop.replace('batch', one, 1)}" for one in computed if p.loop]
        helper, code = p.helper.strip("\n"), p.code.strip("\n")
        if self.in_class and helper and code:
            helper = f"# Before `class {self.in_class}`:\n{helper}"
        if self.in_class and code:
            code = f"# In `class {self.in_class}`:\n{code}"
        return "\n\n".join(filter(None, (helper, code, "\n".join(loop))))

    def __str__(self) -> str:
        """The remedy with its measurement and the code."""
        lines = [
            f"{percent(self.line.share)} of the workers' time: {_text(self.line)} ({self.line.place})",
            f"  {self.proposal.why} {self.proposal.instead}",
            f"  {self.measurement()}",
        ]
        lines += [f"    {line}" for line in self.code.splitlines()]
        return "\n".join(lines)

    def measurement(self) -> str:
        """What was measured, as sentences."""
        if not self.samples:
            return f"Not tried: {self.problem}." if self.problem else "Not tried."
        same = "equal" if self.difference.equal else f"not equal: {self.difference}"
        text = f"Tried on {plural(self.samples, 'sample')}: {self._times()}. The samples are {same}."
        if self.proposal.loop:
            text += f" The loop takes {duration(self.loop)} more per sample on the CPU, less on a GPU."
        if self.kept:
            text += f" {self._memory()}"
        if self.uncached:
            text += " A cache keeps what it computes, so only the first epoch gains."
        if self.first_loses >= SLOWER_FIRST:
            text += f" The first epoch takes {factor(self.first_loses)} as long."
        if self.once >= ONCE:
            text += f" Each worker needs {duration(self.once)} more for its first samples. {FORKED}"
        if self.prediction is not None and self._speedup is not None:
            later = " from the second epoch on" if self.gains_later else " in the first epoch" if self.uncached else ""
            text += f" The loop would be {self.prediction.gain(' as fast')}{later}."
        elif self.prediction is not None:
            text += f" There is no prediction for the loop: {self.prediction.reason}."
        return text

    def _memory(self) -> str:
        """What the cache takes, as a sentence."""
        in_all, each = megabytes(self.kept_in_all), megabytes(self.kept)
        if self.shared_by > SHARED:
            first = "" if self.gains_later else ", so the first epoch is faster, too"
            about = f"about {self.shared_by:,.0f} samples share a result of {each}"
            return f"The cache takes about {in_all} for all samples: {about}{first}."
        return f"The cache takes {in_all} for all samples, {each} for each."

    def cells(self) -> tuple[str, ...]:
        """Return what a sample takes now and instead, the gain, the difference and the loop's gain; () if not tried."""
        if not self.samples:
            return ()
        loop = "" if self.prediction is None else self.prediction.gain(interval=False)
        if self.proposal.saves == "lock":
            return f"{percent(self.locked)} waiting for it", "", "", str(self.difference), loop
        threads = self.proposal.saves == "threads"
        before, after = (cost.computing if threads else cost.seconds for cost in (self.before, self.after))
        return duration(before), duration(after), factor(self.gain), str(self.difference), loop

    def outcome(self) -> str:
        """What a trial has shown, in a few words."""
        if self.problem:
            return clean(" ".join(self.problem.split()), _SOURCE)
        loop = "" if self._speeds_up_the_loop or self.prediction is None else f", loop {self.prediction.gain()}"
        if self._pays_late:
            loop += f", but the first epoch takes {factor(self.first_loses)} as long"
        if self._slows_the_loop:
            loop += f", and the loop takes {duration(self.loop)} more per sample"
        return factor(self.gain, ".2f") + loop + ("" if self.keeps_values else ", other values")

    def _times(self) -> str:
        """What a sample takes now and instead, with the gain."""
        if self.proposal.saves == "lock":
            waits = percent(self.locked)
            return f"one worker alone does not wait for the lock, but all together wait for it {waits} of the time"
        threads = self.proposal.saves == "threads"
        kind = " of CPU time" if threads else ""
        before, after = (cost.computing if threads else cost.seconds for cost in (self.before, self.after))
        later = " from the second epoch on" if self.gains_later else ""
        return f"{duration(before)}{kind} now, {duration(after)} with the remedy{later} ({factor(self.gain)})"


def _text(line: HotLine) -> str:
    """Return the text of a line, or what nbloader itself does."""
    return clean(line.source or line.function, _SOURCE)


class Remedies(Sequence[RemedyResult]):
    """What could be written instead of the slowest lines, best first; `print` it, or leave it as a cell's last line.

    Remedies that replace the same code are alternatives, and stand together.

    Args:
        results: The remedies, best first.
        note: What to say if there are none.
        without_gain: What was tried, and gained too little, gave other values, or could not be tried.
        advice: What else to do with the remedies.
    """

    def __init__(
        self,
        results: Sequence[RemedyResult],
        note: str = "",
        without_gain: Sequence[RemedyResult] = (),
        advice: str = "",
    ) -> None:
        self._groups = alternatives(results)
        self._results = tuple(itertools.chain.from_iterable(self._groups))
        self._note = note
        self.advice = advice
        """What else to do with the remedies; "" if nothing."""
        best: dict[tuple[str, str], RemedyResult] = {}  # of several lines of a function, the one that gains most
        for one in without_gain:
            key = one.proposal.short, one.line.function
            best[key] = max(best.get(key, one), one, key=lambda found: found.gain)
        self._without_gain = tuple(best.values())

    def __len__(self) -> int:
        """Return the number of remedies."""
        return len(self._results)

    @overload
    def __getitem__(self, position: int) -> RemedyResult: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[RemedyResult]: ...
    def __getitem__(self, position: int | slice) -> RemedyResult | Sequence[RemedyResult]:
        """Return a remedy; the one at 0 gains most."""
        return self._results[position]

    def __iter__(self) -> Iterator[RemedyResult]:
        """Iterate over the remedies, best first."""
        return iter(self._results)

    def __repr__(self) -> str:
        """All remedies as text."""
        parts = [] if self._groups else [self._note]
        for group in self._groups:
            parts += [choice_of(group)]
            parts += map(str, group)
        return "\n\n".join(filter(None, [*parts, self.advice, self._tried()]))

    def _repr_html_(self) -> str:
        """Return a table, with the code of each remedy to unfold."""
        tried = "".join(f"<p>{escape(text)}</p>" for text in (self.advice, self._tried()) if text)
        if not self._groups:
            return f"<p>{escape(self._note)}</p>{tried}"
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in _COLUMNS)
        rows = ""
        for group in self._groups:
            choice = escape(choice_of(group))
            rows += f'<tr><td colspan="7" style="text-align:left">{choice}</td></tr>' if choice else ""
            rows += "".join(map(_row, group))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{tried}"

    def _tried(self) -> str:
        """What was tried without gain, and what could not be tried, as sentences."""
        texts = []
        for head, found in (
            ("Tried, not proposed", [one for one in self._without_gain if not one.problem]),
            ("Not tried", [one for one in self._without_gain if one.problem]),
        ):
            told = [f"{one.proposal.short} ({one.line.place}): {one.outcome()}" for one in found]
            texts += [f"{head}: {'. '.join(told)}."] if told else []
        return " ".join(texts)


def alternatives(results: Sequence[RemedyResult]) -> list[list[RemedyResult]]:
    """Return the remedies in groups, of each of which only one can be chosen, in the order of their best ones.

    In a group, what clearly gains in the first epoch comes before a cache, which can be added afterwards. To another
    cache it cannot, so the one that gains far more comes first.
    """
    groups: list[list[RemedyResult]] = []
    for one in results:
        group = next((group for group in groups if all(map(one.excludes, group))), None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return [sorted(group, key=lambda one: _waits(one, group)) for group in groups]


def _waits(one: RemedyResult, group: Sequence[RemedyResult]) -> bool:
    """Whether a remedy gains little or nothing in the first epoch, or changes the samples."""
    at_once = [other.gain for other in group if other.proposal.saves == "later" and not other.gains_later]
    if one.gains_later and at_once and len(group) == 1 + len(at_once):  # there are only caches
        return one.gain < LATER_WINS * max(at_once)
    return one.gains_later or one.gain < CLEAR_GAIN or not one.difference.equal


def choice_of(group: Sequence[RemedyResult]) -> str:
    """Say that only one remedy of a group can be chosen; "" if it is the only one."""
    if len(group) == 1:
        return ""
    number = {2: "two", 3: "three", 4: "four"}.get(len(group), str(len(group)))
    kinds = {(one.proposal.saves == "later", one.gains_later) for one in group}
    if len(kinds) > 1:  # a cache adds to what makes the rest faster
        return (
            f"Begin with one of the next {number}: they change the same code. Then call remedies() again for the rest."
        )
    return f"Choose one of the next {number}: they replace the same code, and each gain is that of one change alone."


_COLUMNS = ("Line", "Why, and what instead", "Now", "Instead", "Gain", "Samples", "Loop")
PICTURES = ("before", "after", "difference")
"""Names of the pictures."""


def _row(found: RemedyResult) -> str:
    line = found.line
    why = escape(f"{found.proposal.why} {found.proposal.instead}")
    code = f"<details><summary>Code</summary><pre>{escape(found.code)}</pre></details>" if found.code else ""
    cells = [
        f"{percent(line.share)} <code>{escape(_text(line))}</code><br>{escape(line.place)}",
        f"{why}{code}",
    ]
    cells += [escape(cell) for cell in found.cells()]
    body = "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells)
    if not found.samples:
        body += f'<td colspan="5" style="text-align:left">{escape(found.measurement())}</td>'
    shown = "".join(
        f'<figure style="display:inline-block;margin:4px"><img alt="" src="data:image/png;base64,'
        f'{b64encode(png).decode()}"><figcaption>{escape(name)}</figcaption></figure>'
        for name, png in named_pictures(found)
    )
    return f"<tr>{body}</tr>" + (f'<tr><td colspan="7" style="text-align:left">{shown}</td></tr>' if shown else "")


def named_pictures(found: RemedyResult) -> list[tuple[str, bytes]]:
    """Return the names and the PNG files of the pictures; an empty list if there are none."""
    if found.pictures is None:
        return []
    names = (*PICTURES[:2], f"{PICTURES[2]}, {factor(found.pictures.brighter, '.3g')} as bright")
    return list(zip(names, found.pictures[:3], strict=True))


def summed(line: HotLine, name: str, proposal: Proposal, measured: Sequence[Measured]) -> RemedyResult:
    """Sum up the measurements of a trial."""
    problem = next((one.problem for one in measured if one.problem), "" if measured else "the dataset has no samples")
    if problem:
        return RemedyResult(line, name, proposal, problem=problem)
    samples = sum(one.samples for one in measured)
    apart = EQUAL
    for one in measured:
        apart = largest(apart, one.difference)
    before, after = _mean([one.before for one in measured], samples), _mean([one.after for one in measured], samples)
    filling = [one.filling for one in measured if one.filling is not None]
    all_kept = [one.filled or one.after for one in measured]
    filled = _mean(all_kept, samples) if any(one.filled for one in measured) else None
    drawn = [one.pictures for one in measured if one.pictures is not None]
    return RemedyResult(
        line, name, proposal, samples, before, after, apart, loop=sum(one.loop for one in measured) / samples,
        parts=measured[0].parts, pictures=max(drawn, key=lambda pictures: pictures.mean, default=None),
        cached=max((one.kept for one in measured), key=lambda kept: kept.samples, default=NOTHING_KEPT),
        filling=_mean(filling, samples) if filling else None, filled=filled, once=min(one.once for one in measured),
    )  # fmt: skip


def _mean(costs: Sequence[Cost], samples: int) -> Cost:
    return Cost(*(sum(parts) / samples for parts in zip(*costs, strict=True)))


def best_of(results: Sequence[RemedyResult]) -> list[RemedyResult]:
    """Return the results to show of several proposals for one line: the fastest one that keeps the values.

    Of caches, this may be two: one that gains in the first epoch, too, and one that gains only later.
    """
    at_once = [one for one in results if one.proposal.saves == "later" and one.helps and not one.gains_later]
    others = [one for one in results if one not in at_once]
    kinds = [kind for kind in (at_once, others) if kind]
    return [
        _smaller(max(kind, key=_merit), kind) for kind in kinds
        if kind is at_once or not at_once or any(one.helps for one in kind)
    ]  # fmt: skip


def _smaller(best: RemedyResult, others: Sequence[RemedyResult]) -> RemedyResult:
    """Return a cache that takes much less memory than the best one, if one gains about as much."""
    if best.proposal.saves != "later":
        return best
    alike = [
        one for one in others
        if one.proposal.saves == "later" and one.helps and one.gain * ABOUT >= best.gain
        and one.keeps_values == best.keeps_values and one.kept_in_all * MUCH_LESS <= best.kept_in_all
    ]  # fmt: skip
    return min(alike, key=lambda one: one.kept_in_all, default=best)


def _merit(one: RemedyResult) -> tuple[int, bool, bool, bool, float]:
    """Sort what helps in a trial last, and before it what is left to do if the proposal before it does not fit."""
    helped = 2 if one.helps and one.samples else int(one.helps and one.proposal.fallback)
    return helped, bool(one.samples), one.helps, one.keeps_values, one.gain


def without_lesser(results: Sequence[RemedyResult]) -> list[RemedyResult]:
    """Return the results without caches that something better makes superfluous.

    That is another cache of the same code that gains more, and as early, or other code that gains about as much as a
    cache that gains in the first epoch.
    """
    return [
        one for one in results
        if one.proposal.saves != "later" or not any(_replaces(other, one) for other in results if other is not one)
    ]  # fmt: skip


def _calls(code: str, function: str) -> bool:
    """Whether code calls a function: what that function returns is kept as part of other results then."""
    return re.search(rf"(?<![\w.]){re.escape(function.rpartition('.')[2])}\(", code) is not None


def _replaces(other: RemedyResult, cache: RemedyResult) -> bool:
    if other.proposal.saves == "later" and _calls(other.proposal.helper, cache.line.function):
        return other.gains_later <= cache.gains_later and other.gain >= cache.gain
    if not cache.excludes(other):
        return False
    if other.proposal.saves == "later":
        return other.gains_later == cache.gains_later and other.gain > cache.gain
    return not cache.gains_later and other.gain * CLEAR_GAIN >= cache.gain

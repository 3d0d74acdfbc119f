"""Find remedies for the slowest lines, and try them in a spare worker."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, Protocol

from torch.utils.data import SequentialSampler, default_collate

from nbloader._platform import available_memory
from nbloader._util.format import megabytes
from nbloader.batch.collate import LocalArrays, NotPlannedError, collate_samples
from nbloader.batch.rows import is_in_memory
from nbloader.batch.torch_collate import default_function
from nbloader.cache.sample_cache import MEMORY_SHARE
from nbloader.diagnose.what_if import Prediction
from nbloader.diagnose.without_line import LineTime
from nbloader.errors import LoaderTimeoutError, NbloaderError
from nbloader.loader.all_samples import ENOUGH_SAMPLES, AllSamples
from nbloader.loader.all_samples import NAME as ALL_SAMPLES
from nbloader.metrics.hot_lines import HotLine, HotLines
from nbloader.remedies.calls import measure_calls
from nbloader.remedies.changed_lines import changed_lines
from nbloader.remedies.difference import array_of
from nbloader.remedies.free_names import with_free_names
from nbloader.remedies.kept_samples import held
from nbloader.remedies.kinds import REMEDIES, python_loop, same_each_epoch
from nbloader.remedies.no_remedy import why_none
from nbloader.remedies.pasted import is_pasted
from nbloader.remedies.pictures import size_of
from nbloader.remedies.remedy import Proposal, Remedy
from nbloader.remedies.results import (
    CLEAR_GAIN,
    EXACT,
    MIN_GAIN,
    MUCH_LESS,
    Remedies,
    RemedyResult,
    best_of,
    summed,
    without_lesser,
)
from nbloader.remedies.site import NO_FACTS, Facts, Site, locate, replaceable
from nbloader.remedies.stacks import CachedCode, calling, is_below, is_same_function, looping, whole_lines
from nbloader.remedies.threads import blas_threads, opencv_threads
from nbloader.remedies.trial import FAR_SLOWER, LATE, NOTHING_KEPT, Cost, Kept, Measured, Trial
from nbloader.workers.worker_info import ProcessContext, get_worker_info

log = logging.getLogger(__name__)

MIN_SHARE = 0.05
"""Lines with a smaller share of the workers' time are not looked at."""
LINES = 5
"""Maximum number of lines that are looked at."""
SEEN = 2
"""If at least so many calls share a result, an epoch has computed nearly all results (86%, if drawn at random)."""
CALLING = 3
"""Maximum number of lines that are looked at because of the functions that they call."""
GROUP = 16
"""Maximum number of samples that are measured together. They are a batch, if it is not larger, so that what a batch
costs is divided among as many samples as in the loop."""
FAST_SECONDS, FAST = 0.2, 10
"""If all samples on which to try take less than this time, more are taken, at most this many times as many. The first
ones find caches that are cold, which a worker finds only once."""
PERSISTENT = (
    "Set persistent_workers=True as well: the workers of each epoch are new ones, and would compute or "
    "compile again what is kept once per worker."
)
ENOUGH = 10
"""If another remedy gains as much, the loop hardly waits for samples any more, and not all need be made once."""
PRECISION = 0.1
"""Relative error of what a sample takes with the rewritten code, as a trial measures it."""
TRIAL_SECONDS = 10.0
"""A trial ends with the measurement in which it has taken so long."""
SEARCH_SECONDS = 60.0
"""No trial begins after this time, and no measurement may take so long."""
PATIENCE = 15.0
"""A measurement may take so much longer, seconds: code is imported, compiled, or reads a file once."""

Run = Callable[[Any], "Iterable[Any]"]
"""Runs a dataset, such as a trial, in a spare worker, and returns its items. The worker ends with the iteration."""
Report = Callable[[str, int, int], object]
"""Is called before each trial, with its name, its number from 0, and the number of trials."""


class Bar(Protocol):
    """Shows how many of the samples have been tried."""

    def begin(self, place: str) -> None:
        """Say which line a trial is about."""
        ...

    def add(self, samples: int) -> None:
        """Count samples."""
        ...


@contextlib.contextmanager
def no_bar(_samples: int) -> Iterator[Bar]:
    """Show nothing."""
    yield _Nothing()


class _Nothing:
    def begin(self, place: str) -> None:
        pass

    def add(self, samples: int) -> None:
        pass


class Predict(Protocol):
    """Predicts the rate of the loop."""

    def __call__(self, saved: LineTime, change: str, *, unlocks: bool) -> Prediction:
        """Predict the rate.

        Args:
            saved: The shares of the workers' time that are saved.
            change: The name of the change.
            unlocks: Whether what is saved are waits for a lock.
        """
        ...


class Samples(NamedTuple):
    """The samples of a loader, and how it produces them."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    """None if samples are not collated."""
    indices: Sequence[Any]
    """The dataset indices on which to try."""
    iterable: bool
    """Whether the dataset is iterable: then only the number of indices counts."""
    batch_size: int = 1
    """Number of samples in a batch."""
    facts: Facts = NO_FACTS
    collating: float = 0.0
    """Share of the workers' time in which they collate, in the loader's epochs."""
    workers: int = 0
    """Number of workers if the loop computes on the CPU; 0 if it has an accelerator."""
    all_drawn: bool = True
    """Whether each epoch has all samples, and workers make them without a function of the user that comes first."""

    @property
    def has_usual_collate(self) -> bool:
        """Whether batches are made by torch's collate function, in whose place workers use a faster one."""
        return self.collate_fn is default_function(batched=True)

    def producer(self, dataset: Any) -> Produce:
        """Return what makes batches of another dataset as the loader makes them of its own."""
        collate_fn = collated if self.has_usual_collate else self.collate_fn
        return Produce(self._replace(dataset=dataset, collate_fn=collate_fn))


def collated(samples: list[Any]) -> Any:
    """Return a batch as workers make it, in memory of this process."""
    try:
        return collate_samples(samples, LocalArrays("torch"))
    except NotPlannedError:
        return default_collate(samples)


def as_it_is(item: Any) -> Any:
    """Return the argument: what a trial returns is not converted."""
    return item


class Produce:
    """Makes a batch from dataset indices, or from the first samples of an iterable dataset, as a worker would."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.collating = 0.0
        """Time that collating the last batch took, seconds."""

    def __call__(self, indices: Sequence[Any]) -> Any:
        """Return the samples, collated if the loader does that."""
        dataset, collate_fn = self._samples.dataset, self._samples.collate_fn
        if self._samples.iterable:
            fetched = list(itertools.islice(iter(dataset), len(indices)))
        elif hasattr(dataset, "__getitems__"):
            fetched = dataset.__getitems__(list(indices))
        else:
            fetched = [dataset[index] for index in indices]
        if collate_fn is None:
            return fetched
        begin = time.perf_counter()
        batch = collate_fn(fetched)
        self.collating = time.perf_counter() - begin
        return batch


@dataclass(frozen=True)
class AsWorker:
    """Makes the spare worker one of the loader: with `get_worker_info().dataset`, and after `worker_init_fn`.

    Args:
        dataset: The loader's dataset.
        worker_init_fn: The loader's function; None if it has none, or no workers.
    """

    dataset: Any
    worker_init_fn: Callable[[int], object] | None

    def __call__(self, worker: int) -> None:
        """Do so."""
        info = get_worker_info()
        if info is not None:
            ProcessContext().set_worker_info(replace(info, dataset=self.dataset))
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


@dataclass(frozen=True)
class Scout:
    """A dataset with one item: the samples on which to try, and what is known about them.

    It runs in the spare worker: samplers and datasets draw random numbers, and those of the notebook stay as they are.

    Args:
        samples: The samples; their indices are drawn here.
        sampler: What yields dataset indices if the dataset has no length.
        count: Number of samples on which to try.
    """

    samples: Samples
    sampler: Any
    count: int

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, position: int) -> tuple[list[Any], Facts]:
        """Return the dataset indices on which to try, and the facts."""
        if position:
            raise IndexError(position)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            indices, facts = self._look()
        return indices, facts._replace(blas_threads=blas_threads(), opencv_threads=opencv_threads())

    def _look(self) -> tuple[list[Any], Facts]:
        dataset, batch_size = self.samples.dataset, self.samples.batch_size
        if self.samples.iterable:
            return list(range(self.count)), NO_FACTS
        indices = indices_of(dataset, self.sampler, self.count, batch_size)
        produce = Produce(self.samples._replace(collate_fn=None))
        try:
            samples = len(dataset)
        except TypeError:
            samples = 0
        try:
            begin = time.perf_counter()
            with measure_calls() as calls:
                sample = produce(indices[:1])[0]
            seconds = time.perf_counter() - begin
            whole, own, begin = time.process_time(), time.thread_time(), time.perf_counter()
            produce(indices[1:2])  # the first one may have imported something, or opened a file
            seconds = min(seconds, time.perf_counter() - begin)
            whole, own = time.process_time() - whole, time.thread_time() - own
            if seconds < FAST_SECONDS:
                more = min(FAST, FAST_SECONDS / seconds / max(1, self.count))
                if more > 1:
                    indices = indices_of(dataset, self.sampler, round(self.count * more), batch_size)
        except Exception:  # noqa: BLE001 - the sample is broken, which its epoch has said
            return indices, Facts(samples=samples)
        parts = _parts(sample)
        pictures = [size for part in parts if (size := size_of(part)) is not None]
        picture = max(pictures, key=lambda size: size[0] * size[1], default=None)
        arrays = [array for part in parts if (array := array_of(part)) is not None]
        floats = sum(array.nbytes for array in arrays if array.dtype.kind == "f")
        nbytes = sum(array.nbytes for array in arrays) or _pickled_size(sample)
        large = tuple(one for one in calls.returned.values() if sum(one.nbytes) > nbytes)
        return indices, Facts(
            picture, samples, nbytes, floats, returned=large, calls=dict(calls.counts), seconds=seconds,
            other_threads=max(0.0, 1 - own / whole) if whole else 0.0,
        )  # fmt: skip


def _pickled_size(sample: Any) -> int:
    """Return the size of a sample without arrays, bytes; 0 if it cannot be pickled."""
    try:
        return len(pickle.dumps(sample))
    except Exception:  # noqa: BLE001 - of the user's code
        return 0


class _Found(NamedTuple):
    """What a remedy proposes for a line."""

    site: Site
    name: str
    proposals: list[Proposal]
    below_cache: bool = False
    """Whether a cache keeps what the line computes."""
    again: bool = False
    """Whether some of what the remedy proposes for the line is proposed for an earlier one as well."""

    def untried(self, samples: Samples) -> bool:
        """Whether the proposals cannot be tried, or are only listed."""
        return not samples.indices or bool(self.proposals[0].untried)

    def samples(self, samples: Samples) -> int:
        """Return the number of samples of all trials."""
        if self.untried(samples):
            return 0
        return len(self.proposals) * sum(map(len, _groups(self.site.line, samples)[1:]))


def search(
    hot: HotLines,
    samples: Samples,
    run: Run,
    predict: Predict,
    report: Report | None = None,
    bar: Callable[[int], contextlib.AbstractContextManager[Bar]] = no_bar,
    *,
    more_workers: bool = True,
    new_workers: bool = False,
) -> Remedies:
    """Return the remedies for the slowest lines, best first.

    Args:
        hot: The lines.
        samples: The samples on which to try; their number is 0 if nothing is tried.
        run: See `Run`.
        predict: See `Predict`.
        report: See `Report`.
        bar: Opens a bar for a number of samples.
        more_workers: Whether more workers help, as the verdict says.
        new_workers: Whether each epoch has new worker processes.
    """
    lines = [line for line in (*hot, *_of_libraries(hot)) if line.line and line.share >= MIN_SHARE]
    end = time.perf_counter() + SEARCH_SECONDS
    if not lines:
        none = f"No line of your code takes {MIN_SHARE:.0%} of the workers' time. {hot.elsewhere}".rstrip()
        rows = [_predicted(one, hot, predict, samples.collating) for one in _made_once(hot, samples, run, end, ())]
        return Remedies(_with_rows(rows, []), none if hot.lines else str(hot))
    lines.sort(key=lambda line: -line.share)
    sites = [site for line in lines if (site := _site(line, samples)) is not None][:LINES]
    callers = [site for line in calling(hot, lines) if (site := _site(line, samples)) is not None][:CALLING]
    loops = [site for line in looping(hot, lines) if (site := _site(line, samples)) is not None and site.is_in_loop]
    seen: set[tuple[str, str]] = set()
    known = _known(callers, (same_each_epoch.REMEDY,), seen)  # they come first, since time is limited
    known += [*_known(loops[:CALLING], (python_loop.REMEDY,), seen), *_known(sites, REMEDIES, seen)]
    known = _without_second_caches(known, CachedCode(hot, partial(_site, samples=samples)))
    tried: list[RemedyResult] = []
    cache = held()
    with bar(sum(found.samples(samples) for found in known)) as shown:
        for number, found in enumerate(known):
            if report is not None:
                report(found.name, number, len(known))
            shown.begin(found.site.line.place)
            needed = _needed(found, tried)
            if not needed or any(_is_part(found, one, hot) for one in tried):
                shown.add(found.samples(samples))
                continue
            for result in _tried(found._replace(proposals=needed), samples, run, shown, end):
                one = replace(result, changed=_changed(found.site, result.proposal), in_class=found.site.in_class)
                if one.proposal.saves == "lock":
                    one = replace(one, locked=_lock_wait(hot, one.line))
                one = replace(one, uncached=found.below_cache)
                tried.append(_predicted(one, hot, predict, samples.collating))
    helping = without_lesser(sorted((one for one in tried if one.helps), key=_rank))
    helping = [one for one in helping if not any(_is_enough(other, one, hot) for other in helping)]
    helping = [one for one in helping if not any(_has_code_for(other, one) for other in helping)]
    rows = _made_once(hot, samples, run, end, helping)
    helping = _with_rows([_predicted(one, hot, predict, samples.collating) for one in rows], helping)
    for one in tried:
        if one.raised:
            log.debug("the remedy %s for %s: %s", one.name, one.line.place, one.problem)
    useless = [one for one in tried if not (one.helps or one.raised or one.only_listed or _is_slower_cache(one))]
    remains = ["use more workers where cores are free"] if more_workers else []
    note = "" if helping else why_none(lines[0], sites, hot, remains, MIN_SHARE, cache)
    advice = _to_merge(helping)
    advice += [PERSISTENT] if new_workers and any(one.proposal.keeps_in_worker for one in helping) else []
    if helping and not any(_covers(one, lines[0], hot) for one in helping):
        advice.insert(0, why_none(lines[0], sites, hot, (), MIN_SHARE, cache))
    return Remedies(helping, note, useless, " ".join(advice))


def _made_once(
    hot: HotLines, samples: Samples, run: Run, end: float, others: Sequence[RemedyResult]
) -> list[RemedyResult]:
    """Measure what samples take when all were made before. Return nothing if they cannot be, or do not fit into memory.

    Args:
        hot: The lines.
        samples: The samples on which to try.
        run: See `Run`.
        end: No measurement begins later, perf_counter seconds.
        others: Other remedies.
    """
    indices, facts, available = samples.indices, samples.facts, available_memory()
    is_usual = samples.all_drawn and samples.collate_fn is not None and not samples.iterable and bool(hot.lines)
    fits = available is None or facts.samples * facts.nbytes <= available / MEMORY_SHARE
    if (
        not (is_usual and facts.samples and facts.seconds and fits)
        or is_in_memory(samples.dataset)
        or any(one.gain >= ENOUGH for one in others)
    ):
        return []
    some = indices[: round(TRIAL_SECONDS / (3 * facts.seconds))]
    if len(some) < ENOUGH_SAMPLES or time.perf_counter() >= end:
        return []
    limit = PATIENCE + FAR_SLOWER * TRIAL_SECONDS
    try:
        rows, keep = samples.has_usual_collate, _own_collate(samples)
        (made,) = run(AllSamples(samples.dataset, samples.producer, some, samples.batch_size, limit, rows, keep))
    except NbloaderError:  # the worker died, or took too long
        log.debug("all samples could not be made once", exc_info=True)
        return []
    if made is None or (available is not None and made.nbytes(facts.samples) > available / MEMORY_SHARE):
        return []
    found = summed(hot.lines[0], ALL_SAMPLES, made.proposal(facts.samples), [made.measured])
    return [replace(found, cached=NOTHING_KEPT, workers=samples.workers)]


def _own_collate(samples: Samples) -> str:
    """Return code that keeps the collate function if it is a method of the dataset; otherwise ""."""
    function: Any = samples.collate_fn
    if getattr(function, "__self__", None) is not samples.dataset:
        return ""
    return f"collate_fn = dataset.{function.__name__}  # pass this one to the loader\n"


def _is_no_faster(found: RemedyResult) -> bool:
    """Whether the loop would not be faster, as far as that is predicted: then all samples need not be kept."""
    return found.prediction is not None and found.prediction.speedup is not None and found.prediction.speedup < MIN_GAIN


def _with_rows(rows: list[RemedyResult], others: list[RemedyResult]) -> list[RemedyResult]:
    """Put before other remedies that all samples are made once, if that gains clearly more than each of them."""
    rows = [one for one in rows if not _is_no_faster(one)]
    far_better = [one for one in rows if one.helps and all(one.gain >= CLEAR_GAIN * other.gain for other in others)]
    return [*far_better, *others]


def _covers(found: RemedyResult, line: HotLine, hot: HotLines) -> bool:
    """Whether a remedy replaces the function of a line, or what calls it."""
    return found.name == ALL_SAMPLES or is_same_function(found.line, line) or is_below(line, found, hot)


def _to_merge(helping: Sequence[RemedyResult]) -> list[str]:
    """Say which functions several remedies rewrite at different lines: each code has only its own change."""
    pairs = (
        (one, other) for one, other in itertools.combinations(helping, 2) if one.proposal.code and other.proposal.code
    )
    both = [one for one, other in pairs if is_same_function(one.line, other.line) and not one.excludes(other)]
    names = dict.fromkeys(f"`{one.line.function.rpartition('.')[2]}`" for one in both)
    return [
        f"Several remedies change {name}, each at its own lines: merge them, or paste one and call remedies() again."
        for name in names
    ]


def _rank(found: RemedyResult) -> tuple[bool, bool, float]:
    """Sort what was tried first, what keeps the samples, and what gains most. What gains later counts half."""
    exact = found.difference.within(EXACT)
    return not found.samples, not (exact or found.proposal.loop), -found.gain / (2 if found.gains_later else 1)


def _is_slower_cache(one: RemedyResult) -> bool:
    """Whether a cache takes longer than what it would keep: nobody asks for it then."""
    return one.proposal.saves == "later" and 0 < one.gain < 1


def _is_part(found: _Found, other: RemedyResult, hot: HotLines) -> bool:
    """Whether a cache for a line would only keep parts of what another cache keeps, which has gained something.

    If that one has equal results for different arguments, one for a part may have fewer, which more samples share.
    """
    both = found.name == other.name == same_each_epoch.REMEDY.name
    return both and other.helps and not other.repeats and is_below(found.site.line, other, hot)


def _needed(found: _Found, tried: Sequence[RemedyResult]) -> list[Proposal]:
    """Return what is proposed for a line without fallbacks that are not needed: the same helps another line."""
    helping = [one for one in tried if one.helps and not one.only_listed and one.name == found.name]
    done = found.again and any(is_same_function(one.line, found.site.line) for one in helping)
    return [proposal for proposal in found.proposals if not (done and proposal.fallback)]


def _is_enough(other: RemedyResult, cache: RemedyResult, hot: HotLines) -> bool:
    """Whether code that a cached function runs becomes about as fast as the cache, and in the first epoch, too.

    Or it is a cache that gains about as much, and needs far less memory since it keeps no result twice.
    """
    first = cache.gains_later and not other.gains_later
    less = cache.repeats and other.kept_in_all * MUCH_LESS <= cache.kept_in_all and other.proposal.saves == "later"
    return (first or less) and other.gain * CLEAR_GAIN >= cache.gain and is_below(other.line, cache, hot)


def _has_code_for(other: RemedyResult, listed: RemedyResult) -> bool:
    """Whether a remedy has code where another one of its kind only says what to do: for its line, or a slower one."""
    same = other.name == listed.name and is_same_function(other.line, listed.line)
    has_code = same and listed.only_listed and not other.only_listed
    return has_code and (listed.line.line in other.changed or listed.line.share < other.line.share)


def _known(sites: Sequence[Site], remedies: Sequence[Remedy], seen: set[tuple[str, str]]) -> list[_Found]:
    """Return what is known for the lines.

    Args:
        sites: The lines.
        remedies: The remedies that are asked.
        seen: What is known already: two lines of a function may lead to the same code.
    """
    found = []
    for site in (one for one in sites if not (one.is_kept or is_pasted(one, REMEDIES))):
        for remedy in remedies:
            proposals: list[Proposal] = []
            proposed = remedy.propose(site)
            again = False
            for proposal in proposed:
                key = proposal.code or proposal.why, proposal.helper
                again |= key in seen
                named = with_free_names(site, proposal)
                if key not in seen and proposal.is_valid and named is not None:
                    seen.add(key)
                    proposals.append(named._replace(instead=named.instead + site.paste))
            if proposals:
                found.append(_Found(site, remedy.name, proposals, again=again))
            if any(proposal.alone for proposal in proposed):
                break
    return found


def _without_second_caches(known: Sequence[_Found], cached: CachedCode) -> list[_Found]:
    """Return what is known without caches of what a cache keeps already, and mark the rest of that code."""
    marked = [found._replace(below_cache=cached.keeps(found.site.line)) for found in known]
    return [one for one in marked if not one.below_cache or one.proposals[0].saves != "later"]


def _site(line: HotLine, samples: Samples) -> Site | None:
    """Find a line. In a collate function no sample is known: batches differ from epoch to epoch."""
    collates = [] if samples.collate_fn is None else [samples.collate_fn]
    return locate(line, [samples.dataset], samples.facts) or locate(line, collates, samples.facts._replace(samples=0))


def _of_libraries(hot: HotLines) -> list[HotLine]:
    """Return the lines of functions of libraries for which users can pass their own ones (`REPLACEABLE`)."""
    return whole_lines(hot, lambda stack: filter(None, [replaceable(stack)]))


def _changed(site: Site, proposal: Proposal) -> frozenset[int]:
    """Return the numbers of the lines that a proposal replaces, in the file or cell."""
    first = site.line.line - site.number
    return frozenset(first + number for number in changed_lines(site, proposal))


def _predicted(found: RemedyResult, hot: HotLines, predict: Predict, collating: float) -> RemedyResult:
    """Add the prediction of the loop's rate: the samples take less of the workers' time, in this proportion."""
    if not found.samples or not found.before.seconds or found.proposal.saves == "threads":
        return found
    if found.proposal.saves == "lock":
        saved = LineTime(0.0, found.locked, hot.samples)
        return replace(found, prediction=predict(saved, found.name, unlocks=True))
    share = _saved(found.before, found.after, collating)
    less = found.before.seconds - found.after.seconds
    part = (found.before.computing - found.after.computing) / less if less else 0.0  # of what is saved
    computing = share * min(1.0, max(0.0, part))
    saved = LineTime(computing, share - computing, _precision(share))
    return replace(found, prediction=predict(saved, found.name, unlocks=False))


def _saved(before: Cost, after: Cost, collating: float) -> float:
    """Return the share of the workers' time that is saved.

    A worker that collates into memory which it shares takes longer for that than a trial does. So fetching and
    collating count as in the loop.

    Args:
        before: What the samples take in a trial.
        after: What they take with the rewritten code.
        collating: Share of the workers' time in which they collate.
    """
    collate = (before.collating, after.collating)
    fetch = before.seconds - before.collating, after.seconds - after.collating
    shares = [max(0.0, 1 - new / old) if old else 0.0 for old, new in (fetch, collate)]
    return (1 - collating) * shares[0] + collating * shares[1]


def _precision(share: float) -> int:
    """Return the number of stack samples that tell a share as precisely as a trial measures the rest."""
    return round(4 / PRECISION**2 * max(share, 0.1) / max(1 - share, 1e-4))


def _lock_wait(hot: HotLines, line: HotLine) -> float:
    """Return the share of the workers' time in which they wait at `with lock:` of a line's function."""
    here = [one for one in hot if (one.file, one.function) == (line.file, line.function)]
    return sum(one.waiting for one in here if one.source.startswith("with "))


def _tried(found: _Found, samples: Samples, run: Run, shown: Bar, end: float) -> list[RemedyResult]:
    line, name, proposals = found.site.line, found.name, found.proposals
    if found.untried(samples):
        return [RemedyResult(line, name, proposals[0], problem=proposals[0].untried)]
    roots = [part for part in (samples.dataset, samples.collate_fn) if part is not None]
    groups = _groups(line, samples)
    limit = _limit(groups, samples.facts.seconds)
    results = []
    waiting = list(proposals)
    while waiting:
        proposal = waiting.pop(0)
        if time.perf_counter() >= end:
            results.append(RemedyResult(line, name, proposal, problem=f"{LATE} {SEARCH_SECONDS:.0f} s"))
            break
        measured: list[Measured] = []
        left = sum(map(len, groups[1:]))
        try:
            trial = Trial(Produce(samples), roots, groups, line, proposal, TRIAL_SECONDS, limit, found.below_cache)
            for one in run(trial):
                if one is None:
                    break
                measured.append(one)
                shown.add(one.samples)
                left -= one.samples
        except Exception as error:  # noqa: BLE001 - of the present code, too, or a worker that died
            late = f"it had not ended after {limit:.0f} s" if isinstance(error, LoaderTimeoutError) else ""
            problem = late or f"{type(error).__name__}: {error}"
            results.append(RemedyResult(line, name, proposal, problem=problem))
            if isinstance(error, NbloaderError):
                break
            continue
        finally:
            shown.add(left)
        one = replace(summed(line, name, proposal, measured), workers=samples.workers)
        if samples.collate_fn is None:  # the parts are those of a list of samples
            one = replace(one, parts=tuple(dict.fromkeys(part.partition("]")[2] for part in one.parts)))
        results.append(_fitting(one, samples.facts.samples))
        rest = _left(waiting, results[-1])
        shown.add(sum(map(len, groups[1:])) * (len(waiting) - len(rest)))
        waiting = rest
    return best_of(results)


def _limit(groups: Sequence[Sequence[Any]], seconds: float) -> float:
    """Return how long a measurement may take: far longer than the present code does, and long enough to compile some.

    Args:
        groups: The samples that are measured together; before the first measurement, the first group is produced.
        seconds: What a sample takes; 0 if that is not known.
    """
    if not seconds:
        return SEARCH_SECONDS
    runs = len(groups[0]) + 4 * max(map(len, groups[1:]), default=0)
    return min(SEARCH_SECONDS, PATIENCE + FAR_SLOWER * seconds * runs)


def _left(waiting: list[Proposal], last: RemedyResult) -> list[Proposal]:
    """Return the proposals that are worth a trial after another one for the same line."""
    if last.proposal.saves == "later" and last.helps:  # the others keep less; all samples may share the shortest
        return waiting[-1:] if last.gains_later else []
    fits = not last.problem and last.difference.within(EXACT)
    return [one for one in waiting if not one.fallback] if fits else waiting


def _fitting(found: RemedyResult, samples: int) -> RemedyResult:
    """Add what a cache takes for all samples; that is a problem if it is more than the cache may take by default."""
    if not found.kept:
        return found
    results, available = results_of(samples, found.cached), available_memory()
    needed = found.kept * results
    if available is not None and needed > available / MEMORY_SHARE:
        return RemedyResult(found.line, found.name, found.proposal, problem=f"it takes {megabytes(needed)} of memory")
    calls = samples * found.cached.calls / found.cached.samples if found.cached.calls else samples
    all_kept = replace(found, kept_in_all=needed, shared_by=calls / results)
    if found.filled is None or all_kept.shared_by < SEEN:
        return all_kept
    return replace(all_kept, after=found.filled)  # soon, the cache has the results of nearly all arguments


def results_of(samples: int, tried: Kept) -> float:
    """Estimate how many results a cache keeps for all samples.

    Of the calls that were counted, the arguments that occurred once or twice tell how many have not occurred yet
    (Chao 1984, bias-corrected). This is a lower bound if only some samples share arguments. If the calls were not
    counted, each result is assumed to belong to as many samples: a trial of `n` of all `N` samples misses one of
    `found` results with the probability (1 - n / N) ** (N / found).

    Args:
        samples: Number of all samples.
        tried: What the cache kept for some of them, drawn at random.
    """
    if tried.calls:
        most = samples * tried.computed / max(1, tried.samples)
        if tried.computed >= tried.calls:
            return most
        return min(most, tried.computed + tried.once * (tried.once - 1) / (2 * (tried.twice + 1)))
    if tried.results >= tried.samples:
        return samples * tried.results / max(1, tried.samples)
    missed = max(0.0, 1 - tried.samples / samples)
    low, high = float(tried.results), float(samples)
    while high - low > 0.5:  # noqa: PLR2004 - a half result
        found = (low + high) / 2
        if found * (1 - missed ** (samples / found)) < tried.results:
            low = found
        else:
            high = found
    return high


def _groups(line: HotLine, samples: Samples) -> list[Sequence[Any]]:
    """Return the indices that are measured together: a batch, or `GROUP` of a larger one unless the line collates.

    The first one is for what is done once per process, such as reading a file that many samples share. It is a third of
    the samples if they are many. If there is only one group, because the dataset has few samples, it serves for both.
    """
    if samples.iterable:
        return [samples.indices, samples.indices]
    whole = locate(line, [samples.dataset]) is None or hasattr(samples.dataset, "__getitems__")
    size = samples.batch_size if whole else min(GROUP, samples.batch_size)
    indices = samples.indices
    groups = [indices[start : start + size] for start in range(0, len(indices), size)]
    if len(groups) > 2 and len(groups[-1]) < size:  # noqa: PLR2004 - one to measure, and one before it
        groups.pop()
    groups.sort(key=len)  # a smaller one is the first, which is not measured
    if len(groups) == 1:
        return groups * 2
    first = max(1, len(groups) // 3)
    return [list(itertools.chain.from_iterable(groups[:first])), *groups[first:]]


def _parts(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        return list(sample.values())
    return list(sample) if isinstance(sample, (list, tuple)) else [sample]


def draws_all(sampler: Any, dataset: Any) -> bool:
    """Whether each epoch has about all samples of a dataset, and not a part of them.

    Args:
        sampler: What yields its indices, or batches of them.
        dataset: The dataset.
    """
    try:
        return len(getattr(sampler, "sampler", ())) >= len(dataset)
    except TypeError:  # one of them has no length
        return False


def indices_of(dataset: Any, sampler: Any, count: int, batch_size: int) -> list[Any]:
    """Return dataset indices on which to try: spread over the dataset, or the first ones that its sampler yields.

    Successive samples are as near to each other as in the loader's epochs, since one may need what another one has
    read. So the indices are in a random order, or whole batches of an epoch without one.

    Args:
        dataset: The dataset.
        sampler: What yields its indices, or batches of them; None if they are 0, 1, 2 and so on.
        count: Number of samples on which to try; 0 for none. There are at least two batches more, for what is done once
            per process.
        batch_size: Number of samples in a batch.
    """
    count = count and max(count + min(GROUP, batch_size), 3 * batch_size)
    try:
        length = len(dataset)
    except TypeError:  # it has no length
        taken: list[Any] = []
        for indices in itertools.islice(iter(sampler), count):
            taken += indices if isinstance(indices, (list, tuple)) else [indices]
        return taken[:count]
    count, drawn = min(count, length), random.Random(0)  # noqa: S311 - not the global generator
    if not isinstance(getattr(sampler, "sampler", sampler), (SequentialSampler, NoneType)):
        return drawn.sample(range(length), count)
    starts = sorted(drawn.sample(range(0, length, batch_size), -(-count // batch_size)))
    return [index for start in starts for index in range(start, min(start + batch_size, length))][:count]

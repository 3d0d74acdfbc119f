"""Try a proposal on the user's own samples, in a spare worker process.

    loader.remedies() -> a loader with one worker over a Trial -> trial[k]: both codes, measured -> Measured

A trial is a map-style dataset, so that its worker is started, watched and ended as every other worker. What it changes,
it changes in that process, which ends with the trial. It need not be a fork of the notebook: a trial carries the source
of the cell.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import mix
from nbloader.cache import process_cache
from nbloader.cache.cached_function import without_cache
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.calls import CachedCalls, cached_calls
from nbloader.remedies.difference import Difference, difference
from nbloader.remedies.pictures import Pictures, pictures_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site, locate

READ_ONLY = "The given NumPy array is not writable"
"""Begins a warning of torch."""
FAR_SLOWER, FAR_SLOWER_SECONDS = 3, 0.2
"""A trial ends early if the rewritten code takes this many times as long, and at least so many seconds so far."""
LATE = "other trials have taken"
"""What a problem begins with if there was no time for a trial."""
RAISES = "the rewritten code raises "
"""What a problem begins with if it is an exception of the rewritten code."""


class CannotTryError(Exception):
    """The rewritten code cannot take the place of the present one, or has raised an exception."""


class Cost(NamedTuple):
    """What it took to produce some samples."""

    computing: float
    """CPU time of all threads of the process, seconds."""
    waiting: float
    """The rest of the time, seconds."""
    collating: float = 0.0
    """The part of all this time in which samples were collated, seconds."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.computing + self.waiting


class Kept(NamedTuple):
    """What a cache keeps of the samples of a trial."""

    nbytes: int = 0
    """Memory of its results, bytes."""
    results: int = 0
    """Number of results. Samples with the same arguments share one."""
    samples: int = 0
    """Number of different samples that were produced."""
    calls: int = 0
    """Number of calls of the cached function for these samples; 0 if they were not counted."""
    computed: int = 0
    """Number of different arguments in these calls."""
    once: int = 0
    """Number of arguments that occurred once."""
    twice: int = 0
    """Number of arguments that occurred twice."""
    different: int = 0
    """Number of different results of these calls."""


NOTHING_KEPT = Kept()


class Measured(NamedTuple):
    """Some samples, produced by the present code and by the rewritten code."""

    samples: int
    before: Cost
    after: Cost
    difference: Difference
    problem: str = ""
    """What the rewritten code has raised, or why it cannot be tried; "" if nothing."""
    loop: float = 0.0
    """Time of what the loop computes instead of the workers, seconds."""
    pictures: Pictures | None = None
    """The picture that differs most; None if no picture differs."""
    kept: Kept = NOTHING_KEPT
    """What the cache keeps since the trial began, if the rewritten code has one."""
    parts: tuple[str, ...] = ()
    """The parts of the batch that the loop computes, such as `["image"]`; `""` is the whole batch."""
    filling: Cost | None = None
    """What the rewritten code took when its cache had no results of these samples; None if it has none."""
    filled: Cost | None = None
    """What the rewritten code takes once its cache has all results; None if that is `after`."""
    once: float = 0.0
    """How much longer its first samples took in this process, seconds."""


def _is_far_slower(measured: Sequence[Measured]) -> bool:
    after = sum(one.after.seconds for one in measured)
    return after > max(FAR_SLOWER_SECONDS, FAR_SLOWER * sum(one.before.seconds for one in measured))


class _Counts(NamedTuple):
    """What the sample cache has counted, and what it keeps."""

    misses: int = 0
    nbytes: int = 0
    entries: int = 0

    def later(self, begin: _Counts, end: _Counts) -> _Counts:
        """Return the sum of this and of what was added between two moments."""
        added = (new - old for old, new in zip(begin, end, strict=True))
        return _Counts(*(one + more for one, more in zip(self, added, strict=True)))


class Made(NamedTuple):
    """What a run has produced, and what that took."""

    cost: Cost
    batch: Any


@dataclass
class Trial:
    """A dataset whose items are measurements, in this order. After the last one, the items are None.

    So the worker is idle when its loader is closed. A worker that is killed while it runs the user's code could hold a
    lock that the workers of a running epoch wait for.

    Args:
        produce: Makes a batch from dataset indices, as the loader would. An attribute `collating` of it, if there is
            one, is the time that collating the last batch took, seconds.
        roots: Where the function of the line is reachable from.
        groups: The dataset indices of each measurement. Those of the first one are not measured: on them, both codes do
            what they do once per process.
        line: The slow line.
        proposal: What to write instead.
        seconds: The trial ends with the measurement in which it has taken so long.
        limit: How long a measurement may take; whoever runs the trial ends it.
        uncached: Whether both codes run without the user's cached functions, which would not run the line again.
    """

    produce: Callable[[Any], Any]
    roots: Sequence[Any]
    groups: Sequence[Any]
    line: HotLine
    proposal: Proposal
    seconds: float
    limit: float
    uncached: bool = False
    _cell: list[str] = field(init=False, repr=False)
    """Source of the cell with the line; empty if the line is in a file."""
    _seed: int = field(default_factory=partial(secrets.randbits, 62), init=False, repr=False)
    """Both codes draw the same random numbers, and each trial others: the cache has no results of an earlier trial with
    arguments that are drawn at random."""
    _end: float = field(default=0.0, init=False, repr=False)
    """When the trial has taken so long, perf_counter seconds; 0 before it begins."""
    _measured: list[Measured] | None = field(default_factory=list, init=False, repr=False)
    """None after the last measurement."""
    _new: _Swap | None = field(default=None, init=False, repr=False)
    _usual: dict[int, Made] = field(default_factory=dict, init=False, repr=False)
    """By position: what the present code has produced, if the rewritten code changes the process for good."""
    _before: _Counts = field(default=_Counts(), init=False, repr=False)
    """The contents of the cache of samples before the trial."""
    _calls: CachedCalls = field(default_factory=CachedCalls, init=False, repr=False)
    """Calls of the cached function while samples were produced for the first time."""
    _first: float = field(default=0.0, init=False, repr=False)
    """What the first group took, seconds."""
    _parts: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    """See `Measured`."""
    _made: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """Number of samples in each group that the rewritten code has produced, by identity: a group may serve twice."""

    def __post_init__(self) -> None:
        """Read the cell, which only the notebook's process knows."""
        self._cell = [] if Path(self.line.file).exists() else linecache.getlines(self.line.file)

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.groups) - 1

    def __getitem__(self, position: int) -> Measured | None:
        """Measure both codes on one group of samples. Return None if the trial has ended.

        Raises:
            Exception: Whatever the present code raises. It ends the trial.
        """
        before, self._measured = self._measured, None
        if before is None:
            return None
        self._end = self._end or time.perf_counter() + self.seconds
        around = without_cache() if self.uncached else contextlib.nullcontext()
        with warnings.catch_warnings(), around:  # of the user's code, which its own epochs show
            warnings.simplefilter("ignore")
            measured = self._measure(position)
        before.append(measured)
        if not (measured.problem or _is_far_slower(before) or time.perf_counter() >= self._end):
            self._measured = before
        return measured

    def _measure(self, position: int) -> Measured:
        first, indices, seed = self.groups[0], self.groups[1 + position], mix(self._seed, position)
        try:
            # Its files are in the page cache from now on, for both codes, and what torch warns of once, it has said.
            self._run(None, indices, seed)
            if self._new is None:
                self._prepare(first)
            usual = self._usual.get(position)
            filling, calls = None, 0
            if self.proposal.saves == "later":  # filled under another seed: what is drawn at random then differs
                filling, calls = self._fill(indices, mix(seed, 1))
            missed = self._cached.misses
            if position % 2 or usual is not None:
                made = self._run(self._new, indices, seed)
                usual = usual or self._run(None, indices, seed)
            else:
                usual = self._run(None, indices, seed)
                made = self._run(self._new, indices, seed)
            missed = self._cached.misses - missed
            if 0 < calls <= missed:
                self._check_arguments(indices, mix(seed, 2))
            # If arguments are drawn at random from a few, the cache did not have all results yet.
            counts = self._calls.counts
            shared = missed > 0 and len(counts) < counts.total()
            filled = self._run(self._new, indices, seed).cost if shared else None
            begin = time.perf_counter()
            batch = self._converted(made.batch, usual.batch)
            loop = time.perf_counter() - begin if self.proposal.loop else 0.0
        except CannotTryError as error:
            return Measured(len(indices), Cost(0, 0), Cost(0, 0), Difference(), str(error))
        apart = difference(usual.batch, batch)
        pictures = None if apart.equal or apart.problem else pictures_of(usual.batch, batch)
        return Measured(
            len(indices), usual.cost, made.cost, apart, "", loop, pictures, self._kept(), tuple(self._parts), filling,
            filled,
            self._once(len(first), made.cost.seconds / len(indices)),
        )  # fmt: skip

    @property
    def _cached(self) -> _Counts:
        """What the cache has counted and keeps, if the rewritten code has one."""
        now = process_cache.gauge() if self.proposal.saves == "later" else None
        return _Counts() if now is None else _Counts(now.misses, now.nbytes, now.entries)

    def _fill(self, indices: Any, seed: int) -> tuple[Cost, int]:
        """Produce samples for the first time, which fills the cache.

        Returns:
            What that took, and how often a cached function was called.
        """
        made = self._run(self._new, indices, seed)
        calls = self._cached_calls(indices, seed)
        self._calls.add(calls)
        return made.cost, calls.counts.total()

    def _cached_calls(self, indices: Any, seed: int) -> CachedCalls:
        """Return the calls of a cached function while samples are produced; none without a cache."""
        if self.proposal.saves != "later":
            return CachedCalls()
        with cached_calls(_globals(self._new), self.proposal.helper) as calls:
            self._run(self._new, indices, seed)
        return calls

    def _once(self, samples: int, each: float) -> float:
        """Return how much longer the first samples took than later ones.

        A cache computes what samples share with the first ones, which is not done in each process.
        """
        return 0.0 if self.proposal.saves == "later" else max(0.0, self._first - samples * each)

    def _kept(self) -> Kept:
        """Return what the cache keeps since the trial began."""
        before, now = self._before, self._cached
        nbytes, entries = now.nbytes - before.nbytes, now.entries - before.entries
        counts = self._calls.counts
        once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
        return Kept(
            nbytes, entries, sum(self._made.values()), counts.total(), len(counts), once, twice, self._calls.different
        )

    def _prepare(self, first: Any) -> None:
        """Rewrite the function, and have it do what it does once per process."""
        if self.proposal.saves == "threads":  # the rewritten code changes a setting of the process
            for position, indices in enumerate(self.groups[1:]):
                self._run(None, indices, mix(self._seed, position))
                self._usual[position] = self._run(None, indices, mix(self._seed, position))
        if self._cell:  # a size and no time: the entry is not of a file that may have changed
            linecache.cache.setdefault(self.line.file, (len("".join(self._cell)), None, self._cell, self.line.file))
        site = locate(self.line, self.roots)
        if site is None:
            raise CannotTryError("the function of the line was not found in the worker")
        self._new = _swap(site, self.proposal)
        self._before = self._cached
        if self._before.entries:  # of the user's own cached functions, which then have the results of these samples
            self._run(None, first, self._seed)
        filling, _calls = self._fill(first, self._seed)
        self._first = filling.seconds

    def _run(self, new: _Swap | None, indices: Any, seed: int) -> Made:
        rng.seed_everything(seed)
        if new is None:
            before = self._cached
            made = timed(self.produce, indices)
            self._before = self._before.later(before, self._cached)  # what the user's own functions keep
            return made
        self._made[id(indices)] = len(indices)
        try:
            with new.in_place(), warnings.catch_warnings():
                warnings.filterwarnings("error", READ_ONLY)  # a tensor that shares its memory could be written to
                return timed(self.produce, indices)
        except Exception as error:
            raise CannotTryError(f"{RAISES}{type(error).__name__}: {error}") from error

    def _check_arguments(self, indices: Any, seed: int) -> None:
        """Check that the cached function gets the same arguments again if other random numbers are drawn."""
        counts = self._calls.counts
        if self._cached_calls(indices, seed).counts.keys().isdisjoint(counts):
            raise CannotTryError(f"none of {counts.total():,} calls had the arguments of another one")

    def _converted(self, made: Any, usual: Any) -> Any:
        """Compute what the loop computes instead of the workers; that has to be something."""
        batch = self._in_loop(made, usual)
        if self.proposal.loop and not self._parts:
            raise CannotTryError(f"{RAISES}no part of a sample is converted later")
        return batch

    def _in_loop(self, made: Any, usual: Any, part: str = "") -> Any:
        """Compute what the loop computes instead of the workers, of each value whose type has changed."""
        if not self.proposal.loop:
            return made
        dtype, wanted = getattr(made, "dtype", None), getattr(usual, "dtype", None)
        if dtype is not None and dtype != wanted:
            if getattr(dtype, "is_floating_point", getattr(dtype, "kind", "") == "f"):  # the workers do not send bytes
                raise CannotTryError(f"{RAISES}no integers remain in the workers")
            self._parts[part] = None
            try:
                return eval(self.proposal.loop, {**_globals(self._new), "dataset": self.roots[0], "batch": made})  # noqa: S307 - of a remedy
            except Exception as error:
                raise CannotTryError(f"{RAISES}in the loop {type(error).__name__}: {error}") from error
        if isinstance(made, dict):
            return {key: self._in_loop(value, usual[key], f"{part}[{key!r}]") for key, value in made.items()}
        if isinstance(made, (list, tuple)):
            pairs = zip(made, usual, strict=True)
            values = [self._in_loop(*pair, f"{part}[{number}]") for number, pair in enumerate(pairs)]
            return type(made)(*values) if hasattr(made, "_fields") else type(made)(values)
        return made


class _Swap(NamedTuple):
    """The rewritten code, and where it belongs."""

    function: FunctionType
    """The present function."""
    code: CodeType
    cls: type | None = None
    """The class that gets the code as a new method; None if it takes the place of the function's code."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager in which the rewritten code is in force."""
        if self.cls is not None:
            name = self.code.co_name
            function: Any = self.function
            method = FunctionType(self.code, function.__globals__, name, None, function.__closure__)
            setattr(self.cls, name, method)
            try:
                yield
            finally:
                delattr(self.cls, name)
            return
        function = self.function  # mypy takes the attribute for that of a method
        usual, function.__code__ = function.__code__, self.code
        try:
            yield
        finally:
            function.__code__ = usual


def _swap(site: Site, proposal: Proposal) -> _Swap:
    code = code_of(site.function, proposal)
    adds = code.co_name not in (site.tree.name, site.function.__name__)
    return _Swap(site.function, code, type(site.owner) if adds else None)


def _globals(swap: _Swap | None) -> dict[str, Any]:
    function: Any = None if swap is None else swap.function
    return getattr(function, "__globals__", {})


def timed(produce: Callable[[Any], Any], indices: Any) -> Made:
    """Produce samples, and measure what that takes. For the argument, see `Trial`."""
    cpu, begin = time.process_time(), time.perf_counter()
    made = produce(indices)
    elapsed, computing = time.perf_counter() - begin, time.process_time() - cpu
    collating = min(elapsed, getattr(produce, "collating", 0.0))
    return Made(Cost(computing, max(0.0, elapsed - computing), collating), made)


def code_of(function: FunctionType, proposal: Proposal) -> CodeType:
    """Compile the rewritten function so that it can take the place of the present one, and execute the helper's code.

    Args:
        function: The present function.
        proposal: The proposal.

    Raises:
        CannotTryError: It needs a package that is missing, or refers to other variables of enclosing functions.
    """
    if proposal.untried:
        raise CannotTryError(proposal.untried)
    if proposal.package:
        raise CannotTryError(f"needs {proposal.package}, which is not installed: pip install {proposal.package}")
    if proposal.helper:
        exec(compile(proposal.helper, "<nbloader remedy>", "exec"), function.__globals__)  # noqa: S102 - of a remedy
    free = function.__code__.co_freevars
    *_outer, owner, _name = ["", *function.__qualname__.replace("<locals>.", "").split(".")]
    # As a method of a class of this name, in a function with the same variables, it is compiled as it was.
    around = ast.parse(f"def _around({', '.join(free)}):\n    class {owner or '_'}: pass")
    (function_around,) = around.body
    (class_around,) = function_around.body  # type: ignore[attr-defined]
    written: Any = ast.parse(proposal.code).body[0]
    class_around.body = [written]
    found = _find(compile(around, function.__code__.co_filename, "exec"), written.name)
    if found is None or found.co_freevars != free:
        raise CannotTryError("it refers to other variables of enclosing functions than the present code")
    return found


def _find(code: CodeType, name: str) -> CodeType | None:
    """Return the code of the outermost function of this name inside some code."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for constant in inner:
        if constant.co_name == name:
            return constant
    return next((found for constant in inner if (found := _find(constant, name)) is not None), None)

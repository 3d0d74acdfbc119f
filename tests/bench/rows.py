"""The rows of the benchmark: workload, systems and targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import real_samples
import startup
import systems
import work

OURS, TORCH = "nbloader", "torch"
BARE, ALONE = "no loader", "no transfer"
UNSHARED = "without share"
UNCACHED = "without cache"
DIRECT = "direct indexing"
LOOP = "asyncio alone"
QUICK_US = 300
"""Time of a batch below which a fixed overhead is judged, in microseconds."""
STARTUP = 1.2
"""Largest time until a first batch, relative to torch's."""
CONFIDENCE = 0.93
"""Level of the confidence interval of each median; five turns give 0.9375."""

Turns = "dict[str, list[dict[str, float]]]"
"""The results of each system's turns, in the order in which they were taken."""


@dataclass(frozen=True)
class Verdict:
    """One target and its result."""

    want: str
    found: str
    verdict: str
    """ "met" or "missed"; "unclear" if the confidence interval contains the target."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    """The key of its workload, and the name that `--rows` accepts."""
    title: str
    unit: str
    kind: str
    """The method of `side.Side` that measures a turn."""
    judge: Callable[[Turns], list[Verdict]]
    extra: tuple[str, ...] = ()
    """Systems in addition to torch and ours."""
    peers: bool = False
    fresh: bool = False
    """A new process for each turn."""
    turns: int = 5
    seconds: float = 0.5
    """Minimum duration of a turn that measures a rate; it consists of whole epochs."""
    torch: bool = True
    """Whether torch runs it, too. Then the values are compared."""
    group: str = ""
    """Another name that `--rows` accepts, for several rows."""
    package: str = ""
    """The package without which the row is left out."""
    beside: bool = True
    """Whether torch takes all turns; otherwise one, to compare the values with."""


def median(turns, system, key="value"):
    """The median of one figure of one system."""
    return statistics.median(turn[key] for turn in turns[system])


def ratios(turns, one, other, key="value"):
    """The ratio of `one` to `other` for each pair of consecutive turns."""
    return [a[key] / b[key] for a, b in zip(turns[one], turns[other], strict=True)]


def interval(values):
    """A confidence interval of the median at 93% or more, for any distribution: order statistics (the sign test).

    For five values it is their whole range; for eleven it reaches from the second to the tenth.
    """
    n = len(values)
    cut = 0
    while 1 - 2 * sum(math.comb(n, i) for i in range(cut + 2)) / 2**n >= CONFIDENCE:
        cut += 1
    ordered = sorted(values)
    return ordered[cut], ordered[n - 1 - cut]


def _judged(what, sign, values, want, form):
    low, high = interval(values)
    good = (low >= want, high >= want) if sign == "≥" else (high <= want, low <= want)
    verdict = "met" if good[0] else "unclear" if good[1] else "missed"
    found = f"{form.format(statistics.median(values))} ({form.format(low)} to {form.format(high)})"
    return Verdict(f"{what} {sign} {form.format(want)}", found, verdict)


def at_least(what, values, want, form="{:.1f}x"):
    return _judged(what, "≥", values, want, form)


def at_most(what, values, want, form):
    return _judged(what, "≤", values, want, form)


def each(turns, system, key="value"):
    """One figure of one system, turn by turn."""
    return [turn[key] for turn in turns[system]]


def times(torch, peers=0.0):
    """Judge a rate against torch's, and against the fastest peer's if one was measured."""

    def judge(turns):
        verdicts = [at_least("torch", ratios(turns, OURS, TORCH), torch)]
        measured = [peer for peer in systems.PEERS if peer in turns]
        if peers and measured:
            best = max(measured, key=lambda peer: median(turns, peer))
            verdicts.append(at_least(f"fastest peer ({best})", ratios(turns, OURS, best), peers))
        return verdicts

    return judge


def _large(turns):
    """Report the share of a memcpy, too: one thread copies into one buffer, which stays in the cache.

    Two cores share the memory bandwidth, so the rate of as many copying processes is reported as well.
    """
    judged, *others = times(8)(turns)
    one = 100 * statistics.median(ratios(turns, OURS, "memcpy"))
    two = 100 * statistics.median(ratios(turns, "two memcpy", "memcpy"))
    low, high = interval([100 * r for r in ratios(turns, OURS, "two memcpy")])
    share = 100 * statistics.median(ratios(turns, OURS, "two memcpy"))
    limit = f"two processes without a loader reach {two:.0f}%: {share:.0f}% ({low:.0f} to {high:.0f}%) of that"
    return [replace(judged, found=f"{judged.found}; {one:.0f}% of one thread's memcpy; {limit}"), *others]


def computed(torch, peers=0.0):
    """Judge a rate when all cores compute; the CPU time per batch of all processes is reported, too.

    So are the rates of processes without a loader (bare.py): hand-written code for this dataset, without support for
    order, faults or events; and processes that transfer nothing.
    """

    def judge(turns):
        judged, *others = times(torch, peers)(turns)
        took = ", ".join(f"{name} {median(turns, name, 'all_us'):.0f} us" for name in (TORCH, OURS, BARE))
        others_there = [TORCH, *(peer for peer in systems.PEERS if peers and peer in turns)]
        limits = []
        for system in (ALONE, BARE):
            reach = [f"{statistics.median(ratios(turns, system, other)):.1f}x {other}" for other in others_there]
            share = 100 * statistics.median(ratios(turns, OURS, system))
            limits.append(f"{system}: {', '.join(reach)}, nbloader at {share:.0f}% of it")
        found = f"{judged.found}; {'; '.join(limits)}; CPU time per batch, all processes: {took}"
        return [replace(judged, found=found), *others]

    return judge


def _of_ideal(turns, ideal, want):
    """Judge against the nominal ideal; the share of what the measured sleeps allow is reported, but not judged.

    A sleep takes longer than requested. The difference is measured in the same turns, on a thread without a loader; no
    loader can come closer to the ideal.
    """
    judged = at_least(f"the ideal of {ideal:.1f}/s", [100 * v / ideal for v in each(turns, OURS)], want, "{:.1f}%")
    slept = each(turns, OURS, "slept")
    share = statistics.median(100 * v * s / ideal for v, s in zip(each(turns, OURS), slept, strict=True))
    ceiling = f"sleeps took {statistics.median(slept):.3f}x the requested time: {share:.1f}% of what they allow"
    return [replace(judged, found=f"{judged.found}; {ceiling}")]


def _wait(turns):
    return _of_ideal(turns, 100.0, 96)


def _threads(turns):
    return _of_ideal(turns, 200.0, 96)


def _awaited(turns):
    """Judge against the ideal; an event loop without a loader, in the same turns, is reported, too."""
    job = work.WORK["async"]
    ideal = job.workers * job.concurrency / work.AWAITED / job.batch_size
    judged = at_least(f"the ideal of {ideal:,.0f}/s", [100 * v / ideal for v in each(turns, OURS)], 95, "{:.1f}%")
    alone = [100 * v / ideal for v in each(turns, LOOP)]
    low, high = interval(alone)
    found = f"{judged.found}; {LOOP} {statistics.median(alone):.1f}% ({low:.1f} to {high:.1f}%)"
    return [replace(judged, found=f"{found}; {_begun(turns)}")]


def _stragglers(turns):
    job, batches = work.WORK["stragglers"], work.BATCHES["stragglers"]
    return _of_ideal(turns, batches / (sum(work.straggling(job.batch_size * batches)) / job.workers), 88)


def _jpeg(turns):
    workers = work.WORK["jpeg"].workers
    part = [100 * r / workers for r in ratios(turns, OURS, "in process")]
    return [at_least(f"{workers}x in process", part, 85, "{:.1f}%")]


def _cached(turns):
    (judged,) = times(8)(turns)
    without = statistics.median(ratios(turns, OURS, UNCACHED))
    return [replace(judged, found=f"{judged.found}; {without:.1f}x nbloader without cache; {_begun(turns)}")]


def _first_batch(turns, key="value"):
    """Judge the time until a first batch against torch's."""
    return at_most("first batch, of torch's", ratios(turns, OURS, TORCH, key), STARTUP, "{:.2f}x")


def _later(turns):
    return [_first_batch(turns)]


def _forked(turns):
    judged = _first_batch(turns, "first_us")
    return [*times(1)(turns), replace(judged, found=f"{judged.found}; {_begun(turns)}")]


def _first(turns):
    """A worker needs at least an interpreter that imports NumPy: the time of one, in the same turns, is reported."""
    judged = _first_batch(turns)
    return [
        replace(judged, found=f"{judged.found}; one spawn and import of NumPy {median(turns, OURS, 'once'):.0f} ms")
    ]


def _first_torch(turns):
    """One spawn and import of torch, timed in each turn, is reported, too."""
    judged = _first_batch(turns)
    return [
        replace(judged, found=f"{judged.found}; one spawn and import of torch {median(turns, OURS, 'once'):.0f} ms")
    ]


def _memory(turns):
    """What the array and a process that has imported torch take without a loader is reported, too."""
    judged = at_most("of torch's memory", [100 * r for r in ratios(turns, OURS, TORCH)], 105, "{:.1f}%")
    before = f"{median(turns, OURS, 'before'):,.0f} MB of it before the loader was created"
    kept = f"{median(turns, OURS, 'segments'):,.0f} MB of segments"
    return [
        replace(judged, found=f"{judged.found}; {before}; {kept}"),
        _first_batch(turns, "first"),
    ]


def _objects(turns):
    """Memory relative to one copy of the dataset, first batch relative to pickling and unpickling it once.

    Judged with `nbloader.share`, which the first batch includes; without it both are reported, too.
    """

    def shares(system):
        return [100 * turn["value"] / turn["copy_mb"] for turn in turns[system]]

    def parts(system):
        return [turn["first"] / turn["twice"] for turn in turns[system]]

    def found(judged, measure, form):
        others = ", ".join(
            f"{name} {form.format(statistics.median(measure(name)))}" for name in (TORCH, UNSHARED) if name in turns
        )
        return replace(judged, found=f"{judged.found}; {others}")

    memory = at_most("of one copy beyond the notebook's own", shares(OURS), 125, "{:.0f}%")
    first = at_most("first batch, of one pickle and unpickle", parts(OURS), 1.5, "{:.2f}x")
    return [found(memory, shares, "{:.0f}%"), found(first, parts, "{:.2f}x")]


def _events(turns):
    """Wall time is judged; the parent's CPU time per batch, less sensitive to other load, is reported, too."""
    slower = [100 * (r - 1) for r in ratios(turns, "without events", OURS)]
    judged = at_most("slower than without", slower, 15, "{:.1f}%")
    cpu = 100 * (statistics.median(ratios(turns, OURS, "without events", "cpu_us")) - 1)
    return [replace(judged, found=f"{judged.found}; {cpu:+.1f}% CPU time of the parent")]


def _watched(turns):
    slower = [100 * (r - 1) for r in ratios(turns, OURS, "watched")]
    return [
        at_most("slower than without", slower, 2, "{:.1f}%"),
        at_most("of a core", each(turns, "watched", "watching"), 3, "{:.1f}%"),
    ]


def _shuffled(turns):
    return [
        at_most("first batch", each(turns, OURS), 1000, "{:.0f} ms"),
        at_most("memory of the notebook", each(turns, OURS, "mb"), 100, "{:.0f} MB more"),
    ]


def _startup(turns):
    """The first loader needs one import of the package: that of this process, in the same turns, is reported, too."""
    judged = _first_batch(turns)
    first, imported = median(turns, OURS, "first"), median(turns, OURS, "imported")
    found = f"{judged.found}; first loader {first:,.0f} ms, torch's {median(turns, TORCH, 'first'):,.0f} ms"
    return [replace(judged, found=f"{found}; import of the package {imported:,.0f} ms")]


def _keep(turns):
    return [at_most("memory relative to the data", each(turns, OURS), 110, "{:.0f}%")]


def _begun(turns):
    """The time from `iter()` to the first batch, and the CPU time of a batch: reported, not judged."""
    measured = [name for name in (TORCH, OURS, DIRECT) if name in turns]
    first = ", ".join(f"{name} {median(turns, name, 'first_us'):,.0f} us" for name in measured)
    cpu = ", ".join(f"{name} {median(turns, name, 'cpu_us'):,.0f} us" for name in measured)
    return f"first batch after iter(): {first}; CPU time of this process per batch: {cpu}"


def _longer(turns, other):
    """Microseconds per batch by which ours takes longer than the other system, for each pair of turns."""
    return [1e6 / a["value"] - 1e6 / b["value"] for a, b in zip(turns[OURS], turns[other], strict=True)]


def _in_process(turns):
    """Judge the ratio where a batch of torch takes 300 us or more, and the difference of quicker ones."""
    if 1e6 / median(turns, TORCH) >= QUICK_US:
        judged = at_least("torch", ratios(turns, OURS, TORCH), 0.75, "{:.2f}x")
    else:
        judged = at_most("more than torch", _longer(turns, TORCH), 60, "{:.1f} us")
    return [replace(judged, found=f"{judged.found}; {_begun(turns)}")]


def _gathered(turns):
    """Judge against direct indexing without a loader."""
    judged = at_most("more than direct indexing", _longer(turns, DIRECT), 25, "{:.1f} us")
    return [replace(judged, found=f"{judged.found}; {_begun(turns)}")]


def _gathered_by_processes(turns):
    (judged,) = times(10)(turns)
    return [replace(judged, found=f"{judged.found}; {_begun(turns)}")]


def _samples(turns):
    (judged,) = times(1)(turns)
    cpu = ", ".join(f"{name} {median(turns, name, 'all_us'):,.0f} us" for name in (TORCH, OURS))
    return [replace(judged, found=f"{judged.found}; {_begun(turns)}, of all processes: {cpu}")]


def _samples_row(name):
    """A row of real_samples.py."""
    workload = real_samples.WORKLOADS[name]
    title = f"{(workload.__doc__ or name).removesuffix('.')}, 2 workers"
    package = real_samples.package_of(name)
    return Row(f"samples_{name}", title, "batch/s", "rate", _samples, seconds=0.25, group="samples", package=package)


def _in_process_row(name, title):
    """A row with `num_workers=0`."""
    return Row(f"inproc_{name}", f"{title}, num_workers=0", "batch/s", "rate", _in_process, turns=11, seconds=0.25)


def _memory_row(name, title, judge, extra=(), turns=11):
    """A row of a shuffled `TensorDataset`."""
    rows = "shuffled TensorDataset of 200,000 x 32 floats, batch 1,024"
    return Row(f"memory_{name}", f"{rows}, {title}", "batch/s", "rate", judge, extra, turns=turns, seconds=0.25)


ROWS = (
    Row(
        "large",
        "large: 64 x 3x224x224 float32, no work, 2 workers",
        "batch/s",
        "rate",
        _large,
        ("memcpy", "two memcpy"),
        peers=True,
        turns=11,
    ),
    Row("tiny", "tiny: 32 x (8 floats, int), 2 workers", "batch/s", "rate", times(8, 3), peers=True),
    Row("forked", "tiny, 200 batches, 2 workers forked for each epoch", "batch/s", "rate", _forked, turns=11),
    Row(
        "dict40",
        "dict of 40 arrays of 64 floats, batch 32, 2 workers",
        "batch/s",
        "rate",
        computed(20, 5),
        (BARE, ALONE),
        peers=True,
        turns=11,
    ),
    Row(
        "custom",
        "strings, nested lists, variable arrays, custom collate, 2 workers",
        "batch/s",
        "rate",
        computed(2),
        (BARE, ALONE),
        turns=11,
    ),
    Row("wait", "5 ms sleep per sample, batch 16, 8 workers", "batch/s", "rate", _wait, peers=True),
    Row("threads", 'the same with workers="thread", 16 threads', "batch/s", "rate", _threads),
    Row(
        "async",
        "50 ms awaited per sample, 1,000 in flight, batch 20, 2 workers (torch cannot await samples)",
        "batch/s",
        "rate",
        _awaited,
        (LOOP,),
        torch=False,
    ),
    Row(
        "jpeg", "JPEG decode, resize, crop, batch 32, 2 workers", "batch/s", "rate", _jpeg, ("in process",), peers=True
    ),
    Row(
        "cached",
        "the same from files, after the first epoch: ours decodes with a cached function, torch's each time",
        "batch/s",
        "rate",
        _cached,
        (UNCACHED,),
    ),
    Row("later", "first batch of a later epoch, large, 2 workers", "ms", "later", _later, peers=True),
    Row("first", "first batch of a process, NumPy only, 4 workers", "ms", "first", _first, fresh=True),
    Row(
        "first_torch",
        "first batch of a process, torch in the dataset, 4 workers",
        "ms",
        "first",
        _first_torch,
        fresh=True,
    ),
    Row("stragglers", "1 ms per sample, every 50th 100 ms, batch 16, 4 workers", "batch/s", "rate", _stragglers),
    Row("memory", "1 GB array in the dataset, 4 workers, all processes", "MB", "memory", _memory, fresh=True),
    Row(
        "objects",
        "list of 400,000 dicts, ten epochs, 4 workers",
        "MB PSS more",
        "objects",
        _objects,
        (UNSHARED,),
        fresh=True,
        turns=1,
    ),
    Row(
        "objects32",
        "the same, 32 workers",
        "MB PSS more",
        "objects",
        _objects,
        (UNSHARED,),
        fresh=True,
        turns=1,
    ),
    Row(
        "events",
        "tiny, with events and history or without",
        "batch/s",
        "rate",
        _events,
        ("without events",),
        turns=40,
        seconds=0.25,
        beside=False,
    ),
    Row(
        "watched",
        "tiny, with a dashboard at 4 Hz or without",
        "batch/s",
        "rate",
        _watched,
        ("watched",),
        turns=40,
        seconds=0.25,
        beside=False,
    ),
    Row(
        "shuffled", "first batch of 100 million samples, shuffled", "ms", "shuffled", _shuffled, fresh=True, torch=False
    ),
    _in_process_row("ints", "list of integers, batch 32"),
    _in_process_row("own", "integers from a class of one's own, batch 32"),
    _in_process_row("strings", "list of strings, batch 32"),
    _in_process_row("tensors", "tensors of 8 floats, batch 32"),
    _in_process_row("arrays", "arrays of 8 floats, batch 32"),
    _in_process_row("dict40", "dicts of 40 tensors, batch 32"),
    _in_process_row("image", "image and dict, batch 32"),
    _in_process_row("large", "64 x 3x224x224 tensors"),
    _memory_row("inproc", "num_workers=0", _gathered, (DIRECT,)),
    _memory_row("thread", "one thread", _gathered, (DIRECT,)),
    _memory_row("process", "2 workers", _gathered_by_processes, turns=5),
    *(
        Row(
            f"startup_{name}",
            f"first batch of another loader, {name} in the workers, 2 workers",
            "ms",
            "startup",
            _startup,
            group="startup",
            package=name,
        )
        for name in startup.WORKLOADS
    ),
    *map(_samples_row, real_samples.MEASURED),
    Row("keep", "list(loader): memory relative to the data, 2 workers", "%", "keep", _keep, fresh=True),
)

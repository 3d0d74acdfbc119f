"""Checks of unit 6: find the bottleneck."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbloader import DataLoader
from nbloader.events import BatchRecord

from . import Hint, Unanswered, Unit, attempt, number
from .worker_side import CALLS, notes

unit = Unit()
progress = unit.progress

WORDS = {
    "consumer": "the loop takes the time, and the loader keeps up",
    "startup": "workers take long to begin",
    "sampler": "indices are drawn slowly, one after the other",
    "window": "workers are idle: too few batches may be requested ahead",
    "in_process": "there are no workers: batches are made while the loop waits",
    "workers_wait": "all workers are busy, and all samples wait alike for a disk or a network",
    "workers_compute": "all workers are busy, and all samples compute alike",
    "slow_samples": "a few samples take much longer than the others",
    "collate": "combining the samples takes the time",
    "huge_batches": "the batches have too many bytes",
    "pickle": "Python objects are pickled and unpickled",
    "lock": "workers wait for each other",
}
LIMIT = 60.0
"""Seconds that an epoch may take on a busy machine."""
TURNS = 3
"""Epochs before and after the change of loader A that are measured, alternately."""
OVERLAPS = 3
"""Batches that must have been in progress while another one was. Chance delays of a busy machine prevent many more."""


def words() -> None:
    """Print the words for causes."""
    for word, meaning in WORDS.items():
        print(f"{word:16} {meaning}")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _diagnosis(answer: Any, right: Collection[str], hint: str) -> None:
    if answer not in WORDS:
        raise Hint(
            f"the cause is one of the words {', '.join(WORDS)}. {answer!r} is none of them."
        )
    if answer not in right:
        raise Hint(f"the cause is not {answer!r} ({WORDS[answer]}): {hint}")


def _made(make: Callable[[], Any]) -> DataLoader[Any]:
    """The loader of a student.

    Raises:
        Unanswered: The function still returns the dots.
        Hint: It returns something else than a loader.
    """
    loader = make()
    if loader is ...:
        raise Unanswered("your function still returns the dots: replace them.")
    if not isinstance(loader, DataLoader):
        raise Hint(
            f"the function should return a DataLoader, not {type(loader).__name__}."
        )
    return loader


def _epoch(make: Callable[[], Any]) -> tuple[list[Any], list[BatchRecord]]:
    """The batches of an epoch of the student's loader, and its records."""

    def run() -> tuple[list[Any], list[BatchRecord]]:
        with _made(make) as loader:
            batches = list(loader)
            return batches, [
                record for record in loader.events.batches() if record.epoch == 0
            ]

    made: tuple[list[Any], list[BatchRecord]] = attempt(run, limit=LIMIT)
    return made


def _overlaps(records: Sequence[BatchRecord]) -> int:
    """Batches that were begun before one that began earlier was fetched."""
    spans = sorted((record.fetch_begin, record.fetched) for record in records)
    ends = itertools.accumulate((end for _, end in spans), max)
    return sum(begin < end for end, (begin, _) in zip(ends, spans[1:], strict=False))


def _same_numbers(batches: Sequence[Any], expected: Sequence[int], size: int) -> None:
    made = [[int(i) for i in batch] for batch in batches]
    if made != [list(expected[at : at + size]) for at in range(0, len(expected), size)]:
        first = made[0] if made else "missing"
        raise Hint(
            f"the batches are not the same: the first one is {first}. Change the loader, not what it delivers."
        )


@unit.task("Loader A")
def a(cause: Any, cured: Callable[[], Any]) -> str:
    """No workers."""
    _diagnosis(cause, {"in_process"}, "how many workers does this loader have?")
    return _overlapping(cured)


def _overlapping(cured: Callable[[], Any]) -> str:
    """What the check of loader A says of it.

    Raises:
        Hint: It has other batches, or makes them one after the other.
    """
    batches, records = _epoch(cured)
    _same_numbers(batches, range(160), 4)
    overlaps = _overlaps(records)
    if overlaps < OVERLAPS:
        raise Hint(
            f"{overlaps} of {len(records)} batches began while another one was in progress: they are still made one "
            "after the other, by the loop or by a single worker."
        )
    return f"{overlaps} of {len(records)} batches began while another one was in progress. Before, none did."


@unit.task("Loader B")
def b(cause: Any, cured: Callable[[], Any]) -> str:
    """A window of one batch."""
    _diagnosis(
        cause,
        {"window"},
        "there are four workers. How many batches may be on the path?",
    )
    batches, records = _epoch(cured)
    _same_numbers(batches, range(160), 4)
    overlaps = _overlaps(records)
    if overlaps < OVERLAPS:
        raise Hint(f"{overlaps} of {len(records)} batches began while another one was in progress: workers are idle, "
                   "however many there are, if only one batch may be requested.")  # fmt: skip
    loader = attempt(cured)
    window = loader.stats().window
    loader.close()
    if window < loader.num_workers:
        raise Hint(
            f"the window has {window} batches, and there are {loader.num_workers} workers: some of them are always "
            "idle."
        )
    return (
        f"{overlaps} of {len(records)} batches began while another one was in progress."
    )


@unit.task("Loader C")
def c(cause: Any, cured: Callable[[], Any]) -> str:
    """Work that is repeated for each sample."""
    _diagnosis(
        cause,
        {"workers_compute"},
        "look at the hottest line. Does it wait, or compute?",
    )
    CALLS.clear()
    batches, _records = _epoch(cured)
    _same_numbers(batches, [i * i for i in range(96)], 8)
    loader = attempt(cured)
    samples = attempt(lambda: [loader.dataset[i] for i in range(96)], limit=LIMIT)
    loader.close()
    if [int(sample) for sample in samples] != [i * i for i in range(96)]:
        raise Hint("the samples are not the same.")
    calls = CALLS["make_table"]
    if calls == 0:
        raise Hint(
            "make_table was not called when the loader was made or used. Call it there, not in a cell or a cache: "
            "imagine that it reads a file."
        )
    if calls > 8:
        raise Hint(
            f"make_table was called {calls} times for 96 samples, and its result is the same each time."
        )
    return (
        f"The check called make_table {_times(calls)}, and no longer for each sample."
    )


@unit.task("Loader D")
def d(cause: Any, cured: Callable[[], Any], sick: Callable[[], Any]) -> str:
    """A collate function with loops."""
    _diagnosis(
        cause, {"collate"}, "the samples are made quickly. What happens to them then?"
    )
    batches, records = _epoch(cured)
    expected, before = _epoch(sick)
    for made, right in zip(
        map(np.asarray, batches), map(np.asarray, expected), strict=False
    ):
        if (made.dtype, made.shape) != (right.dtype, right.shape):
            raise Hint(
                f"a batch was {right.dtype}, {right.shape}, and now it is {made.dtype}, {made.shape}."
            )
        if not np.array_equal(made, right):
            raise Hint("the batches are not the same.")
    if len(batches) != len(expected):
        raise Hint(
            f"there were {len(expected)} batches, and now there are {len(batches)}."
        )
    new, old = (
        min(r.collate_cpu for r in rs if r.collate_cpu is not None) / 1e6
        for rs in (records, before)
    )
    if new > old / 3:
        raise Hint(f"collating a batch takes {new:.2f} ms of a core, and took {old:.2f} ms: as much work as before, "
                   "whoever does it. One NumPy call can do it without a loop over elements.")  # fmt: skip
    return f"Collating takes {new:.2f} ms of a core instead of {old:.2f} ms."


@unit.task("Loader E")
def e(cause: Any, cured: Callable[[], Any], images: np.ndarray[Any, Any]) -> str:
    """Batches of float64."""
    _diagnosis(
        cause,
        {"huge_batches", "workers_compute"},
        "multiply: 16 images, 3 x 256 x 256, 8 bytes each.",
    )
    batches, records = _epoch(cured)
    times = records[0].nbytes / (16 * images[0].nbytes)
    if times > 1:
        raise Hint(f"a batch has {records[0].nbytes / 1e6:.1f} MB, {times:.0f} times the bytes of the stored images. "
                   "Which conversion can the loop do itself?")  # fmt: skip
    made = [batch.float() / 255 for batch in batches]
    right = torch.from_numpy(images).float() / 255
    if len(made) != 12 or not all(torch.equal(batch, right) for batch in made):
        raise Hint(
            "after `batch.float() / 255` the images differ: something was lost before, or done twice."
        )
    return (
        f"{records[0].nbytes / 1e6:.1f} MB for each batch, instead of {8 * records[0].nbytes / 1e6:.1f} MB. Both words "
        "are right: the verdict says where the time goes, into computing, and the number of bytes says why."
    )


@unit.task("Loader F")
def f(cause: Any, cured: Callable[[], Any]) -> str:
    """Batches of Python objects."""
    _diagnosis(
        cause,
        {"pickle"},
        "a batch is a list of dicts of lists. How does that get to another process?",
    )
    batches, records = _epoch(cured)
    if len(batches) != 200:
        raise Hint(f"there were 200 batches, and now there are {len(batches)}.")
    for at, batch in enumerate(batches):
        if not isinstance(batch, dict) or set(batch) != {"id", "values"}:
            raise Hint(
                f"a batch should be a dict with 'id' and 'values', and it is {type(batch).__name__}."
            )
        if not all(hasattr(batch[name], "shape") for name in batch):
            raise Hint(f"'values' is {type(batch['values']).__name__}: one array with a row for each sample is needed. "
                       "A list of numbers in a sample is taken for a hundred separate fields.")  # fmt: skip
        ids = np.arange(20 * at, 20 * at + 20)
        if np.asarray(batch["id"]).tolist() != ids.tolist():
            raise Hint(f"the ids of batch {at} are {np.asarray(batch['id']).tolist()}.")
        if tuple(batch["values"].shape) != (20, 100):
            raise Hint(
                f"'values' has the shape {tuple(batch['values'].shape)}: a row for each sample is (20, 100)."
            )
        if not np.allclose(
            np.asarray(batch["values"]), ids[:, None] + np.arange(100) / 100
        ):
            raise Hint("the values are not the same.")
    pickled = max(record.pickled for record in records)
    if pickled > 2000:
        raise Hint(f"{pickled:,} bytes of a batch are still pickled.")
    return f"{pickled} bytes of a batch are pickled, and {records[0].nbytes:,} lie in arrays."


@unit.task("Loader G")
def g(cause: Any, cured: Callable[[], Any], sick: Callable[[], Any]) -> str:
    """A sampler with quadratic work."""
    _diagnosis(
        cause,
        {"sampler"},
        "the samples are numbers in a list. Who needs a long time to say which one is next?",
    )
    CALLS.clear()
    batches, _records = _epoch(cured)
    weights = [(i * 7919) % 1000 for i in range(1000)]
    _same_numbers(
        batches, sorted(range(1000), key=lambda i: weights[i], reverse=True), 10
    )
    if CALLS["heaviest"] > 10:
        raise Hint(
            f"`heaviest` was called {CALLS['heaviest']} times, and it looks at all weights each time. Sort once."
        )
    new, old = (attempt(_drawing, make, limit=LIMIT) for make in (cured, sick))
    if new > old / 10:
        raise Hint(
            f"drawing the indices takes {1e3 * new:.3g} ms of a core, and took {1e3 * old:.3g} ms: something still "
            "searches for each index. Sort once."
        )
    return f"Drawing the indices takes {1e3 * new:.3g} ms of the loop's thread instead of {1e3 * old:.3g} ms."


def _drawing(make: Callable[[], Any]) -> float:
    """Seconds of a core for the indices of an epoch."""
    with make() as loader:
        begin = time.thread_time()
        list(loader.batch_sampler)
        return time.thread_time() - begin


@unit.task("Loader H")
def h(cause: Any, cured: Callable[[], Any]) -> str:
    """Every tenth sample is slow."""
    _diagnosis(cause, {"slow_samples"}, "what do the slowest samples have in common?")
    loader = attempt(cured)
    chosen = set(getattr(loader.dataset, "thumbnails", ()))
    left = [
        i for i in range(len(loader.dataset)) if attempt(loader.dataset.is_original, i)
    ]
    loader.close()
    if len(chosen) > 12:
        raise Hint(f"you make {len(chosen)} thumbnails, and have time for twelve.")
    if left:
        raise Hint(
            f"{len(left)} originals are still read, {left[:3]} among them: each delays its whole batch."
        )
    batches, _records = _epoch(cured)
    _same_numbers(batches, range(120), 5)
    return "No original is read any more."


@unit.task("Loader I")
def i(cause: Any, cured: Callable[[], Any], folder: Path) -> str:
    """Each epoch begins with a new copy of the dataset."""
    _diagnosis(
        cause, {"startup"}, "what does a worker do before its first sample of an epoch?"
    )
    (folder / "notes").unlink(missing_ok=True)

    def epochs() -> list[list[Any]]:
        with _made(cured) as loader:
            return [list(loader) for _ in range(3)]

    for batches in attempt(epochs, limit=LIMIT):
        _same_numbers(batches, [k * k for k in range(24)], 4)
    read = notes(folder)
    if read > 2:
        raise Hint(
            f"the index was read {read} times in three epochs. By default each epoch begins with the dataset as it is "
            "in the notebook, where the index is None. Which argument lets workers keep theirs?"
        )
    return f"The index was read {_times(read)} in three epochs."


@unit.task("Loader J")
def j(cause: Any, train: Callable[..., Any]) -> str:
    """The loop is slow."""
    _diagnosis(
        cause,
        {"consumer"},
        "the verdict compares the time of your loop with the time it waits.",
    )
    drawn: list[int] = []
    batches = [torch.arange(k, k + 4) for k in range(120)]
    losses = attempt(train, batches, lambda losses: drawn.append(len(losses)))
    if losses != [batch.sum().item() for batch in batches]:
        raise Hint(
            f"{len(losses) if hasattr(losses, '__len__') else losses!r} losses are kept, and 120 are needed."
        )
    if not drawn or drawn[-1] < 120:
        raise Hint(
            f"the last plot shows {drawn[-1] if drawn else 0} of 120 losses: draw once more at the end."
        )
    if len(drawn) > 12:
        raise Hint(
            f"the plot was drawn {len(drawn)} times for 120 batches. Nobody looks at all of them."
        )
    return f"The plot was drawn {_times(len(drawn))}. No change of the loader could have helped."


@unit.task("Proof")
def prove(
    predicted: Any,
    function: Callable[..., Any],
    cured: Callable[[], Any],
    sick: Callable[[], Any],
) -> str:
    """`speedup(before, after)` compares the seconds of some epochs, and then those of loader A."""
    number(predicted, "how many times as fast loader A will be")
    for before, after, expected in (
        ([4.0, 4.4, 4.2], [2.0, 2.2, 2.1], 2.0),
        ([3.0, 3.1, 2.9], [1.5, 12.0, 1.5], 2.0),
        ([2.0, 2.0, 2.0], [4.0, 4.0, 4.0], 0.5),
    ):
        made = number(attempt(function, list(before), list(after)), "times")
        call = f"speedup({before}, {after})"
        if abs(made - expected) < 1e-9:
            continue
        if abs(made * expected - 1) < 1e-9:
            raise Hint(
                f"{call} is {made:.3g}: that is the share of the time that is left. Divide the other way round."
            )
        if abs(made - statistics.mean(before) / statistics.mean(after)) < 1e-9:
            raise Hint(
                f"{call} is {made:.3g}: one run was disturbed, and moves the mean. Which number stays the same?"
            )
        if abs(made - (statistics.median(before) - statistics.median(after))) < 1e-9:
            raise Hint(
                f"{call} is {made:.3g}: these are seconds that are saved. The answer is a ratio."
            )
        raise Hint(f"{call} is {expected:g}, and you return {made:.3g}.")
    try:
        _overlapping(cured)
    except Hint as hint:
        raise Hint(f"cure loader A first, since its check would say: {hint}") from None
    took: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(TURNS):
        took["before"].append(attempt(_seconds, sick, limit=LIMIT))
        took["after"].append(attempt(_seconds, cured, limit=LIMIT))
    said = ", ".join(
        f"{min(s):.2f} to {max(s):.2f} s {when}" for when, s in took.items()
    )
    if statistics.median(took["before"]) <= statistics.median(took["after"]):
        raise Hint(
            f"your loader A is not faster: {said}. Run it again on a quiet machine, or look at it again."
        )
    return (
        f"Your loader A is {attempt(function, *took.values()):.1f} times as fast: {said}, in {TURNS} epochs each. You "
        f"predicted {predicted:g}, and `what_if` is above."
    )


def _seconds(make: Callable[[], Any]) -> float:
    """How long an epoch takes."""
    with make() as loader:
        begin = time.perf_counter()
        for _batch in loader:
            pass
        return time.perf_counter() - begin

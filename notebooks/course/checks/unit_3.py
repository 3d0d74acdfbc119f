"""Checks of unit 3: break it, and fix it while you watch."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from nbloader import DataLoader
from nbloader.events import WorkerDied, WorkerLeaving
from nbloader.metrics.snapshot import Snapshot

from . import Hint, Unit, attempt, choices, number
from .worker_side import Hangs, Straggler

unit = Unit()
progress = unit.progress

PATIENCE = 60.0
"""Seconds that workers may take to start and work on a busy machine."""
AFTER = 10.0
"""Seconds after which a loader has noticed the request of a restart, on a busy machine, too."""


@unit.task("3.1 A deadlock")
def deadlock(state: Any, *, measured: Snapshot) -> str:
    """`state` predicts what the loader shows while two workers wait for each other."""
    choices(
        state,
        {
            "delivered": measured.batches_done,
            "failed": measured.deaths + measured.errors,
            "busy": sum(worker.batch is not None for worker in measured.workers),
        },
        {
            "delivered": "a batch is delivered when its sample has both locks. Who lets go of one?",
            "failed": "waiting is no error. Each worker does exactly what its code says.",
            "busy": "from outside a worker that waits for a lock looks like one that works: it has a batch.",
        },
    )
    return "No error, no end, and two busy workers: a deadlock looks like slow work."


@unit.task("3.2 Repair the deadlock")
def ordered(locking_order: Callable[[list[str]], Any]) -> str:
    """`locking_order(names)` puts locks into one order for everyone."""
    names = ["labels", "images", "masks", "index", "cache"]
    before: dict[tuple[str, str], list[str]] = {}
    """Two locks, in the order in which they are taken -> what was asked for."""
    for size in (2, 3):
        for asked in itertools.permutations(names, size):
            made = attempt(locking_order, list(asked))
            if not isinstance(made, (list, tuple)):
                raise Hint(
                    f"the function returned {made!r}: a list of names is needed. (`names.sort()` returns None.)"
                )
            if sorted(made) != sorted(asked):
                raise Hint(
                    f"a sample that needs {list(asked)} must lock all of them. You return {made}."
                )
            for pair in itertools.combinations(made, 2):
                before.setdefault(pair, list(asked))
    for (first, second), asked in before.items():
        if (second, first) in before:
            raise Hint(
                f"asked for {asked} you lock {first!r} before {second!r}, and asked for "
                f"{before[second, first]} you lock {second!r} first. Two such workers can wait for each other. The "
                "order must not depend on how the names were given."
            )
    return "No two samples lock in different orders, so nobody waits in a circle."


@unit.task("3.3 Lost order")
def order(wrong_labels: Any, *, measured: int) -> str:
    """`wrong_labels` is the number of batches with labels of another one."""
    answer = number(wrong_labels, "batches")
    if answer == measured:
        return (
            f"All {measured}: one late batch shifts the labels of every batch after it."
        )
    if answer == 0:
        raise Hint(
            "the loop counts batches as they arrive, and the first to arrive is not batch 0."
        )
    if answer == 1:
        raise Hint(
            "batch 0 comes last and gets the last labels. But which batch got the labels of batch 0?"
        )
    if answer == measured - 1:
        raise Hint(
            "nine batches are shifted by one place. And which labels are left for the tenth?"
        )
    raise Hint(
        f"it was not {answer:g}. Write down the numbers of the batches as they arrive, and count beside them."
    )


@unit.task("3.4 Repair the order")
def indexed(cls: Callable[[Any], Any]) -> str:
    """`WithIndex(dataset)` gives pairs of index and sample."""
    letters = [chr(ord("a") + i) for i in range(20)]
    dataset = attempt(cls, letters)
    if attempt(len, dataset) != len(letters):
        raise Hint(
            f"its length is {len(dataset)}, and that of the dataset inside {len(letters)}."
        )
    asked = random.Random(1).sample(range(20), 20)
    for i in asked:
        made = attempt(dataset.__getitem__, i)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise Hint(f"sample {i} is {made!r}: it should be a pair.")
        if made[1] == i:
            raise Hint(f"sample {i} is {made!r}: the index comes first.")
        if made[1] != letters[i]:
            raise Hint(
                f"sample {i} is {made!r}, and the dataset inside has {letters[i]!r} there."
            )
        if made[0] != i:
            raise Hint(
                f"sample {i} came with the number {made[0]}. Samples are read in any order and by several workers, so "
                "counting does not tell which one it is."
            )
    return "Whatever the order, each sample says which one it is."


@unit.task("3.5 A leak in the loop")
def leak(times_more: Any, *, measured: float) -> str:
    """`times_more` is the ratio of the memory that views keep alive to their own size."""
    answer = number(times_more, "times")
    if answer == round(measured):
        return f"{round(measured)} times: each view keeps its whole batch."
    if answer == 1:
        raise Hint(
            "that is what copies would need. A view has no memory of its own: it keeps that of the batch."
        )
    if answer in (6, 32 * 6):
        raise Hint(
            "the number of batches does not matter: there is one view for each of them."
        )
    raise Hint(
        f"not {answer:g}. How many images does the memory hold that one view keeps alive?"
    )


@unit.task("3.6 Repair the leak")
def keep(first_image: Callable[[Any], Any], images: torch.Tensor) -> str:
    """`first_image(images)` returns a copy of the first image."""
    made = attempt(first_image, images)
    if not isinstance(made, torch.Tensor):
        raise Hint(f"it returned {type(made).__name__}, not a tensor.")
    if made.shape != images.shape[1:]:
        raise Hint(
            f"an image has the shape {tuple(images.shape[1:])}, and you return {tuple(made.shape)}."
        )
    if made.dtype != images.dtype:
        raise Hint(f"the image is {images.dtype}, and you return {made.dtype}.")
    if not torch.equal(made, images[0]):
        raise Hint("that is not the first image.")
    if made.untyped_storage().nbytes() > made.nbytes:
        raise Hint(
            f"the image needs {made.nbytes} bytes, and its storage has {made.untyped_storage().nbytes()}: it is still "
            "a view of a whole batch. Detaching, slicing and contiguous() copy nothing here, and copy.deepcopy copies "
            "the storage of all images."
        )
    return "A copy of one image: the batch can go."


@unit.task("3.7 A leak in the dataset")
def bounded(cls: Callable[..., Any]) -> str:
    """`Cache(read, limit)` keeps the results that were used last."""
    calls: list[int] = []

    def read(i: int) -> str:
        calls.append(i)
        return f"sample {i}"

    def use(cache: Any, *indices: int) -> list[int]:
        """The indices for which `read` was called."""
        calls.clear()
        for i in indices:
            if (made := cache[i]) != f"sample {i}":
                raise Hint(
                    f"cache[{i}] returned {made!r}, and read({i}) {f'sample {i}'!r}."
                )
        return list(calls)

    def story() -> None:
        cache = cls(read, 3)
        if use(cache, 1, 1, 1) != [1]:
            raise Hint(
                f"cache[1] was used three times, and read was called {len(calls)} times."
            )
        use(cache, *range(10))
        if len(cache) > 3:
            raise Hint(
                f"the limit is 3, and after ten samples the cache keeps {len(cache)}: it is the leak itself."
            )
        if 9 in use(cache, 9):
            raise Hint(
                "sample 9 was the last one that was used, and it is gone. The newest must not make way."
            )
        again = use(cache, 7, 8)
        if again:
            raise Hint(
                f"of 0 to 9, the last three stay, but {again} had to be read again. Only one goes at a time."
            )
        use(cache, 7, 8, 9, 7)  # 8 was used longest ago
        use(cache, 5)
        if 7 in use(cache, 7):
            raise Hint(
                "the cache had 7, 8, 9, and 7 was used again. Then 5 came, and 7 had to go, because it was *added* "
                "first. The one that was *used* longest ago was 8."
            )
        if 8 not in use(cache, 8):
            raise Hint("8 was used longest ago and should be gone.")
        for limit in (1, 5):
            cache = cls(read, limit)
            use(cache, *range(10))
            if len(cache) > limit or use(cache, *range(10 - limit, 10)):
                raise Hint(
                    f"with a limit of 3 your cache keeps what it should, but with a limit of {limit} it keeps "
                    f"{len(cache)} of ten samples, or others than the last ones."
                )

    attempt(story)
    return "It never grows beyond its limit, and keeps what is used."


@unit.task("3.8 The straggler")
def straggler(slow_sample: Any) -> str:
    """`slow_sample` is the index of the slow sample."""
    answer = number(slow_sample, "the index of the sample")
    if answer == Straggler.newest:
        return (
            f"Sample {answer}. Now you would look at it: its size, its file, its disk."
        )
    if answer == Straggler.newest // 8:
        reason = f"{answer:g} is the number of the batch. Eight samples are in it: which one was slow?"
    elif answer in (0, 1):
        reason = (
            f"{answer:g} is a worker. It is not slow: it only had this sample to read."
        )
    else:
        reason = f"sample {answer:g} is not the slow one."
    # A sample may happen to have the number of the batch or of a worker, so all answers need the question.
    raise Hint(f"{reason} How is stats.slowest sorted?")


@unit.task("3.9 A rescue in code")
def rescue(function: Callable[[Any], Any]) -> str:
    """`rescue(loader)` restarts the worker that hangs, and no other."""
    hanging = 2
    dataset = Hangs(24, worker=hanging)
    numbers: list[int] = []
    ended: list[int] = []
    requested, restarted = threading.Event(), threading.Event()

    arguments: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 3,
        "prefetch_factor": 2,
        "output": "numpy",
    }
    with DataLoader(
        dataset, **arguments, persistent_workers=True
    ) as loader:  # no worker ends with the epoch

        def follow(event: Any) -> None:
            if (
                isinstance(event, (WorkerLeaving, WorkerDied))
                and event.worker == hanging
            ):
                requested.set()
            if isinstance(event, WorkerDied):
                ended.append(event.worker)
                if event.worker == hanging:
                    restarted.set()

        subscription = loader.events.subscribe(follow)
        loop = threading.Thread(
            target=lambda: numbers.extend(_numbers(loader)), daemon=True
        )
        loop.start()
        _until(lambda: dataset.hung.exists() and _only_one_is_busy(loader.stats()))
        try:
            attempt(function, loader)
            if requested.wait(AFTER) and restarted.wait(PATIENCE):
                loop.join(PATIENCE)
        finally:
            subscription.close()
            loader.close()
            loop.join(PATIENCE)
            dataset.cleanup()
    if not ended:
        raise Hint("no worker was restarted: the loop still waits.")
    if hanging not in ended:
        raise Hint(
            f"worker {hanging} had its batch for the longest time, and you restarted {sorted(set(ended))}: the loop "
            "still waits. Which worker has a batch at all?"
        )
    if len(set(ended)) > 1:
        raise Hint(
            f"you restarted the workers {sorted(set(ended))}, and only worker {hanging} hung. The others lose what they"
            " have prepared, and their start takes time."
        )
    if numbers != list(range(24)):
        raise Hint(f"the loop got {len(numbers)} of 24 samples.")
    return f"Worker {hanging} was replaced, and the loop got every sample once and in order."


def _numbers(loader: Any) -> list[int]:
    made: list[int] = []
    # A loop may still wait when the loader is closed.
    with contextlib.suppress(RuntimeError):
        for batch in loader:
            made += batch.tolist()
    return made


def _only_one_is_busy(stats: Snapshot) -> bool:
    """Whether the loop waits for one worker, for so long that the others have produced all that they may."""
    busy = sum(
        worker.batch is not None or worker.queued > 0 for worker in stats.workers
    )
    return busy == 1 and (stats.waiting or 0) > 0.5


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)

"""Checks of unit 1: the path of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nbloader.events import BatchRecord
from nbloader.metrics.snapshot import Snapshot

from . import Hint, Unanswered, Unit, attempt, choices, number

unit = Unit()
progress = unit.progress

STAMPS = (
    "dispatched",
    "fetch_begin",
    "fetched",
    "collated",
    "received",
    "in_order",
    "delivered",
    "returned",
)
STAGES = ("queue", "fetch", "collate", "transport", "reorder", "ready", "step")


@unit.task("1.1 From a length to lists of indices")
def sampler(batches: Callable[[int, int, bool], Any]) -> str:
    """`batches(length, batch_size, drop_last)` returns the lists of indices of an epoch."""
    for length, size, drop_last in (
        (8, 4, False),
        (10, 4, False),
        (10, 4, True),
        (3, 5, False),
        (3, 5, True),
    ):
        made = attempt(batches, length, size, drop_last)
        call = f"batches({length}, {size}, {drop_last})"
        try:
            lists = [[int(index) for index in batch] for batch in made]
        except TypeError as error:
            raise Hint(
                f"{call} returned {made!r}: a list of lists of indices is needed."
            ) from error
        indices = [index for batch in lists for index in batch]
        if any(index >= length or index < 0 for index in indices):
            bad = max(indices, key=lambda index: max(index, -index * length))
            raise Hint(
                f"{call} has the index {bad}. A dataset of {length} samples has the indices 0 to {length - 1}."
            )
        if len(set(indices)) < len(indices):
            raise Hint(
                f"{call} contains an index twice: {lists}. Where does the next batch begin?"
            )
        if any(not batch for batch in lists):
            raise Hint(f"{call} contains an empty batch: {lists}.")
        rest = length % size
        if drop_last and rest and indices[-rest:] == list(range(length - rest, length)):
            raise Hint(f"{call} still has the incomplete last batch: {lists}.")
        if not drop_last and len(indices) < length:
            raise Hint(
                f"{call} loses {length - len(indices)} samples: {lists}. Only drop_last may do that."
            )
        expected = [
            list(range(at, min(at + size, length))) for at in range(0, length, size)
        ]
        if lists != (expected[: length // size] if drop_last else expected):
            raise Hint(
                f"{call} returned {lists}: each batch has {size} indices, in the order of the dataset."
            )
    return "The order of the indices is fixed before any sample is read: that is what makes an epoch repeatable."


@unit.task("1.2 From samples to a batch")
def collate(function: Callable[[list[Any]], Any]) -> str:
    """`collate(samples)` makes a pair of arrays from pairs."""
    samples = [(np.full((2, 3), i, np.uint8), i * 10) for i in range(4)]
    made = attempt(function, samples)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise Hint(
            f"the batch is a pair (images, labels), not {type(made).__name__} of {len(samples)} samples."
        )
    images, labels = made
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise Hint(
            f"images are {type(images).__name__} and labels {type(labels).__name__}: the loop needs one array of each, "
            "so that it can compute with all samples at once."
        )
    if images.shape != (4, 2, 3):
        raise Hint(
            f"four images of shape (2, 3) became an array of shape {images.shape}, not (4, 2, 3). np.concatenate joins "
            "along a dimension that exists. You need a new first dimension."
        )
    if images.dtype != np.uint8:
        raise Hint(
            f"uint8 images became {images.dtype}: {images.itemsize} times the memory, and all of it has to travel to "
            "the loop."
        )
    if labels.dtype.kind not in "iu":
        raise Hint(f"labels are whole numbers, and became {labels.dtype}.")
    if not np.array_equal(
        images, np.stack([image for image, _ in samples])
    ) or labels.tolist() != [0, 10, 20, 30]:
        raise Hint(
            "a sample has lost its label, or its place: image i and label i belong together."
        )
    return "Four small objects became two arrays."


@unit.task("1.3 What happens before you ask")
def window(ready: Any, *, measured: Snapshot) -> str:
    """`ready` is the number of batches in the full window."""
    answer, right = number(ready, "batches"), measured.ready
    if answer == right:
        return f"The window is full at {right} batches. A worker gets a new task when the loop takes a batch away."
    if answer == 0:
        raise Hint(
            "a loader that does nothing before it is asked is one without workers. These began at iter()."
        )
    if answer == 3:
        raise Hint(
            "that is one batch for each worker. What does prefetch_factor count?"
        )
    if answer == right * 4:
        raise Hint("that is the number of samples. The window counts batches.")
    if answer >= 100:
        raise Hint("that is the whole epoch. What would limit the memory then?")
    raise Hint(
        f"{answer:g} is not what the experiment shows. Multiply: workers, and batches for each of them."
    )


@unit.task("1.4 Four steps")
def step(ready_numbers: Any, *, measured: Snapshot) -> str:
    """`ready_numbers` are the numbers of the batches that are ready after four steps."""
    right = [made.number for made in measured.made if made.in_order]
    if not isinstance(ready_numbers, (list, tuple, range, np.ndarray)):
        raise Hint(
            f"the answer is a list of the numbers of batches, not {ready_numbers!r}."
        )
    answer = list(ready_numbers)
    if ... in answer:
        raise Unanswered("replace the dots in the list.")
    if answer == right:
        return (
            f"The loop took 4 batches, so 4 others were begun: "
            f"the window moves with the loop, and holds {len(right)}."
        )
    if sorted(answer) == right:
        raise Hint("these batches are right: list them in the order of the epoch.")
    if 0 in answer:
        raise Hint("batch 0 is no longer in the window: the loop has taken it.")
    if any(n in answer for n in range(4)):
        raise Hint(
            "the loop has taken four batches, beginning with number 0. What is left cannot contain them."
        )
    if len(answer) < len(right):
        raise Hint(
            "each step makes room for one batch, and the sampler has plenty: the window is full again."
        )
    if len(answer) > len(right):
        raise Hint(
            "the window does not grow: a batch is begun only when one is taken away."
        )
    raise Hint(
        f"the number of batches is right, but {answer} are not the next ones after the four that were taken."
    )


@unit.task("1.5 One batch is late")
def hold(late: Any, *, measured: Snapshot) -> str:
    """`late` are the numbers of batches in three places while batch 2 is held."""
    expected = {
        "ready": measured.ready,
        "in flight": measured.in_flight,
        "reordering": measured.reordering,
    }
    if isinstance(late, dict) and all(
        isinstance(value, int) for value in late.values()
    ):
        total = sum(late.values())
        if total != sum(expected.values()):
            raise Hint(
                f"your batches add up to {total}. All batches of the window are somewhere: how many does it hold?"
            )
        if late.get("ready") == 4:
            raise Hint(
                "four batches are finished, but is batch 3 ready for the loop while batch 2 is missing?"
            )
    choices(
        late,
        expected,
        {
            "ready": "only batches before the late one can be delivered. Their numbers are 0 and 1.",
            "in flight": "one sample is held. The other workers have time to finish, but its worker has another batch.",
            "reordering": "these are finished, and come after the late batch.",
        },
    )
    return "Two later batches are finished, but the loop must get batch 2 first. One is behind it in its worker."


@unit.task("1.6 Who overtook whom")
def overtakers(
    function: Callable[[Sequence[BatchRecord], int], Any],
    *,
    measured: Sequence[BatchRecord],
) -> str:
    """`overtakers(records, number)` returns the later batches that were received earlier."""
    received = {0: 10, 1: 50, 2: 20, 3: 60, 4: 40}
    made_up = [
        SimpleNamespace(index=i, received=at, in_order=60, delivered=70 + i)
        for i, at in received.items()
    ]
    for records, which, expected in (
        (made_up, 1, [2, 4]),
        (made_up, 3, [4]),
        (made_up, 0, []),
        (made_up[::-1], 1, [2, 4]),
    ):
        made = attempt(function, records, which)
        if isinstance(made, (set, tuple, np.ndarray)):
            made = sorted(made)
        if made == expected:
            continue
        times = ", ".join(f"batch {i} at {at}" for i, at in received.items())
        if isinstance(made, list) and 0 in made:
            raise Hint(
                f"batch 0 was received before batch {which}, but it is an earlier batch: it overtook nobody."
            )
        if isinstance(made, list) and which in made:
            raise Hint(
                f"a batch does not overtake itself: you return {made} for batch {which}."
            )
        if isinstance(made, list) and made != sorted(made):
            raise Hint(
                f"right batches, wrong order: {made}. Records need not be sorted."
            )
        raise Hint(
            f"received were {times}. You say that {made} overtook batch {which}. It was {expected}."
        )
    late = max(measured, key=lambda record: record.received - record.fetch_begin).index
    return f"In your experiment batches {attempt(function, measured, late)} overtook batch {late}."


@unit.task("1.7 Where the time went")
def stages(function: Callable[[Any], Any], *, measured: BatchRecord) -> str:
    """`stages(record)` returns the duration of each stage in milliseconds."""
    lengths = dict(zip(STAGES, (2, 30, 4, 1, 8, 16, 64), strict=True))
    at, stamps = 5_000_000, {"requested": 3_000_000, "dispatched": 5_000_000}
    for stamp, length in zip(STAMPS[1:], lengths.values(), strict=True):
        at += length * 1_000_000
        stamps[stamp] = at
    made = attempt(function, SimpleNamespace(**stamps))
    if not isinstance(made, dict) or set(made) != set(STAGES):
        raise Hint(f"the result is a dict with the keys {', '.join(STAGES)}.")
    for stage in STAGES:
        number(made[stage], f"milliseconds, also for {stage!r}")
    if all(abs(made[stage] - lengths[stage] * 1_000_000) < 1 for stage in STAGES):
        raise Hint("these are nanoseconds. A millisecond has a million of them.")
    if all(abs(made[stage] - lengths[stage] / 1000) < 1e-9 for stage in STAGES):
        raise Hint("these are seconds, not milliseconds.")
    ends = {
        stage: (stamps[stamp] - stamps["dispatched"]) / 1e6
        for stage, stamp in zip(STAGES, STAMPS[1:], strict=True)
    }
    if all(abs(made[stage] - ends[stage]) < 1e-6 for stage in STAGES):
        raise Hint(
            "you measure each stage from the dispatch. A stage begins where the one before it ends."
        )
    for before, stage, stamp in zip(STAMPS, STAGES, STAMPS[1:], strict=False):
        if abs(made[stage] - lengths[stage]) > 1e-6:
            raise Hint(f"{stage!r} lasts from {before} to {stamp}. For a made-up record you give {made[stage]:g} ms "
                       f"instead of {lengths[stage]} ms.")  # fmt: skip
    real = attempt(function, measured)
    return f"Batch {measured.index}: {', '.join(f'{stage} {real[stage]:.2f} ms' for stage in STAGES)}."


@unit.task("1.8 Was the loop slow, or the loader")
def waited(
    function: Callable[[Sequence[BatchRecord]], Any], *, measured: Sequence[BatchRecord]
) -> str:
    """`waited(records)` returns the share of the epoch in which the loop waited."""
    times = ((0, 60, 100), (100, 110, 200), (200, 230, 250))
    records = [
        SimpleNamespace(requested=a, delivered=b, returned=c, waited=b - a)
        for a, b, c in times
    ]
    made = number(attempt(function, records), "the share")
    if abs(made - 40) < 1e-9:
        raise Hint("that is in percent. The share is a number from 0 to 1.")
    if abs(made - 100) < 1e-9:
        raise Hint(
            "that is the time that the loop waited. Divide it by the duration of the epoch."
        )
    if abs(made - 0.6) < 1e-9:
        raise Hint(
            "that is the share in which the loop worked, or only the first batch."
        )
    if abs(made - sum((b - a) / (c - a) for a, b, c in times) / 3) < 1e-9:
        raise Hint(
            "that is the mean of the shares of the batches. A long step must count more than a short one."
        )
    if abs(made - 100 / 150) < 1e-9:
        raise Hint(
            "you divide by the time of the steps. The epoch lasts from the first request to the last return."
        )
    if abs(made - 0.4) > 1e-9:
        raise Hint(
            f"for three made-up batches you get {made:g}, and the loop waited 100 of 250 ns."
        )
    return (
        f"In your epoch the loop waited {attempt(function, measured):.0%} of the time."
    )

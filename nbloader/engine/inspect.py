"""Read from the dispatcher's state where each batch is, for a snapshot. Called on the loop's thread."""

from __future__ import annotations

import itertools
from typing import Any

from nbloader.batch.payload import BatchHeader
from nbloader.events.gauges import ProducedBatch
from nbloader.scheduler.dispatcher import Dispatcher
from nbloader.scheduler.iteration import Delivery, IterationState

LISTED = 64
"""Maximum number of batches to list per place; the first ones are listed."""


def newest_iteration(dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the fields of `Gauges` that describe the batches of the newest iteration."""
    if not dispatcher.iterations:
        return {}
    epoch = max(dispatcher.iterations)
    state = dispatcher.iterations[epoch]
    return {
        "epoch": epoch,
        "asked": requested(state),
        "made": arrived(state),
        "iterators": len(dispatcher.iterations),
    }


def requested(state: IterationState) -> tuple[int, ...]:
    """Return the numbers of the batches that wait for a worker, in order."""
    return tuple(sorted({task.number for task in itertools.islice(state.waiting, LISTED)}))


def arrived(state: IterationState) -> tuple[ProducedBatch, ...]:
    """Return the batches that have arrived and were not delivered: first those that are in order, then the others."""
    ready = [_made(delivery, in_order=True) for delivery in state.peek_ready(LISTED)]
    early = [_made(delivery, in_order=False) for delivery in state.reorder.peek_early(LISTED)]
    return (*ready, *early)


def _made(delivery: Delivery, *, in_order: bool) -> ProducedBatch:
    task, outcome = delivery.task, delivery.outcome
    header: BatchHeader | None = getattr(outcome, "header", None)  # an error that replaces a batch has no header
    return ProducedBatch(
        task.epoch,
        task.number,
        worker=getattr(outcome, "worker", -1),
        fetch_begin=0 if header is None else header.fetch_begin,
        fetched=0 if header is None else header.fetch_end,
        collated=0 if header is None else header.collate_end,
        received=getattr(outcome, "received", 0),
        in_order=task.in_order if in_order else 0,
    )

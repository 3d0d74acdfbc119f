"""Which batch is where: read from the dispatcher's state for a snapshot. Called with the engine's lock."""

from __future__ import annotations

import itertools
from typing import Any

from nbloader.batch.header import BatchHeader
from nbloader.events.gauges import ProducedBatch
from nbloader.scheduler.dispatcher import Dispatcher
from nbloader.scheduler.run_state import Delivery, IterationState

LISTED = 64
"""Batches to list per place, the first ones."""


def newest_iteration(dispatcher: Dispatcher[Any]) -> dict[str, Any]:
    """The fields of `Gauges` about the batches of the newest iteration."""
    if not dispatcher.iterations:
        return {}
    run = max(dispatcher.iterations)
    state = dispatcher.iterations[run]
    return {
        "run": run,
        "asked": requested(state),
        "made": arrived(state),
        "iterators": len(dispatcher.iterations),
    }


def requested(state: IterationState[Any]) -> tuple[int, ...]:
    """Numbers of the batches that no worker holds yet, in order."""
    return tuple(sorted({task.number for task in itertools.islice(state.waiting, LISTED)}))


def arrived(state: IterationState[Any]) -> tuple[ProducedBatch, ...]:
    """The batches that have arrived and were not delivered: first those that are in order, then the others."""
    ready = [_made(delivery, in_order=True) for delivery in state.reorder.peek(LISTED)]
    early = [_made(delivery, in_order=False) for delivery in state.reorder.peek_early(LISTED)]
    return (*ready, *early)


def _made(delivery: Delivery, *, in_order: bool) -> ProducedBatch:
    task, outcome = delivery.task, delivery.outcome
    header: BatchHeader | None = getattr(outcome, "header", None)  # an error in the place of a batch has none
    return ProducedBatch(
        task.run,
        task.number,
        worker=getattr(outcome, "worker", -1),
        fetch_begin=0 if header is None else header.fetch_begin,
        fetched=0 if header is None else header.fetch_end,
        collated=0 if header is None else header.collate_end,
        received=getattr(outcome, "received", 0),
        in_order=task.in_order if in_order else 0,
    )

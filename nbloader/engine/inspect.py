"""Reads from an engine's state where each batch is, for a snapshot. Called on the engine's thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from nbloader.batch.payload import BatchHeader
from nbloader.engine.receiver import Receiver
from nbloader.engine.worker_group import WorkerGroup
from nbloader.events.gauges import Gauges, ProducedBatch
from nbloader.scheduler.dispatcher import Dispatcher
from nbloader.scheduler.iteration import Delivery, IterationState

_clock = time.perf_counter_ns

LISTED = 64
"""Maximum number of batches to list per place; the first ones are listed."""


def gauges(
    dispatcher: Dispatcher, group: WorkerGroup, receivers: Mapping[int, Receiver], *, state: str, window: int
) -> Gauges:
    """Return the current state of an engine and its workers. Never runs user code.

    Args:
        dispatcher: Where the batches are.
        group: The workers.
        receivers: The consumers of open iterations, by epoch.
        state: Name of the loader's state.
        window: Number of batches that may be outstanding.
    """
    iterations = dispatcher.iterations.values()
    awaited = next(filter(None, [receiver.awaited for receiver in receivers.values()]), None)
    return Gauges(
        now=_clock(),
        state=state,
        window=window,
        in_flight=sum(iteration.in_flight for iteration in iterations),
        reordering=sum(iteration.reorder.reordering for iteration in iterations),
        ready=sum(len(iteration.ready) for iteration in iterations),
        waiting_since=None if awaited is None else awaited.since,
        waiting_for=None if awaited is None else awaited.number,
        workers=tuple(group.gauges()),
        **_newest_iteration(dispatcher, group, receivers),
    )


def _newest_iteration(dispatcher: Dispatcher, group: WorkerGroup, receivers: Mapping[int, Receiver]) -> dict[str, Any]:
    """Return the fields of `Gauges` that describe the newest iteration."""
    if not dispatcher.iterations:
        return {}
    epoch = max(dispatcher.iterations)
    state = dispatcher.iterations[epoch]
    fields: dict[str, Any] = {
        "epoch": epoch,
        "asked": requested(state),
        "made": arrived(state),
        "iterators": len(dispatcher.iterations),
    }
    receiver = receivers.get(epoch)
    if receiver is not None and receiver.last is not None:
        fields["delivered"] = receiver.state.taken
        if receiver.awaited is None:
            fields["at"] = receiver.last.number
            fields["at_since"] = _clock() - round((time.monotonic() - receiver.taken_at) * 1e9)
    if not fields.get("delivered"):
        fields["fetching"] = group.fetching()
    return fields


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
        fetched=0 if header is None else header.fetched,
        collated=0 if header is None else header.collated,
        received=getattr(outcome, "received", 0),
        in_order=task.in_order if in_order else 0,
    )

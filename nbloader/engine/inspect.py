"""Where each batch is now: read from the dispatcher's state when a picture is asked for. Called with the lock."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

from nbloader.batch.header import BatchHeader
from nbloader.batch.task import Task
from nbloader.events.gauges import ProducedBatch
from nbloader.scheduler.dispatcher import Dispatcher
from nbloader.scheduler.run_state import IterationState

SHOWN = 64
"""Batches that are told of one place, the first ones."""
HELD = 8
"""Of one worker."""


def asked_of(run: IterationState[Any]) -> tuple[int, ...]:
    """The batches that no worker has been given yet, in order."""
    return tuple(sorted({task.number for _job, task in run.waiting[:SHOWN]}))


def made_of(run: IterationState[Any]) -> tuple[ProducedBatch, ...]:
    """The batches that have come and not gone to the consumer: first those that are in order, then the others."""
    ready = ((True, item) for item in itertools.islice(run.reorder._ready, SHOWN))
    early = ((False, item) for item in itertools.islice(run.reorder._early.values(), SHOWN))
    return tuple(_made(in_order, task, payload) for in_order, (task, payload) in itertools.chain(ready, early))


def _made(in_order: bool, task: Task, payload: Any) -> ProducedBatch:
    header: BatchHeader | None = getattr(payload, "header", None)
    begin, fetched, collated = 0, 0, 0  # a failure was not made
    if header is not None:
        begin, fetched, collated = header.fetch_begin, header.fetch_end, header.collate_end
    received = getattr(payload, "received", 0)
    ordered = task.in_order if in_order else 0
    worker = getattr(payload, "worker", -1)
    return ProducedBatch(task.run, task.number, worker, begin, fetched, collated, received, ordered)


def numbers_of(held: list[Task], open_runs: Collection[int]) -> tuple[int, ...]:
    """The batches that a worker holds and somebody still wants, the first of them."""
    return tuple(dict.fromkeys(task.number for task in held[:HELD] if task.run in open_runs))


def batches_of(dispatcher: Dispatcher[Any]) -> dict[str, Any]:
    """What `snapshot.Gauges` says of the newest run's batches."""
    if not dispatcher.runs:
        return {}
    number = max(dispatcher.runs)
    run = dispatcher.runs[number]
    return {"run": number, "asked": asked_of(run), "made": made_of(run), "iterators": len(dispatcher.runs)}

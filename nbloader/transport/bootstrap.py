"""What a worker process receives when it starts: the dataset, the notebook's environment, and the worker's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbloader.transport.dataset_payload import Files
from nbloader.transport.environment import Environment
from nbloader.transport.mp_objects import InheritedState

if TYPE_CHECKING:  # not needed by workers of a map-style dataset
    from nbloader.sampling.shard_plan import IterableOptions


class WorkerStart(NamedTuple):
    """The options of a worker."""

    worker: int
    """Worker id."""
    num_workers: int
    seed: int
    batched: bool
    output: str
    """"torch" or "numpy": what the arrays of a batch become."""
    streaming: IterableOptions | None
    """Options of an iterable dataset; None for a map-style dataset."""
    concurrency: int
    """Maximum number of samples of an asynchronous dataset that are fetched at a time."""
    seeders: bytes
    """The functions that seed objects for each batch (`workers.seeders`)."""


class InitMessage(NamedTuple):
    """The body of the `INIT` frame, pickled. A forked worker needs none: it inherits the objects."""

    start: WorkerStart
    environment: Environment
    inherited: InheritedState
    files: Files
    """The files of the dataset's large arrays; the descriptors are sent along."""
    payload: bytes
    """Pickle of (dataset, collate_fn, worker_init_fn, on_error)."""
